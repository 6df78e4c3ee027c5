"""Sending on a blocking socket within a time, for both ends of a connection.

`settimeout` and `sendall` would do the same with two more system calls, and would change the mode
of a socket that another thread may be reading.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Final

# The most that poll(2) takes, 24 days.
MAX_POLL_MS: Final = 2**31 - 1


def send_all(sock: socket.socket, data: bytes, patience_s: float | None) -> None:
    """Send all of `data` in at most `patience_s` seconds, None for ever: one system call where the
    other end has room for it. Raises TimeoutError, and OSError when the other end is gone."""
    sent = _send_now(sock, data)
    if sent == len(data):
        return
    rest = memoryview(data)[sent:]
    deadline = None if patience_s is None else time.monotonic() + patience_s
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    while rest:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise TimeoutError("the other end does not read")
        # Rounded up, so that what is left is not waited for in a loop.
        poll.poll(None if left_s is None else min(int(left_s * 1000) + 1, MAX_POLL_MS))
        rest = rest[_send_now(sock, rest) :]


def _send_now(sock: socket.socket, data: bytes | memoryview) -> int:
    """How many bytes there was room for."""
    try:
        return sock.send(data, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0

"""Sending a descriptor's bytes as the rest of a request's body while the reply already comes."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from typing import Final

from stockade.edge.http1 import LAST_CHUNK, chunk

_BLOCK: Final = 64 * 1024


class StdinPump:
    """Copies until the descriptor's end of file, or until `stop`. Takes no byte from the
    descriptor after `stop`, so that what the program did not get is left for others."""

    def __init__(self, connection: socket.socket, source: int) -> None:
        self._socket = connection.dup()
        self._source = source
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="stockade-stdin", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the copying and closes what it used. The connection can't be used after it."""
        os.write(self._wake_write, b"x")
        # Wakes a send that blocks because the program does not read.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wake_read in ready:
                return
            data = os.read(self._source, _BLOCK)
            try:
                self._socket.sendall(chunk(data) if data else LAST_CHUNK)
            except OSError:
                return  # the daemon stopped reading; its reply says how the call ended
            if not data:
                return

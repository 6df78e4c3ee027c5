"""Requests from a blocking socket: what has come is parsed, what hasn't is waited for, bounded.

How long a read may take is the kernel's to watch (SO_RCVTIMEO): a timeout of Python's costs a poll
before each read, and another call to set it. What a client sends ahead of a reply is kept in order.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final

from stockade.edge.http1 import FIRST_BYTES, READ_BYTES, Collector, Message
from stockade.edge.sending import send_all

# Idle connections cost a thread; closing one while a client writes would put a call in doubt.
IDLE_S: Final = 3600
# Between two pieces of one request.
PATIENCE_S: Final = 60

_TIMEVAL: Final = struct.Struct("@ll")


class ClientGone(Exception):
    """The connection ended, or nothing came for too long, in the middle of a message."""


class MessageReader:
    """Reads the messages of one connection. Used by one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._collector = Collector()
        self._messages = self._collector.messages
        self._patience_s = 0

    def next(self) -> Message | None:
        """The next request with a complete head, None when the client has ended the connection
        between two. Raises BadMessage, ClientGone."""
        while not (self._messages and self._messages[0].head_complete):
            between = not self._messages
            if not self._feed(*((FIRST_BYTES, IDLE_S) if between else (READ_BYTES, PATIENCE_S))):
                if between:
                    return None
                raise ClientGone("the connection ended in the middle of a head")
        return self._messages[0]

    def done(self, message: Message) -> None:
        """The message is answered; forget it."""
        assert self._messages[0] is message
        self._messages.popleft()

    def body(self, message: Message) -> Iterator[bytes]:
        """Chunk by chunk. Raises ClientGone when it ends before its end, BadMessage."""
        if message.headers.get("expect", "").lower() == "100-continue":
            send_all(self._sock, b"HTTP/1.1 100 Continue\r\n\r\n", PATIENCE_S)
        while True:
            while message.chunks:
                yield message.chunks.popleft()
            if message.complete:
                return
            if not self._feed(READ_BYTES, PATIENCE_S):
                raise ClientGone("the connection ended in the middle of a body")

    def _feed(self, size: int, patience_s: int) -> bool:
        """Read once; False at the end of the stream."""
        try:
            if patience_s != self._patience_s:
                timeval = _TIMEVAL.pack(patience_s, 0)
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
                self._patience_s = patience_s
            data = self._sock.recv(size)
        except BlockingIOError as error:
            raise ClientGone("nothing came for too long") from error
        except OSError as error:
            raise ClientGone(str(error)) from error
        if not data:
            return False
        self._collector.feed(data)
        return True

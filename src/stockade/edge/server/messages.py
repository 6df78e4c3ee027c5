"""HTTP/1.1 messages from a blocking socket. The home of httptools, which does the parsing.

The parser is fed what the socket gives and calls back with pieces; they are collected per message,
so that what a client sends ahead of a reply is kept in order. Heads are bounded here, bodies by
whoever reads them: `body` gives chunks and blocks for the next one.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import httptools

_READ_BYTES: Final = 256 * 1024
# A token of 16 blocks and a percent-encoded path of 4,096 bytes fit.
_MAX_HEAD_BYTES: Final = 256 * 1024
# Idle connections cost a thread; closing one while a client writes would put a call in doubt.
IDLE_S: Final = 3600.0
# Between two pieces of one request.
PATIENCE_S: Final = 60.0


class BadMessage(Exception):
    """What came is not HTTP, or its head is too long."""


class ClientGone(Exception):
    """The connection ended, or nothing came for too long, in the middle of a message."""


@dataclass(slots=True)
class Message:
    """One request. `headers` have lower-case names; the last of a repeated name counts."""

    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    keep_alive: bool = True
    version: str = "1.1"
    head_complete: bool = False
    complete: bool = False
    chunks: deque[bytes] = field(default_factory=deque)


class MessageReader:
    """Reads the messages of one connection. Used by one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._messages: deque[Message] = deque()
        self._head_bytes = 0
        self._parser = httptools.HttpRequestParser(self)

    def next(self) -> Message | None:
        """The next request with a complete head, None when the client has ended the connection
        between two. Raises BadMessage, ClientGone."""
        while not (self._messages and self._messages[0].head_complete):
            between = not self._messages
            self._sock.settimeout(IDLE_S if between else PATIENCE_S)
            if not self._feed():
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
        self._sock.settimeout(PATIENCE_S)
        if message.headers.get("expect", "").lower() == "100-continue":
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            while message.chunks:
                yield message.chunks.popleft()
            if message.complete:
                return
            if not self._feed():
                raise ClientGone("the connection ended in the middle of a body")

    def _feed(self) -> bool:
        """Read once; False at the end of the stream."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except TimeoutError as error:
            raise ClientGone("nothing came for too long") from error
        except OSError as error:
            raise ClientGone(str(error)) from error
        if not data:
            return False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            raise BadMessage(str(error)) from error
        return True

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._messages.append(Message())
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(url)
        self._messages[-1].target += url.decode("ascii", "surrogateescape")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        text = value.decode("latin-1")
        self._messages[-1].headers[name.decode("latin-1").lower()] = text

    def on_headers_complete(self) -> None:
        message = self._messages[-1]
        message.method = self._parser.get_method().decode("ascii")
        message.keep_alive = self._parser.should_keep_alive()
        message.version = self._parser.get_http_version()
        message.head_complete = True

    def on_body(self, body: bytes) -> None:
        self._messages[-1].chunks.append(body)

    def on_message_complete(self) -> None:
        self._messages[-1].complete = True

    def _count(self, part: bytes) -> None:
        self._head_bytes += len(part)
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise ValueError("the head is too long")

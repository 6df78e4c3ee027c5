"""HTTP/1.1 messages out of the bytes of a connection, for both ends. The home of httptools.

The parser (llhttp, in C) calls back with pieces; they are collected per message, so that what comes
ahead of its turn is kept in order. Heads are bounded here, bodies by whoever takes them out of
`chunks`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import httptools

from stockade.edge.exchange import HEADERS

# Most messages are one read; a buffer of this size is taken from the heap, a large one is mapped.
FIRST_BYTES: Final = 16 * 1024
READ_BYTES: Final = 256 * 1024
LAST_CHUNK: Final = b"0\r\n\r\n"
# A token of 16 blocks and a percent-encoded path of 4,096 bytes fit.
_MAX_HEAD_BYTES: Final = 256 * 1024


def chunk(data: bytes) -> bytes:
    """One chunk of chunked transfer coding; `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class BadMessage(Exception):
    """What came is not HTTP, or its head is too long."""


@dataclass(slots=True)
class Message:
    """A request (`method`, `target`) or a reply (`status`). `headers` have lower-case names; the
    last of a repeated name counts; none of ours may be repeated. `version` and `keep_alive` hold
    once the head is complete."""

    method: str = ""
    target: str = ""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    keep_alive: bool = True
    version: str = "1.1"
    head_complete: bool = False
    complete: bool = False
    chunks: deque[bytes] = field(default_factory=deque)

    def take(self) -> bytes:
        """What has come of the body and was not taken yet."""
        if len(self.chunks) == 1:
            return self.chunks.popleft()
        data = b"".join(self.chunks)
        self.chunks.clear()
        return data


class Collector:
    """The messages of one direction of a connection, oldest first: replies for a client, requests
    for a server. Whoever is done with one removes it. Used by one thread at a time."""

    def __init__(self, *, replies: bool = False) -> None:
        self.messages: Final[deque[Message]] = deque()
        self._head_bytes = 0
        made = httptools.HttpResponseParser if replies else httptools.HttpRequestParser
        self._parser: Final = made(self)

    def feed(self, data: bytes) -> None:
        """Raises BadMessage; nothing may be fed after it."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            raise BadMessage(str(error)) from error

    # Called by the parser.

    def on_message_begin(self) -> None:
        self.messages.append(Message())
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        self.messages[-1].target += url.decode("ascii", "surrogateescape")

    def on_status(self, reason: bytes) -> None:
        self._count(len(reason))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        headers, known = self.messages[-1].headers, name.decode("latin-1").lower()
        if known in HEADERS and known in headers:
            # Whoever looks at the first one and whoever looks at the last would see two callers.
            raise ValueError(f"the header {known} is there twice")
        headers[known] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        message = self.messages[-1]
        if isinstance(self._parser, httptools.HttpResponseParser):
            message.status = self._parser.get_status_code()
        else:
            message.method = self._parser.get_method().decode("ascii")
        message.keep_alive = self._parser.should_keep_alive()
        message.version = self._parser.get_http_version()
        message.head_complete = True

    def on_body(self, body: bytes) -> None:
        self.messages[-1].chunks.append(body)

    def on_message_complete(self) -> None:
        self.messages[-1].complete = True

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise ValueError("the head is too long")

"""One HTTP connection on a unix socket, and what its failures mean.

`NotSent` is raised only while the daemon can't have the whole request, so nothing ran and sending
again is right. Everything after that is `ReplyLost`: it may have run.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final

from stockade.edge import http1
from stockade.edge.sending import MAX_POLL_MS, send_all

_CONNECT_S: Final = 5


class NotSent(Exception):
    """The daemon never got the whole request: nothing ran."""


class ReplyLost(Exception):
    """The request was sent and no whole reply came: it may have run."""


@dataclass(frozen=True, slots=True)
class Message:
    """`target` is the raw path with its query. An upload's `body` is an open file of `length`
    bytes. With `more` the body goes on after `body` (a program's stdin). `silence_s` bounds how
    long the connection may be silent; None is for ever."""

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | BinaryIO = b""
    length: int | None = None
    more: bool = False
    silence_s: float | None = 60.0


def _timeval(seconds: int) -> bytes:
    return struct.pack("@ll", seconds, 0)


class Connection:
    """One connection, for one exchange after another: `transmit`, `head`, then `piece` until it is
    empty. A request's head and body go out in one piece, so that the daemon wakes once."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel's own timeout: with Python's the socket is non-blocking, and is refused
            # at once where the daemon's backlog is full. Each later wait has a bound of its own.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(_CONNECT_S))
            self.socket.connect(path)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(0))
        except OSError as error:
            self.socket.close()
            raise NotSent(f"{path}: {_say(error)}") from error
        self._readable = select.poll()
        self._readable.register(self.socket, select.POLLIN)
        self._replies = http1.Collector(replies=True)

    def usable(self) -> bool:
        """An idle connection has nothing to read; an end of file means that it is dead."""
        return not self._readable.poll(0)

    def transmit(self, message: Message) -> None:
        """Send all of the request. Raises NotSent, unless the daemon answered before it had read
        everything: it refused, and `head` tells why."""
        head, patience_s = _head(message), message.silence_s
        try:
            if message.more and isinstance(message.body, bytes):
                send_all(self.socket, head + http1.chunk(message.body), patience_s)
            elif isinstance(message.body, bytes):
                send_all(self.socket, head + message.body, patience_s)
            else:
                send_all(self.socket, head, patience_s)
                for block in blocks(message.body):
                    send_all(self.socket, block, patience_s)
        except OSError as error:
            if not self._answered():
                self.close()
                raise NotSent(_say(error)) from error

    def head(self, silence_s: float | None) -> http1.Message:
        """The reply with its head. Raises ReplyLost."""
        messages = self._replies.messages
        while not (messages and messages[0].head_complete):
            self._feed(http1.FIRST_BYTES, silence_s)
        return messages[0]

    def piece(self, reply: http1.Message, silence_s: float | None) -> bytes:
        """The next bytes of its body, as they come; empty only at its true end. Raises
        ReplyLost."""
        while not reply.chunks and not reply.complete:
            self._feed(http1.READ_BYTES, silence_s)
        return reply.take()

    def done(self, reply: http1.Message) -> bool:
        """Whether the reply was whole and the connection can carry another exchange."""
        self._replies.messages.popleft()
        return reply.complete and reply.keep_alive and not self._replies.messages

    def close(self) -> None:
        self.socket.close()

    def _feed(self, size: int, silence_s: float | None) -> None:
        try:
            # A poll's bound also holds where signals come again and again.
            wait_ms = None if silence_s is None else min(silence_s * 1000, MAX_POLL_MS)
            if not self._readable.poll(wait_ms):
                raise TimeoutError("timed out")
            data = self.socket.recv(size)
            if not data:
                raise ReplyLost("the connection ended before the reply did")
            self._replies.feed(data)
        except (OSError, http1.BadMessage) as error:
            raise ReplyLost(_say(error)) from error

    def _answered(self) -> bool:
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False


def before_stdin(message: Message) -> Message:
    """The JSON object goes before the program's input, in the same body, with its length."""
    body = message.body if isinstance(message.body, bytes) else b""
    return replace(
        message,
        target=f"{message.target}?stdin=stream",
        body=len(body).to_bytes(4, "big") + body,
        more=True,
    )


def blocks(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(http1.READ_BYTES):
        yield data


def _head(message: Message) -> bytes:
    """The request line and headers. Targets are percent-encoded and header values printable
    ASCII (`Link` and `Stockade` see to it), so neither can hold a line's end."""
    lines = [f"{message.method} {message.target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in message.headers.items()]
    if message.more:
        lines.append("Transfer-Encoding: chunked")
    elif isinstance(message.body, bytes):
        lines.append(f"Content-Length: {len(message.body)}")
    else:
        lines.append(f"Content-Length: {message.length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _say(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__

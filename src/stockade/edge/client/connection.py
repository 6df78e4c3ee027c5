"""One HTTP connection on a unix socket, and what its failures mean.

`NotSent` is raised only while the daemon can't have the whole request, so nothing ran and sending
again is right. Everything after that is `ReplyLost`: it may have run.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final

from stockade.edge.client.stdin import chunk

_CONNECT_S: Final = 5.0
_READ_BYTES: Final = 256 * 1024


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


class Connection:
    """One connection. The request is written here, head and body in one piece: the standard
    client sends them apart, which wakes the daemon twice. The reply is the standard client's."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.settimeout(_CONNECT_S)
            self.socket.connect(path)
        except OSError as error:
            self.socket.close()
            raise NotSent(f"{path}: {_say(error)}") from error

    def usable(self) -> bool:
        """An idle connection has nothing to read; an end of file means that it is dead."""
        return not select.select((self.socket,), (), (), 0)[0]

    def transmit(self, message: Message) -> None:
        """Send all of the request. Raises NotSent, unless the daemon answered before it had read
        everything: it refused, and `response` tells why."""
        self.socket.settimeout(message.silence_s)
        head = _head(message)
        try:
            if message.more and isinstance(message.body, bytes):
                self.socket.sendall(head + chunk(message.body))
            elif isinstance(message.body, bytes):
                self.socket.sendall(head + message.body)
            else:
                self.socket.sendall(head)
                for block in blocks(message.body):
                    self.socket.sendall(block)
        except OSError as error:
            if not self._answered():
                self.close()
                raise NotSent(_say(error)) from error

    def response(self, message: Message) -> http.client.HTTPResponse:
        with losing():
            response = http.client.HTTPResponse(self.socket, method=message.method)
            response.begin()
            return response

    def close(self) -> None:
        self.socket.close()

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


def piece(response: http.client.HTTPResponse) -> bytes:
    """The next bytes of a body, as they come; empty only at its true end."""
    with losing():
        data = response.read1(_READ_BYTES) if response.chunked else response.read(_READ_BYTES)
    if not data and response.length:
        raise ReplyLost(f"the body ended {response.length} bytes early")
    return data


@contextlib.contextmanager
def losing() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise ReplyLost(_say(error)) from error


def blocks(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(_READ_BYTES):
        yield data


def _head(message: Message) -> bytes:
    """The request line and headers. Targets are percent-encoded and header values printable
    ASCII (`Link` sees to both), so neither can hold a line's end."""
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

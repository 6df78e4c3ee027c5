"""How a client's request gets to an `Api`: over a unix socket, or by a call in this process.

The HTTP transport is a socket of ours and the server's own parser: a client library's reading of
two headers costs more than all the rest of a request (docs/decisions/0001).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qsl

from stockade.edge import http1
from stockade.edge.client.connection import (
    Connection,
    Message,
    NotSent,
    ReplyLost,
    before_stdin,
    blocks,
)
from stockade.edge.client.stdin import StdinPump
from stockade.edge.exchange import Handling, Interrupted, Peer, Request, Response

_MAX_IDLE: Final = 16


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes


Sink = Callable[[bytes], None]


class Transport(Protocol):
    """Thread-safe."""

    def send(self, message: Message) -> Reply:
        """Raises NotSent or ReplyLost."""

    def stream(self, message: Message, sink: Sink, stdin: int | None = None) -> Reply:
        """As `send`, but a successful reply's body goes to `sink` piece by piece (the `Reply` is
        then empty). What `sink` raises ends the exchange and comes out unchanged."""

    def close(self) -> None: ...


class HttpTransport:
    """Keeps a few idle connections; each carries one exchange at a time."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    def send(self, message: Message) -> Reply:
        connection = self._submit(message)
        try:
            head = connection.head(message.silence_s)
            body = _whole(connection, head, message)
        except BaseException:
            connection.close()
            raise
        self._put_back(connection, connection.done(head))
        return Reply(head.status, body)

    def stream(self, message: Message, sink: Sink, stdin: int | None = None) -> Reply:
        if stdin is not None:
            message = before_stdin(message)
        connection = self._submit(message)
        pump = None if stdin is None else StdinPump(connection.socket, stdin)
        try:
            head = connection.head(message.silence_s)
            if head.status >= 300:
                return Reply(head.status, _whole(connection, head, message))
            while data := connection.piece(head, message.silence_s):
                sink(data)
            return Reply(head.status, b"")
        finally:
            if pump is not None:
                pump.stop()
            # Not kept: the server closes it when the program did not read all of its input.
            connection.close()

    def close(self) -> None:
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _submit(self, message: Message) -> Connection:
        """A connection that carries the whole request. Sends again where nothing was sent: the
        daemon may have restarted since an idle connection was used."""
        kept = self._take()
        if kept is not None:
            try:
                kept.transmit(message)
            except NotSent:
                if not isinstance(message.body, bytes):
                    raise
            else:
                return kept
        fresh = Connection(self._path)
        fresh.transmit(message)
        return fresh

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.close()

    def _put_back(self, connection: Connection, usable: bool) -> None:
        with self._lock:
            if usable and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()


def _whole(connection: Connection, reply: http1.Message, message: Message) -> bytes:
    """All of a reply's body. Raises ReplyLost."""
    parts = []
    while data := connection.piece(reply, message.silence_s):
        parts.append(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class InProcessTransport:
    """The same exchange as calls of `api` in the caller's thread. `peer` is who this process is."""

    def __init__(self, api: Handling, peer: Peer, on_close: Callable[[], None]) -> None:
        self._api = api
        self._peer = peer
        self._on_close = on_close

    def send(self, message: Message) -> Reply:
        parts: list[bytes] = []
        reply = self.stream(message, parts.append)
        return Reply(reply.status, reply.body or b"".join(parts))

    def stream(self, message: Message, sink: Sink, stdin: int | None = None) -> Reply:
        path, _, query = message.target.partition("?")
        body = message.body
        request = Request(
            message.method,
            path,
            self._peer,
            dict(parse_qsl(query, keep_blank_values=True)),
            message.headers,
            body if isinstance(body, bytes) else b"",
            None if isinstance(body, bytes) else blocks(body),
            stdin,
        )
        response = self._api.handle(request)
        try:
            return self._delivered(response, sink)
        finally:
            if response.after is not None:
                response.after()

    def _delivered(self, response: Response, sink: Sink) -> Reply:
        if isinstance(response.body, bytes):
            if response.status < 300:
                sink(response.body)
                return Reply(response.status, b"")
            return Reply(response.status, response.body)
        outlet = _Outlet(sink)
        try:
            refused = self._api.produce(response.body, outlet.write)
        except Interrupted as broken:
            raise ReplyLost(str(broken)) from broken
        if outlet.error is not None:
            raise outlet.error
        if refused is not None and isinstance(refused.body, bytes):
            return Reply(refused.status, refused.body)
        return Reply(response.status, b"")

    def close(self) -> None:
        self._on_close()


class _Outlet:
    """A sink as a `Write`: what it raises must not travel through the service that writes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.error: Exception | None = None

    def write(self, data: bytes) -> bool:
        if self.error is None:
            try:
                self._sink(data)
            except Exception as error:
                self.error = error
        return self.error is None

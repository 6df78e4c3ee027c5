"""One connection: its requests in order, each handled in the connection's own thread.

A thread per connection and no event loop: a request crosses no thread on its way, which costs a
fifth of the processor time of an event loop's two hand-overs (docs/decisions/0010), and a body or a
reply is simply read or written where it is used. A client that goes away does not end its call:
the thread finds out when it sends the reply.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qsl

from stockade.edge.api import Api
from stockade.edge.exchange import (
    HEADERS,
    JSON_TYPE,
    MAX_BODY_BYTES,
    MAX_FRAME_BYTES,
    Interrupted,
    Peer,
    Request,
    Response,
)
from stockade.edge.http1 import BadMessage, Message
from stockade.edge.server.lanes import Lanes
from stockade.edge.server.messages import ClientGone, MessageReader
from stockade.edge.server.replies import Producing, send_whole
from stockade.terms.fault import Code, Failure, Fault, failure

_UCRED: Final = struct.Struct("=iII")  # ids reach 2^32 - 2, pids are signed
_DROP_BYTES: Final = 64 * 1024 * 1024


class Connection:
    """`run` it in a thread of its own; `hang_up` from any other ends it where nothing has begun.
    `user` is its uid, None when the configuration does not know it. `idle_since` is the time since
    when its thread has waited for the client, None while a request is answered and once it is hung
    up."""

    def __init__(
        self, sock: socket.socket, api: Api, lanes: Lanes, peers: Mapping[int, Peer]
    ) -> None:
        self._sock = sock
        self._api = api
        self._lanes = lanes
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _pid, uid, _gid = _UCRED.unpack(raw)
        self._peer = peers.get(uid)
        self.user: Final = uid if self._peer is not None else None
        # Operators together, and those who are not known, which no tenant is named like.
        self._party = "" if self._peer is None else self._peer.tenant
        self._reader = MessageReader(sock)
        self._lock = threading.Lock()
        self._ending = False
        self.idle_since: float | None = time.monotonic()

    def run(self) -> None:
        try:
            while (message := self._reader.next()) is not None:
                again = self._serve(message)
                self._reader.done(message)
                if not self._rest() or not again:
                    break
        except BadMessage:
            self._refuse_bytes()
        except (ClientGone, OSError):
            return  # nobody reads a reply
        finally:
            self._sock.close()

    def _begin(self) -> None:
        """A request is here. Raises ClientGone when the connection was hung up before."""
        with self._lock:
            if self._ending:
                raise ClientGone("hung up")
            self.idle_since = None

    def _rest(self) -> bool:
        """The reply is sent; False when the connection ends with it."""
        with self._lock:
            if not self._ending:
                self.idle_since = time.monotonic()
            return not self._ending

    def hang_up(self) -> None:
        """End the connection when it is idle, else after the reply that is being made."""
        with self._lock:
            self._ending = True
            if self.idle_since is not None:
                self.idle_since = None
                _shut(self._sock, socket.SHUT_RDWR)

    def _serve(self, message: Message) -> bool:
        """Answer one request; whether the connection can be used again."""
        path, _, query = message.target.partition("?")
        asked = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
        given = {name: message.headers[name] for name in HEADERS if name in message.headers}
        # Who is not known gets no memory for a body: it is refused by its head.
        known = self._peer is not None
        upload = known and message.method == "PUT"
        with_stdin = known and not upload and asked.get("stdin") == "stream"
        body = self._whole_body(message) if known and not (upload or with_stdin) else b""
        self._begin()
        request = Request(message.method, path, self._peer, asked, given, body or b"")
        if upload:
            return self._answer(replace(request, stream=self._upload(message)), message)
        if with_stdin:
            return self._with_stdin(request, message)
        if body is None:
            return self._too_large(request)
        return self._answer(request, message)

    def _answer(self, request: Request, message: Message, *, close: bool = False) -> bool:
        close = close or not message.keep_alive or message.version == "1.0"
        after: Callable[[], None] | None = None
        try:
            try:
                with self._lanes.enter(self._api.lane(request.method, request.path), self._party):
                    response = self._api.handle(request)
                    after = response.after
                    if not isinstance(response.body, bytes):
                        produced = self._produce(response, close=close)
                        if produced is None:
                            return not close
                        if isinstance(produced, bool):
                            return False
                        response = produced
            except Failure as busy:
                response = self._api.refuse(request, busy.fault)
            unread = not message.complete or bool(message.chunks)
            send_whole(self._sock, response, close=close or unread)
            if unread and request.stdin is None and self._rest():
                self._linger(message)
            return not (close or unread)
        finally:
            if after is not None:
                after()

    def _produce(self, response: Response, *, close: bool) -> Response | bool | None:
        """None when the body went out whole, a refusal to send instead, or False when it broke
        off and the connection has to be cut."""
        assert not isinstance(response.body, bytes)
        producing = Producing(self._sock, response, close=close)
        try:
            refused = self._api.produce(response.body, producing.write)
        except Interrupted:
            return False
        if refused is not None:
            return refused
        producing.finish()
        return False if producing.gone else None

    def _with_stdin(self, request: Request, message: Message) -> bool:
        """The body is the JSON object with its length before it, then the program's stdin."""
        chunks = self._reader.body(message)
        head = _read_head(chunks)
        if head is None:
            return self._too_large(request)
        body, rest = head
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        feeder = threading.Thread(target=_feed, args=(rest, chunks, write_end), name="stdin")
        feeder.start()
        try:
            return self._answer(replace(request, body=body, stdin=read_end), message, close=True)
        finally:
            os.close(read_end)
            _shut(self._sock, socket.SHUT_RD)  # wakes the feeder where it waits for more
            feeder.join()

    def _upload(self, message: Message) -> Iterator[bytes]:
        """Raises Failure(connection_lost) when the client goes away before the end: half an upload
        is never taken for a whole one."""
        try:
            yield from self._reader.body(message)
        except (ClientGone, BadMessage):
            raise failure(
                Code.CONNECTION_LOST, "the upload ended before its end; nothing was written"
            ) from None

    def _whole_body(self, message: Message) -> bytes | None:
        """None when it is too large. What is too much is read and dropped, up to a bound: most
        clients look at a reply only after they sent everything."""
        parts: list[bytes] = []
        size = 0
        for chunk in self._reader.body(message):
            size += len(chunk)
            if size <= MAX_BODY_BYTES:
                parts.append(chunk)
            elif size <= _DROP_BYTES:
                parts.clear()
            else:
                return None
        return None if size > MAX_BODY_BYTES else b"".join(parts)

    def _linger(self, message: Message) -> None:
        """An upload was refused before its end. Read and drop the rest, up to a bound: most clients
        look at a reply only after they sent everything, and a closed connection would hide it."""
        size = 0
        for chunk in self._reader.body(message):
            size += len(chunk)
            if size > _DROP_BYTES:
                return

    def _too_large(self, request: Request) -> bool:
        fault = Fault(
            Code.BODY_TOO_LARGE,
            f"the body has more than {MAX_BODY_BYTES} bytes",
            details={"max_bytes": MAX_BODY_BYTES},
        )
        send_whole(self._sock, self._api.refuse(request, fault), close=True)
        return False

    def _refuse_bytes(self) -> None:
        try:
            send_whole(self._sock, Response(400, b"", JSON_TYPE), close=True)
        except OSError:
            return  # it did not wait for an answer


def _read_head(chunks: Iterator[bytes]) -> tuple[bytes, bytes] | None:
    """Four bytes of length, then that many bytes, and what came after them. None when it would be
    too long; what there is when the body ends before."""
    got = b""
    for chunk in chunks:
        got += chunk
        if len(got) >= 4:
            end = 4 + int.from_bytes(got[:4], "big")
            if end - 4 > min(MAX_BODY_BYTES, MAX_FRAME_BYTES):
                return None
            if len(got) >= end:
                return got[4:end], got[end:]
    return got[4:], b""


def _feed(rest: bytes, chunks: Iterator[bytes], write_end: int) -> None:
    """Pump the rest of a body into a pipe, as slowly as its reader reads, then close it. Ends
    early, without an error, when the reader is gone or the client is."""
    try:
        _write(write_end, rest)
        for chunk in chunks:
            _write(write_end, chunk)
    except (ClientGone, BadMessage, BrokenPipeError):
        return
    finally:
        os.close(write_end)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _shut(sock: socket.socket, how: int) -> None:
    try:
        sock.shutdown(how)
    except OSError:
        return  # the client was faster

"""HTTP/1.1 on a unix socket: carries requests to `Api.handle`, and nothing else.

The event loop only moves bytes. Every request is handled in a thread of its route's lane, where
it may block. A client that goes away does not end its call: the thread works on and its reply is
dropped. Who the client is comes from the kernel (SO_PEERCRED), for each request.

aiohttp's low-level server is used without its application layer: routes are `Api`'s, and it saves
a fifth of the cost of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qsl

from aiohttp import web

from stockade.edge.api import Api
from stockade.edge.exchange import (
    MAX_BODY_BYTES,
    TOKEN_HEADER,
    Interrupted,
    Peer,
    Request,
    Response,
)
from stockade.edge.guard import log_unexpected
from stockade.edge.server import bridge, listening
from stockade.edge.server.lanes import Lanes
from stockade.terms.fault import Code, Failure, Fault

LOG: Final = logging.getLogger("stockade.edge.http")
# aiohttp's own lines repeat what a client sent; what fails in a handler is logged here.
_SILENT: Final = logging.getLogger("stockade.edge.http.silent")
_SILENT.disabled = True

_UCRED: Final = struct.Struct("3i")
# A token of 16 blocks and a percent-encoded path of 4,096 bytes fit.
_MAX_HEADER_BYTES: Final = 256 * 1024
_MAX_LINE_BYTES: Final = 32 * 1024
# Idle connections cost a descriptor; closing them while a client writes would put a call in doubt.
_KEEPALIVE_S: Final = 3600.0
# Ending a tree takes milliseconds, confirming it at most ten seconds.
_END_S: Final = 15.0


class HttpServer:
    """One listening socket and its connections, on one event loop."""

    def __init__(self, api: Api, peers: Mapping[int, Peer], *, calls: int, queue: int) -> None:
        self._api = api
        self._peers = peers
        self._lanes = Lanes(calls, queue)
        self._runner: web.ServerRunner | None = None
        self._path = ""
        self._inode = (0, 0)

    async def start(self, path: str, mode: int) -> None:
        """Listen. Raises listening.ListenError."""
        listener = listening.listen(path, mode)
        self._path, self._inode = path, listening.inode_of(path)
        server = web.Server(
            self._handle,
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=_KEEPALIVE_S,
            max_field_size=_MAX_HEADER_BYTES,
            max_line_size=_MAX_LINE_BYTES,
            lingering_time=0,
        )
        self._runner = web.ServerRunner(server, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def stop(self, grace_s: float, overdue: Callable[[], object] = lambda: None) -> bool:
        """Refuse new work, wait for what runs, then close. After `grace_s` seconds `overdue` is
        called, once, to end what still runs, so that its reply is sent as well. False when work
        was left running even then."""
        self._api.stop()
        done = await self._lanes.idle(grace_s)
        if not done:
            LOG.warning("calls were still running after %.0f s and are ended", grace_s)
            await asyncio.to_thread(overdue)
            done = await self._lanes.idle(_END_S)
        if self._path:
            listening.remove(self._path, self._inode)
        if self._runner is not None:
            await self._runner.cleanup()
        self._lanes.close()
        return done

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._dispatch(http)
        except (ConnectionError, web.RequestPayloadError):
            # The client went away, or its body is not HTTP: nobody reads a reply.
            if http.transport is not None:
                http.transport.abort()
            return web.Response(status=400)
        except Exception as unexpected:
            log_unexpected("-", unexpected)
            return web.Response(status=500)

    async def _dispatch(self, http: web.BaseRequest) -> web.StreamResponse:
        path, _, query = http.raw_path.partition("?")
        peer = self._peer(http)
        headers = {}
        token = http.headers.get(TOKEN_HEADER)
        if token is not None:
            headers[TOKEN_HEADER] = token
        request = Request(
            http.method, path, peer, dict(parse_qsl(query, keep_blank_values=True)), headers
        )
        if http.method == "PUT":
            loop = asyncio.get_running_loop()
            return await self._answer(
                http, replace(request, stream=bridge.pull(loop, http.content))
            )
        if request.query.get("stdin") == "stream":
            return await self._with_stdin(http, request)
        body = await bridge.read_capped(http.content, MAX_BODY_BYTES)
        if body is None:
            return self._too_large(request)
        return await self._answer(http, replace(request, body=body))

    async def _with_stdin(self, http: web.BaseRequest, request: Request) -> web.StreamResponse:
        """The body is the JSON object with its length before it, then the program's stdin."""
        body = await bridge.read_head(http.content, MAX_BODY_BYTES)
        if body is None:
            return self._too_large(request)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        feeding = asyncio.create_task(bridge.feed(http.content, write_end))
        try:
            return await self._answer(http, replace(request, body=body, stdin=read_end))
        finally:
            os.close(read_end)
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding

    async def _answer(self, http: web.BaseRequest, request: Request) -> web.StreamResponse:
        loop = asyncio.get_running_loop()

        def work() -> Response | bridge.ReplyWriter:
            response = self._api.handle(request)
            if isinstance(response.body, bytes):
                return response
            writer = bridge.ReplyWriter(loop, http, response)
            try:
                return self._api.produce(response.body, writer.write) or writer
            except Interrupted:
                loop.call_soon_threadsafe(writer.cut)
                return writer

        try:
            done = await self._lanes.run(self._api.lane(request.method, request.path), work)
        except Failure as busy:
            return _reply(self._api.refuse(request, busy.fault))
        return await done.finish() if isinstance(done, bridge.ReplyWriter) else _reply(done)

    def _too_large(self, request: Request) -> web.StreamResponse:
        fault = Fault(
            Code.BODY_TOO_LARGE,
            f"the body has more than {MAX_BODY_BYTES} bytes",
            details={"max_bytes": MAX_BODY_BYTES},
        )
        reply = _reply(self._api.refuse(request, fault))
        reply.force_close()  # the rest of the body was not read
        return reply

    def _peer(self, http: web.BaseRequest) -> Peer | None:
        found = http.get_extra_info("socket")
        if found is None:
            return None
        raw = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _pid, uid, _gid = _UCRED.unpack(raw)
        return self._peers.get(uid)


def serve(
    server: HttpServer,
    path: str,
    mode: int,
    grace_s: float,
    *,
    ready: Callable[[], None],
    overdue: Callable[[], object],
) -> None:
    """Run until SIGTERM or SIGINT. `ready` is called when the socket answers; `overdue` when a
    signal came, `grace_s` seconds have passed and calls still run, to end them.
    Raises listening.ListenError."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await server.start(path, mode)
        ready()
        await stop.wait()
        LOG.info("stopping")
        if not await server.stop(grace_s, overdue):
            LOG.error("calls are still running; their replies are lost")

    asyncio.run(main())


def _reply(response: Response) -> web.Response:
    if not isinstance(response.body, bytes):
        raise TypeError("a produced body is sent by its writer")
    return web.Response(
        body=response.body, status=response.status, headers={"Content-Type": response.content_type}
    )

"""Between a thread that blocks and the event loop that owns the connection.

`ReplyWriter` is the `Write` of a produced response: it sends the headers with the first bytes, so
that a refusal before them is still an ordinary error reply, and it blocks the thread while the
client is slow. `pull` is the other direction: an upload as an iterator that blocks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Iterator
from typing import Final

from aiohttp import StreamReader, web

from stockade.edge.exchange import MAX_FRAME_BYTES, Response
from stockade.terms.fault import Code, failure

_PULL_PATIENCE_S: Final = 60.0
_DROP_BYTES: Final = 64 * 1024 * 1024


class ReplyWriter:
    """Calls of one reply come from one thread at a time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, request: web.BaseRequest, response: Response
    ) -> None:
        self._loop = loop
        self._request = request
        self._patience_s = response.patience_s
        self._gone = False
        self.started = False
        self.reply = web.StreamResponse(
            status=response.status, headers={"Content-Type": response.content_type}
        )
        if response.length is not None:
            self.reply.content_length = response.length

    def write(self, data: bytes) -> bool:
        """Blocks for at most the response's patience; False once the client is gone."""
        if self._gone:
            return False
        sending = asyncio.run_coroutine_threadsafe(self._send(data), self._loop)
        try:
            sending.result(self._patience_s)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            sending.cancel()
            self._gone = True
        except ConnectionError:
            self._gone = True
        return not self._gone

    async def finish(self) -> web.StreamResponse:
        """End the body. A client that is gone, or that was given up, is cut off instead, so that
        a body that is not whole is never taken for a whole one."""
        if self._gone:
            self.cut()
        else:
            if not self.started:
                await self._start()
            await self.reply.write_eof()
        return self.reply

    def cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _start(self) -> None:
        self.started = True
        await self.reply.prepare(self._request)

    async def _send(self, data: bytes) -> None:
        if not self.started:
            await self._start()
        await self.reply.write(data)


def pull(loop: asyncio.AbstractEventLoop, content: StreamReader) -> Iterator[bytes]:
    """The body chunk by chunk, for a thread. Raises Failure(connection_lost) when the client
    goes away before its end: half an upload is never taken for a whole one."""
    while True:
        reading = asyncio.run_coroutine_threadsafe(content.readany(), loop)
        try:
            chunk = reading.result(_PULL_PATIENCE_S)
        except (
            web.RequestPayloadError,
            ConnectionError,
            concurrent.futures.TimeoutError,
            concurrent.futures.CancelledError,
        ):
            reading.cancel()
            raise failure(
                Code.CONNECTION_LOST, "the upload ended before its end; nothing was written"
            ) from None
        if not chunk:
            return
        yield chunk


async def read_capped(content: StreamReader, limit: int) -> bytes | None:
    """A whole body of at most `limit` bytes, or None when there is more. What is more is read
    and dropped, up to a bound: most clients look at a reply only after they sent everything."""
    parts: list[bytes] = []
    size = 0
    while chunk := await content.readany():
        size += len(chunk)
        if size <= limit:
            parts.append(chunk)
        elif size <= _DROP_BYTES:
            parts.clear()
        else:
            return None
    return None if size > limit else b"".join(parts)


async def read_head(content: StreamReader, limit: int) -> bytes | None:
    """The first block of a body whose rest is something else: four bytes of length, then that
    many bytes. None when it would be longer than `limit`."""
    try:
        size = int.from_bytes(await content.readexactly(4), "big")
        if size > min(limit, MAX_FRAME_BYTES):
            return None
        return await content.readexactly(size)
    except asyncio.IncompleteReadError as short:
        return short.partial


async def feed(content: StreamReader, write_end: int) -> None:
    """Pump the rest of a body into a pipe, as slowly as its reader reads, then close it. Ends
    early, without an error, when the reader is gone or the client is."""
    os.set_blocking(write_end, False)
    try:
        while chunk := await content.readany():
            rest = memoryview(chunk)
            while rest:
                try:
                    rest = rest[os.write(write_end, rest) :]
                except BlockingIOError:
                    await _writable(write_end)
    except (ConnectionError, web.RequestPayloadError):
        return
    finally:
        os.close(write_end)


async def _writable(descriptor: int) -> None:
    # The loop also wakes when the read end is closed; the next write then says EPIPE.
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)

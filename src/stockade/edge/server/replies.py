"""HTTP/1.1 replies onto a blocking socket.

A reply of known bytes is one send. A produced one sends its head with its first bytes, so that a
refusal before them is still an ordinary error reply; it blocks the producer while the client is
slow, and gives the client up after the response's patience.
"""

from __future__ import annotations

import socket
from http import HTTPStatus
from typing import Final

from stockade.edge.exchange import Response
from stockade.edge.http1 import LAST_CHUNK, chunk
from stockade.edge.sending import send_all

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_SEND_PATIENCE_S: Final = 60.0


def _head(status: int, content_type: str, framing: str, *, close: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}",
        f"Content-Type: {content_type}",
        framing,
    ]
    if close:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def send_whole(sock: socket.socket, response: Response, *, close: bool) -> None:
    """Raises OSError when the client is gone."""
    assert isinstance(response.body, bytes)
    framing = f"Content-Length: {len(response.body)}"
    head = _head(response.status, response.content_type, framing, close=close)
    send_all(sock, head + response.body, _SEND_PATIENCE_S)


class Producing:
    """The `Write` of one produced response. Calls come from one thread at a time."""

    def __init__(self, sock: socket.socket, response: Response, *, close: bool) -> None:
        self._sock = sock
        self._response = response
        self._close = close
        self._started = False
        self.gone = False

    def write(self, data: bytes) -> bool:
        """Blocks for at most the response's patience; False once the client is gone."""
        if self.gone:
            return False
        if data:
            self._send(self._framed(data))
        return not self.gone

    def finish(self) -> None:
        """End the body. A client that is gone is cut off by closing the connection, so that a body
        that is not whole is never taken for a whole one."""
        if not self.gone:
            self._send(b"" if self._response.length is not None else LAST_CHUNK)

    def _framed(self, data: bytes) -> bytes:
        return data if self._response.length is not None else chunk(data)

    def _send(self, data: bytes) -> None:
        response = self._response
        if not self._started:
            self._started = True
            length = response.length
            framing = (
                "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
            )
            data = _head(response.status, response.content_type, framing, close=self._close) + data
        try:
            send_all(self._sock, data, response.patience_s)
        except OSError:
            self.gone = True

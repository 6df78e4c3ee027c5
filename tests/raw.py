"""Requests of a client that is not our SDK, so that the server is not judged by that alone."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final

WAIT_S: Final = 40.0  # both processors may be busy with other suites


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WAIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(self._path)


def ask(
    path: str,
    method: str,
    target: str,
    body: bytes | str | Iterator[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Status and parsed JSON (or raw bytes) of one request to the socket at `path`, on a connection
    of its own."""
    connection = UnixConnection(path)
    try:
        connection.request(method, target, body, dict(headers or {}))
        reply = connection.getresponse()
        raw = reply.read()
        if reply.headers.get_content_type() == "application/json":
            return reply.status, json.loads(raw)
        return reply.status, raw
    finally:
        connection.close()

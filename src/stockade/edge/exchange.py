"""One exchange between a client and the daemon, whatever carries it.

`Api.handle` maps a `Request` to a `Response`; the HTTP server and the in-process transport are the
two carriers. A body is either bytes or, for what may be large, pulled (an iterator, requests) or
pushed (a `Producer`, responses), so that neither side ever holds a whole file.

`run` answers with frames: one byte of type, four bytes of big-endian length, the payload. Output
frames come while the program runs; the last frame is always the result.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, Protocol

DEFAULT_SOCKET: Final = "/run/stockade/stockade.sock"
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
MAX_CONNECTIONS: Final = 1024  # each has a thread and a descriptor
TOKEN_HEADER: Final = "stockade-capability"
# What a client says of itself; it goes into the audit and nowhere else.
CLIENT_HEADER: Final = "stockade-client"
MODEL_HEADER: Final = "stockade-model"
# What a carrier hands on; everything else is the carrier's own business.
HEADERS: Final[tuple[str, ...]] = (TOKEN_HEADER, CLIENT_HEADER, MODEL_HEADER)
JSON_TYPE: Final = "application/json"
FRAMES_TYPE: Final = "application/vnd.stockade.frames"
BYTES_TYPE: Final = "application/octet-stream"

_HEADER: Final = struct.Struct(">BI")


class Role(StrEnum):
    """An operator acts for every tenant and may mint capabilities; a tenant acts for itself."""

    OPERATOR = "operator"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, from the kernel's credentials and the configuration, never from
    the request. `tenant` is None for an operator; `own` says that it runs as the daemon's uid."""

    uid: int
    tenant: str | None
    role: Role
    own: bool


# Gives False once nobody reads any more; what is written then is dropped. Blocks while the reader
# is slow. Must not keep the bytes' buffer.
Write = Callable[[bytes], bool]
Producer = Callable[[Write], None]


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is the raw, percent-encoded path; `query` decoded; header names are lower case.
    `peer` is None when the peer is not allowed. `stdin` is a descriptor that the carrier owns."""

    method: str
    path: str
    peer: Peer | None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: Iterator[bytes] | None = None
    stdin: int | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """`length` is the size of a produced body where it is known before. A reader that takes
    nothing for `patience_s` is given up, so that it can't hold a thread or a command for ever.
    `after` is what need not keep the reply waiting: the carrier calls it once, when the reply was
    sent or could not be, and before it takes the connection's next request."""

    status: int
    body: bytes | Producer
    content_type: str = JSON_TYPE
    length: int | None = None
    patience_s: float = 60.0
    after: Callable[[], None] | None = None


class Interrupted(Exception):
    """A produced body broke off; what was sent of it is not whole."""


class Handling(Protocol):
    """What a carrier needs of the API (`edge.api.Api`). Neither method raises anything else."""

    def handle(self, request: Request) -> Response: ...
    def produce(self, producer: Producer, write: Write) -> Response | None:
        """Run a produced body. A refusal before its first byte is given as the reply to send
        instead. Raises Interrupted when it broke off after that."""


class FrameType(IntEnum):
    STDOUT = 1
    STDERR = 2
    RESULT = 3


def frame(kind: int, payload: bytes | memoryview) -> bytes:
    """One frame as bytes; a copy, so the payload's buffer may be reused at once."""
    return b"".join((_HEADER.pack(kind, len(payload)), payload))


class FrameReader:
    """Cuts a byte stream into frames. Raises ValueError on a frame that no daemon sends."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameType, bytes]]:
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            yield FrameType(kind), payload

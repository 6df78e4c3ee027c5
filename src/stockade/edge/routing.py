"""The table of routes as data: method, path pattern, reply shape and lane of each.

A lane is a pool of threads of its own in the server: what ends or looks at work (`control`) never
waits behind work (`call`), nor behind copying (`bulk`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from urllib.parse import unquote_to_bytes

from stockade.edge.exchange import Request, Response
from stockade.edge.service import Context, Service
from stockade.edge.watching import Watcher
from stockade.terms.audit import Acting
from stockade.terms.base import Model
from stockade.terms.fault import Code, Fault, Status, failure

PREFIX = "/v1/"
MAX_SHOWN_CHARS = 256


class Lane(StrEnum):
    """Which threads a request takes: a slow one may only ever wait for its own kind."""

    CALL = "call"
    BULK = "bulk"
    TRANSFER = "transfer"
    CONTROL = "control"


class Shape(Enum):
    """How a route says no: in a `ToolResult`, in a `LeaseReply`, in a result frame, or as a
    plain error object with an HTTP status."""

    RESULT = "result"
    LEASE = "lease"
    FRAMES = "frames"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Inbound:
    """A request that found its route and whose peer is allowed."""

    request: Request
    context: Context
    params: dict[str, str]
    service: Service
    version: str
    stopping: bool
    watcher: Watcher


Handler = Callable[[Inbound], Response]


@dataclass(frozen=True, slots=True)
class Route:
    """`pattern` is relative to `/v1/` unless it begins with a slash. Whoever can connect may use
    what is `for_everybody`. `{name}` binds one segment, `{name...}` all the rest. `query` are the
    fields that its query may have."""

    method: str
    pattern: str
    handler: Handler
    shape: Shape = Shape.PLAIN
    lane: Lane = Lane.CONTROL
    for_everybody: bool = False
    query: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return self.pattern if self.pattern.startswith("/") else PREFIX + self.pattern


def check_query(route: Route, query: Mapping[str, str]) -> None:
    """Raises Failure(unknown_field): a filter that is misspelled, or that there is not, would be
    taken for one that holds. What is not of the API is asked by probes, with fields of their own."""
    unknown = [name for name in query if name not in route.query]
    if unknown and route.path.startswith(PREFIX):
        names = tuple(name[:64] for name in unknown[:8])
        raise failure(
            Code.UNKNOWN_FIELD,
            f"unknown query field {', '.join(ascii(name) for name in names)}; "
            f"valid are {', '.join(route.query) or 'none'}",
            fields=names,
            valid=route.query,
        )


class Router:
    """Finds a route by raw path, so that `%2F` inside a segment is not a separator."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._fixed = {(r.method, r.path): r for r in routes if "{" not in r.pattern}
        self._bound = [(r, r.path.split("/")) for r in routes if "{" in r.pattern]
        self._patterns = [(r.method, r.path.split("/")) for r in routes]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route and its parameters, or None. Raises Failure(invalid_argument) when a
        parameter is not percent-encoded UTF-8."""
        fixed = self._fixed.get((method, path))
        if fixed is not None:
            return fixed, {}
        parts = path.split("/")
        for route, pattern in self._bound:
            if route.method == method:
                raw = _bind(pattern, parts)
                if raw is not None:
                    return route, {name: _decode(name, text) for name, text in raw.items()}
        return None

    def methods(self, path: str) -> tuple[str, ...]:
        """Which methods this path has; empty for an unknown path."""
        parts = path.split("/")
        return tuple(
            sorted(m for m, pattern in self._patterns if _bind(pattern, parts) is not None)
        )


def _bind(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for index, segment in enumerate(pattern):
        if segment.endswith("...}"):
            rest = "/".join(parts[index:])
            return {**found, segment[1:-4]: rest} if rest else None
        if index >= len(parts):
            return None
        if segment.startswith("{"):
            if not parts[index]:
                return None
            found[segment[1:-1]] = parts[index]
        elif segment != parts[index]:
            return None
    return found if len(pattern) == len(parts) else None


def _decode(name: str, text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise failure(
            Code.INVALID_ARGUMENT, f"{name} in the path is not percent-encoded UTF-8", field=name
        ) from None


def record_denied(
    service: Service, request: Request, context: Context | None, fault: Fault
) -> None:
    """What was denied before or beside the pipeline, which records its own."""
    if fault.status is Status.DENIED:
        who = Acting(None) if context is None else context.who
        what = f"{request.method} {request.path}"[:MAX_SHOWN_CHARS]
        service.audit.refused(who, request.peer, what, fault)


def reply(model: Model, status: int = 200) -> Response:
    """A JSON reply."""
    return Response(status, model.model_dump_json(by_alias=True).encode())

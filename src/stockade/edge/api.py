"""The API without a transport: `Api.handle` maps any request to a reply and never raises.

It finds the route, refuses peers that are not allowed, and gives every refusal the shape that the
route promises: calls and tenant operations a result with HTTP 200, the rest an error object with
a fitting HTTP status.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Final

from stockade.edge import (
    routes_audit,
    routes_authority,
    routes_budget,
    routes_calls,
    routes_claims,
    routes_health,
    routes_info,
    routes_leases,
    routes_secrets,
)
from stockade.edge.exchange import (
    CLIENT_HEADER,
    FRAMES_TYPE,
    MODEL_HEADER,
    TOKEN_HEADER,
    FrameType,
    Interrupted,
    Peer,
    Producer,
    Request,
    Response,
    Role,
    Write,
    frame,
)
from stockade.edge.guard import log_unexpected
from stockade.edge.refusal import http_status, refusal
from stockade.edge.routing import (
    Inbound,
    Lane,
    Route,
    Router,
    Shape,
    check_query,
    record_denied,
    reply,
)
from stockade.edge.service import Context, Service
from stockade.edge.watching import UNWATCHED, CallWatch, Watcher
from stockade.edge.wire import ErrorReply, LeaseReply
from stockade.terms.audit import ORIGIN_PATTERN
from stockade.terms.fault import Code, Failure, Fault, failure
from stockade.terms.result import error_of

_ROUTER: Final = Router(
    routes_calls.ROUTES
    + routes_leases.ROUTES
    + routes_info.ROUTES
    + routes_authority.ROUTES
    + routes_budget.ROUTES
    + routes_claims.ROUTES
    + routes_audit.ROUTES
    + routes_secrets.ROUTES
    + routes_health.ROUTES
)
_ORIGIN: Final = re.compile(ORIGIN_PATTERN)
_OF_CALLS: Final = (Shape.RESULT, Shape.FRAMES)
# Of a peer that is not known, on the routes that are for everybody.
_NOBODY: Final = Peer(-1, None, Role.TENANT, own=False)


class Api:
    """Thread-safe. `new_request_id` gives a fresh id per attempt; `version` goes into results."""

    def __init__(
        self,
        service: Service,
        new_request_id: Callable[[], str],
        version: str,
        watcher: Watcher | None = None,
    ) -> None:
        self._service = service
        self._watcher = watcher or Watcher()
        self._new_request_id = new_request_id
        self._version = version
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Refuse new work from now on; looking, cancelling and releasing go on."""
        self._stopping.set()

    def lane(self, method: str, path: str) -> Lane:
        """Which pool of threads the request belongs to. Unknown ones are refused in `control`."""
        try:
            found = _ROUTER.find(method, path)
        except Failure:
            return Lane.CONTROL
        return found[0].lane if found else Lane.CONTROL

    def handle(self, request: Request) -> Response:
        request_id = self._new_request_id()
        shape, watch = Shape.PLAIN, UNWATCHED
        context: Context | None = None
        try:
            route, params = self._route(request)
            shape = route.shape
            if route.lane is Lane.CALL:
                watch = self._watcher.begin()
            if request.peer is None and not route.for_everybody:
                raise failure(
                    Code.PEER_NOT_ALLOWED, "this user is not in the daemon's configuration"
                )
            check_query(route, request.query)
            stopping = self._stopping.is_set()
            if stopping and route.lane is not Lane.CONTROL:
                raise failure(Code.SHUTTING_DOWN, "the daemon is stopping; nothing ran")
            token = request.headers.get(TOKEN_HEADER)
            context = Context(
                request_id,
                request.peer or _NOBODY,
                token,
                _origin(request, CLIENT_HEADER),
                _origin(request, MODEL_HEADER),
                watch,
            )
            inbound = Inbound(
                request, context, params, self._service, self._version, stopping, self._watcher
            )
            return route.handler(inbound)
        except Failure as known:
            record_denied(self._service, request, context, known.fault)
            return self._refuse(shape, known.fault, request_id, watch)
        except Exception as unexpected:
            return self._refuse(shape, _internal(request_id, unexpected), request_id, watch)

    def produce(self, producer: Producer, write: Write) -> Response | None:
        """Run a produced body. A refusal before its first byte is given as the reply to send
        instead. Raises Interrupted when it broke off after that."""
        request_id = self._new_request_id()
        started = False

        def first(data: bytes) -> bool:
            nonlocal started
            started = True
            return write(data)

        try:
            producer(first)
            return None
        except Failure as known:
            fault = known.fault
        except Exception as unexpected:
            fault = _internal(request_id, unexpected)
        if started:
            raise Interrupted(fault.message)
        return self._refuse(Shape.PLAIN, fault, request_id)

    def refuse(self, request: Request, fault: Fault) -> Response:
        """The refusal of a carrier that can't hand the request on (no thread free, too large)."""
        try:
            shape = self._route(request)[0].shape
        except Failure as unknown:
            return self._refuse(Shape.PLAIN, unknown.fault, self._new_request_id())
        watch = self._watcher.begin() if shape in _OF_CALLS else UNWATCHED
        return self._refuse(shape, fault, self._new_request_id(), watch)

    def _route(self, request: Request) -> tuple[Route, dict[str, str]]:
        found = _ROUTER.find(request.method, request.path)
        if found is not None:
            return found
        allowed = _ROUTER.methods(request.path)
        if allowed:
            raise failure(
                Code.UNKNOWN_ROUTE, f"this route has only {', '.join(allowed)}", methods=allowed
            )
        raise failure(Code.UNKNOWN_ROUTE, "there is no such route")

    def _refuse(
        self, shape: Shape, fault: Fault, request_id: str, watch: CallWatch = UNWATCHED
    ) -> Response:
        self._watcher.refused(fault.status, fault.code)
        if shape is Shape.PLAIN:
            status = 405 if "methods" in fault.details else http_status(fault.code)
            return reply(ErrorReply(error=error_of(fault)), status)
        result = refusal(fault, request_id, self._version)
        watch.end(result)
        if shape is Shape.LEASE:
            return reply(LeaseReply(result=result, lease=None))
        if shape is Shape.FRAMES:
            return Response(200, frame(FrameType.RESULT, result.to_json()), FRAMES_TYPE)
        return Response(200, result.to_json())


def _internal(request_id: str, error: Exception) -> Fault:
    log_unexpected(request_id, error)
    return Fault(Code.INTERNAL, f"a fault of Stockade; see its log for {request_id}")


def _origin(request: Request, name: str) -> str | None:
    """A header in which a client names itself. Raises Failure(invalid_argument)."""
    given = request.headers.get(name)
    if given is not None and not _ORIGIN.match(given):
        raise failure(
            Code.INVALID_ARGUMENT,
            f"{name} must be 1 to 128 printable ASCII characters",
            field=name,
        )
    return given

"""Routes of leases and of their files.

Host paths (`source`, `to`) are read and written by the daemon with its own rights, so only an
operator may name them: for anybody else the daemon would be a way around the host's permissions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stockade.edge.bodies import read_body
from stockade.edge.exchange import BYTES_TYPE, Peer, Response, Role, Write
from stockade.edge.guard import Asked, answer, guarded
from stockade.edge.routing import Inbound, Lane, Route, Shape, reply
from stockade.edge.wire import (
    Empty,
    FileWritten,
    LeaseCreate,
    LeaseExport,
    LeaseList,
    LeaseRenew,
    LeaseReply,
)
from stockade.terms.fault import Code, failure
from stockade.terms.result import ToolResult

OPERATORS_TENANT: Final = "local"


def create(inbound: Inbound) -> Response:
    request = read_body(LeaseCreate, inbound.request.body)
    peer, token = inbound.context.peer, inbound.context.token
    if request.tenant is None:
        request = request.model_copy(update={"tenant": peer.tenant or OPERATORS_TENANT})
    if peer.tenant is not None and request.tenant != peer.tenant:
        raise failure(
            Code.PEER_NOT_ALLOWED, "this user acts for another tenant", rule="peer.tenant"
        )
    if request.source is not None:
        _operator(peer, "source")
    if request.grant is not None and token is not None:
        raise failure(
            Code.INVALID_ARGUMENT, "give a grant or a capability, not both", field="grant"
        )
    if request.connect:
        raise failure(
            Code.UNENFORCEABLE,
            "this version has no egress gateway, so no connect object can be granted",
            rule="scope.connect",
        )
    made: list[LeaseReply] = []

    def work() -> ToolResult:
        made.append(inbound.service.leases.create(inbound.context, request))
        return made[0].result

    result, log_line = guarded(inbound, Asked(), work)
    return answer(LeaseReply(result=result, lease=made[0].lease if made else None), log_line)


def list_all(inbound: Inbound) -> Response:
    return reply(LeaseList(leases=list(inbound.service.leases.all(inbound.context))))


def show(inbound: Inbound) -> Response:
    return reply(inbound.service.leases.show(inbound.context, inbound.params["lease"]))


def renew(inbound: Inbound) -> Response:
    request = read_body(LeaseRenew, inbound.request.body)
    return _operate(
        inbound, lambda lease: inbound.service.leases.renew(inbound.context, lease, request)
    )


def reset(inbound: Inbound) -> Response:
    read_body(Empty, inbound.request.body)
    return _operate(inbound, lambda lease: inbound.service.leases.reset(inbound.context, lease))


def export(inbound: Inbound) -> Response:
    request = read_body(LeaseExport, inbound.request.body)
    if request.to is not None:
        _operator(inbound.context.peer, "to")
    return _operate(
        inbound, lambda lease: inbound.service.leases.export(inbound.context, lease, request)
    )


def release(inbound: Inbound) -> Response:
    read_body(Empty, inbound.request.body)
    return _operate(inbound, lambda lease: inbound.service.leases.release(inbound.context, lease))


def patch(inbound: Inbound) -> Response:
    lease = inbound.params["lease"]

    def produce(write: Write) -> None:
        inbound.service.leases.patch(inbound.context, lease, write)

    return Response(200, produce, "text/x-diff")


def read_file(inbound: Inbound) -> Response:
    params = inbound.params
    size, chunks = inbound.service.read_file(inbound.context, params["lease"], params["path"])

    def produce(write: Write) -> None:
        for chunk in chunks:
            if not write(chunk):
                break

    return Response(200, produce, BYTES_TYPE, length=size)


def write_file(inbound: Inbound) -> Response:
    request, params = inbound.request, inbound.params
    content = request.stream if request.stream is not None else iter((request.body,))
    version = inbound.service.write_file(inbound.context, params["lease"], params["path"], content)
    return reply(FileWritten(version=version))


def _operate(inbound: Inbound, work: Callable[[str], ToolResult]) -> Response:
    lease = inbound.params["lease"]
    result, log_line = guarded(inbound, Asked(), lambda: work(lease))
    return answer(result, log_line)


def _operator(peer: Peer, field: str) -> None:
    if peer.role is not Role.OPERATOR:
        raise failure(
            Code.PEER_NOT_ALLOWED,
            f"only an operator may name a host directory ({field}); use file upload and patch",
            rule="peer.role",
        )


ROUTES = (
    Route("POST", "leases", create, Shape.LEASE, Lane.BULK),
    Route("GET", "leases", list_all),
    Route("GET", "leases/{lease}", show),
    Route("POST", "leases/{lease}/renew", renew, Shape.RESULT),
    Route("POST", "leases/{lease}/reset", reset, Shape.RESULT, Lane.BULK),
    Route("POST", "leases/{lease}/export", export, Shape.RESULT, Lane.BULK),
    Route("POST", "leases/{lease}/release", release, Shape.RESULT),
    Route("GET", "leases/{lease}/patch", patch, lane=Lane.TRANSFER),
    Route("GET", "leases/{lease}/files/{path...}", read_file, lane=Lane.TRANSFER),
    Route("PUT", "leases/{lease}/files/{path...}", write_file, lane=Lane.TRANSFER),
)

"""Routes of calls that were made: looking at them, and settling those in doubt."""

from __future__ import annotations

from stockade.edge.bodies import check, read_body
from stockade.edge.claim_wire import CallsQuery, SettleRequest
from stockade.edge.exchange import Response
from stockade.edge.routing import Inbound, Route, reply


def calls(inbound: Inbound) -> Response:
    query = check(CallsQuery, dict(inbound.request.query))
    return reply(inbound.service.claims.calls(inbound.context, query))


def call_record(inbound: Inbound) -> Response:
    return reply(inbound.service.claims.call_record(inbound.context, inbound.params["id"]))


def settle(inbound: Inbound) -> Response:
    request = read_body(SettleRequest, inbound.request.body)
    return reply(inbound.service.claims.settle(inbound.context, inbound.params["id"], request))


ROUTES = (
    Route("GET", "calls", calls, query=tuple(CallsQuery.model_fields)),
    Route("GET", "calls/{id}", call_record),
    Route("POST", "calls/{id}/settle", settle),
)

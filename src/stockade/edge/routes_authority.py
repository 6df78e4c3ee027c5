"""Routes of minting, keys and revocation."""

from __future__ import annotations

from stockade.edge.authority_wire import MintRequest, RetireRequest, RevokeRequest
from stockade.edge.bodies import read_body
from stockade.edge.exchange import Response
from stockade.edge.routing import Inbound, Route, reply
from stockade.edge.wire import Empty


def mint(inbound: Inbound) -> Response:
    request = read_body(MintRequest, inbound.request.body)
    return reply(inbound.service.authority.mint(inbound.context, request))


def revoke(inbound: Inbound) -> Response:
    request = read_body(RevokeRequest, inbound.request.body)
    return reply(inbound.service.authority.revoke(inbound.context, request))


def revocations(inbound: Inbound) -> Response:
    return reply(inbound.service.authority.revocations(inbound.context))


def keys(inbound: Inbound) -> Response:
    return reply(inbound.service.authority.keys(inbound.context))


def rotate(inbound: Inbound) -> Response:
    read_body(Empty, inbound.request.body)
    return reply(inbound.service.authority.rotate(inbound.context))


def retire(inbound: Inbound) -> Response:
    request = read_body(RetireRequest, inbound.request.body)
    return reply(inbound.service.authority.retire(inbound.context, request))


ROUTES = (
    Route("POST", "capabilities", mint),
    Route("POST", "capabilities/revoke", revoke),
    Route("GET", "capabilities/revocations", revocations),
    Route("GET", "keys", keys),
    Route("POST", "keys/rotate", rotate),
    Route("POST", "keys/retire", retire),
)

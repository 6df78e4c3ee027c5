"""Routes of registered secrets. A value is in a body, never in a path or query."""

from __future__ import annotations

from stockade.edge.bodies import read_body
from stockade.edge.exchange import Response
from stockade.edge.routing import Inbound, Route, reply
from stockade.edge.secret_wire import SecretAdd, SecretRemove


def add(inbound: Inbound) -> Response:
    request = read_body(SecretAdd, inbound.request.body)
    lease = inbound.params["lease"]
    return reply(inbound.service.secrets.add(inbound.context, lease, request))


def list_all(inbound: Inbound) -> Response:
    return reply(inbound.service.secrets.list(inbound.context, inbound.params["lease"]))


def remove(inbound: Inbound) -> Response:
    request = read_body(SecretRemove, inbound.request.body)
    lease = inbound.params["lease"]
    return reply(inbound.service.secrets.remove(inbound.context, lease, request))


ROUTES = (
    Route("POST", "leases/{lease}/secrets", add),
    Route("GET", "leases/{lease}/secrets", list_all),
    Route("POST", "leases/{lease}/secrets/remove", remove),
)

"""Routes of budgets and approvals."""

from __future__ import annotations

from stockade.edge.bodies import check, read_body
from stockade.edge.budget_wire import ApprovalDecision, SpendQuery
from stockade.edge.exchange import Response
from stockade.edge.routing import Inbound, Route, reply


def spend(inbound: Inbound) -> Response:
    """Of the capability that came, or of a lease's where the query names one."""
    query = check(SpendQuery, dict(inbound.request.query))
    return reply(inbound.service.budgets.spend(inbound.context, query.lease))


def approvals(inbound: Inbound) -> Response:
    return reply(inbound.service.budgets.approvals(inbound.context))


def approval(inbound: Inbound) -> Response:
    return reply(inbound.service.budgets.approval(inbound.context, inbound.params["id"]))


def grant(inbound: Inbound) -> Response:
    return _decide(inbound, granted=True)


def deny(inbound: Inbound) -> Response:
    return _decide(inbound, granted=False)


def _decide(inbound: Inbound, *, granted: bool) -> Response:
    request = read_body(ApprovalDecision, inbound.request.body)
    context, wanted = inbound.context, inbound.params["id"]
    return reply(inbound.service.budgets.decide(context, wanted, request, granted=granted))


ROUTES = (
    Route("GET", "capabilities/spend", spend, query=tuple(SpendQuery.model_fields)),
    Route("GET", "approvals", approvals),
    Route("GET", "approvals/{id}", approval),
    Route("POST", "approvals/{id}/grant", grant),
    Route("POST", "approvals/{id}/deny", deny),
)

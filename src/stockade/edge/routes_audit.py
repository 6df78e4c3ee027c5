"""Routes of the audit."""

from __future__ import annotations

from pydantic import JsonValue

from stockade.edge.audit_wire import ExportedRequest, RecordsQuery
from stockade.edge.bodies import check, read_body, whole_number
from stockade.edge.exchange import Response, Write
from stockade.edge.routing import Inbound, Lane, Route, reply
from stockade.edge.wire import Empty

LINES_TYPE = "application/x-ndjson"


def status(inbound: Inbound) -> Response:
    return reply(inbound.service.audit.status(inbound.context))


def records(inbound: Inbound) -> Response:
    query = check(
        RecordsQuery, {name: _value(name, text) for name, text in inbound.request.query.items()}
    )

    chunks = inbound.service.audit.records(inbound.context, query)

    def produce(write: Write) -> None:
        for chunk in chunks:
            if not write(chunk):
                break

    return Response(200, produce, LINES_TYPE)


def show(inbound: Inbound) -> Response:
    return reply(inbound.service.audit.show(inbound.context, inbound.params["call"]))


def seal(inbound: Inbound) -> Response:
    read_body(Empty, inbound.request.body)
    return reply(inbound.service.audit.seal(inbound.context))


def exported(inbound: Inbound) -> Response:
    request = read_body(ExportedRequest, inbound.request.body)
    return reply(inbound.service.audit.exported(inbound.context, request))


def _value(name: str, text: str) -> JsonValue:
    """A flag or a number. Raises Failure(invalid_argument)."""
    if name == "anchored" and text in ("true", "false"):
        return text == "true"
    return whole_number(name, text)


ROUTES = (
    Route("GET", "audit", status),
    Route(
        "GET",
        "audit/records",
        records,
        lane=Lane.TRANSFER,
        query=tuple(RecordsQuery.model_fields),
    ),
    Route("GET", "audit/calls/{call}", show),
    Route("POST", "audit/checkpoint", seal),
    Route("POST", "audit/exported", exported),
)

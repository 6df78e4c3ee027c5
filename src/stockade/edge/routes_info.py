"""Routes that only look: artifacts, tools, doctor."""

from __future__ import annotations

from stockade.edge.bodies import check, whole_number
from stockade.edge.exchange import BYTES_TYPE, Response
from stockade.edge.routing import Inbound, Lane, Route, reply
from stockade.edge.toolbox import tool_list
from stockade.edge.wire import ArtifactRange
from stockade.terms.ports import MAX_ARTIFACT_READ


def artifact(inbound: Inbound) -> Response:
    query = inbound.request.query
    wanted = check(
        ArtifactRange,
        {
            "lease": inbound.params["lease"],
            "id": inbound.params["id"],
            "offset": whole_number("offset", query.get("offset", "0")),
            "length": whole_number("length", query.get("length", str(MAX_ARTIFACT_READ))),
        },
    )
    return Response(200, inbound.service.read_artifact(inbound.context, wanted), BYTES_TYPE)


def tools(inbound: Inbound) -> Response:
    return reply(tool_list())


def doctor(inbound: Inbound) -> Response:
    return reply(inbound.service.doctor(inbound.context))


ROUTES = (
    Route(
        "GET",
        "artifacts/{lease}/{id}",
        artifact,
        lane=Lane.TRANSFER,
        query=("offset", "length"),
    ),
    Route("GET", "tools", tools),
    Route("GET", "doctor", doctor, lane=Lane.BULK),
)

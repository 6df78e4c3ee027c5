"""Routes for whoever watches the daemon: figures, whether it answers, whether it can serve.

`/healthz` and `/readyz` answer everybody who can connect: whoever probes a daemon is seldom a peer
of it, and what they say is a closed set of words.
"""

from __future__ import annotations

from stockade.edge.exchange import Response
from stockade.edge.routing import Inbound, Route, reply
from stockade.edge.wire import Health, Ready


def metrics(inbound: Inbound) -> Response:
    text, content_type = inbound.service.watching.metrics(inbound.context)
    return Response(200, text, content_type)


def health(inbound: Inbound) -> Response:
    status = "stopping" if inbound.stopping else "ok"
    return reply(Health.model_validate({"status": status, "version": inbound.version}))


def healthz(inbound: Inbound) -> Response:
    return Response(200, b"ok\n", "text/plain")


def readyz(inbound: Inbound) -> Response:
    reasons = [*inbound.service.watching.not_ready()]
    if inbound.stopping:
        reasons.insert(0, "draining")
    return reply(Ready(ready=not reasons, reasons=reasons), 503 if reasons else 200)


ROUTES = (
    Route("GET", "health", health),
    Route("GET", "/metrics", metrics),
    Route("GET", "/healthz", healthz, for_everybody=True),
    Route("GET", "/readyz", readyz, for_everybody=True),
)

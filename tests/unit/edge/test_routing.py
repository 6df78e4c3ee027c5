from __future__ import annotations

import pytest

from stockade.edge.api import _ROUTER
from stockade.edge.exchange import Response
from stockade.edge.routing import Inbound, Lane, Route, Router
from stockade.terms.fault import Code, Failure


def handler(inbound: Inbound) -> Response:
    return Response(200, b"")


ROUTER = Router(
    [
        Route("GET", "a/{x}", handler),
        Route("GET", "a/{x}/f/{p...}", handler),
        Route("GET", "a", handler),
    ]
)


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/v1/a", {}),
        ("/v1/a/1", {"x": "1"}),
        ("/v1/a/t%2Fr", {"x": "t/r"}),
        ("/v1/a/%C3%A9", {"x": "é"}),
        ("/v1/a/1/f/x", {"x": "1", "p": "x"}),
        ("/v1/a/1/f/x/y//z", {"x": "1", "p": "x/y//z"}),
        ("/v1/a/1/f/%2Fx%5C", {"x": "1", "p": "/x\\"}),
        ("/v1/a/1/f/%252e", {"x": "1", "p": "%2e"}),
    ],
)
def test_a_path_is_split_before_it_is_decoded(path: str, params: dict[str, str]) -> None:
    found = ROUTER.find("GET", path)
    assert found is not None
    assert found[1] == params


@pytest.mark.parametrize(
    "path", ["/v1/a/", "/v1/a/1/", "/v1/a/1/f/", "/v1/a/1/g", "/v1/b", "a", ""]
)
def test_what_fits_no_pattern_is_not_found(path: str) -> None:
    assert ROUTER.find("GET", path) is None


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(Failure) as raised:
        ROUTER.find("GET", "/v1/a/%ff")
    assert raised.value.fault.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("method", "path", "lane"),
    [
        ("POST", "/v1/calls", Lane.CALL),
        ("POST", "/v1/run", Lane.CALL),
        ("POST", "/v1/calls/cancel", Lane.CONTROL),
        ("POST", "/v1/leases/x/release", Lane.CONTROL),
        ("GET", "/v1/health", Lane.CONTROL),
        ("POST", "/v1/leases", Lane.BULK),
        ("PUT", "/v1/leases/x/files/y", Lane.TRANSFER),
    ],
)
def test_what_ends_work_never_waits_behind_work(method: str, path: str, lane: Lane) -> None:
    found = _ROUTER.find(method, path)
    assert found is not None
    assert found[0].lane is lane

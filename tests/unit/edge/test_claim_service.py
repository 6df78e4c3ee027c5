"""Who may see what of the calls that were made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.edge.claim_service import ClaimService
from stockade.edge.claim_wire import CallsQuery, SettleRequest
from stockade.edge.exchange import Peer, Role
from stockade.edge.service import Context
from stockade.terms.fault import Code
from stockade.testing.fake_engine import Script
from stockade.testing.house import TENANT, code_of, open_house
from tests.unit.flow.lines import Line, make_line

OPERATOR = Context("rq_1", Peer(0, None, Role.OPERATOR, own=False), None)
MINE = Context("rq_2", Peer(7, TENANT, Role.TENANT, own=False), None)
OTHER = Context("rq_3", Peer(8, "other", Role.TENANT, own=False), None)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    house = open_house(str(tmp_path))
    yield make_line(house)
    house.close()


@pytest.fixture
def service(line: Line) -> ClaimService:
    house = line.house
    line.house.engine.scripts[b"secret"] = Script(stdout=b"secret", lost=True)
    line.call(arguments={"command": "secret"}, call_id="c")
    return ClaimService(house.settlement, house.leases, house.authority, house.clock)


def only(service: ClaimService) -> str:
    [view] = service.calls(MINE, CallsQuery()).calls
    assert "secret" not in view.model_dump_json()
    return view.id


def test_lists_are_of_the_own_tenant(line: Line, service: ClaimService) -> None:
    wanted = only(service)
    assert service.calls(OTHER, CallsQuery()).calls == []
    assert [view.id for view in service.calls(OPERATOR, CallsQuery()).calls] == [wanted]
    of_lease = CallsQuery(lease=line.record.id, in_doubt="true")
    assert [view.id for view in service.calls(MINE, of_lease).calls] == [wanted]
    assert code_of(lambda: service.calls(OTHER, of_lease)) is Code.LEASE_NOT_GRANTED


def test_what_it_printed_is_for_who_could_have_read_it(line: Line, service: ClaimService) -> None:
    wanted, token = only(service), line.record.token
    narrower = line.narrowed(tools=("file_view",))
    for context in (OPERATOR, replace(OPERATOR, token=token), replace(MINE, token=token)):
        record = service.call_record(context, wanted)
        assert record.result is not None
        assert record.result.stdout is not None
        assert record.result.stdout.text == "secret"
    assert code_of(lambda: service.call_record(MINE, wanted)) is Code.TOKEN_MISSING
    assert (
        code_of(lambda: service.call_record(replace(MINE, token=narrower), wanted))
        is Code.RIGHT_NOT_GRANTED
    )
    assert (
        code_of(lambda: service.call_record(replace(OTHER, token=token), wanted)) is Code.NOT_FOUND
    )


def test_a_tenant_settles_its_own(service: ClaimService) -> None:
    wanted = only(service)
    request = SettleRequest.model_validate({"as": "completed", "reason": "it is there"})
    assert code_of(lambda: service.settle(OTHER, wanted, request)) is Code.NOT_FOUND
    view = service.settle(MINE, wanted, request)
    assert (view.settled_by, view.reason) == ("uid 7", "it is there")
    assert "secret" not in view.model_dump_json()

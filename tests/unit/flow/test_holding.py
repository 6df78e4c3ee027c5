"""What a token may ask of the lease itself: the lease's own everything, a narrower one little."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.flow.holding import OWN_TOKEN
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import CheckPrefix
from stockade.terms.lease import LeaseRecord
from stockade.testing.house import TENANT, House, code_of

Operation = Callable[[House, str, Permit | None], object]

# Those that change the lease or end it.
OWNERS: dict[str, Operation] = {
    "renew": lambda house, lease, holder: house.leases.renew(TENANT, lease, 60, holder),
    "reset": lambda house, lease, holder: house.leases.reset(TENANT, lease, holder),
    "release": lambda house, lease, holder: house.leases.release(TENANT, lease, holder),
}
# Those that take its work out.
READERS: dict[str, Operation] = {
    "changes": lambda house, lease, holder: house.exports.changes(TENANT, lease, holder),
    "patch": lambda house, lease, holder: house.exports.patch(TENANT, lease, io.BytesIO(), holder),
    "to": lambda house, lease, holder: house.exports.to_directory(
        TENANT, lease, f"{house.workspaces.directory}-out", holder
    ),
}


@pytest.fixture
def record(house: House) -> LeaseRecord:
    Path(f"{house.workspaces.directory}-out").mkdir()
    made = house.leases.create(house.request()).record
    (house.workspace(made) / "work").write_text("kept")
    return made


def narrowed(record: LeaseRecord, **components: object) -> str:
    return attenuate(record.token, narrow(inspect(record.token).blocks[-1], **components))  # type: ignore[arg-type]


def reading(record: LeaseRecord, *paths: str) -> str:
    scope = record.grant.scope.model_copy(update={"read": paths, "write": ()})
    return narrowed(record, scope=scope)


@pytest.mark.parametrize("name", [*OWNERS, *READERS])
def test_the_leases_own_token_and_no_token_may_do_all(
    house: House, record: LeaseRecord, name: str
) -> None:
    work = {**OWNERS, **READERS}[name]
    work(house, record.id, house.permit(record.token))
    if name != "release":
        work(house, record.id, None)


@pytest.mark.parametrize("name", list(OWNERS))
def test_a_narrower_token_can_not_extend_empty_or_end_the_lease(
    house: House, record: LeaseRecord, name: str
) -> None:
    # Not even one that is narrower in nothing but its depth.
    permit = house.permit(narrowed(record))
    with pytest.raises(Failure) as caught:
        OWNERS[name](house, record.id, permit)
    assert caught.value.fault.code is Code.LEASE_NOT_GRANTED
    assert caught.value.fault.message == OWN_TOKEN
    assert house.leases.show(TENANT, record.id) == record
    assert (house.workspace(record) / "work").exists()


@pytest.mark.parametrize("name", list(READERS))
def test_a_narrower_token_exports_only_if_it_may_view_everything(
    house: House, record: LeaseRecord, name: str
) -> None:
    work = READERS[name]
    work(house, record.id, house.permit(reading(record, "/workspace")))
    check = CheckPrefix(kind="prefix", tool="file_view", argument="path", paths=("/workspace/src",))
    for token, code in (
        (reading(record, "/workspace/src", "/tmp"), Code.RIGHT_NOT_GRANTED),
        (reading(record), Code.RIGHT_NOT_GRANTED),
        (narrowed(record, tools=("bash_execute",)), Code.TOOL_NOT_GRANTED),
        (narrowed(record, checks=(check,)), Code.CHECK_FAILED),
    ):
        assert code_of(partial(work, house, record.id, house.permit(token))) is code


@pytest.mark.parametrize("name", [*OWNERS, *READERS])
def test_a_token_of_another_lease_or_generation_is_no_holder(
    house: House, record: LeaseRecord, name: str
) -> None:
    work = {**OWNERS, **READERS}[name]
    other = house.permit(house.leases.create(house.request("run-2")).record.token)
    unbound = house.permit(house.minter.root(TENANT, "run-1", "agent", 60, house.clock()).token)
    for permit in (other, unbound):
        assert code_of(partial(work, house, record.id, permit)) is Code.LEASE_NOT_GRANTED
    stale = house.permit(record.token)
    house.leases.create(house.request(take_over=True))
    assert code_of(partial(work, house, record.id, stale)) is Code.STALE_GENERATION
    assert (house.workspace(record) / "work").exists()


def test_a_released_lease_is_released_again_by_its_token(house: House, record: LeaseRecord) -> None:
    permit = house.permit(record.token)
    released = house.leases.release(TENANT, record.id, permit)
    assert house.leases.release(TENANT, record.id, permit) == released

"""A child lease is never allowed what the capability it was made with is not."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.decide.attenuation import exceeds
from stockade.decide.blocks import grant_of, narrow
from stockade.decide.objects import covers_path
from stockade.decide.tokens import attenuate, inspect
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Block, Grant, PerCall, PerLease, Total
from stockade.terms.lease import LeaseRecord
from stockade.testing.house import TENANT, House, code_of, open_house

PATHS = ("/workspace", "/workspace/a", "/workspace/a/b", "/workspace/ab", "/tmp")
NUMBER = itertools.count()


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with tempfile.TemporaryDirectory() as directory:
        opened = open_house(str(Path(directory) / "state"))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def parent(house: House) -> LeaseRecord:
    return house.leases.create(house.request()).record


def subsets(items: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    if not items:
        return st.just(())
    return st.lists(st.sampled_from(items), unique=True).map(tuple)


def within(paths: tuple[str, ...], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in paths if any(covers_path(prefix, path) for prefix in prefixes))


@st.composite
def children(draw: st.DrawFn, parent: Block) -> Block | None:
    """A block below `parent`; None where the parent's depth is used up."""

    def less(model: type[PerCall | PerLease | Total], name: str) -> object:
        have = getattr(parent, name)
        picked = {
            field: max(1, getattr(have, field) - draw(st.integers(0, 3)))
            for field in model.model_fields
        }
        return model.model_validate(picked)

    scope = parent.scope
    read = draw(subsets(within(PATHS, scope.read)))
    write = draw(subsets(within(within(PATHS, scope.write), read)))
    changes = {
        "scope": scope.model_copy(update={"read": read, "write": write}),
        "tools": draw(subsets(parent.tools)),
        "deny": parent.deny + draw(subsets(PATHS[1:3])),
        "per_call": less(PerCall, "per_call"),
        "per_lease": less(PerLease, "per_lease"),
        "total": less(Total, "total"),
        "not_after_s": parent.not_after_s - draw(st.integers(0, 100)),
    }
    try:
        return narrow(parent, **changes)  # type: ignore[arg-type]
    except Failure:
        return None


@settings(max_examples=60)
@given(data=st.data(), how=st.sampled_from(["share", "fork", "none"]))
def test_a_child_lease_is_never_wider_than_what_it_was_made_with(
    house: House, parent: LeaseRecord, data: st.DataObject, how: str
) -> None:
    token = parent.token
    for _ in range(data.draw(st.integers(0, 3))):
        block = data.draw(children(inspect(token).blocks[-1]))
        if block is None:
            return
        token = attenuate(token, block)
    presented, last = house.permit(token), inspect(token).blocks[-1]
    request = house.request(
        f"run-1/s{next(NUMBER)}",
        capability=token,
        ttl_s=10**7,
        **({} if how == "none" else {how: parent.id}),
    )
    if how == "fork" and not presented.grant.scope.read:
        assert code_of(lambda: house.leases.create(request)) is Code.RIGHT_NOT_GRANTED
        return
    scope, own, shared = (
        presented.grant.scope,
        presented.grant.per_lease,
        parent.grant.per_lease,
    )
    less = own.disk_bytes < shared.disk_bytes or own.inodes < shared.inodes
    if how == "share" and less and (scope.write or scope.execute):
        assert code_of(lambda: house.leases.create(request)) is Code.UNENFORCEABLE
        return
    child = house.leases.create(request).record
    permit = house.permit(child.token)
    assert exceeds(permit.grant, presented.grant) is None
    assert exceeds(child.grant, grant_of(last)) is None
    assert permit.grant.depth < presented.grant.depth
    assert child.expires_at_s <= child.not_after_s <= presented.not_after_s
    # Every block before it counts what it spends and ends it when it is revoked.
    assert permit.chain[:-1] == presented.chain
    assert permit.totals[:-1] == presented.totals
    assert permit.bound_at == len(permit.chain) - 1
    assert Grant.model_validate(child.grant.model_dump()) == child.grant
    house.leases.release(TENANT, child.id)

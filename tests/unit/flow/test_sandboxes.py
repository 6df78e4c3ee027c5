from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stockade.decide.compile import compile_plan, plan_digest
from stockade.host.cancel import EventfdCancel
from stockade.terms.fault import Code, failure
from stockade.terms.grant import Tier
from stockade.terms.outcome import End
from stockade.terms.patience import Patience
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import LeaseTree, Sandbox, Survivor
from stockade.testing.faults import Faults, raising
from stockade.testing.house import House, code_of, open_house


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = open_house(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def tree(house: House) -> LeaseTree:
    record = house.leases.create(house.request()).record
    return house.leases.workspace(record).tree


def plan_of(house: House, kind: Kind = Kind.COMMAND) -> tuple[SandboxPlan, str]:
    grant = house.policy.grant("agent")
    plan = compile_plan(grant, kind, house.policy, image="host", image_env={}, lease_env=())
    return plan, plan_digest(plan)


@contextmanager
def use(
    house: House, tree: LeaseTree, plan: tuple[SandboxPlan, str], at_most: int = 8
) -> Iterator[Sandbox]:
    with closing(EventfdCancel()) as cancel:
        patience = Patience(cancel, 60.0, time.monotonic)
        with house.sandboxes.use(tree, *plan, at_most, patience) as sandbox:
            yield sandbox


def get(house: House, tree: LeaseTree, kind: Kind = Kind.COMMAND, at_most: int = 8) -> Sandbox:
    with use(house, tree, plan_of(house, kind), at_most) as sandbox:
        return sandbox


def test_same_digest_is_the_same_sandbox_and_another_is_not(house: House, tree: LeaseTree) -> None:
    first = get(house, tree)
    assert get(house, tree) is first
    assert get(house, tree, Kind.SEARCH) is not first


def test_concurrent_calls_share_one_creation(house: House, tree: LeaseTree) -> None:
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: get(house, tree), range(16)))
    assert len(set(map(id, got))) == 1
    assert len(house.engine.created) == 1


def test_dead_sandbox_is_replaced(house: House, tree: LeaseTree) -> None:
    first = get(house, tree)
    first.close()
    assert get(house, tree) is not first


def test_longest_idle_sandbox_makes_room(house: House, tree: LeaseTree) -> None:
    first = get(house, tree, at_most=1)
    second = get(house, tree, Kind.SEARCH, at_most=1)
    assert not first.alive()
    assert second.alive()


def test_who_may_have_none_has_none_also_where_there_is_one(house: House, tree: LeaseTree) -> None:
    get(house, tree)
    assert code_of(lambda: get(house, tree, at_most=0)) is Code.RIGHT_NOT_GRANTED


def test_one_of_another_version_takes_no_call_and_makes_room_first(
    house: House, tree: LeaseTree
) -> None:
    search = get(house, tree, Kind.SEARCH)
    with closing(EventfdCancel()) as cancel:
        patience = Patience(cancel, 60.0, time.monotonic)
        plan, digest = plan_of(house)
        old, new = (house.engine.create(tree, plan, digest, patience) for _ in range(2))
    house.sandboxes.adopt(Survivor(tree.lease_id, old, current=False))
    made = get(house, tree, at_most=2)
    assert made is not old
    assert (old.alive(), search.alive()) == (False, True)
    made.close()
    house.sandboxes.adopt(Survivor(tree.lease_id, new, current=True))
    assert get(house, tree) is new


def test_one_in_which_a_command_of_an_earlier_process_goes_on_makes_no_room(
    house: House, tree: LeaseTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = get(house, tree)
    monkeypatch.setattr(first, "busy", lambda: True)
    assert code_of(lambda: get(house, tree, Kind.SEARCH, at_most=1)) is Code.BUSY
    assert first.alive()


def test_sandbox_in_use_is_never_ended_for_another(house: House, tree: LeaseTree) -> None:
    with use(house, tree, plan_of(house), 1) as first:
        assert code_of(lambda: get(house, tree, Kind.SEARCH, at_most=1)) is Code.BUSY
        assert first.alive()
    assert get(house, tree, Kind.SEARCH, at_most=1).alive()


def test_plan_that_can_not_be_enforced_makes_nothing(house: House, tree: LeaseTree) -> None:
    plan, digest = plan_of(house)
    plan = plan.model_copy(update={"tier_min": Tier.GVISOR})

    def make() -> None:
        with use(house, tree, (plan, digest)):
            raise AssertionError("it was made")

    assert code_of(make) is Code.UNENFORCEABLE
    assert house.engine.created == []


def test_close_lease_closes_all_and_starts_afresh(house: House, tree: LeaseTree) -> None:
    first = get(house, tree)
    house.sandboxes.close_lease(tree.lease_id)
    assert not first.alive()
    assert get(house, tree) is not first
    house.sandboxes.close()


@pytest.mark.parametrize("keep", [False, True])
def test_what_a_leases_ended_sandboxes_shared_goes_at_the_end_too(
    house: House, tree: LeaseTree, keep: bool
) -> None:
    """As after a reset without a later call. A stop in good order leaves no group behind."""
    get(house, tree)
    house.sandboxes.end(tree.lease_id)
    assert os.listdir(house.engine.directory) == [tree.lease_id]
    if keep:
        assert house.sandboxes.leave() == frozenset()
    else:
        house.sandboxes.close()
    assert os.listdir(house.engine.directory) == []


def test_one_that_does_not_close_keeps_no_other_from_closing(tmp_path: Path) -> None:
    faults = Faults()
    house = open_house(str(tmp_path), point=faults.point)
    tree = house.leases.workspace(house.leases.create(house.request()).record).tree
    both = [get(house, tree), get(house, tree, Kind.SEARCH)]
    faults.arm("sandbox.close", raising(failure(Code.SANDBOX_LOST, "still there")))
    assert code_of(lambda: house.sandboxes.close_lease(tree.lease_id)) is Code.SANDBOX_LOST
    assert [sandbox.alive() for sandbox in both].count(True) == 1
    house.close()


def test_who_waits_for_anothers_creation_waits_no_longer_than_its_call(tmp_path: Path) -> None:
    faults, hangs, goes_on = Faults(), threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        goes_on.wait()

    house = open_house(str(tmp_path), point=faults.point)
    tree = house.leases.workspace(house.leases.create(house.request()).record).tree
    faults.arm("engine.create", hang)
    cancel = EventfdCancel()

    def wait(timeout_s: float) -> None:
        patience = Patience(cancel, timeout_s, time.monotonic)
        with house.sandboxes.use(tree, *plan_of(house), 8, patience):
            raise AssertionError("it was made")

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(get, house, tree)
        try:
            assert hangs.wait(60)
            assert code_of(lambda: wait(0.1)) is Code.SANDBOX_UNAVAILABLE
            cancel.set(End.CANCELLED)
            assert code_of(lambda: wait(600)) is Code.CANCELLED
            assert not made.done()
        finally:
            goes_on.set()
        assert made.result(60).alive()
    cancel.close()
    house.close()

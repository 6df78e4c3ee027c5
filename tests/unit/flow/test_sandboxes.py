from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stockade.decide.compile import compile_plan, plan_digest
from stockade.terms.fault import Code
from stockade.terms.grant import Tier
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import LeaseTree
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


def test_same_digest_is_the_same_sandbox_and_another_is_not(house: House, tree: LeaseTree) -> None:
    first = house.sandboxes.get(tree, *plan_of(house), 8)
    assert house.sandboxes.get(tree, *plan_of(house), 8) is first
    assert house.sandboxes.get(tree, *plan_of(house, Kind.SEARCH), 8) is not first


def test_concurrent_calls_share_one_creation(house: House, tree: LeaseTree) -> None:
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: house.sandboxes.get(tree, *plan_of(house), 8), range(16)))
    assert len(set(map(id, got))) == 1
    assert len(house.engine.created) == 1


def test_dead_sandbox_is_replaced(house: House, tree: LeaseTree) -> None:
    first = house.sandboxes.get(tree, *plan_of(house), 8)
    first.close()
    assert house.sandboxes.get(tree, *plan_of(house), 8) is not first


def test_limit_of_sandboxes_is_busy(house: House, tree: LeaseTree) -> None:
    house.sandboxes.get(tree, *plan_of(house), 1)
    assert code_of(lambda: house.sandboxes.get(tree, *plan_of(house, Kind.SEARCH), 1)) is Code.BUSY


def test_plan_that_can_not_be_enforced_makes_nothing(house: House, tree: LeaseTree) -> None:
    plan, digest = plan_of(house)
    plan = plan.model_copy(update={"tier_min": Tier.GVISOR})
    assert code_of(lambda: house.sandboxes.get(tree, plan, digest, 8)) is Code.UNENFORCEABLE
    assert house.engine.created == []


def test_close_lease_closes_all_and_starts_afresh(house: House, tree: LeaseTree) -> None:
    first = house.sandboxes.get(tree, *plan_of(house), 8)
    house.sandboxes.close_lease(tree.lease_id)
    assert not first.alive()
    assert house.sandboxes.get(tree, *plan_of(house), 8) is not first
    house.sandboxes.close()

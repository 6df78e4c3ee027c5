"""Plans are compiled once for each (lease, capability, kind), and never for another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stockade.decide.blocks import lease_block, narrow, root_block
from stockade.decide.compile import compile_plan, plan_digest
from stockade.decide.tokens import KeyRing, attenuate, mint, verify
from stockade.flow.plans import Plans
from stockade.host.policy_files import load_policy
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Scope
from stockade.terms.lease import LeaseRecord
from stockade.terms.plan import Kind
from tests.grants import lease_of

ENV = {"host": {"PATH": "/usr/bin:/bin"}}


@pytest.fixture
def permits() -> tuple[Permit, Permit]:
    """A lease's permit and a narrower one."""
    ring = KeyRing({"k1": bytes(32)})
    root = root_block(load_policy().grant("agent"), "acme", "run-1", "k1", 0, 100)
    bound = lease_block(root, "ls_00112233445566aa", 1, 100)
    token = attenuate(mint(ring, "k1", root), bound)
    scope = Scope(read=("/workspace",), write=(), execute=("/",), connect=())
    less = attenuate(token, narrow(bound, scope=scope))
    return verify(token, ring, 1), verify(less, ring, 1)


@pytest.fixture
def record(permits: tuple[Permit, Permit]) -> LeaseRecord:
    return lease_of(permits[0], env=(("A", "1"),))


def test_a_plan_is_what_the_compiler_makes_and_is_made_once(
    permits: tuple[Permit, Permit], record: LeaseRecord
) -> None:
    plans, policy = Plans(load_policy(), ENV), load_policy()
    for permit in permits:
        for kind in Kind:
            plan, digest = plans.plan(record, permit, kind)
            assert plan == compile_plan(
                permit.grant,
                kind,
                policy,
                image="host",
                image_env=ENV["host"],
                lease_env=record.env,
            )
            assert digest == plan_digest(plan)
            assert plans.plan(record, permit, kind)[0] is plan


def test_another_lease_has_its_own_plan(
    permits: tuple[Permit, Permit], record: LeaseRecord
) -> None:
    plans = Plans(load_policy(), ENV)
    first, _ = plans.plan(record, permits[0], Kind.COMMAND)
    other = replace(record, id="ls_00112233445566bb", env=(("A", "2"),))
    assert plans.plan(other, permits[0], Kind.COMMAND)[0].env != first.env
    assert plans.plan(record, permits[0], Kind.COMMAND)[0] is first


def test_another_lease_has_its_own_search_path(
    permits: tuple[Permit, Permit], record: LeaseRecord
) -> None:
    plans = Plans(load_policy(), ENV)
    first = plans.search_path(record, permits[0])
    assert first == (b"/usr/bin", b"/bin")
    other = replace(record, id="ls_00112233445566bb", env=(("PATH", "/usr/games"),))
    assert plans.search_path(other, permits[0]) == (b"/usr/games",)
    assert plans.search_path(record, permits[0]) is first


def test_a_refusal_is_not_remembered(permits: tuple[Permit, Permit], record: LeaseRecord) -> None:
    images: dict[str, dict[str, str]] = {}
    plans = Plans(load_policy(), images)
    for _ in range(2):
        with pytest.raises(Failure) as caught:
            plans.plan(record, permits[0], Kind.COMMAND)
        assert caught.value.fault.code is Code.UNENFORCEABLE
    images.update(ENV)
    assert plans.plan(record, permits[0], Kind.COMMAND)[0].image == "host"

"""Who is given a result that is stored: those who could have seen what its call could read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stockade.decide.replay import check_replay, may_see
from stockade.terms.call import Permit
from stockade.terms.claim import ClaimRecord, ClaimState
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Grant
from stockade.terms.outcome import EditOutcome
from stockade.terms.ports import PathScope

LEASE = "ls_00112233445566aa"
# Root, then the block that binds the lease, then narrowing ones.
OWNER = ("root", "bound")
NONE = PathScope(read=(), write=(), deny=())


def permit(grant: Grant, *chain: str, bound_at: int | None = 1) -> Permit:
    return Permit(
        tenant="acme",
        trajectory="run-1",
        chain=chain,
        totals=(grant.total,) * len(chain),
        ends=(99,) * len(chain),
        grant=grant,
        lease_id=LEASE,
        generation=1,
        not_after_s=99,
        bound_at=bound_at,
    )


def claim(*chain: str, plan: str | None = None, path: str | None = None) -> ClaimRecord:
    edit = None if path is None else EditOutcome(path, 1, "0" * 32, "1" * 32, "", False)
    return ClaimRecord(
        id="00",
        key="01",
        state=ClaimState.COMPLETED,
        tenant="acme",
        trajectory="run-1",
        turn=1,
        call_id="c",
        tool="bash_execute",
        arguments="{}",
        lease_id=LEASE,
        generation=1,
        workspace_version=0,
        image="host",
        plan_digest=plan,
        chain=chain,
        request_id="rq_1",
        boot="b",
        until_boot_s=1.0,
        created_at_s=1.0,
        foreseen=edit,
    )


def code(
    asks: Permit, of: ClaimRecord, *, scope: PathScope = NONE, plan: str | None = None
) -> Code | None:
    try:
        check_replay(asks, scope, plan, of, LEASE)
    except Failure as error:
        return error.fault.code
    return None


@pytest.mark.parametrize(
    ("asks", "of", "seen"),
    [
        (OWNER, OWNER, True),
        (OWNER, (*OWNER, "a"), True),
        ((*OWNER, "a"), (*OWNER, "a"), True),
        ((*OWNER, "a"), (*OWNER, "a", "b"), True),
        ((*OWNER, "a"), OWNER, False),
        ((*OWNER, "a"), (*OWNER, "b"), False),
        ((*OWNER, "a", "b"), (*OWNER, "a"), False),
        # The lease's next owner is bound by a block of its own, in the place of the former one's.
        (("root", "next"), OWNER, True),
        (("root", "next"), (*OWNER, "a"), True),
        (("other", "next"), OWNER, False),
        # What the next owner narrowed has not taken the former one's place.
        (("root", "next", "a"), OWNER, False),
        (("root", "next", "a"), (*OWNER, "a"), False),
    ],
)
def test_a_result_is_for_its_own_chain_and_for_what_that_was_narrowed_from(
    grant: Grant, asks: tuple[str, ...], of: tuple[str, ...], seen: bool
) -> None:
    assert may_see(permit(grant, *asks), of) is seen
    assert code(permit(grant, *asks), claim(*of)) is (None if seen else Code.RIGHT_NOT_GRANTED)


def test_the_place_of_the_former_owner_is_deeper_below_a_parent(grant: Grant) -> None:
    child = permit(grant, "root", "bound", "next", bound_at=2)
    assert may_see(child, ("root", "bound", "child"))
    assert not may_see(child, ("root", "else", "child"))
    unbound = permit(grant, "root", "x", bound_at=None)
    assert not may_see(unbound, ("root", "y"))


def test_a_narrower_one_with_the_same_walls_could_have_seen_the_same(grant: Grant) -> None:
    narrower = permit(grant, *OWNER, "a")
    assert code(narrower, claim(*OWNER, plan="p"), plan="p") is None
    assert code(narrower, claim(*OWNER, plan="p"), plan="q") is Code.RIGHT_NOT_GRANTED
    # No plan is no wall that two calls could share.
    assert code(narrower, claim(*OWNER, plan=None), plan=None) is Code.RIGHT_NOT_GRANTED


def test_of_an_edit_the_walls_are_those_around_its_file(grant: Grant) -> None:
    narrower, of = permit(grant, *OWNER, "a"), claim(*OWNER, path="/workspace/f")
    for read, write, expected in (
        (("/workspace",), ("/workspace",), None),
        (("/workspace",), (), Code.RIGHT_NOT_GRANTED),
        ((), ("/workspace",), Code.RIGHT_NOT_GRANTED),
        (("/workspace/part",), ("/workspace/part",), Code.RIGHT_NOT_GRANTED),
    ):
        scope = PathScope(read=read, write=write, deny=())
        assert code(narrower, of, scope=scope) is expected
    everywhere = PathScope(read=("/",), write=("/",), deny=())
    assert code(narrower, claim(*OWNER), scope=everywhere) is Code.RIGHT_NOT_GRANTED


def test_a_result_of_another_lease_is_for_nobody_here(grant: Grant) -> None:
    elsewhere = replace(claim(*OWNER, plan="p"), lease_id="ls_other")
    assert code(permit(grant, *OWNER), elsewhere, plan="p") is Code.KEY_REUSED

"""Leases of child trajectories: who may make one of what, and how one ends with another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.flow.lease_request import LeaseRequest
from stockade.terms.fault import Code, Failure
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.outcome import End
from stockade.testing.house import TENANT, Caller, House, code_of


@pytest.fixture
def parent(house: House, source: Path) -> LeaseRecord:
    return house.leases.create(house.request(source=str(source))).record


def child(house: House, trajectory: str = "run-1/sub-2", **changes: object) -> LeaseRecord:
    return house.leases.create(house.request(trajectory, **changes)).record


def share(house: House, parent: LeaseRecord, name: str = "sub-2") -> LeaseRecord:
    return child(house, f"{parent.trajectory}/{name}", capability=parent.token, share=parent.id)


def state(house: House, record: LeaseRecord) -> LeaseState:
    found = house.ledger.lease(record.id)
    assert found is not None
    return found.state


def narrowed(token: str, *read: str) -> str:
    last = inspect(token).blocks[-1]
    scope = last.scope.model_copy(update={"read": read, "write": ()})
    return attenuate(token, narrow(last, scope=scope))


def refusal(house: House, **changes: object) -> tuple[Code, str | None]:
    with pytest.raises(Failure) as caught:
        child(house, **changes)  # type: ignore[arg-type]
    return caught.value.fault.code, caught.value.fault.rule


def test_a_lease_token_makes_leases_of_trajectories_below_only(
    house: House, parent: LeaseRecord
) -> None:
    made = child(house, capability=parent.token)
    assert (made.shares, made.forked_from) == (None, None)
    assert made.chain[:-1] == parent.chain
    assert made.uid_base != parent.uid_base
    house.leases.admit(made.id, house.permit(made.token))
    deeper = child(house, "run-1/sub-2/x", capability=made.token)
    assert deeper.chain[:-1] == made.chain
    for trajectory in ("run-1", "run-2", "run-10", "run-1/sub-3", "run-1/sub-20"):
        request = house.request(trajectory, name="other", capability=made.token)
        assert code_of(partial(house.leases.create, request)) is Code.LEASE_NOT_GRANTED
    other = LeaseRequest(tenant="other", trajectory="run-1/sub-2/y", capability=made.token)
    assert code_of(lambda: house.leases.create(other)) is Code.LEASE_NOT_GRANTED


def test_an_unbound_capability_makes_leases_of_its_trajectory_and_below(house: House) -> None:
    root = house.leases._minter.offer(house.request(), house.clock()).token
    made = [child(house, name, capability=root) for name in ("run-1", "run-1/a", "run-1/a/b")]
    for record in made:
        house.leases.admit(record.id, house.permit(record.token))


def test_a_token_that_is_not_admitted_makes_nothing(house: House, parent: LeaseRecord) -> None:
    house.leases.create(house.request(source=parent.source, take_over=True))
    assert refusal(house, capability=parent.token)[0] is Code.STALE_GENERATION
    current = house.ledger.lease(parent.id)
    assert current is not None
    house.leases.release(TENANT, parent.id)
    assert refusal(house, capability=current.token)[0] is Code.LEASE_EXPIRED


def test_repeating_gives_the_same_lease(house: House, parent: LeaseRecord) -> None:
    made = share(house, parent)
    assert share(house, parent) == made
    assert refusal(house, capability=parent.token) == (Code.KEY_REUSED, "share")
    fork = child(house, "run-1/f", capability=parent.token, fork=parent.id)
    assert child(house, "run-1/f", fork=parent.id) == fork
    assert refusal(house, trajectory="run-1/f", capability=parent.token, share=parent.id) == (
        Code.KEY_REUSED,
        "share",
    )


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"fork": "ls_0000000000000000"}, "fork"),
        ({"source": "/"}, "source"),
        ({"excludes": ("x",)}, "excludes"),
        ({"grant": "agent"}, "grant"),
    ],
)
def test_a_workspace_comes_from_one_place(
    house: House, parent: LeaseRecord, changes: dict[str, object], name: str
) -> None:
    with pytest.raises(Failure) as caught:
        child(house, share=parent.id, **changes)  # type: ignore[arg-type]
    assert caught.value.fault.code is Code.INVALID_ARGUMENT
    assert caught.value.fault.details["argument"] == name


def test_whose_workspace_may_be_asked_for(house: House, parent: LeaseRecord) -> None:
    stranger = child(house, "run-2")
    theirs = house.leases.create(LeaseRequest(tenant="other", trajectory="run-1")).record
    beside = child(house, "run-1/beside", capability=parent.token)
    for how in ("share", "fork"):
        # Not below it, not there, another tenant's; then leases that the token is not of.
        assert refusal(house, trajectory="run-3", **{how: parent.id})[1] == "trajectory"
        assert refusal(house, trajectory="run-1", name="x", **{how: parent.id})[1] == "trajectory"
        for address in ("ls_ffffffffffffffff", theirs.id):
            assert refusal(house, **{how: address})[0] is Code.LEASE_NOT_GRANTED
        assert refusal(
            house, trajectory="run-1/beside/x", capability=parent.token, **{how: beside.id}
        ) == (Code.LEASE_NOT_GRANTED, "lease")
        assert refusal(
            house, trajectory="run-2/x", capability=parent.token, **{how: stranger.id}
        ) == (Code.LEASE_NOT_GRANTED, "trajectory")
    unread = narrowed(parent.token)
    assert refusal(house, capability=unread, fork=parent.id) == (
        Code.RIGHT_NOT_GRANTED,
        "scope.read",
    )


def test_the_unbound_capability_of_a_lease_may_ask_for_its_workspace(house: House) -> None:
    root = house.leases._minter.offer(house.request(), house.clock()).token
    parent = house.leases.create(house.request(capability=root)).record
    made = child(house, capability=root, share=parent.id)
    assert made.shares == parent.id
    side = attenuate(root, narrow(inspect(root).blocks[-1]))  # not in the lease's line
    assert refusal(house, trajectory="run-1/x", capability=side, share=parent.id) == (
        Code.LEASE_NOT_GRANTED,
        "lease",
    )


def test_a_sharing_lease_works_in_the_same_files_and_has_the_rest_of_its_own(
    house: House, parent: LeaseRecord
) -> None:
    per_lease = parent.grant.per_lease.model_copy(update={"pids": 7})
    token = attenuate(parent.token, narrow(inspect(parent.token).blocks[-1], per_lease=per_lease))
    made = child(house, capability=token, share=parent.id)
    assert made.uid_base == parent.uid_base
    assert made.grant.per_lease.pids == 7
    above, below = (house.leases.workspace(record) for record in (parent, made))
    assert below.files is above.files
    assert (below.tree.lease_id, below.tree.limits.pids) == (made.id, 7)
    assert (below.tree.path, below.tree.disk_path) == (above.tree.path, above.tree.disk_path)
    (house.workspace(made) / "new").write_text("x")
    assert house.exports.changes(TENANT, parent.id) == house.exports.changes(TENANT, made.id)
    assert house.exports.changes(TENANT, made.id).added == 1


def test_a_sharing_lease_does_not_reset_and_its_end_leaves_the_workspace(
    house: House, parent: LeaseRecord
) -> None:
    made = share(house, parent)
    (house.workspace(made) / "new").write_text("x")
    with pytest.raises(Failure) as caught:
        house.leases.reset(TENANT, made.id)
    assert (caught.value.fault.code, caught.value.fault.rule) == (
        Code.RIGHT_NOT_GRANTED,
        "lease.shares",
    )
    house.leases.release(TENANT, made.id)
    assert (house.workspace(parent) / "new").read_text() == "x"
    again = share(house, parent)
    house.clock.advance(again.expires_at_s - 1 - house.clock())
    house.leases.renew(TENANT, parent.id, 100)
    house.clock.advance(2)
    house.sweeper.tick()
    assert state(house, again) is LeaseState.RELEASED
    assert (house.workspace(parent) / "new").read_text() == "x"


def test_the_end_of_a_lease_is_the_end_of_those_that_share_it(
    house: House, parent: LeaseRecord
) -> None:
    made = share(house, parent)
    deeper = share(house, made, "x")
    fork = child(house, "run-1/fork", capability=parent.token, fork=parent.id)
    own = child(house, "run-1/own", capability=parent.token)
    with Caller(house, deeper) as caller:
        house.leases.release(TENANT, parent.id)
    assert caller.reason is End.CANCELLED
    assert {state(house, each) for each in (parent, made, deeper)} == {LeaseState.RELEASED}
    for each in (fork, own):
        house.leases.admit(each.id, house.permit(each.token))
    assert sorted(set(house.left_behind())) == sorted([fork.id, own.id])


def test_expiry_of_a_lease_is_that_of_those_that_share_it(
    house: House, parent: LeaseRecord
) -> None:
    made = share(house, parent)
    assert made.expires_at_s <= parent.expires_at_s
    assert house.leases.renew(TENANT, made.id, 10**6).expires_at_s <= parent.expires_at_s
    with Caller(house, made) as caller:
        house.clock.advance(parent.expires_at_s - house.clock())
        permit = house.permit(made.token)
        assert code_of(lambda: house.leases.admit(made.id, permit)) is Code.LEASE_EXPIRED
        house.sweeper.tick()
    assert caller.reason is End.LEASE_EXPIRED
    assert house.ledger.leases() == []


def test_reset_of_a_lease_cancels_in_those_that_share_it_and_keeps_them(
    house: House, parent: LeaseRecord
) -> None:
    made = share(house, parent)
    (house.workspace(made) / "new").write_text("x")
    with Caller(house, made) as caller:
        reset = house.leases.reset(TENANT, parent.id)
    assert caller.reason is End.CANCELLED
    admitted = house.leases.admit(made.id, house.permit(made.token))
    assert admitted.workspace_version == reset.workspace_version == 2
    assert not (house.workspace(admitted) / "new").exists()


def test_taking_a_lease_over_ends_those_that_share_it(house: House, parent: LeaseRecord) -> None:
    made = share(house, parent)
    fork = child(house, "run-1/fork", capability=parent.token, fork=parent.id)
    with Caller(house, made) as caller:
        house.leases.create(house.request(source=parent.source, take_over=True))
    assert caller.reason is End.CANCELLED
    assert state(house, made) is LeaseState.RELEASED
    assert state(house, fork) is LeaseState.READY


def test_nobody_is_let_in_while_the_lease_above_is_not_ready(
    house: House, parent: LeaseRecord
) -> None:
    made = share(house, parent)
    permit = house.permit(made.token)
    for above, code in (
        (LeaseState.RESETTING, Code.WORKSPACE_UNAVAILABLE),
        (LeaseState.DIRTY, Code.LEASE_EXPIRED),
    ):
        house.ledger.put_lease(replace(parent, state=above))
        assert code_of(lambda: house.leases.admit(made.id, permit)) is code
    house.ledger.put_lease(parent)
    house.steps.authority.revoke_block(parent.chain[-1], "uid 0", "", house.clock())
    assert code_of(lambda: house.leases.admit(made.id, permit)) is Code.TOKEN_REVOKED
    house.sweeper.tick()
    assert house.ledger.leases() == []


def test_a_fork_begins_with_what_is_there_and_goes_its_own_way(
    house: House, parent: LeaseRecord
) -> None:
    (house.workspace(parent) / "new").write_text("x")
    fork = child(house, capability=parent.token, fork=parent.id)
    assert fork.uid_base != parent.uid_base
    assert (house.workspace(fork) / "new").read_text() == "x"
    assert house.exports.changes(TENANT, fork.id).added == 0
    (house.workspace(fork) / "a.txt").write_text("changed")
    house.leases.reset(TENANT, parent.id)
    house.leases.release(TENANT, parent.id)
    assert (house.workspace(fork) / "a.txt").read_text() == "changed"
    house.leases.reset(TENANT, fork.id)
    assert (house.workspace(fork) / "a.txt").read_text() == "one\n"
    assert (house.workspace(fork) / "new").read_text() == "x"


def test_a_fork_holds_only_what_its_capability_may_read(house: House, parent: LeaseRecord) -> None:
    top = house.workspace(parent)
    for name in ("src/deep/f", "src-evil/f", "doc/f"):
        (top / name).parent.mkdir(parents=True)
        (top / name).write_text("x")
    token = narrowed(parent.token, "/workspace/src", "/workspace/doc/f")
    fork = child(house, capability=token, fork=parent.id)
    here = house.workspace(fork)
    found = {str(p.relative_to(here)) for p in here.rglob("*") if p.is_file()}
    assert found == {"src/deep/f", "doc/f"}


def test_a_fork_waits_for_no_call_and_lets_none_in(house: House, parent: LeaseRecord) -> None:
    made = share(house, parent)
    ask = partial(child, house, "run-1/fork", capability=parent.token, fork=parent.id)
    for record in (parent, made):
        with house.running.enter(record.id, "rq", None, 8):
            assert code_of(ask) is Code.BUSY
    assert [record.id for record in house.ledger.leases()] == [parent.id, made.id]

    def busy(name: str) -> None:
        if name == "workspaces.fork":
            for record in (parent, made):
                with pytest.raises(Failure) as caught, house.running.enter(record.id, "r", None, 8):
                    pass
                assert caught.value.fault.code is Code.BUSY
            seen.append(name)

    seen: list[str] = []
    house.workspaces._point = busy
    ask()
    assert seen
    for record in (parent, made):
        with house.running.enter(record.id, "r", None, 8):
            pass


def test_a_child_is_taken_over_by_its_own_line_only(house: House, parent: LeaseRecord) -> None:
    first, second = narrowed(parent.token, "/workspace"), narrowed(parent.token, "/tmp")
    made = child(house, capability=first)
    # The same authority by another narrowing of the same token.
    twin = attenuate(
        parent.token,
        narrow(
            inspect(parent.token).blocks[-1],
            scope=inspect(first).blocks[-1].scope,
            not_after_s=inspect(first).blocks[-1].not_after_s - 1,
        ),
    )
    for token in (second, twin):
        request = house.request("run-1/sub-2", capability=token, take_over=True)
        assert code_of(partial(house.leases.create, request)) is Code.KEY_REUSED
    again = child(house, capability=first, take_over=True)
    assert (again.id, again.generation) == (made.id, 2)


def test_children_are_made_and_ended_at_once_without_waiting_for_ever(
    house: House, parent: LeaseRecord
) -> None:
    """Every lock is taken from the top downwards, whoever asks in whatever order."""

    def work(number: int) -> int:
        for turn in range(8):
            made = share(house, parent, f"c{number % 2}")
            request = partial(share, house, made, f"x{turn % 2}")
            # Another thread may have ended it since.
            assert code_of(request) in (None, Code.LEASE_EXPIRED, Code.LEASE_NOT_GRANTED)
            house.leases.release(TENANT, made.id)
            house.leases.reset(TENANT, parent.id)
        return number

    with ThreadPoolExecutor(4) as pool:
        ends = [pool.submit(work, number) for number in range(4)]
        assert [end.result(60) for end in ends] == [0, 1, 2, 3]
    assert [record.id for record in house.ledger.leases()] == [parent.id]


@pytest.mark.parametrize("limit", ["disk_bytes", "inodes"])
def test_who_shares_a_disk_and_may_write_has_no_less_of_it(
    house: House, parent: LeaseRecord, limit: str
) -> None:
    last = inspect(parent.token).blocks[-1]
    less = last.per_lease.model_copy(update={limit: getattr(last.per_lease, limit) - 1})
    token = attenuate(parent.token, narrow(last, per_lease=less))
    refused = (Code.UNENFORCEABLE, f"per_lease.{limit}")
    assert refusal(house, capability=token, share=parent.id) == refused
    nothing = last.scope.model_copy(update={"write": (), "execute": ()})
    reads = attenuate(parent.token, narrow(last, per_lease=less, scope=nothing))
    assert child(house, capability=reads, share=parent.id).shares == parent.id
    assert child(house, "run-1/sub-3", capability=parent.token, share=parent.id).shares == parent.id
    assert child(house, "run-1/sub-4", capability=token, fork=parent.id).shares is None

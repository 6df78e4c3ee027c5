"""Leases are made once, with ids of their own, and give their work back."""

from __future__ import annotations

import errno
import io
import threading
from pathlib import Path

import pytest

from stockade.flow.lease_request import LeaseRequest
from stockade.flow.leases import Leases
from stockade.flow.user_ids import UID_FLOOR, UID_SLOTS
from stockade.terms.fault import Code, Failure, Status
from stockade.terms.lease import UID_RANGE, LeaseRecord, LeaseState
from stockade.terms.ports import SourceReport, WorkspaceSpec
from stockade.testing.faults import Faults, raising
from stockade.testing.house import TENANT, House, code_of, open_house

ADDRESS = f"{TENANT}/run-1"


def test_create_gives_a_ready_lease_with_a_token_bound_to_it(house: House, source: Path) -> None:
    made = house.leases.create(house.request(source=str(source), ttl_s=60))
    record = made.record
    assert record.state is LeaseState.READY
    assert record.expires_at_s == house.clock() + 60
    assert (made.report and made.report.files, made.report and made.report.skipped) == (2, 1)
    permit = house.permit(record.token)
    assert (permit.tenant, permit.trajectory) == (TENANT, "run-1")
    assert (permit.lease_id, permit.generation) == (record.id, 1)
    assert permit.chain == record.chain
    assert permit.grant == record.grant
    assert permit.not_after_s == record.not_after_s
    assert house.leases.admit(record.id, permit) == record
    assert (house.workspace(record) / "a.txt").read_text() == "one\n"


def test_the_engine_is_told_before_the_source_is_copied_and_after(
    house: House, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    create = house.workspaces.create

    def copied(spec: WorkspaceSpec) -> SourceReport:
        told.append(house.engine.expected)
        return create(spec)

    monkeypatch.setattr(house.workspaces, "create", copied)
    house.leases.create(house.request(source=str(source)))
    assert (told, house.engine.expected) == ([1], 2)
    house.leases.create(house.request(source=str(source)))
    assert house.engine.expected == 2  # the lease is there already


def test_create_is_idempotent_by_tenant_trajectory_and_name(house: House, source: Path) -> None:
    request = house.request(source=str(source), ttl_s=100, env=(("A", "1"),))
    first = house.leases.create(request)
    house.clock.advance(10)
    again = house.leases.create(request.model_copy(update={"ttl_s": 5}))
    assert again.record == first.record  # not shortened, not extended, the same token
    assert again.report is None
    other = house.leases.create(request.model_copy(update={"name": "second"}))
    assert other.record.id != first.record.id
    elsewhere = house.leases.create(request.model_copy(update={"trajectory": "run-2"}))
    assert elsewhere.record.id not in (first.record.id, other.record.id)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("source", {"source": None}),
        ("excludes", {"excludes": ("*.o",)}),
        ("env", {"env": (("A", "2"),)}),
        ("grant", {"grant": "read-only"}),
    ],
)
def test_other_parameters_are_rejected_by_name(
    house: House, source: Path, name: str, changes: dict[str, object]
) -> None:
    request = house.request(source=str(source))
    first = house.leases.create(request)
    for take_over in (False, True):
        with pytest.raises(Failure) as caught:
            house.leases.create(request.model_copy(update={**changes, "take_over": take_over}))
        assert caught.value.fault.code is Code.KEY_REUSED
        assert caught.value.fault.rule == name
        assert caught.value.fault.details["lease_id"] == first.record.id
    assert house.ledger.lease(first.record.id) == first.record


def test_the_order_of_excludes_makes_no_other_lease(house: House, source: Path) -> None:
    request = house.request(source=str(source), excludes=("*.o", ".git"))
    first = house.leases.create(request)
    turned = {"excludes": (".git", "*.o", ".git")}
    assert house.leases.create(request.model_copy(update=turned)).record == first.record


def test_two_creates_at_once_make_one_lease(house: House, source: Path) -> None:
    made: list[LeaseRecord] = []
    barrier = threading.Barrier(4)

    def create() -> None:
        barrier.wait()
        made.append(house.leases.create(house.request(source=str(source))).record)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({record.id for record in made}) == 1
    assert len(house.ledger.leases()) == 1


def test_a_failed_create_leaves_nothing_and_frees_the_name(house: House, tmp_path: Path) -> None:
    request = house.request(source=str(tmp_path / "absent"))
    assert code_of(lambda: house.leases.create(request)) is Code.SOURCE_UNUSABLE
    assert house.left_behind() == []
    assert house.ledger.leases() == []
    assert house.leases.create(house.request()).record.state is LeaseState.READY


def test_a_create_that_met_a_fault_of_ours_has_had_no_effect_and_says_so(
    house: House, faults: Faults, source: Path
) -> None:
    faults.arm("workspaces.create.half", raising(OSError(errno.EMFILE, "Too many open files")))
    request = house.request(source=str(source))
    with pytest.raises(Failure, match="there is no lease of this create") as caught:
        house.leases.create(request)
    assert caught.value.fault.status is Status.UNAVAILABLE
    assert house.left_behind() == []
    assert house.leases.create(request).record.state is LeaseState.READY


def test_a_failed_create_that_can_not_be_undone_is_dirty_and_never_handed_out(
    house: House, faults: Faults, source: Path
) -> None:
    faults.arm("workspaces.create.half", raising(RuntimeError("copy broke")))
    faults.arm("workspaces.remove", raising(RuntimeError("removal broke")))
    request = house.request(source=str(source))
    assert code_of(lambda: house.leases.create(request)) is Code.INTERNAL
    (dirty,) = house.ledger.leases()
    assert dirty.state is LeaseState.DIRTY
    made = house.leases.create(request)  # removes the dirty one first
    assert made.record.id != dirty.id
    released = house.ledger.lease(dirty.id)
    assert released is not None
    assert released.state is LeaseState.RELEASED
    assert house.left_behind() == [made.record.id]


def test_the_copy_does_not_use_up_the_time_to_live(house: House, tmp_path: Path) -> None:
    slow = open_house(
        str(tmp_path / "slow"),
        clock=house.clock,
        point=lambda name: house.clock.advance(50) if name == "workspaces.create" else None,
    )
    record = slow.leases.create(slow.request(ttl_s=60)).record
    assert record.expires_at_s == house.clock() + 60
    slow.close()


def test_user_ids_are_a_lease_s_own_and_wrap_around_those_in_use(house: House) -> None:
    first = house.leases.create(house.request()).record
    assert first.uid_base == UID_FLOOR
    second = house.leases.create(house.request("run-2")).record
    assert second.uid_base == UID_FLOOR + UID_RANGE
    last = UID_FLOOR + (UID_SLOTS - 1) * UID_RANGE + UID_RANGE - 1
    assert last < 2**32 - 1  # the largest number is no user id
    offset = Leases(
        house.steps,
        house.leases._minter,
        clock=house.clock,
        random_hex=house.leases._random_hex,
        uid_offset=UID_SLOTS - 2,  # the next slot is number 2: wraps to 0, which is taken, and 1
    )
    third = offset.create(house.request("run-3")).record
    assert third.uid_base == UID_FLOOR + 2 * UID_RANGE


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "../x"},
        {"trajectory": "a/../b"},
        {"name": ""},
        {"ttl_s": 0},
        {"ttl_s": True},
        {"source": "relative"},
        {"source": "/a\0b"},
        {"unknown": 1},
    ],
)
def test_a_malformed_request_is_no_request(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        LeaseRequest.model_validate({"tenant": "t", "trajectory": "x", **changes})


@pytest.mark.parametrize(
    ("env", "code"),
    [
        ((("A=B", "1"),), Code.INVALID_ARGUMENT),
        ((("A", "x\0"),), Code.INVALID_ARGUMENT),
        ((("A", "x" * 131_072),), Code.ARGUMENT_TOO_LARGE),
        (tuple((f"V{n}", "x" * 100_000) for n in range(3)), Code.ARGUMENT_TOO_LARGE),
    ],
)
def test_an_environment_that_no_command_could_get_makes_no_lease(
    house: House, env: tuple[tuple[str, str], ...], code: Code
) -> None:
    with pytest.raises(Failure) as refused:
        house.leases.create(house.request(env=env))
    assert refused.value.fault.code is code
    assert house.leases.list(None) == []


def test_export_gives_the_work_back(house: House, source: Path, tmp_path: Path) -> None:
    record = house.leases.create(house.request(source=str(source))).record
    work = house.workspace(record)
    (work / "a.txt").write_text("1\n")
    (work / "new").write_text("n\n")
    (work / "b.txt").unlink()
    data = house.exports.changes(TENANT, ADDRESS)
    assert (data.added, data.modified, data.deleted, data.patch_bytes) == (1, 1, 1, None)
    out = io.BytesIO()
    data, left_out = house.exports.patch(TENANT, ADDRESS, out)
    assert (data.added, data.modified, data.deleted) == (1, 1, 1)
    assert data.patch_bytes == len(out.getvalue()) > 0
    assert (data.skipped, left_out) == (0, ())
    data, left_out = house.exports.to_directory(TENANT, ADDRESS, str(source))
    assert (data.patch_bytes, data.skipped, left_out) == (None, 0, ())
    assert (source / "a.txt").read_text() == "1\n"
    assert (source / "new").read_text() == "n\n"
    assert not (source / "b.txt").exists()

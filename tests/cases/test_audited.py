"""What the audit says when replies are lost, sandboxes break and leases are killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from pydantic import JsonValue

from stockade.edge.client.lease import READS
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import LeaseCreate
from tests.audited import of_lease, of_result, said
from tests.cases.conftest import LeaseFactory
from tests.cases.test_claims import ADD, BREAKS, dropping, is_there
from tests.daemons import WAIT_S, Daemon, wait_until

RAN = [("call_intent", None, None), ("call_outcome", "succeeded", None)]


@pytest.mark.parametrize("call_id", [None, "c"])
def test_b84_a_lost_reply_is_one_intent_and_one_outcome(
    daemon: Daemon, fresh_lease: LeaseFactory, tmp_path: Path, call_id: str | None
) -> None:
    """Also where the caller had to be told `unknown`: the outcome says what became of it."""
    lease = fresh_lease()
    with dropping(daemon, tmp_path, "echo x", 1) as proxy, Stockade.connect(proxy.path) as far:
        result = far.attach(lease.id, lease.token).call("bash_execute", ADD, call_id=call_id)
    made, *calls = of_lease(daemon.stockade, lease.id)
    assert made.kind == "lease_created"
    assert [said(record) for record in calls] == RAN
    assert calls[0].arguments == '{"command":"echo x >> n","timeout_ms":30000}'
    if call_id is not None:
        assert of_result(daemon.stockade, result) == calls[1]


def test_b84_an_edit_and_a_create_whose_replies_are_lost_are_recorded_once(
    daemon: Daemon, fresh_lease: LeaseFactory, tmp_path: Path
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for directory in (first, second):
        directory.mkdir()
    with dropping(daemon, first, "b84-lost", 1) as proxy, Stockade.connect(proxy.path) as far:
        result, none = far.create_lease(LeaseCreate(tenant="local", trajectory="b84-lost"))
    assert (result.status.value, none) == ("unknown", None)
    lease = fresh_lease(trajectory="b84-lost")
    lease.bash("echo one > f").check()
    edit: dict[str, JsonValue] = {"path": "f", "old_str": "one", "new_str": "two"}
    with dropping(daemon, second, "old_str", 1) as proxy, Stockade.connect(proxy.path) as far:
        held = far.attach(lease.id, lease.token)
        edited = held.call("file_edit", edit, call_id="e").check()
    assert edited.replayed
    made, _, _, *edits = of_lease(daemon.stockade, lease.id)
    assert made.kind == "lease_created"
    assert [said(record) for record in edits] == RAN
    assert of_result(daemon.stockade, edited) == edits[1]


def test_b84_duplicates_at_once_are_one_intent_and_one_outcome(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    slow = {"command": "echo x >> n; sleep 0.3"}
    with ThreadPoolExecutor(16) as pool:
        every = [pool.submit(lease.call, "bash_execute", slow, call_id="c") for _ in range(16)]
        results = [one.result(WAIT_S) for one in every]
    _, *calls = of_lease(daemon.stockade, lease.id)
    assert [said(record) for record in calls] == RAN
    assert {of_result(daemon.stockade, result).seq for result in results} == {calls[1].seq}


@pytest.mark.parametrize("command", BREAKS)
def test_b75_the_audit_names_a_broken_sandbox_as_the_caller_was_told(
    daemon: Daemon, fresh_lease: LeaseFactory, command: str
) -> None:
    lease = fresh_lease()
    lease.bash("echo kept > kept").check()
    broke = lease.bash(command, 120_000)
    shells = [lease.bash("echo alive") for _ in range(3)]
    reads = [lease.view("kept"), lease.grep("kept", ".")]
    denied = lease.bash("echo 'Permission denied' >&2; exit 126")
    for result in (broke, *shells, denied):
        of_result(daemon.stockade, result)  # status and code are the same

    def read() -> list[tuple[str | None, str | None, str | None]]:
        found = of_lease(daemon.stockade, lease.id)
        return [(r.tool, r.status, r.code) for r in found if r.tool in READS]

    # Soon after the reply.
    assert wait_until(lambda: len(read()) == len(reads))
    assert read() == [(r.call.tool, r.status.value, r.error and r.error.code.value) for r in reads]
    lease.reset().check()
    assert lease.bash("echo alive").check()
    last = [said(record) for record in of_lease(daemon.stockade, lease.id)[-3:]]
    assert last == [("lease_reset", None, None), *RAN]


def test_b73_each_lease_ends_once_with_the_outcome_of_what_it_cut_off(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    """After a kill in mid-call and three releases, two of them at once."""
    for _ in range(3):
        lease = fresh_lease()
        with ThreadPoolExecutor(3) as pool:
            running = pool.submit(lease.bash, "touch here; sleep 60")
            assert wait_until(partial(is_there, lease, "here"))
            both = [pool.submit(lease.release) for _ in range(2)]
            for one in both:
                one.result(WAIT_S)
            cut_off = running.result(WAIT_S)
        lease.release()
        records = [r for r in of_lease(daemon.stockade, lease.id) if r.tool != "file_view"]
        assert [said(record) for record in records] == [
            ("lease_created", None, None),
            ("call_intent", None, None),
            ("call_outcome", "cancelled", "cancelled"),
            ("lease_released", None, None),
        ]
        assert of_result(daemon.stockade, cut_off) == records[2]

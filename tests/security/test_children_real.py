"""Leases of child trajectories on the real daemon: one workspace under several leases, and forks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from stockade.decide.blocks import lease_block
from stockade.decide.tokens import attenuate as append
from stockade.decide.tokens import inspect
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result, StockadeError, ToolError
from stockade.edge.client.sdk import Stockade
from stockade.terms.fault import Code
from tests import daemons
from tests.daemons import Daemon, InCall, error, output

MIB = 1 << 20
SLEEPERS = "grep -l ^sleep /proc/[0-9]*/comm | wc -l"


@pytest.fixture(scope="module")
def running() -> Iterator[Daemon]:
    with daemons.daemon() as made:
        yield made


@pytest.fixture
def stockade(running: Daemon) -> Iterator[Stockade]:
    with running.connect() as connected:
        yield connected


@pytest.fixture
def parent(stockade: Stockade, tmp_path: Path) -> Iterator[Lease]:
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    (source / "doc").mkdir()
    (source / "src/f").write_text("in src\n")
    (source / "doc/f").write_text("in doc\n")
    with stockade.lease(source, tenant="acme", trajectory=f"t-{os.urandom(4).hex()}") as lease:
        yield lease


def code(attempt: Callable[[], object]) -> Code | None:
    """What an attempt by the SDK is refused with, however it is told."""
    try:
        result = attempt()
    except (StockadeError, ToolError) as refused:
        return refused.error.code
    assert isinstance(result, Result)
    return None if result.error is None else result.error.code


def test_two_leases_of_one_workspace(parent: Lease, running: Daemon) -> None:
    child = parent.narrowed(limits={"memory_bytes": 64 * MIB}).child("sub", share=True)
    assert output(parent, "echo one > /workspace/shared; echo t > /tmp/t") == ""
    assert (
        output(child, "cat /workspace/shared /tmp/t; echo two >> /workspace/shared") == "one\nt\n"
    )
    assert child.edit("/workspace/shared", "two", "three").error is None
    assert output(parent, "cat /workspace/shared") == "one\nthree\n"
    assert child.changes().data == parent.changes().data
    # Limits are each one's own, and neither sees the other's processes.
    fill = "x=$(head -c 100000000 /dev/zero | tr '\\0' a); echo ${#x}"
    assert output(parent, fill) == "100000000\n"
    assert error(child.bash(fill)).code is Code.MEMORY_EXCEEDED
    with running.connect() as other:
        call = InCall(other.attach(parent.id, parent.token), "exec sleep 971")
        assert output(parent, SLEEPERS) == "1\n"
        assert output(child, SLEEPERS) == "0\n"
        parent.cancel(call.call_id)
        call.result()
    groups = {path.name for path in running.groups()}
    assert {parent.id, child.id} <= groups
    assert child.release().error is None
    assert output(parent, "cat /workspace/shared") == "one\nthree\n"
    daemons.until(lambda: child.id not in {p.name for p in running.groups()}, "its groups end")


def test_a_narrower_child_stays_in_its_scope(parent: Lease) -> None:
    narrow = parent.narrowed(read=["/workspace/src"], write=["/workspace/src"])
    for how in ("share", "fork"):
        child = narrow.child(how, share=how == "share", fork=how == "fork")
        assert output(child, "cat /workspace/src/f; ls /workspace") == "in src\nsrc\n"
        assert error(child.bash("cat /workspace/doc/f")).code is Code.NONZERO_EXIT
        assert error(child.view("/workspace/doc/f")).code is Code.RIGHT_NOT_GRANTED
        assert error(child.edit("/workspace/doc/f", "a", "b")).code is Code.RIGHT_NOT_GRANTED
        assert error(child.grep("in", "/workspace/doc")).code is Code.RIGHT_NOT_GRANTED
        assert code(partial(child.download, "/workspace/doc/f", "x")) is Code.RIGHT_NOT_GRANTED
    assert output(parent, "echo secret > /workspace/doc/new") == ""
    shared = narrow.child("share", share=True)
    for take in (shared.changes, shared.export_patch):
        assert code(take) is Code.RIGHT_NOT_GRANTED
    assert output(parent, "cat /workspace/src/f") == "in src\n"


def test_a_fork_goes_its_own_way(parent: Lease) -> None:
    output(parent, "echo 1 > /workspace/n; ln /workspace/n /workspace/same; mkfifo /workspace/p")
    fork = parent.child("fork", fork=True)
    assert fork.changes().data is not None
    assert output(fork, "cd /workspace; stat -c %h n; test n -ef same && ls") == (
        "2\ndoc\nn\nsame\nsrc\n"
    )
    assert output(fork, "cat /workspace/n; echo 2 > /workspace/n") == "1\n"
    assert output(parent, "cat /workspace/n") == "1\n"
    assert parent.reset().error is None
    assert output(fork, "cat /workspace/n; id -u; stat -c %u /workspace/n") == "2\n0\n0\n"
    assert parent.release().error is None
    assert output(fork, "cat /workspace/n") == "2\n"
    assert fork.reset().error is None
    assert output(fork, "cat /workspace/n") == "1\n"
    assert fork.release().error is None


def test_a_fork_is_refused_while_a_call_runs(parent: Lease) -> None:
    call = InCall(parent, "exec sleep 972")
    assert code(lambda: parent.child("fork", fork=True)) is Code.BUSY
    parent.cancel(call.call_id)
    call.result()
    assert parent.child("fork", fork=True).release().error is None


def test_the_end_of_the_owner_is_the_end_of_all(parent: Lease, running: Daemon) -> None:
    child = parent.child("sub", share=True)
    grandchild = child.child("x", share=True)
    call = InCall(grandchild, "exec sleep 973")
    assert parent.release().error is None
    assert error(call.result()).code is Code.CANCELLED
    for lease in (child, grandchild):
        assert error(lease.bash("true")).code is Code.LEASE_EXPIRED
    ids = {parent.id, child.id, grandchild.id}
    daemons.until(lambda: not ids & {p.name for p in running.groups()}, "their groups end")
    assert not ids & running.leases_on_disk()


def test_reset_ends_what_runs_in_all_and_keeps_them(parent: Lease) -> None:
    child = parent.child("sub", share=True)
    output(child, "echo x > /workspace/new; (sleep 974 &)")
    call = InCall(child, "exec sleep 975")
    assert child.reset().error is not None
    assert parent.reset().error is None
    assert error(call.result()).code is Code.CANCELLED
    assert output(child, SLEEPERS) == "0\n"
    assert output(child, "ls /workspace") == "doc\nsrc\n"


def test_after_a_crash_children_are_there_again(tmp_path: Path) -> None:
    with daemons.daemon() as daemon:
        with daemon.connect() as stockade:
            parent = stockade.lease(tenant="acme", trajectory="t")
            child, fork = parent.child("sub", share=True), parent.child("fork", fork=True)
            output(child, "echo x > /workspace/new")
            gone = stockade.lease(tenant="acme", trajectory="u")
            with_it = gone.child("sub", share=True)
        daemon.kill()
        daemon.start()
        with daemon.connect() as stockade:
            again = stockade.attach(child.id, child.token)
            assert output(again, "cat /workspace/new; echo y > /workspace/new") == "x\n"
            assert output(stockade.attach(parent.id, parent.token), "cat /workspace/new") == "y\n"
            assert output(stockade.attach(fork.id, fork.token), "ls /workspace") == ""
            assert stockade.attach(gone.id, gone.token).release().error is None
            ended = stockade.attach(with_it.id, with_it.token)
            assert error(ended.bash("true")).code is Code.LEASE_EXPIRED
            shown = {view.lease_id: view for view in stockade.leases()}
            assert shown[child.id].shares == parent.id
            assert shown[fork.id].forked_from == parent.id


def test_a_binding_that_a_holder_makes_is_refused_at_every_door(
    stockade: Stockade, parent: Lease, tmp_path: Path
) -> None:
    child = parent.child("sub", share=True)
    fork = parent.child("fork", fork=True)
    leases = (parent, child, fork)
    (tmp_path / "local").write_text("x")
    for holder in leases:
        for target in leases:
            if holder is target:
                continue
            last = inspect(holder.token or "").blocks[-1]
            forged = append(
                holder.token or "", lease_block(last, target.id, 1, last.not_after_s, "0" * 32)
            )
            door = stockade.attach(target.id, forged)
            for attempt in (
                partial(door.bash, "true"),
                partial(door.run, ["true"]),
                partial(door.view, "/workspace/src/f"),
                partial(door.edit, "/workspace/src/f", "in", "out"),
                partial(door.grep, "in"),
                partial(door.cancel, "c"),
                partial(door.renew, 10),
                door.reset,
                door.release,
                door.changes,
                door.export_patch,
                partial(door.export_to, tmp_path),
                partial(door.upload, tmp_path / "local", "/workspace/up"),
                partial(door.download, "/workspace/src/f", tmp_path / "down"),
                partial(door.artifact, "ar_0000000000000000"),
                partial(door.child, "y", share=True),
                partial(door.child, "y", fork=True),
            ):
                assert code(attempt) is Code.LEASE_NOT_GRANTED, attempt
    assert output(parent, "cat /workspace/src/f; ls /workspace") == "in src\ndoc\nsrc\n"


def test_the_command_line_makes_and_shows_children(running: Daemon, parent: Lease) -> None:
    env = {**os.environ, "STOCKADE_SOCKET": running.socket}
    trajectory = parent.show().trajectory
    for how in ("share", "fork"):
        options = ["--trajectory", f"{trajectory}/{how}", f"--{how}", f"acme/{trajectory}"]
        made = subprocess.run(
            [daemons.PROGRAM, "lease", "create", "--tenant", "acme", *options],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
    listed = subprocess.run(
        [daemons.PROGRAM, "lease", "list"], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert f"of {parent.id}" in listed
    assert f"fork of {parent.id}" in listed


def test_a_family_does_not_outspend_the_capability_it_was_made_with(parent: Lease) -> None:
    few = parent.narrowed(limits={"calls": 3})
    family = [few, few.child("a", share=True), few.child("b", fork=True)]
    for lease in family:
        assert output(lease, "echo x") == "x\n"
    for lease in family:
        assert error(lease.bash("echo x")).code is Code.BUDGET_EXHAUSTED
    assert output(parent, "echo x") == "x\n"

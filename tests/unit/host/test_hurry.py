from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stockade.host import cgroup
from stockade.host.call_group import CallGroup
from stockade.host.hurry import REFILLS, Hurry, kept
from stockade.host.interpreter import ALLOWED
from stockade.host.lease_groups import LeaseGroups, SandboxGroups
from stockade.terms.plan import Limits

IDLE = os.sched_param(0)
# Without help the trees below take 0.3 to 9 s, mostly several; with it, 0.02 to 0.15. The bound is
# for a host that is busy with other tests.
TRIES = 2
WITHIN_S = 3.0
LOADED_S = 10.0


@contextmanager
def sandbox() -> Iterator[tuple[SandboxGroups, tuple[Path, ...]]]:
    """Groups, and the files with their quotas."""
    hierarchies = cgroup.of_this_host()
    lease = LeaseGroups(hierarchies, f"test{secrets.token_hex(2)}", "ls_0")
    limits = Limits(
        memory_bytes=1 << 30, cpu_millis=4000, pids=1024, disk_bytes=1 << 20, inodes=100
    )
    lease.create(limits)
    try:
        made = lease.sandbox("sb_0")
        made.create(limits)
        yield made, lease.quotas("sb_0")
        assert made.kill(20.0)
        assert made.remove() == []
    finally:
        cgroup.kill(lease.unified, 20.0)
        assert lease.remove() == []
        lease.remove_instance()


@contextmanager
def placed(sandbox: SandboxGroups, name: str, line: str) -> Iterator[CallGroup]:
    """A shell in its group that has printed a line after what `line` begins with."""
    shell = subprocess.Popen(
        ["/bin/bash", "-c", f"read -r; {line}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    fd = os.pidfd_open(shell.pid)
    group = sandbox.place(shell.pid, fd, name)
    os.close(fd)
    shell.stdin.write(b"\n")
    shell.stdin.flush()
    shell.stdout.readline()
    try:
        yield group
    finally:
        group.kill(20.0)
        shell.communicate(timeout=20)
        group.close()


def demote(pid: int) -> None:
    os.sched_setaffinity(pid, {min(ALLOWED)})
    os.setpriority(os.PRIO_PROCESS, pid, 19)
    os.sched_setscheduler(pid, os.SCHED_IDLE, IDLE)


def state(pid: int) -> tuple[int, int, set[int]]:
    priority = os.getpriority(os.PRIO_PROCESS, pid)
    return os.sched_getscheduler(pid), priority, os.sched_getaffinity(pid)


def members(group: CallGroup) -> list[int]:
    return [int(pid) for pid in (group.path / "cgroup.procs").read_text().split()]


@pytest.mark.parametrize("demoted", [True, False])
def test_what_gets_no_processor_time_dies_all_the_same(demoted: bool) -> None:
    """SCHED_IDLE, nice 19 and bound to a busy processor; or under a quota that is used up."""
    burn = "for i in {1..12}; do (while :; do :; done) & done; echo; wait"
    tree = "for i in {1..100}; do (setsid sleep 600 &); done; echo; exec sleep 600"
    for number in range(TRIES):
        with sandbox() as (groups, quotas), placed(groups, "call-1", tree) as group:
            for pid in members(group) if demoted else ():
                demote(pid)
            with placed(groups, f"call-burn{number}", burn):
                for quota in () if demoted else reversed(quotas):
                    cgroup.write(quota, "3000")
                began = time.monotonic()
                assert group.kill(20.0)
                assert time.monotonic() - began < WITHIN_S
                assert members(group) == []


def below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *below(child))]


def test_nor_is_the_guest_waited_for_that_waits_for_them() -> None:
    """It is pid 1 of what is in another group, whose quota is used up."""
    burn = "for i in {1..12}; do (while :; do :; done) & done; echo; wait"
    tree = "for i in {1..150}; do (setsid sleep 600 &); done; echo; exec sleep 600"
    unshare = ["unshare", "--pid", "--fork", "bash", "-c", f"read -r; {tree}"]
    for number in range(TRIES):
        with (
            sandbox() as (groups, quotas),
            subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made,
        ):
            assert made.stdin is not None
            assert made.stdout is not None
            while not (found := below(made.pid)):
                os.sched_yield()
            fd = os.pidfd_open(found[0])
            groups.place(found[0], fd, "call-1").close()
            os.close(fd)
            made.stdin.write(b"\n")
            made.stdin.flush()
            made.stdout.readline()
            (groups._guest / "cgroup.procs").write_text(str(found[0]))
            with placed(groups, f"call-burn{number}", burn):
                for quota in reversed(quotas):
                    cgroup.write(quota, "1000")
                began = time.monotonic()
                assert groups.kill(20.0)
                assert time.monotonic() - began < WITHIN_S


def test_threads_of_the_group_are_hurried_and_no_stranger() -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        with sandbox() as (groups, _), placed(groups, "call-1", "sleep 600 & echo; wait") as group:
            for pid in (*members(group), stranger.pid):
                demote(pid)
            before = state(stranger.pid)
            hurry = Hurry(group.path.parent, ())
            waiting = hurry.waiting()
            assert {pid for pid, _ in waiting} == set(members(group))
            # As if this number had been one of the group's when it was read.
            hurry.along([*waiting, (stranger.pid, str(group.path))])
            assert state(stranger.pid) == before
            for pid in members(group):
                assert state(pid) == (os.SCHED_OTHER, -20, set(ALLOWED))
            for pid in members(group):
                demote(pid)
            hurry.along(hurry.waiting())
            changed = [state(pid)[0] for pid in members(group)]
            assert changed == [os.SCHED_IDLE] * 2, "each once: anew, it would lose its turn"
    finally:
        stranger.kill()
        stranger.wait()


# By a thread that is not the first one of its process.
TRACE = """
import ctypes, sys, threading
def trace():
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    print(libc.ptrace(0x4206, int(sys.argv[1]), None, 0x40), flush=True)
    threading.Event().wait()
threading.Thread(target=trace).start()
"""


def test_who_traces_what_is_killed_does_not_keep_it_alive(tmp_path: Path) -> None:
    """PTRACE_SEIZE with PTRACE_O_TRACEEXIT, by another call, which is itself traced so. The name of
    what is traced is no text, and reads as a line of its status where lines end otherwise."""
    script = tmp_path / "trace.py"
    script.write_text(TRACE)
    with ExitStack() as stack:
        groups, _ = stack.enter_context(sandbox())
        named = r"printf '\377\034TracerPid: x' > /proc/$$/comm; echo; read -r"
        last = stack.enter_context(placed(groups, "call-1", named))
        first = last
        for number in (2, 3):
            [pid] = members(last)
            line = f"exec {sys.executable} {script} {pid}"
            last = stack.enter_context(placed(groups, f"call-{number}", line))
        began = time.monotonic()
        assert first.kill(20.0)
        assert time.monotonic() - began < LOADED_S


def test_a_quota_is_written_again_as_it_is_and_so_often_at_most(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.cfs_quota_us"
    quota.write_text("5000\n")
    written = 0
    for _ in range(REFILLS + 10):  # whichever kills they belong to
        os.utime(quota, ns=(0, 0))
        Hurry(tmp_path, (quota, tmp_path / "absent")).along(())
        written += quota.stat().st_mtime_ns != 0
    # One more for each two seconds that this took.
    assert REFILLS <= written < REFILLS + 10
    assert quota.read_text() == "5000\n"


def test_no_new_period_begins_while_a_budget_is_reckoned_by_the_quota(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.cfs_quota_us"
    quota.write_text("5000\n")
    hurry = Hurry(tmp_path, (quota,))
    with kept((quota,)), kept((quota,)):
        pass
    with kept((quota,)):
        os.utime(quota, ns=(0, 0))
        hurry.along(())
        assert quota.stat().st_mtime_ns == 0
    hurry.along(())
    assert quota.stat().st_mtime_ns != 0

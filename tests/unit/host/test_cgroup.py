from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.host import cgroup
from stockade.host.call_group import CallGroup
from stockade.host.lease_groups import LeaseGroups, SandboxGroups
from stockade.terms.base import MAX_INTEGER
from stockade.terms.fault import Code, Failure
from stockade.terms.plan import Limits

HYBRID = """\
30 20 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
LIMITS = Limits(memory_bytes=64 << 20, cpu_millis=500, pids=32, disk_bytes=1 << 20, inodes=100)


def test_detect_reads_a_hybrid_host() -> None:
    found = cgroup.detect(HYBRID)
    assert found.hybrid
    assert found.unified == Path("/sys/fs/cgroup/unified")
    assert found.v1["cpu"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert set(found.v1) == {"memory", "pids", "cpu"}, "each more costs every call a move"


def test_detect_reads_a_cgroup2_host(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    found = cgroup.detect(f"29 20 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    assert not found.hybrid
    assert found.unified == tmp_path


def test_detect_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(Failure) as caught:
        cgroup.detect(f"29 20 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    assert caught.value.fault.code is Code.ENGINE_UNAVAILABLE
    assert "memory, pids" in caught.value.fault.message
    with pytest.raises(Failure, match="cgroup2"):
        cgroup.detect(HYBRID.replace("- cgroup2", "- tmpfs"))


@pytest.fixture
def groups() -> Iterator[LeaseGroups]:
    hierarchies = cgroup.of_this_host()
    made = LeaseGroups(hierarchies, f"test{secrets.token_hex(2)}", "ls_0")
    made.create(LIMITS)
    try:
        yield made
    finally:
        cgroup.kill(made.unified, 5.0)
        assert made.remove() == []
        made.remove_instance()
        assert not made.unified.parent.exists()


def start(line: str) -> subprocess.Popen[bytes]:
    """A shell that waits for a byte before it runs `line`, so that it can be placed first."""
    return subprocess.Popen(
        ["/bin/bash", "-c", f"read -r; {line}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def place(sandbox: SandboxGroups, process: subprocess.Popen[bytes]) -> CallGroup:
    fd = os.pidfd_open(process.pid)
    try:
        return sandbox.place(process.pid, fd, "call-1")
    finally:
        os.close(fd)


def test_limits_hold_for_what_is_placed(groups: LeaseGroups) -> None:
    sandbox = groups.sandbox("sb_0")
    sandbox.create(LIMITS)
    process = start("head -c 200M /dev/zero | tail >/dev/null; echo ${PIPESTATUS[1]}")
    group = place(sandbox, process)
    before = sandbox.counters.oom_kills()
    go(process)
    assert process.communicate(timeout=20)[0] == b"137\n"
    assert sandbox.counters.oom_kills() == before + 1
    assert group.cpu_ms() > 0
    assert sandbox.remove() == []


def test_more_processes_than_any_kernel_has_are_a_limit_too(groups: LeaseGroups) -> None:
    sandbox = groups.sandbox("sb_0")
    sandbox.create(LIMITS.model_copy(update={"pids": MAX_INTEGER}))
    assert sandbox.remove() == []


def test_a_number_that_was_given_to_another_process_is_not_moved(groups: LeaseGroups) -> None:
    """It may be any process of the host, which would be ended with the sandbox."""
    sandbox = groups.sandbox("sb_0")
    sandbox.create(LIMITS)
    gone, stranger = subprocess.Popen(["true"]), start("true")
    fd = os.pidfd_open(gone.pid)
    gone.wait(20)
    before = Path(f"/proc/{stranger.pid}/cgroup").read_text()
    try:
        with pytest.raises(ProcessLookupError):
            sandbox.place(stranger.pid, fd, "call-1")
        assert Path(f"/proc/{stranger.pid}/cgroup").read_text() == before
    finally:
        os.close(fd)
        go(stranger)
        stranger.communicate(timeout=20)


@pytest.mark.parametrize("own", [True, False])
def test_fork_limit_is_counted(groups: LeaseGroups, own: bool) -> None:
    """The sandbox's own limit, and the lease's where that is reached before."""
    sandbox = groups.sandbox("sb_1")
    sandbox.create(LIMITS if own else LIMITS.model_copy(update={"pids": 1000}))
    # bash waits 15 s for a fork that is refused; what /bin/sh is on Debian ends.
    process = start("exec sh -c 'for i in $(seq 60); do sleep 30 & done' 2>/dev/null")
    group = place(sandbox, process)
    go(process)
    process.wait(20)
    assert sandbox.counters.pids_refused() > 0
    assert group.members() > 0
    assert sandbox.kill(5.0)
    assert group.members() == 0
    process.communicate()


def test_kill_leaves_no_survivor_of_a_hostile_tree(groups: LeaseGroups) -> None:
    sandbox = groups.sandbox("sb_2")
    sandbox.create(LIMITS)
    process = start(
        "trap '' TERM HUP INT; for i in 1 2 3 4; do (setsid sh -c 'kill -STOP $$' &) ; "
        "(setsid setsid sleep 300 &) ; done; sleep 300"
    )
    group = place(sandbox, process)
    go(process)
    while group.members() < 6:
        pass
    assert group.kill(5.0)
    assert group.members() == 0
    assert not cgroup.populated(group.path)
    process.wait(5)
    process.communicate()


def test_kill_of_a_group_that_is_gone_is_confirmed(tmp_path: Path) -> None:
    assert cgroup.kill(tmp_path / "absent", 1.0)
    assert not cgroup.populated(tmp_path / "absent")


def test_leases_are_found_again_by_instance(groups: LeaseGroups) -> None:
    hierarchies = cgroup.of_this_host()
    instance = groups.unified.parent.name.removeprefix(cgroup.PREFIX)
    assert cgroup.leases_of(hierarchies, instance) == {"ls_0"}
    assert cgroup.leases_of(hierarchies, "none") == set()


def test_remove_names_what_is_in_use(groups: LeaseGroups) -> None:
    sandbox = groups.sandbox("sb_3")
    sandbox.create(LIMITS)
    process = start("true")
    place(sandbox, process)
    assert any(name.endswith("call-1") for name in sandbox.remove())
    go(process)
    process.communicate(timeout=5)
    assert not os.path.exists(f"/proc/{process.pid}")

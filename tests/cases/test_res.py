"""Group RES of the cases: limits of processes, memory, disk and memory-backed places.

Destructive programs run inside sandboxes only; the smaller limits of narrower leases keep them quick.
"""

from __future__ import annotations

import platform
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.engines.oci.spares import BATCH, BUSY_SPARES
from stockade.host.cgroup import of_this_host
from stockade.terms.grant import Profile
from tests.cases.asking import (
    COUNT_INSIDE,
    answering,
    code,
    error_code,
    narrower_lease,
    out,
    texts,
    warned,
)
from tests.cases.conftest import LeaseFactory
from tests.daemons import Daemon, wait_until

MIB = 1024 * 1024
MEMORY = 128 * MIB
DISK = 48 * MIB
EAT = 'python3 -c "a=bytearray(10**9)"'


# B28: nothing piles up.


def test_b28_no_zombies_and_no_groups_pile_up(daemon: Daemon, fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    before = out(lease.bash(COUNT_INSIDE))
    groups = daemon.lease_group(lease.id)

    def count() -> int:
        return len(list(groups.glob("limits/*/call-*")))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: lease.bash("(sleep 0.1 &) ; true").check(), range(500)))
    zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    assert wait_until(lambda: out(lease.bash(zombies)) == "0\n")
    assert wait_until(lambda: out(lease.bash(COUNT_INSIDE)) == before)
    assert wait_until(lambda: not daemon.commands(lease.id))
    # Those of the processes that wait for the next calls, and of the last calls.
    few = BUSY_SPARES + BATCH
    assert wait_until(lambda: out(lease.bash(":")) == "" and count() <= few), count()


# B29: a fork bomb.

BOMBS = {
    "shell": "bomb() { bomb | bomb & }; bomb; sleep 60",
    "python": (
        "python3 -c 'import os, signal\nwhile True:\n try:\n  if os.fork() == 0: signal.pause()\n"
        " except OSError: pass'"
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_b29_a_fork_bomb_ends_at_its_limits(
    daemon: Daemon, fresh_lease: LeaseFactory, kind: str
) -> None:
    lease, other = fresh_lease(), fresh_lease()
    lease.bash(":").check()
    other.bash(":").check()
    with answering(daemon, other) as took:
        begun = time.monotonic()
        result = lease.bash(BOMBS[kind], timeout_ms=3_000)
        lasted = time.monotonic() - begun
    assert result.status.value == "timed_out", result
    assert "near_limit" in warned(result)
    assert lasted < 3 + 5
    assert statistics.median(took) < 2, took
    assert daemon.commands(lease.id) == []
    assert out(lease.bash("echo alive")) == "alive\n"


def test_b29_a_bomb_left_behind_is_ended(daemon: Daemon, fresh_lease: LeaseFactory) -> None:
    """The shell's classic returns at once. It is ended when it goes on forking at its limit; a
    server in the background stays."""
    lease, other = fresh_lease(), fresh_lease()
    lease.bash("sleep 600 </dev/null >/dev/null 2>&1 & echo $! >/tmp/pid").check()
    other.bash(":").check()
    with answering(daemon, other) as took:
        bomb = lease.bash("bomb() { bomb | bomb & }; bomb", timeout_ms=20_000)
        assert {"left_running", "near_limit"} & set(warned(bomb))
        assert wait_until(lambda: len(daemon.commands(lease.id)) == 1), daemon.commands(lease.id)
        assert texts(lease.bash("kill -0 $(cat /tmp/pid) && echo alive"))[0] == "alive\n"
    assert statistics.median(took) < 2, took
    lease.reset().check()
    assert out(lease.bash("echo alive | cat")) == "alive\n"


# B31: out of memory.


def test_b31_the_peak_of_memory_is_this_calls_own(fresh_lease: LeaseFactory) -> None:
    """Null where the kernel can't restart it: cgroup2 before Linux 6.12."""
    lease = fresh_lease()
    usages = [lease.bash('python3 -c "bytearray(64 * 1024 * 1024)"').usage, lease.bash(":").usage]
    much, little = (None if usage is None else usage.peak_memory_bytes for usage in usages)
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if not of_this_host().hybrid and release < (6, 12):
        assert much is None
        assert little is None
        return
    assert much is not None
    assert little is not None
    assert much > 64 * MIB
    assert little < much - 48 * MIB


def test_b31_the_kernel_killed_the_main_process(daemon: Daemon, fresh_lease: LeaseFactory) -> None:
    lease = narrower_lease(daemon, fresh_lease, memory_bytes=MEMORY)
    for _ in range(2):
        result = lease.bash(f"exec {EAT}")
        assert result.status.value == "limited"
        assert error_code(result) == "memory_exceeded"
        assert result.exit is not None
        assert (result.exit.kind, result.exit.signal) == ("signaled", 9)
        assert result.error is not None
        assert result.error.details == {"oom_kills": 1}
        fine = lease.bash("echo fine")
        assert out(fine) == "fine\n"
        assert warned(fine) == []


@pytest.mark.parametrize(
    ("command", "stdout", "status"),
    [
        (f"{EAT}; echo after", "after\n", 0),
        (f"bash -c '{EAT}; exit 0'; echo after", "after\n", 0),
        (f"{EAT}", "", 137),
        (f"{EAT} & wait $!; echo $?", "137\n", 0),
    ],
)
def test_b31_the_kernel_killed_a_child(
    daemon: Daemon, fresh_lease: LeaseFactory, command: str, stdout: str, status: int
) -> None:
    lease = narrower_lease(daemon, fresh_lease, memory_bytes=MEMORY)
    for _ in range(2):
        result = lease.bash(command if status == 0 else f"{command}; exit $?")
        assert code(result) == status
        assert texts(result)[0] == stdout
        assert "oom_in_child" in warned(result)
        warning = next(one for one in result.warnings if one.code.value == "oom_in_child")
        assert warning.count == 1, "a delta of this call"
    assert warned(lease.bash("echo fine")) == []


def test_b31_a_kill_of_the_programs_own_is_not_called_out_of_memory(lease: Lease) -> None:
    result = lease.bash("bash -c 'kill -9 $$'; exit 137")
    assert code(result) == 137
    assert warned(result) == []
    assert error_code(lease.bash("kill -9 $$")) == "killed_by_signal"


# B33: every writable place is bounded.


def places(lease: Lease) -> list[str]:
    """Every directory that something can be written below, found by trying."""
    find = (
        "for d in / /workspace /tmp /var/tmp /dev/shm /run $HOME /etc /usr /usr/local /var /opt "
        "/srv /mnt /home /proc /sys /dev /dev/mqueue /run/lock; do "
        "[ -d $d ] && (: > $d/.probe) 2>/dev/null && rm -f $d/.probe && echo $d; done; true"
    )
    return out(lease.bash(find)).split()


def held_bytes(daemon: Daemon) -> int:
    """What the host's disk holds for the daemon's state."""
    files = [path for path in daemon.state.rglob("*") if path.is_file()]
    return sum(path.lstat().st_blocks * 512 for path in files)


def full(result: Result) -> bool:
    shown = texts(result)[1]
    return "No space left" in shown or "quota exceeded" in shown


@pytest.mark.parametrize("profile", [Profile.AGENT, Profile.STRICT])
def test_b33_every_writable_place_ends_at_its_limit(
    daemon: Daemon, fresh_lease: LeaseFactory, profile: Profile
) -> None:
    lease = narrower_lease(
        daemon, fresh_lease, profile=profile, disk_bytes=DISK, inodes=2_000, memory_bytes=MEMORY
    )
    found = places(lease)
    assert {"/workspace", "/tmp", "/dev/shm"} <= set(found)
    assert len(found) > (8 if profile is Profile.AGENT else 3)
    before = held_bytes(daemon)
    for place in found:
        file = f"{place.rstrip('/')}/big"
        assert full(lease.bash(f"fallocate -l 50G {file}")), place
        written = lease.bash(f"rm -f {file}; dd if=/dev/zero of={file} bs=1M")
        assert full(written), (place, written)
        assert warned(written) == [], "the disk's limit comes before the memory's"
        size = int(out(lease.bash(f"stat -c %s {file}")))
        assert 0 < size <= max(DISK, MEMORY // 2), place
        # The next call of each kind works on a full disk.
        assert out(lease.bash("echo alive")) == "alive\n"
        assert lease.file_view(file).status.value in ("rejected", "succeeded")
        assert lease.grep_search("x").status.value == "succeeded"
        lease.bash(f"rm -f {file}").check()
    assert held_bytes(daemon) - before < 2 * DISK, "the host gave no more than the limits"
    assert full(lease.bash("dd if=/dev/zero of=/workspace/big bs=1M"))
    lease.reset().check()
    assert out(lease.bash("ls; echo > f; ls")) == "f\n"


@pytest.mark.parametrize("profile", [Profile.AGENT, Profile.STRICT])
def test_b33_inodes_are_bounded_in_every_writable_place(
    daemon: Daemon, fresh_lease: LeaseFactory, profile: Profile
) -> None:
    limit = 2_000
    lease = narrower_lease(
        daemon, fresh_lease, profile=profile, disk_bytes=DISK, inodes=limit, memory_bytes=MEMORY
    )
    script = (
        "import os, sys\nos.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); n = 0\n"
        "try:\n"
        " while n < 100_000: os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY)); n += 1\n"
        "except OSError as error: print(error.strerror)\n"
        "print(n)\n"
    )
    for place in places(lease):
        made = lease.run(["python3", "-c", script, f"{place.rstrip('/')}/many"])
        reason, count = out(made).splitlines()
        assert reason in ("No space left on device", "Disk quota exceeded"), place
        assert int(count) < 40_000, place
        if place in ("/workspace", "/"):
            assert int(count) <= limit + 16
        assert out(lease.bash("echo alive")) == "alive\n"
        lease.run(["rm", "-rf", f"{place.rstrip('/')}/many"]).check()
    lease.run(["python3", "-c", script, "/workspace/many"]).check()
    lease.reset().check()
    assert out(lease.bash("ls; touch f; ls")) == "f\n"


def test_b33_the_default_limits_hold(lease: Lease) -> None:
    asked = "fallocate -l 50G big; df --output=size -B1 /workspace | tail -n1; rm -f big"
    result = lease.bash(asked)
    assert full(result)
    assert int(texts(result)[0]) <= 1 << 30
    inodes = out(lease.bash("df --output=itotal /workspace | tail -n1"))
    assert int(inodes) <= 262_144 + 128


def test_b33_edits_and_uploads_on_a_full_disk_say_so(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = narrower_lease(daemon, fresh_lease, disk_bytes=DISK, inodes=2_000)
    assert full(lease.bash("seq 100000 > numbers; dd if=/dev/zero of=big bs=1M; cp numbers again"))
    result = lease.file_edit("numbers", "\n77777\n", "\nseven\n")
    assert result.status.value == "limited", result
    assert error_code(result) == "disk_full"
    assert out(lease.bash("wc -l < numbers; ls")) == "100000\nagain\nbig\nnumbers\n"
    lease.bash("rm big again").check()
    lease.file_edit("numbers", "\n77777\n", "\nseven\n").check()


# B34: memory-backed places are sized.


def test_b34_memory_backed_places_end_before_the_memory_does(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = narrower_lease(daemon, fresh_lease, memory_bytes=2 * MEMORY)
    kinds = out(lease.bash("df --output=fstype,size,target -B1 | tail -n +2"))
    sized = [line.split() for line in kinds.splitlines()]
    memory = {target: int(size) for kind, size, target in sized if kind == "tmpfs"}
    writable = set(places(lease)) & set(memory)
    assert {"/tmp", "/dev/shm"} <= writable
    assert sum(memory[place] for place in writable) <= MEMORY
    fill = "; ".join(f"dd if=/dev/zero of={place}/f bs=1M" for place in sorted(writable))
    result = lease.bash(f"{fill}; free -m; echo after")
    assert texts(result)[1].count("No space left") == len(writable)
    assert code(result) == 0
    assert warned(result) == [], "all of them together, and no out-of-memory kill"

    def used() -> int | None:
        usage = lease.bash("head -c 1M /dev/zero | tail -c 1 > /dev/null").check().usage
        assert usage is not None
        return usage.peak_memory_bytes

    filled = used()
    lease.bash("rm " + " ".join(f"{place}/f" for place in sorted(writable))).check()
    freed = used()
    if filled is None:  # b31: where the kernel can't restart the peak
        assert freed is None
        return
    assert freed is not None
    assert freed < filled - MEMORY // 2, "the memory is given back"


def test_b34_a_bus_error_is_shown_as_such(lease: Lease) -> None:
    """200 MiB mapped in a /dev/shm of 96 MiB: its size is fine, its pages do not exist."""
    script = (
        "import mmap, os\nf = os.open('/dev/shm/m', os.O_RDWR | os.O_CREAT)\n"
        "os.ftruncate(f, 200 << 20)\nm = mmap.mmap(f, 200 << 20)\n"
        "for at in range(0, 200 << 20, 4096): m[at] = 1\n"
    )
    result = lease.run(["python3", "-c", script])
    assert result.exit is not None
    assert (result.exit.kind, result.exit.signal) == ("signaled", 7)
    assert result.error is not None
    assert "SIGBUS" in result.error.message
    allocate = script.replace("ftruncate(f, ", "posix_fallocate(f, 0, ")
    assert "No space left" in texts(lease.run(["python3", "-c", allocate]))[1]
    lease.bash("rm -f /dev/shm/m").check()

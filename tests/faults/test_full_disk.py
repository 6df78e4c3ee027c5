"""A daemon whose state directory is on a real file system of its own that is filled to the last byte.

What a call does is counted in the lease's /tmp, which is memory, so that only the refusal keeps it
from happening and not the full disk below the workspace.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.flow.readiness import PROBE_S
from stockade.terms.claim import ClaimState
from stockade.terms.fault import Code, Retry, Status
from stockade.terms.result import ViewData
from tests.daemons import WAIT_S, Daemon, InCall, daemon, error, output, printed, until

# A lease is made while 1 GiB is free. The image is sparse, and fallocate(2) writes no block.
DISK_BYTES: Final = 1300 << 20
MOST: Final = 400  # calls of each kind
BOTH: Final = ("ledger", "space")


@pytest.fixture
def server() -> Iterator[Daemon]:
    with daemon(disk_bytes=DISK_BYTES) as made:
        yield made


@contextmanager
def full(server: Daemon) -> Iterator[None]:
    """Not one block of the state directory's file system is free while the block runs."""
    os.sync()  # what is written already stays: this is about what is yet to be written
    filler = server.state / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fill(fd)
        assert os.statvfs(server.state).f_bavail == 0
        yield
    finally:
        os.close(fd)
        filler.unlink()


def fill(fd: int) -> None:
    """Take every block that is free."""
    step = DISK_BYTES
    while step >= 4096:
        try:
            os.posix_fallocate(fd, os.fstat(fd).st_size, step)
        except OSError:  # it keeps what it got
            step //= 2


def ready(server: Daemon) -> list[str]:
    status, reply = server.ask("GET", "/readyz")
    assert (status == 200) == (reply["reasons"] == [])
    return list(reply["reasons"])


def add(lease: Lease, number: int) -> Result:
    command = {"command": f"echo {number} >> /tmp/n"}
    return lease.call("bash_execute", command, turn=1, call_id=f"c{number}")


def edit(lease: Lease, number: int) -> Result:
    arguments = {"path": f"/tmp/f{number}", "old_str": "old", "new_str": "new"}
    return lease.call("file_edit", arguments, turn=1, call_id=f"e{number}")


def seen(lease: Lease, path: str) -> str:
    """By a call that only reads: it is answered on a full disk, its record can wait."""
    data = lease.view(path).check().data
    assert isinstance(data, ViewData)
    return "".join(line.partition("\t")[2] for line in data.content.splitlines(keepends=True))


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def refused(result: Result) -> bool:
    """Whether it says that nothing ran. What has run after all says that it can't be known yet."""
    if result.error is None:
        return False
    if result.status is Status.UNKNOWN:
        assert error(result).code is Code.IN_DOUBT
        return False
    assert (result.status, error(result).code) == (Status.UNAVAILABLE, Code.STORAGE_UNAVAILABLE)
    assert error(result).retry is Retry.LATER
    assert result.retry_safe
    assert result.exit is None
    return True


def test_a_full_disk_refuses_calls_before_they_run_and_they_run_once_afterwards(
    server: Daemon,
) -> None:
    """The ledger's files have a little room left, and again when its log begins anew. So some calls
    are let in, and which can't be foreseen."""
    with server.connect() as stockade, stockade.lease(None, trajectory="t") as lease:
        lease.bash(f"cd /tmp; touch n; for i in $(seq 0 {MOST}); do echo old > f$i; done").check()
        until(lambda: ready(server) == [], "it is ready", WAIT_S + PROBE_S)
        commands: list[bool] = []
        edits: list[bool] = []
        with full(server):
            until(lambda: "space" in ready(server), "it is missed", WAIT_S + PROBE_S)
            said: set[tuple[str, ...]] = set()
            while not (commands.count(True) > 5 and edits.count(True) > 5 and BOTH in said):
                assert len(commands) < MOST
                commands.append(refused(add(lease, len(commands))))
                if commands[-1]:
                    assert str(len(commands) - 1) not in seen(lease, "/tmp/n").split()
                edits.append(refused(edit(lease, len(edits))))
                if edits[-1]:
                    assert seen(lease, f"/tmp/f{len(edits) - 1}") == "old\n"
                said.add(tuple(ready(server)))
                select.select((), (), (), 0.1)  # what it says is looked into every 2 s
            assert all("space" in reasons for reasons in said)
            assert server.ask("GET", "/healthz")[0] == 200
        until(lambda: ready(server) == [], "it is ready again", WAIT_S + PROBE_S)
        for number, nothing_ran in enumerate(commands):
            assert add(lease, number).check().replayed != nothing_ran
        for number, nothing_ran in enumerate(edits):
            assert edit(lease, number).check().replayed != nothing_ran
            assert seen(lease, f"/tmp/f{number}") == "new\n"
        count = len(commands)
        assert sorted(map(int, output(lease, "cat /tmp/n").split())) == list(range(count))
        assert {call.state for call in stockade.calls(lease=lease.id)} == {ClaimState.COMPLETED}
    assert not [line for line in server.log.lines if "internal fault" in line]


def test_a_call_that_ends_on_a_full_disk_has_its_result_when_there_is_room(server: Daemon) -> None:
    script = "until [ -e /tmp/go ]; do sleep 0.02; done; echo x >> /tmp/n; echo done"
    with server.connect() as stockade, stockade.lease(None, trajectory="t") as lease:
        lease.bash("touch /tmp/n").check()
        call = InCall(lease, script)
        # The shell, and between its fork and its exec each sleep, which is younger.
        pid = min(pid for pid in server.inside() if b"/tmp/go" in command_line(pid))
        with full(server):
            assert any(refused(add(lease, number)) for number in range(MOST))
            Path(f"/proc/{pid}/root/tmp/go").touch()
            ended = call.result()
            assert ended.error is None or not refused(ended)
        again = lease.run(["bash", "-c", f"echo started; {script}"], call_id=call.call_id).check()
        assert again.replayed
        assert printed(again) == "started\ndone\n"
        assert output(lease, "grep -c x /tmp/n") == "1\n"

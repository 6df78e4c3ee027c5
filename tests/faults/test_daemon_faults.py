"""A real daemon, and what can break under it: its sandboxes, its runtime, its disk, and itself.

After each fault the answer has the one shape, nothing that was answered for is lost, nothing is
left on the host, and the next call works.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest

from stockade import native
from stockade import runtime as composition
from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
from stockade.edge.wire import LeaseCreate
from stockade.engines.oci import launching
from stockade.flow import carrying
from stockade.terms.fault import Code, Failure, Retry, Status
from stockade.terms.result import GrepData, LeaseData, ViewData
from tests import kernel
from tests.daemons import (
    PROGRAM,
    WAIT_S,
    Daemon,
    InCall,
    daemon,
    error,
    gone,
    output,
    place,
    printed,
    text,
    until,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    """For faults that the daemon survives."""
    with daemon() as made:
        yield made


@pytest.fixture(scope="module")
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


@pytest.fixture
def lease(server: Daemon, stockade: Stockade, request: pytest.FixtureRequest) -> Iterator[Lease]:
    """A lease with a file in it, and afterwards the check that nothing is left of it."""
    with stockade.lease(None, trajectory=request.node.originalname[:60]) as made:
        made.bash("echo kept > kept").check()
        yield made
    server.nothing_runs()
    assert kernel.zombies(server.pid) == []
    assert not [line for line in server.log.lines if "internal fault" in line]


@pytest.fixture
def own() -> Iterator[Daemon]:
    """For faults of the daemon itself."""
    with daemon("[limits]\nshutdown_grace_s = 1\n") as made:
        yield made


def works(lease: Lease) -> None:
    """The next calls of every kind, on the workspace as it was."""
    assert output(lease, "cat kept") == "kept\n"
    viewed, found = lease.view("kept").check().data, lease.grep("kept").check().data
    assert isinstance(viewed, ViewData)
    assert viewed.content.endswith("kept\n")
    assert isinstance(found, GrepData)
    assert found.matches_total == 1


def code_of(result: Result) -> tuple[Status, Code]:
    assert result.error is not None, result.status
    return result.status, error(result).code


# The sandbox dies.


def test_a_guest_that_died_between_calls_is_replaced(server: Daemon, lease: Lease) -> None:
    [guest] = server.guests()
    os.kill(guest, signal.SIGKILL)
    gone(guest)
    works(lease)
    assert guest not in server.guests()


def test_a_guest_that_dies_in_mid_call_leaves_the_call_in_doubt(
    server: Daemon, lease: Lease
) -> None:
    call = InCall(lease, "sleep 60")
    before = server.inside()
    for guest in server.guests():
        os.kill(guest, signal.SIGKILL)
    result = call.result()
    assert code_of(result) == (Status.UNKNOWN, Code.SANDBOX_LOST)
    assert error(result).retry is Retry.RECONCILE
    assert not result.retry_safe
    assert printed(result) == "started\n"
    until(lambda: not before & server.inside(), "everything of the dead sandbox ends")
    works(lease)


def test_everything_killed_from_inside(lease: Lease) -> None:
    """`kill -9 -1` reaches the command, its children and the prepared processes, not the guest."""
    result = lease.bash("sleep 60 & python3 -c 'import os; os.kill(-1, 9)'; echo on")
    assert result.status in {Status.FAILED, Status.SUCCEEDED}
    # ESRCH where no other process waits just then.
    kill_all = "try: os.kill(-1, 9)\nexcept ProcessLookupError: pass"
    killed = lease.run(["python3", "-c", f"import os\n{kill_all}\nos.kill(os.getpid(), 9)"])
    assert killed.status is Status.FAILED
    assert killed.exit is not None
    assert killed.exit.signal == signal.SIGKILL
    for _ in range(6):
        works(lease)


def test_everything_killed_from_outside(server: Daemon, lease: Lease) -> None:
    call = InCall(lease, "sleep 60")
    for group in server.groups():
        if group.name == "limits" and (group / "cgroup.kill").exists():
            (group.parent / "cgroup.kill").write_text("1")
    assert call.result().status in {Status.UNKNOWN, Status.FAILED}
    works(lease)


def test_a_guest_that_is_stopped_does_not_hold_the_daemon(
    server: Daemon, stockade: Stockade, lease: Lease
) -> None:
    [guest] = server.guests()
    os.kill(guest, signal.SIGSTOP)
    try:
        assert stockade.health().status == "ok"
        assert lease.view("kept").status is Status.SUCCEEDED
    finally:
        os.kill(guest, signal.SIGCONT)
    works(lease)


def test_a_broken_system_inside_is_the_programs_failure_and_a_reset_mends_it(lease: Lease) -> None:
    lease.bash("rm -rf /usr/bin/* /workspace/* 2>/dev/null; chmod 000 /workspace")
    broken = lease.bash("ls")
    assert broken.status is not Status.UNKNOWN
    assert lease.view("kept").status in {Status.REJECTED, Status.SUCCEEDED}
    lease.reset().check()
    lease.bash("echo kept > kept").check()
    works(lease)


# Limits, cancelling, expiry, generations.


def test_a_reset_cancels_what_runs(lease: Lease) -> None:
    call = InCall(lease, "echo more > more; sleep 60")
    lease.reset().check()
    assert code_of(call.result()) == (Status.CANCELLED, Code.CANCELLED)
    assert output(lease, "ls -A") in ("", ".git\n")
    lease.bash("echo kept > kept").check()
    works(lease)


def test_a_release_cancels_what_runs(server: Daemon, stockade: Stockade) -> None:
    lease = stockade.lease(None, trajectory="released")
    call = InCall(lease, "sleep 60")
    lease.release().check()
    assert code_of(call.result()) == (Status.CANCELLED, Code.CANCELLED)
    assert code_of(lease.bash(":")) == (Status.DENIED, Code.LEASE_EXPIRED)
    server.nothing_runs()


def test_the_parallel_limit_gives_busy(stockade: Stockade, lease: Lease) -> None:
    # One place of this lease's eight per narrowed capability.
    one = _with_parallel(stockade, "single", 1)
    with one:
        call = InCall(one, "while [ ! -e go ]; do sleep 0.02; done")
        busy = one.bash("echo more")
        assert code_of(busy) == (Status.UNAVAILABLE, Code.BUSY)
        assert error(busy).rule == "per_lease.parallel"
        assert error(busy).retry_after_ms
        assert busy.retry_safe
        assert output(lease, "echo other") == "other\n"
        assert one.cancel(call.call_id) == 1
        assert call.result().status is Status.CANCELLED
        assert output(one, "echo again") == "again\n"


def _with_parallel(stockade: Stockade, trajectory: str, parallel: int) -> Lease:
    token = stockade.mint("local", trajectory, "agent", 600)
    parent = inspect(token).blocks[-1]
    per_lease = parent.per_lease.model_copy(update={"parallel": parallel})
    made = LeaseCreate(tenant="local", trajectory=trajectory)
    _, lease = stockade.create_lease(made, attenuate(token, narrow(parent, per_lease=per_lease)))
    assert lease is not None
    return lease


def test_looking_and_cancelling_work_while_every_thread_is_taken() -> None:
    few = "[limits]\ncalls = 2\nqueue = 1\n"
    with daemon(few) as server, server.connect() as stockade:
        with stockade.lease(None, trajectory="full") as lease:
            calls = [InCall(lease, "sleep 60") for _ in range(2)]
            # Of two more one waits for a thread and one is too many.
            came: SimpleQueue[Result] = SimpleQueue()
            more = [
                threading.Thread(target=lambda: came.put(lease.bash("echo late"))) for _ in range(2)
            ]
            for thread in more:
                thread.start()
            assert code_of(came.get(timeout=WAIT_S)) == (Status.UNAVAILABLE, Code.BUSY)
            assert stockade.health().status == "ok"
            assert lease.show().state == "ready"
            for call in calls:
                assert lease.cancel(call.call_id) == 1
                assert call.result().status is Status.CANCELLED
            assert text(came.get(timeout=WAIT_S)) == "late\n"
            for thread in more:
                thread.join(WAIT_S)


def test_a_lease_that_expires_in_mid_call_ends_the_call(server: Daemon, stockade: Stockade) -> None:
    lease = stockade.lease(None, trajectory="short", ttl_s=1)
    call = InCall(lease, "sleep 60")
    result = call.result()
    assert code_of(result) == (Status.LIMITED, Code.LEASE_EXPIRED_IN_CALL)
    assert printed(result) == "started\n"
    # Busy for the moment in which it is taken down.
    until(lambda: code_of(lease.bash(":"))[1] is not Code.BUSY, "the lease is taken down")
    assert code_of(lease.bash(":")) == (Status.DENIED, Code.LEASE_EXPIRED)
    server.nothing_runs()
    until(lambda: lease.id not in server.leases_on_disk(), "its workspace is removed")
    with stockade.lease(None, trajectory="short") as again:
        assert again.id != lease.id
        assert output(again, "ls") == ""


def test_a_low_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    """80 are gone with the second or third sandbox, 1,024 with the 26th."""
    with daemon(before="ulimit -Sn 80") as made, made.connect() as stockade, ExitStack() as leases:
        for number in range(4):
            lease = leases.enter_context(stockade.lease())
            assert output(lease, f"echo {number}") == f"{number}\n"


def test_a_renewed_lease_outlives_its_first_time(stockade: Stockade) -> None:
    with stockade.lease(None, trajectory="longer", ttl_s=1) as lease:
        call = InCall(lease, "sleep 1.5; echo done")
        lease.renew(60).check()
        assert text(call.result()) == "started\ndone\n"
        shorter = lease.renew(1).check()
        assert isinstance(shorter.data, LeaseData)
        assert shorter.data.expires_at == lease.show().expires_at
        assert output(lease, "echo on") == "on\n"


def test_a_new_owner_ends_what_the_old_one_runs(stockade: Stockade, lease: Lease) -> None:
    call = InCall(lease, "sleep 60")
    name = lease.show().trajectory
    _, owner = stockade.create_lease(
        LeaseCreate(tenant="local", trajectory=name, take_over=True), None
    )
    assert owner is not None
    assert (owner.id, owner.generation) == (lease.id, 2)
    assert code_of(call.result()) == (Status.CANCELLED, Code.CANCELLED)
    assert code_of(lease.bash(":")) == (Status.DENIED, Code.STALE_GENERATION)
    works(owner)
    assert owner.release().error is None  # the former one's release is refused


# The runtime, and the disk.

FAILS = '#!/bin/sh\n[ "$1" = --version ] && exec echo crun version 9.9\necho no luck >&2\nexit 7\n'
GARBAGE = '#!/bin/sh\n[ "$1" = --version ] && exec echo crun version 9.9\nhead -c 3000 /dev/zero || true\n'


def _instead_of_crun(directory: Path, script: str) -> str:
    made = directory / "crun"
    made.write_text(script)
    made.chmod(0o755)
    return f"mount --bind {made} /usr/bin/crun"


@pytest.mark.parametrize(
    ("script", "said"), [(FAILS, "no luck"), (GARBAGE, "guest")], ids=["fails", "does nothing"]
)
def test_a_runtime_that_starts_nothing(script: str, said: str) -> None:
    with place() as directory, daemon(before=_instead_of_crun(directory, script)) as server:
        with server.connect() as stockade, stockade.lease(None, trajectory="t") as lease:
            for _ in range(2):
                result = lease.bash("echo ran")
                assert code_of(result) == (Status.UNAVAILABLE, Code.SANDBOX_UNAVAILABLE)
                assert said in error(result).message
                assert result.retry_safe
            assert error(lease.view("none")).code is Code.NOT_FOUND
            assert not server.inside()
            assert not server.sandboxes()
            assert kernel.zombies(server.pid) == []
        server.nothing_runs()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "crun is not installed: apt-get install crun"),
        ("#!/bin/sh\nexit 1\n", "gives no version (status 1)"),
        ("#!/bin/sh\necho what\n", "gives no version (status 0)"),
        ("\x7fELF", "does not work: "),
    ],
    ids=["missing", "fails", "garbage", "no program"],
)
def test_a_daemon_without_a_runtime_says_so_in_one_line(script: str | None, said: str) -> None:
    with place() as directory, daemon(start=False) as server:
        # What is no executable file is not found by its name.
        cover = "mount --bind /dev/null /usr/bin/crun"
        log = server.launch(cover if script is None else _instead_of_crun(directory, script))
        assert server.process is not None
        assert server.process.wait(WAIT_S) == 4
        log.close()
        [line] = [line for line in log.lines if "stockade.audit checkpoint" not in line]
        assert line.startswith("stockade: engine_unavailable: ")
        assert said in line
        server.nothing_runs()


HANGS = "#!/bin/sh\nexec sleep 600\n"


def test_a_runtime_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "crun"
    script.write_text(HANGS)
    script.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(native, "VERSION_TIMEOUT_S", 0.2)
        patch.setattr(shutil, "which", lambda *args, **options: str(script))
        with pytest.raises(Failure, match="timed out") as caught:
            native.find_runtime()
        assert caught.value.fault.code is Code.ENGINE_UNAVAILABLE
    monkeypatch.setattr(native, "find_runtime", lambda: (str(script), "9.9"))
    monkeypatch.setattr(carrying, "GRACE_S", 0.2)
    tmp_path.chmod(0o711)
    runtime = composition.open_runtime(tmp_path / "state")
    here = Peer(os.getuid(), None, Role.OPERATOR, own=True)
    left = Daemon(tmp_path, config=None)
    with Stockade(InProcessTransport(runtime.api, here, runtime.close)) as stockade:
        with stockade.lease(None, trajectory="t") as lease:
            # Neither its own limit nor a cancellation waits for the runtime.
            began = time.monotonic()
            result = lease.bash("echo ran", timeout_ms=1000)
            assert code_of(result) == (Status.UNAVAILABLE, Code.SANDBOX_UNAVAILABLE)
            assert "hung for 1.2 s" in error(result).message
            assert not left.inside()
            with ThreadPoolExecutor(2) as pool:
                calls = [
                    pool.submit(lease.call, "bash_execute", {"command": "echo ran"}, call_id=name)
                    for name in ("makes", "waits")
                ]
                for name in ("waits", "makes"):
                    until(partial(lease.cancel, name), "it runs")
                for call in calls:
                    result = call.result(WAIT_S)
                    assert code_of(result) == (Status.CANCELLED, Code.CANCELLED)
            assert time.monotonic() - began < launching.START_TIMEOUT_S
            assert not left.inside()
            assert not left.sandboxes()
    left.nothing_runs()
    assert not left.tops()


def test_a_full_disk_under_the_artifacts() -> None:
    tiny = "mkdir -p $STATE/artifacts && mount -t tmpfs -o size=256k none $STATE/artifacts"
    with daemon(before=tiny) as server, server.connect() as stockade:
        with stockade.lease(None, trajectory="loud") as lease:
            result = lease.bash("seq 400000").check()
            [artifact] = result.artifacts
            assert not artifact.complete
            assert artifact.bytes < 2688895
            assert result.stdout is not None
            assert result.stdout.total_bytes == 2688895
            assert text(result).startswith("1\n2\n")
            assert text(result).endswith("399999\n400000\n")
            if artifact.bytes:
                assert lease.artifact(artifact.id, 0, 6) == b"1\n2\n3\n"
            # There is no room for another file's first page either.
            again = lease.bash("seq 400000").check()
            assert text(again)[:16_000] == text(result)[:16_000]
            assert not any(one.complete for one in again.artifacts)
            assert output(lease, "echo small") == "small\n"


def test_a_host_without_room_makes_no_lease() -> None:
    tiny = "mkdir -p $STATE && mount -t tmpfs -o size=64m,mode=711 none $STATE"
    with daemon(before=tiny) as server, server.connect() as stockade:
        made, lease = stockade.create_lease(LeaseCreate(tenant="local", trajectory="t"), None)
        assert lease is None
        assert code_of(made) == (Status.UNAVAILABLE, Code.STORAGE_UNAVAILABLE)
        assert stockade.leases() == []
        assert stockade.health().status == "ok"


# The daemon is killed.


def test_a_daemon_killed_in_mid_call(own: Daemon) -> None:
    with own.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        lease.bash("echo kept > kept").check()
        call = InCall(lease, "echo more > more; setsid sleep 600 & sleep 600")
        # What it has printed came before it started them, and held shells are no part of it.
        until(lambda: len(own.named("sleep")) == 2, "both sleeps run")
        inside = own.named("sleep")
        own.kill()
        result = call.result()
        assert code_of(result) == (Status.UNKNOWN, Code.CONNECTION_LOST)
        assert error(result).retry is Retry.RECONCILE
        assert not result.retry_safe
        # What ran goes on, and the next daemon takes it back.
        assert inside <= own.inside()
        assert not own.mounts()
        assert code_of(lease.bash(":")) == (Status.UNAVAILABLE, Code.DAEMON_UNREACHABLE)
        own.start()
        assert lease.show().generation == 1
        works(lease)
        assert output(lease, "cat more") == "more\n"
        lease.release().check()
        own.nothing_runs()
        assert own.leases_on_disk() == set()
    assert own.end() == 0
    assert not own.tops()


def test_a_read_whose_daemon_was_killed_is_asked_again(own: Daemon) -> None:
    """The client sends reads twice: a restarted daemon answers the second."""
    with own.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        lease.bash("echo kept > kept").check()
        own.kill()
        own.start()
        viewed = lease.view("kept").check().data
        assert isinstance(viewed, ViewData)
        assert viewed.content.endswith("kept\n")


def test_three_leases_outlive_five_restarts(own: Daemon) -> None:
    with own.connect() as stockade:
        leases = [stockade.lease(None, trajectory=f"t{n}") for n in range(3)]
        for round_ in range(5):
            for number, lease in enumerate(leases):
                lease.bash(f"echo {number}.{round_} >> log").check()
            if round_ % 2:
                own.kill()
            else:
                assert own.end(signal.SIGINT) == 0
                assert not own.inside()
                assert not own.loops()
            own.start()
            for number, lease in enumerate(leases):
                wanted = "".join(f"{number}.{n}\n" for n in range(round_ + 1))
                assert output(lease, "cat log") == wanted
        assert own.leases_on_disk() == {lease.id for lease in leases}
        assert [view.lease_id for view in stockade.leases()] == [lease.id for lease in leases]
        again = stockade.lease(None, trajectory="t1")
        assert (again.id, again.token) == (leases[1].id, leases[1].token)
        for lease in leases:
            lease.release().check()
        own.nothing_runs()


# How long an operation is let run before the daemon is killed, in seconds.
MOMENTS = (0.0, 0.003, 0.008, 0.02)


def _killed_during(server: Daemon, work: Callable[[], object], moment: float) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    select.select((), (), (), moment)
    server.kill()
    thread.join(WAIT_S)
    server.start()


def test_a_daemon_killed_while_it_makes_a_lease(own: Daemon) -> None:
    with place() as directory, own.connect() as stockade:
        for number in range(60):
            (directory / f"file-{number}").write_text(f"{number}\n")
        for number, moment in enumerate(MOMENTS):
            made = LeaseCreate(tenant="local", trajectory=f"t{number}", source=str(directory))
            _killed_during(own, partial(stockade.create_lease, made, None), moment)
            for view in stockade.leases():
                assert view.state == "ready"
            assert own.leases_on_disk() == {view.lease_id for view in stockade.leases()}
            # Whatever became of it, asking again gives one lease with everything in it.
            _, lease = stockade.create_lease(made, None)
            assert lease is not None
            assert output(lease, "cat file-* | wc -l") == "60\n"
            lease.release().check()
        own.nothing_runs()


def test_a_daemon_killed_while_it_resets(own: Daemon) -> None:
    with own.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        for moment in MOMENTS:
            lease.bash("echo work > work").check()
            _killed_during(own, lease.reset, moment)
            assert lease.show().state == "ready"
            found = output(lease, "cat work 2>/dev/null; true")
            assert found in ("work\n", "")
            lease.reset().check()
            assert output(lease, "ls") == ""
        lease.release().check()
        own.nothing_runs()
        assert own.leases_on_disk() == set()


def test_a_daemon_killed_while_it_releases(own: Daemon) -> None:
    with own.connect() as stockade:
        for number, moment in enumerate(MOMENTS):
            lease = stockade.lease(None, trajectory=f"t{number}")
            lease.bash("echo work > work").check()
            _killed_during(own, lease.release, moment)
            left = stockade.leases()
            if left:  # it had not begun: nothing is lost
                assert [view.state for view in left] == ["ready"]
                assert output(lease, "cat work") == "work\n"
                lease.release().check()
            assert stockade.leases() == []
            until(lambda: own.leases_on_disk() == set(), "the workspace is removed")
        own.nothing_runs()


# The daemon is ended.


def test_a_daemon_that_is_ended_lets_calls_finish(own: Daemon) -> None:
    with own.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        lease.bash("echo kept > kept").check()
        call = InCall(lease, "sleep 0.5; echo done")
        assert own.end(signal.SIGINT) == 0
        assert text(call.result()) == "started\ndone\n"
        assert not Path(own.socket).exists()
        assert not own.tops()
        assert not own.loops()
        own.start()
        works(lease)


def test_a_daemon_that_is_ended_cancels_what_takes_too_long_and_says_so(own: Daemon) -> None:
    with own.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        lease.bash("echo kept > kept").check()
        call = InCall(lease, "sleep 600")
        assert own.process is not None
        own.process.terminate()
        assert own.log.wait("stopping")
        refused = lease.bash("echo more")
        assert code_of(refused) == (Status.UNAVAILABLE, Code.SHUTTING_DOWN)
        result = call.result()
        assert code_of(result) == (Status.CANCELLED, Code.CANCELLED)
        assert printed(result) == "started\n"
        assert own.process.wait(WAIT_S) == 0
        until(lambda: not own.named("sleep"), "the cancelled call is dead")
        own.start()
        works(lease)


# Where it lives.


def _ends(server: Daemon, before: str = "") -> tuple[int, str]:
    """Exit status and the only line of a daemon that does not start."""
    log = server.launch(before)
    assert server.process is not None
    status = server.process.wait(WAIT_S)
    log.close()
    [line] = [line for line in log.lines if "stockade.audit checkpoint" not in line]
    assert line.startswith("stockade: ")
    return status, line


def test_a_second_daemon_on_the_same_state_directory_is_refused(own: Daemon) -> None:
    with own.connect() as stockade, stockade.lease(None, trajectory="t") as lease:
        lease.bash("echo kept > kept").check()
        second = Daemon(own.state.parent, name="state")
        second.socket = str(own.state.parent / "second.sock")
        status, line = _ends(second)
        assert status == 4
        assert "another Stockade uses the state directory" in line
        assert not Path(second.socket).exists()
        works(lease)


def test_a_second_daemon_on_the_same_socket_is_refused(own: Daemon) -> None:
    with own.connect() as stockade, place() as directory:
        second = Daemon(directory)
        second.socket = own.socket
        status, line = _ends(second)
        assert status == 1
        assert "another daemon answers there" in line
        assert stockade.health().status == "ok"
        second.nothing_runs()


def test_a_stale_socket_is_replaced_and_another_file_is_not(own: Daemon) -> None:
    own.kill()
    assert Path(own.socket).exists()
    own.start()
    assert own.ask("GET", "/v1/health")[0] == 200
    assert own.end() == 0
    Path(own.socket).write_text("mine\n")
    status, line = _ends(own)
    assert status == 1
    assert "exists and is not a socket" in line
    assert Path(own.socket).read_text() == "mine\n"


def test_a_state_directory_that_can_not_be_used() -> None:
    with daemon(start=False) as server:
        server.state.write_text("a file\n")
        status, line = _ends(server)
        assert (status, "storage_unavailable" in line) == (4, True)
        server.state.unlink()
        server.state.mkdir()
        os.chown(server.state, 61_000, -1)
        status, line = _ends(server)
        assert (status, "belongs to user 61000" in line) == (4, True)
        os.chown(server.state, 0, -1)
        read_only = (
            f"mount --bind {server.state} {server.state} && mount -o remount,bind,ro {server.state}"
        )
        status, line = _ends(server, read_only)
        assert (status, "Read-only file system" in line) == (4, True)
        # Nothing that was refused has left anything, and a mode that is too wide is put right.
        assert list(server.state.iterdir()) == []
        server.state.chmod(0o777)
        server.start()
        assert server.state.stat().st_mode & 0o777 == 0o711
        secret = [server.state / name for name in ("keys.json", "ledger.db", "lock")]
        assert {path.stat().st_mode & 0o077 for path in secret} == {0}


@pytest.mark.parametrize(
    ("name", "said"), [("ledger.db", "ledger"), ("keys.json", "keys")], ids=["ledger", "keys"]
)
def test_a_damaged_file_of_the_state_stops_the_start_and_stays_as_it_is(
    own: Daemon, name: str, said: str
) -> None:
    assert own.end() == 0
    file = own.state / name
    damaged = b"\x00not what it was" + file.read_bytes()[16:]
    file.write_bytes(damaged)
    status, line = _ends(own)
    assert status == 4
    assert "storage_unavailable" in line
    assert said in line
    assert file.read_bytes() == damaged


# Clients that misbehave.


def test_a_client_that_goes_away_does_not_end_its_call(server: Daemon, lease: Lease) -> None:
    body = f'{{"tool": "bash_execute", "lease": "{lease.id}", "arguments": {{"command": '
    body += '"echo a > seen; until [ -e go ]; do sleep 0.02; done; echo b > done"}}'
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.socket)
        head = f"POST /v1/calls HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall((head + body).encode())
        lease.bash("until [ -e seen ]; do sleep 0.02; done").check()
    lease.bash("touch go; until [ -e done ]; do sleep 0.02; done").check()
    assert output(lease, "cat done") == "b\n"
    works(lease)


def test_half_requests_and_silent_clients_cost_nothing(server: Daemon, lease: Lease) -> None:
    idle = []
    for sent in (
        b"",
        b"POST /v1/calls HT",
        b"POST /v1/calls HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
    ):
        for _ in range(30):
            made = socket.socket(socket.AF_UNIX)
            made.connect(server.socket)
            made.sendall(sent)
            idle.append(made)
    works(lease)
    for made in idle:
        made.close()
    works(lease)


def test_a_half_upload_writes_nothing(server: Daemon, lease: Lease) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.socket)
        target = f"/v1/leases/{lease.id}/files/half"
        raw.sendall(f"PUT {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\nhalf".encode())
        assert output(lease, "ls") == "kept\n"
    assert output(lease, "ls -A").replace(".git\n", "") == "kept\n"
    works(lease)


# Embedded runtimes.


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCKADE_SOCKET", "/nonexistent/stockade.sock")


def _state_of(pid: int) -> Path:
    """The state directory whose lock an embedded runtime holds."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link)
        if target.endswith("/lock"):
            return Path(target).parent
    raise AssertionError("it holds no lock")


@pytest.mark.usefixtures("no_daemon")
def test_a_killed_run_is_collected_by_the_next_one() -> None:
    command = [PROGRAM, "run", "--", "sh", "-c", "echo started; sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"started\n"
        left = Daemon(_state_of(first.pid).parent, name=_state_of(first.pid).name, config=None)
        inside = left.inside()
        assert inside
        assert left.state.is_dir()
        first.kill()
        for pid in inside:
            gone(pid)

    def collected() -> bool:
        done = subprocess.run(
            [PROGRAM, "run", "--", "echo", "next"], capture_output=True, check=True
        )
        assert done.stdout == b"next\n"
        return not left.state.exists()

    # Not always by the first: runtimes of other tests collect too, and one does at a time.
    until(collected, "it is collected")
    assert not left.groups()
    assert not left.tops()
    until(lambda: not left.loops(), "the disk is given back")


@pytest.mark.usefixtures("no_daemon")
def test_ten_runs_at_once() -> None:
    started = [
        subprocess.Popen(
            [PROGRAM, "run", "--", "sh", "-c", f"echo {number} > n; cat n; exit {number}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(10)
    ]
    for number, process in enumerate(started):
        out, said = process.communicate(timeout=90)
        assert (process.returncode, out) == (number, f"{number}\n")
        assert said == "stockade: 1 file changed (1 added, 0 modified, 0 deleted)\n"


@pytest.mark.usefixtures("no_daemon")
def test_an_interrupted_run_leaves_nothing() -> None:
    command = [PROGRAM, "run", "--", "sh", "-c", "echo started; sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"started\n"
        state = _state_of(run.pid)
        run.send_signal(signal.SIGINT)
        assert run.wait(WAIT_S) == 130
    assert not state.exists()

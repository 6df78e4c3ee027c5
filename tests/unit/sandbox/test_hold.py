"""Shells that are started ahead of their command (sandbox/hold.c), in a real guest."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stockade.host import guest_wire as wire
from stockade.host.cgroup import of_this_host
from stockade.host.guest_wire import HOLD_MAX
from stockade.host.spare import Exited, Spare
from stockade.terms.fault import Code, Failure
from tests.daemons import until
from tests.unit.sandbox.conftest import ENV, Running

if TYPE_CHECKING:
    from tests.unit.sandbox.conftest import Start

LONG_S = 20.0
SHELLS = (b"/bin/bash",)
AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--", "env")


@pytest.fixture
def guest(start: Start) -> Running:
    return start()


@contextmanager
def held(
    guest: Running,
    programs: Path,
    paths: tuple[bytes, ...] = SHELLS,
    library: str = "hold.so",
) -> Iterator[tuple[Spare, int]]:
    """A held shell, and the end of the pipe that it writes to."""
    spare = guest.spare()
    source, sink = os.pipe()
    try:
        with open("/dev/null", "rb") as null:
            try:
                spare.hold(
                    paths=paths,
                    argv=(b"bash", b"-c"),
                    env=ENV,
                    cwd=b"/",
                    fds=(null.fileno(), sink, sink),
                    library=os.fsencode(programs / library),
                    timeout_s=LONG_S,
                )
            finally:
                os.close(sink)
        yield spare, source
    finally:
        os.close(source)
        spare.close()


@contextmanager
def forked(guest: Running, programs: Path) -> Iterator[tuple[Spare, int]]:
    """One that was forked from a held shell, and the end of the pipe that it writes to."""
    with held(guest, programs) as (shell, _):
        source, sink = os.pipe()
        try:
            spare = guest.fork(shell, sink)
        finally:
            os.close(sink)
        try:
            yield spare, source
        finally:
            os.close(source)
            spare.close()


@contextmanager
def cgroup() -> Iterator[Path]:
    """A group of the pids controller, of v1 or of the unified hierarchy."""
    found = of_this_host()
    group = found.v1.get("pids", found.unified) / f"stockade-test-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


Way = Callable[["Running", Path], AbstractContextManager[tuple[Spare, int]]]
both_ways = pytest.mark.parametrize("way", [held, forked])


def output_of(source: int) -> bytes:
    parts = []
    while part := os.read(source, 65536):
        parts.append(part)
    return b"".join(parts)


@both_ways
@pytest.mark.parametrize(
    "command",
    [
        "echo $0 $# $- $SHLVL; exit 7",
        "env | sort",
        "tr '\\0' '\\n' </proc/$$/environ | grep . | sort",
        "set -- /proc/$$/fd/*; echo ${*##*/}; umask; ulimit -a",
        # By the shell itself: it blocks signals for a moment while it waits for a child.
        "while read -r a b; do case $a in SigB*|SigI*|SigC*) echo $a $b;; esac; done </proc/$$/status",
        "locale; printf '%s' 'é' | wc -m",
        "cat; echo $PWD $OLDPWD $BASH_EXECUTION_STRING",
        "cd /tmp && exec /bin/pwd",
        "if",
        "LD_PRELOAD= ; sh -c 'echo $LD_PRELOAD; env | grep -c LD_'",
        "grep -E '^(NoNewPrivs|Seccomp|CapEff|Groups)' /proc/self/status",
        "kill -TERM $$",
        "cat /proc/$$/comm; ps -o comm= -p $$",
        "echo $PPID $(($$ == BASHPID)); ps -o ppid= -p $$; "
        "(($(ps -o sid= -p $$) == $$ && $(ps -o pgid= -p $$) == $$)) && echo leads",
        "trap 'echo got' USR1; kill -USR1 $$; (exit 5); echo $?; sleep 0.01 & wait $!; echo $?",
    ],
)
def test_a_held_shell_is_like_a_fresh_one(
    guest: Running, programs: Path, command: str, way: Way
) -> None:
    event, expected = guest.run(b"bash", b"-c", command.encode(), paths=SHELLS)
    with way(guest, programs) as (spare, source):
        spare.release(command.encode())
        assert output_of(source) == expected
        again = spare.receive(LONG_S)
    assert isinstance(event, Exited)
    assert isinstance(again, Exited)
    assert (again.code, again.signal) == (event.code, event.signal)


def test_its_command_line_shows_the_command_and_nothing_while_it_waits(
    guest: Running, programs: Path
) -> None:
    with held(guest, programs) as (spare, source):
        cmdline = Path(f"/proc/{spare.pid}/cmdline")
        assert cmdline.read_bytes().rstrip(b"\0") == b"bash\0-c"
        assert cmdline.with_name("comm").read_text() == "guest-shell\n"
        spare.release(b"tr -d '\\0' </proc/$$/cmdline")
        assert output_of(source) == b"bash-ctr -d '\\0' </proc/$$/cmdline"


@both_ways
def test_the_longest_command_arrives_and_a_longer_one_runs_nothing(
    guest: Running, programs: Path, way: Way
) -> None:
    longest = b"echo done; : ".ljust(HOLD_MAX, b"x")
    with way(guest, programs) as (spare, source):
        spare.release(longest)
        assert output_of(source) == b"done\n"
    for more in (1, HOLD_MAX):
        with way(guest, programs) as (spare, source):
            spare.release(longest + b"x" * more)
            assert output_of(source) == b""
            with pytest.raises(Failure) as raised:
                spare.receive(LONG_S)
        assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE


@both_ways
def test_a_nul_in_the_command_runs_nothing(guest: Running, programs: Path, way: Way) -> None:
    with way(guest, programs) as (spare, source):
        spare.release(b"echo done\0")
        assert output_of(source) == b""


@both_ways
def test_an_unused_shell_ends_with_its_socket_and_runs_nothing(
    guest: Running, programs: Path, way: Way
) -> None:
    with way(guest, programs) as (spare, source):
        spare.close()
        assert output_of(source) == b""
    assert guest.run(b"/bin/true")[0] is not None


@both_ways
def test_one_that_was_killed_before_it_read_its_command_ran_nothing(
    guest: Running, programs: Path, way: Way
) -> None:
    with way(guest, programs) as (spare, source):
        os.kill(spare.pid, signal.SIGSTOP)
        os.kill(spare.pid, signal.SIGKILL)
        output_of(source)
        with pytest.raises(Failure) as refused:
            _release_and_wait(spare)
    assert refused.value.fault.code is Code.SANDBOX_UNAVAILABLE


@both_ways
def test_one_whose_death_was_sure_when_its_command_came_ran_nothing(
    guest: Running, programs: Path, way: Way
) -> None:
    """It has had no processor since it was killed, as on a busy host."""
    allowed = os.sched_getaffinity(0)
    with way(guest, programs) as (spare, _):
        for process in (0, spare.pid):
            os.sched_setaffinity(process, {min(allowed)})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        try:
            os.kill(spare.pid, signal.SIGKILL)
            spare.release(b"echo done")
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(0, allowed)
        with pytest.raises(Failure) as refused:
            spare.receive(LONG_S)
    assert refused.value.fault.code is Code.SANDBOX_UNAVAILABLE


def _release_and_wait(spare: Spare) -> None:
    spare.release(b"echo done")
    spare.receive(LONG_S)


@both_ways
def test_signals_that_came_while_it_waited_do_not_reach_the_command(
    guest: Running, programs: Path, way: Way
) -> None:
    with way(guest, programs) as (spare, source):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(spare.pid, number)
        os.kill(spare.pid, signal.SIGSTOP)
        spare.release(b"echo alive")
        assert output_of(source) == b"alive\n"


@both_ways
def test_it_can_not_be_traced_while_it_waits_and_can_afterwards(
    start: Start, programs: Path, way: Way
) -> None:
    guest = start(before=AS_NOBODY)
    look = (b"/bin/bash", b"-c", b"readlink /proc/$0/exe || echo refused")
    with way(guest, programs) as (spare, source):
        inside = _pid_inside(spare.pid)
        assert guest.run(*look, inside)[1].endswith(b"refused\n")
        spare.release(b"echo begun; read line </dev/zero")
        assert os.read(source, 6) == b"begun\n"
        assert guest.run(*look, inside)[1].strip() in (b"/usr/bin/bash", b"/bin/bash")
        os.kill(spare.pid, signal.SIGKILL)


def _pid_inside(pid: int) -> bytes:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("NSpid"))
    return line.split()[-1].encode()


def test_what_can_not_be_held_is_said_and_runs_nothing(guest: Running, programs: Path) -> None:
    static = os.fsencode(programs / "probe")
    for paths in ((static,), (b"/nonexistent/shell",)):
        with pytest.raises(Failure) as refused, held(guest, programs, paths):
            pass
        assert refused.value.fault.code is Code.SANDBOX_UNAVAILABLE


def test_the_library_does_nothing_to_whoever_preloads_it_himself(programs: Path) -> None:
    library = str(programs / "hold.so")
    done = subprocess.run(
        ["/bin/bash", "-c", "echo done"],
        env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": library},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"done\n"


def test_one_shell_is_forked_many_times_and_each_has_its_own_end(
    guest: Running, programs: Path
) -> None:
    with held(guest, programs) as (shell, source):
        found = []
        for _ in range(20):
            theirs, sink = os.pipe()
            found.append((guest.fork(shell, sink), theirs))
            os.close(sink)
        assert len(guest.children()) == 21
        assert sorted(os.listdir(f"/proc/{shell.pid}/fd")) == ["0", "1", "2", "3"]
        for number, (spare, _) in enumerate(found):
            spare.release(b"echo %d; exit %d" % (number, number))
        for number, (spare, theirs) in enumerate(found):
            assert output_of(theirs) == b"%d\n" % number
            event = spare.receive(LONG_S)
            assert isinstance(event, Exited)
            assert event.code == number
            os.close(theirs)
        # It is of use itself in the end.
        shell.release(b"echo last")
        assert output_of(source) == b"last\n"


def test_a_fork_that_is_stopped_at_birth_goes_on(guest: Running, programs: Path) -> None:
    """`kill -STOP -1` of a command: nobody hears of the stop of a process that is not known yet."""
    with held(guest, programs) as (shell, _):
        done = threading.Event()

        def stop() -> None:
            while not done.is_set():
                for pid in guest.children() - {shell.pid}:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)

        stopper = threading.Thread(target=stop)
        stopper.start()
        try:
            with open(os.devnull, "wb") as null:
                for _ in range(50):
                    guest.fork(shell, null.fileno()).close()
        finally:
            done.set()
            stopper.join()


def test_a_shell_that_was_killed_is_not_forked(guest: Running, programs: Path) -> None:
    with held(guest, programs) as (shell, source):
        os.kill(shell.pid, signal.SIGKILL)
        with pytest.raises(Failure) as refused:
            guest.fork(shell, source)
        assert refused.value.fault.code is Code.SANDBOX_UNAVAILABLE
        assert not shell.waits()


def test_a_shell_that_may_not_fork_says_so_and_waits_on(guest: Running, programs: Path) -> None:
    with cgroup() as group, held(guest, programs) as (shell, source):
        (group / "pids.max").write_text("1")
        (group / "cgroup.procs").write_text(str(shell.pid))
        with pytest.raises(Failure, match="can't fork: Resource temporarily"):
            guest.fork(shell, source)
        assert shell.forks_refused == 1
        assert shell.waits()
        shell.release(b"echo done")
        assert output_of(source) == b"done\n"
        assert shell.receive(LONG_S) is not None


@pytest.mark.parametrize("pid", [2, 1, 0, -1, 1 << 20])
def test_the_guest_adopts_only_a_child_of_its_own_that_is_no_call(guest: Running, pid: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guest.spare()  # pid 2
    wire.send_command(guest.link._sock, wire.ADOPT, 77, theirs.fileno(), pid=pid)
    theirs.close()
    assert wire.wait(time.monotonic() + LONG_S, ours)
    with pytest.raises(wire.Gone):  # the guest kept nothing of it
        wire.read(ours)
    ours.close()
    report = wire.read(guest.link._sock)
    assert report is not None
    assert report.type == wire.ERROR
    guest.answers()


def test_an_orphan_of_a_command_can_be_told_from_a_fork_by_its_greeting(
    guest: Running, programs: Path
) -> None:
    """What the guest adopts is no spare for that: it has to greet on the call's socket."""
    _, said = guest.shell("sleep 100 >/dev/null 2>&1 & echo $!")
    orphan = int(said)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with theirs:
        wire.send_command(guest.link._sock, wire.ADOPT, 78, theirs.fileno(), pid=orphan)
    with pytest.raises(Failure):
        guest.link._ready(ours, 78, time.monotonic() + 0.2, adopted=False)
    ours.close()


def test_a_number_that_was_given_to_another_process_is_no_spare(
    guest: Running, programs: Path
) -> None:
    """While a stopped shell owes its answer, what it forked can be killed and its numbers go to
    others, of the sandbox and of the host."""
    _, said = guest.shell("sleep 100 >/dev/null 2>&1 & echo $!")

    class Late(Spare):
        def fork(self, call_id: int, fds: tuple[int, int, int], deadline: float) -> int:
            assert super().fork(call_id, fds, deadline) != int(said)
            return int(said)

    with held(guest, programs) as (shell, source):
        late = Late(shell._sock, shell.id, shell.pid, guest.link.pid)
        spare = guest.fork(late, source)
        with pytest.raises(Failure, match="what greeted is gone"):
            guest.link.process(spare)
    with closing(Spare(spare._sock.dup(), 9, os.getpid(), guest.link.pid)) as stranger:
        with pytest.raises(Failure, match="what greeted is gone"):
            guest.link.process(stranger)
    os.close(guest.link.process(guest.spare()))


def test_a_shell_that_does_not_answer_holds_up_nobody_else(guest: Running) -> None:
    """A command that stops it again and again, say."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, closing(Spare(ours, 1, 4242, guest.link.pid)) as shell:
        assert shell.waits()
        with open(os.devnull, "wb") as null, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(guest.link.fork, shell, (null.fileno(),) * 2, 2, LONG_S)
            assert wire.wait(time.monotonic() + LONG_S, theirs)
            guest.link.prefork(3, 1.0).close()
            with pytest.raises(TimeoutError):
                asked.result(0)
            theirs.close()
            with pytest.raises(Failure):
                asked.result(LONG_S)


def test_a_shell_that_owes_an_answer_is_not_used(guest: Running) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, closing(Spare(ours, 1, 4242, guest.link.pid)) as shell, open(os.devnull) as null:
        assert shell.waits()
        with pytest.raises(Failure, match="can't be forked"):
            guest.link.fork(shell, (null.fileno(), null.fileno()), 2, 0.05)
        assert not shell.waits()


def test_the_library_can_be_loaded_into_the_shells_of_old_images(programs: Path) -> None:
    listed = subprocess.run(
        ["objdump", "-T", programs / "hold.so"], capture_output=True, check=True, text=True
    ).stdout
    needed = re.findall(r"GLIBC_(\d+)\.(\d+)", listed)
    assert max((int(major), int(minor)) for major, minor in needed) <= (2, 17)


def test_a_shell_whose_library_remembers_its_number_is_not_forked(
    guest: Running, programs: Path, tmp_path: Path
) -> None:
    """`$$` would be the other one's (getpid(2) before version 2.25 of the C library)."""
    source, old = tmp_path / "old.c", programs / "old.so"
    source.write_text('const char *gnu_get_libc_version(void) { return "2.24"; }\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", old, source], check=True)
    with held(guest, programs, library="hold.so:" + str(old)) as (shell, sink):
        with pytest.raises(Failure, match="can't fork: Function not implemented"):
            guest.fork(shell, sink)
        assert shell.forks_refused == 0, "no limit has refused it"
        assert shell.waits()

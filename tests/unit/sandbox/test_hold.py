"""Shells that are started ahead of their command (sandbox/hold.c), in a real guest."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stockade.host.guest_wire import HOLD_MAX
from stockade.host.spare import Exited, Spare
from stockade.terms.fault import Code, Failure
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
    guest: Running, programs: Path, paths: tuple[bytes, ...] = SHELLS
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
                    library=os.fsencode(programs / "hold.so"),
                    timeout_s=LONG_S,
                )
            finally:
                os.close(sink)
        yield spare, source
    finally:
        os.close(source)
        spare.close()


def output_of(source: int) -> bytes:
    parts = []
    while part := os.read(source, 65536):
        parts.append(part)
    return b"".join(parts)


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
    ],
)
def test_a_held_shell_is_like_a_fresh_one(guest: Running, programs: Path, command: str) -> None:
    event, expected = guest.run(b"bash", b"-c", command.encode(), paths=SHELLS)
    with held(guest, programs) as (spare, source):
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


def test_the_longest_command_arrives_and_a_longer_one_runs_nothing(
    guest: Running, programs: Path
) -> None:
    longest = b"echo done; : ".ljust(HOLD_MAX, b"x")
    with held(guest, programs) as (spare, source):
        spare.release(longest)
        assert output_of(source) == b"done\n"
    for more in (1, HOLD_MAX):
        with held(guest, programs) as (spare, source):
            spare.release(longest + b"x" * more)
            assert output_of(source) == b""
            with pytest.raises(Failure) as raised:
                spare.receive(LONG_S)
        assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE


def test_a_nul_in_the_command_runs_nothing(guest: Running, programs: Path) -> None:
    with held(guest, programs) as (spare, source):
        spare.release(b"echo done\0")
        assert output_of(source) == b""


def test_an_unused_shell_ends_with_its_socket_and_runs_nothing(
    guest: Running, programs: Path
) -> None:
    with held(guest, programs) as (spare, source):
        spare.close()
        assert output_of(source) == b""
    assert guest.run(b"/bin/true")[0] is not None


def test_one_that_was_killed_before_it_read_its_command_ran_nothing(
    guest: Running, programs: Path
) -> None:
    with held(guest, programs) as (spare, source):
        os.kill(spare.pid, signal.SIGSTOP)
        os.kill(spare.pid, signal.SIGKILL)
        output_of(source)
        with pytest.raises(Failure) as refused:
            _release_and_wait(spare)
    assert refused.value.fault.code is Code.SANDBOX_UNAVAILABLE


def _release_and_wait(spare: Spare) -> None:
    spare.release(b"echo done")
    spare.receive(LONG_S)


def test_signals_that_came_while_it_waited_do_not_reach_the_command(
    guest: Running, programs: Path
) -> None:
    with held(guest, programs) as (spare, source):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(spare.pid, number)
        os.kill(spare.pid, signal.SIGSTOP)
        spare.release(b"echo alive")
        assert output_of(source) == b"alive\n"


def test_it_can_not_be_traced_while_it_waits_and_can_afterwards(
    start: Start, programs: Path
) -> None:
    guest = start(before=AS_NOBODY)
    look = (b"/bin/bash", b"-c", b"readlink /proc/$0/exe || echo refused")
    with held(guest, programs) as (spare, source):
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

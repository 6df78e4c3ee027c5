"""Group PROC of the cases: process lifetime, signals, timeouts, stdin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from tests.cases.asking import (
    COUNT_INSIDE,
    code,
    error_code,
    narrower_lease,
    out,
    post,
    send,
    texts,
    warned,
)
from tests.cases.conftest import LeaseFactory
from tests.daemons import WAIT_S, Daemon, wait_until

PARALLEL = 8  # per_lease.parallel of the default grant
SOON_MS = 5_000  # far from every limit used here, and enough for a busy machine


def wall_ms(result: Result) -> int:
    assert result.usage is not None
    return result.usage.wall_ms


def quiet(daemon: Daemon, lease: Lease) -> None:
    """Nothing of the lease's commands is left."""
    assert wait_until(lambda: not daemon.commands(lease.id)), daemon.commands(lease.id)


@contextmanager
def calls() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2 * PARALLEL) as pool:
        yield pool


# B01: a background child holds the output pipe.


@pytest.mark.parametrize(
    "command",
    [
        "sleep 600 & echo ready",
        "sleep 600 >/dev/null & echo ready",
        "setsid sleep 600 2>&1 | sleep 600 & echo ready",
        "setsid sleep 600 & echo ready",
    ],
)
def test_b01_a_background_child_does_not_delay_the_result(
    daemon: Daemon, fresh_lease: LeaseFactory, command: str
) -> None:
    lease = fresh_lease()
    result = lease.bash(command, timeout_ms=20_000)
    assert "ready" in out(result).splitlines()
    assert code(result) == 0
    assert wall_ms(result) < SOON_MS
    assert "left_running" in warned(result)
    assert daemon.commands(lease.id), "the survivor goes on until reset"
    lease.reset().check()
    quiet(daemon, lease)
    assert out(lease.bash("echo alive")) == "alive\n"


def test_b01_a_child_that_goes_on_printing_does_not_delay_the_result(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    """Its pipe is closed after the drain, as the warning says: the next print ends it."""
    lease = fresh_lease()
    noisy = "while :; do echo noise; sleep 0.1; done & echo ready"
    result = lease.bash(noisy, timeout_ms=20_000)
    assert "ready" in out(result).splitlines()
    assert wall_ms(result) < SOON_MS
    assert "left_running" in warned(result)
    quiet(daemon, lease)
    kept = lease.bash(f"({noisy}) > log 2>&1 &", timeout_ms=20_000)
    assert wall_ms(kept) < SOON_MS
    grown = "n=$(wc -l < log); until [ $(wc -l < log) -gt $n ]; do sleep 0.05; done"
    lease.bash(grown, timeout_ms=20_000).check()
    lease.reset().check()
    quiet(daemon, lease)


# B02: a timeout ends the program inside, not only the client.


def test_b02_a_timeout_ends_the_whole_tree_inside(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    before = out(lease.bash(COUNT_INSIDE))
    tree = (
        "loop() { while :; do date >> t; sleep 0.05; done; }; "
        'setsid bash -c "$(declare -f loop); loop" & (loop &) ; loop & kill -STOP $!; loop'
    )
    result = lease.bash(tree, timeout_ms=1_000)
    assert result.status.value == "timed_out"
    assert error_code(result) == "deadline_exceeded"
    assert result.exit is None
    assert daemon.commands(lease.id) == [], "the kill is confirmed before the result is given"
    lines = out(lease.bash("wc -l < t"))
    assert int(lines) > 3
    assert out(lease.bash("sleep 0.5; wc -l < t")) == lines
    assert wait_until(lambda: out(lease.bash(COUNT_INSIDE)) == before)


# B05: cancelling frees everything; a closed socket cancels nothing.


def test_b05_cancelled_calls_give_back_their_places(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    command = "sleep 120 & sleep 120"
    with calls() as pool:
        running = [
            pool.submit(
                lease.call,
                "bash_execute",
                {"command": command, "timeout_ms": 180_000},
                call_id=f"c{number}",
            )
            for number in range(PARALLEL)
        ]
        assert wait_until(lambda: len(daemon.commands(lease.id)) >= 2 * PARALLEL)
        refused = lease.bash("echo one too many")
        assert refused.status.value == "unavailable"
        assert error_code(refused) == "busy"
        for number in range(PARALLEL):
            assert lease.cancel(f"c{number}") == 1
        results = [future.result(WAIT_S) for future in running]
    assert [result.status.value for result in results] == ["cancelled"] * PARALLEL
    assert daemon.commands(lease.id) == []
    assert out(lease.bash("echo alive")) == "alive\n"


def test_b05_one_more_cancelled_call_than_there_are_places_in_turn(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    with calls() as pool:
        for number in range(PARALLEL + 1):
            running = pool.submit(
                lease.call,
                "bash_execute",
                {"command": "sleep 120 & sleep 120", "timeout_ms": 180_000},
                call_id=f"again-{number}",
            )
            assert wait_until(lambda: len(daemon.commands(lease.id)) >= 2)
            assert lease.cancel(f"again-{number}") == 1
            assert running.result(WAIT_S).status.value == "cancelled"
            assert daemon.commands(lease.id) == []
    assert lease.cancel(f"again-{PARALLEL}") == 0
    assert out(lease.bash("echo alive")) == "alive\n"


def test_b05_a_closed_socket_does_not_end_the_call(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    for number in range(PARALLEL - 1):
        command = f"until [ -e go ]; do sleep 0.05; done; echo whole > done{number}"
        arguments = {"command": command, "timeout_ms": 60_000}
        sent = send(daemon.socket, lease, "bash_execute", arguments)
        assert wait_until(lambda: len(daemon.commands(lease.id)) > number)  # noqa: B023
        sent.close()
    assert out(lease.bash("ls")) == "", "the calls still wait"
    assert len(daemon.commands(lease.id)) >= PARALLEL - 1
    lease.bash("touch go").check()
    quiet(daemon, lease)
    assert out(lease.bash("cat done*")) == "whole\n" * (PARALLEL - 1)
    with calls() as pool:
        every = [pool.submit(lease.bash, "echo free") for _ in range(PARALLEL)]
        assert [out(one.result(WAIT_S)) for one in every] == ["free\n"] * PARALLEL


def test_b05_a_closed_socket_does_not_lift_the_limit(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    arguments = {"command": "sleep 120 & sleep 120", "timeout_ms": 1_000}
    sent = send(daemon.socket, lease, "bash_execute", arguments)
    assert wait_until(lambda: len(daemon.commands(lease.id)) >= 2)
    sent.close()
    quiet(daemon, lease)
    assert out(lease.bash("echo alive")) == "alive\n"


def test_b05_all_places_can_be_taken_at_the_same_moment(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    with calls() as pool:
        for _ in range(10):
            every = [pool.submit(lease.bash, "sleep 0.05; echo ran") for _ in range(PARALLEL)]
            assert [out(one.result(WAIT_S)) for one in every] == ["ran\n"] * PARALLEL


# B07: units, coercion, a default and a ceiling.


@pytest.mark.parametrize(
    "value",
    [
        *("60", "0", "-1", "1e12", "300001", "null", "5000.5", "NaN", "true", "[5000]"),
        *('"5_000"', '"5000.0"', '" 5000 "', '"60"', '""', '"٥٠٠٠"', "99999999999999999999"),
    ],
)
def test_b07_a_bad_limit_is_refused_before_anything_starts(
    daemon: Daemon, lease: Lease, value: str
) -> None:
    arguments = f'{{"command": "touch ran", "timeout_ms": {value}}}'
    body = f'{{"tool": "bash_execute", "arguments": {arguments}, "lease": "{lease.id}"}}'
    result = post(daemon.socket, lease, body)
    assert result.status.value == "invalid", result
    assert result.error is not None
    assert "timeout_ms" in result.error.message or value in ("NaN", "99999999999999999999")
    assert out(lease.bash("ls")) == ""


def test_b07_the_applied_limit_is_reported(
    daemon: Daemon, lease: Lease, fresh_lease: LeaseFactory
) -> None:
    def limit(result: Result) -> int | None:
        result.check()
        assert result.usage is not None
        return result.usage.wall_limit_ms

    assert limit(lease.bash(":")) == 30_000, "the documented default"
    assert limit(lease.bash(":", timeout_ms=5_000)) == 5_000
    assert limit(lease.bash(":", timeout_ms=300_000)) == 300_000
    coerced = lease.call("bash_execute", {"command": ":", "timeout_ms": "5000"})
    assert limit(coerced) == 5_000
    assert warned(coerced) == ["coerced"]
    short = narrower_lease(daemon, fresh_lease, wall_ms=2_000)
    clamped = short.bash(":", timeout_ms=5_000)
    assert limit(clamped) == 2_000
    assert warned(clamped) == ["clamped"]


# B08: programs that read stdin.


@pytest.mark.parametrize(
    ("command", "status", "stdout"),
    [
        ("cat", 0, ""),
        ("python3", 0, ""),
        ("read x; echo got:$x", 0, "got:\n"),
        ("grep foo", 1, ""),
        ("cat & wait; echo end", 0, "end\n"),
        ("cat & :", 0, ""),
        ("cat < /dev/stdin; echo $?", 0, "0\n"),
        ("read -t 5 x < /dev/tty; echo $?", 0, "1\n"),
    ],
)
def test_b08_stdin_is_at_its_end(
    daemon: Daemon, lease: Lease, command: str, status: int, stdout: str
) -> None:
    result = lease.bash(command, timeout_ms=10_000)
    assert code(result) == status
    assert texts(result)[0] == stdout
    assert wall_ms(result) < SOON_MS
    quiet(daemon, lease)


def test_b08_an_editor_that_nobody_can_answer_ends(lease: Lease) -> None:
    """git commit without -m."""
    prepare = (
        "rm -rf /tmp/r && git init -q /tmp/r && cd /tmp/r && git config user.email a@example.org"
        " && git config user.name a && touch f && git add f && "
    )
    result = lease.bash(prepare + "git commit", timeout_ms=10_000)
    assert code(result) == 1
    assert "EDITOR" in texts(result)[1]
    assert wall_ms(result) < SOON_MS


def test_b08_run_without_stdin_is_at_its_end_as_well(lease: Lease) -> None:
    result = lease.run(["cat"], timeout_ms=10_000)
    assert code(result) == 0
    assert wall_ms(result) < SOON_MS


# B10: signals are at their defaults.


def test_b10_a_broken_pipe_ends_the_writer(lease: Lease) -> None:
    result = lease.bash("yes | head -n1; echo ${PIPESTATUS[0]}", timeout_ms=20_000)
    assert texts(result) == ("y\n141\n", "")
    assert wall_ms(result) < SOON_MS
    loop = lease.bash("while :; do echo x; done | head -n1", timeout_ms=20_000)
    assert texts(loop) == ("x\n", "")
    assert wall_ms(loop) < SOON_MS
    python = lease.bash("python3 -c 'print(\"x\\n\" * 10**6)' | head -n1", timeout_ms=20_000)
    assert texts(python)[0] == "x\n"


@pytest.mark.parametrize("shell", [True, False])
def test_b10_no_signal_is_ignored_or_blocked(lease: Lease, shell: bool) -> None:
    pattern, file = "SigIgn|SigBlk|ShdPnd|SigPnd", "/proc/self/status"
    result = (
        lease.bash(f"exec grep -E '{pattern}' {file}")
        if shell
        else lease.run(["grep", "-E", pattern, file])
    )
    values = [line.split()[1] for line in out(result).splitlines()]
    assert values == ["0" * 16] * 4


# B11: whatever ends the shell, the next call has a new one.


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 3", 3),
        ("set -euo pipefail; false", 1),
        ("exec true", 0),
        ("exec false", 1),
        ("exit 137", 137),
        ("exit 124", 124),
        ("exec /no/such/program", 127),
    ],
)
def test_b11_the_shells_own_end_is_the_verdict(
    daemon: Daemon, lease: Lease, command: str, status: int
) -> None:
    result = lease.bash(command)
    assert code(result) == status
    assert result.status.value == ("succeeded" if status == 0 else "failed")
    assert out(lease.bash("echo alive")) == "alive\n"


@pytest.mark.parametrize("number", [1, 2, 9, 11, 13, 15])
def test_b11_a_shell_that_kills_itself_shows_the_signal(lease: Lease, number: int) -> None:
    result = lease.bash(f"kill -{number} $$; sleep 20")
    assert result.exit is not None
    assert (result.exit.kind, result.exit.code, result.exit.signal) == ("signaled", None, number)
    assert error_code(result) == "killed_by_signal"
    assert out(lease.bash("echo alive")) == "alive\n"


def test_b11_an_exit_trap_is_bounded_by_the_limit(daemon: Daemon, lease: Lease) -> None:
    result = lease.bash("trap 'sleep 99' EXIT; exit 0", timeout_ms=1_000)
    assert result.status.value == "timed_out"
    assert wall_ms(result) < 1_000 + SOON_MS
    assert daemon.commands(lease.id) == []
    assert out(lease.bash("echo alive")) == "alive\n"


def test_b11_a_stopped_program_is_ended_by_the_limit(daemon: Daemon, lease: Lease) -> None:
    result = lease.bash("(kill -STOP $BASHPID); echo after", timeout_ms=1_000)
    assert result.status.value == "timed_out"
    assert daemon.commands(lease.id) == []
    assert out(lease.bash("echo alive")) == "alive\n"


def test_b11_nothing_but_files_carries_over(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    lease.bash("cd /tmp; export A=1; alias l=ls; umask 077; ulimit -n 50; touch kept").check()
    shown = out(lease.bash("pwd; echo [$A]; alias; umask; ulimit -n; ls /tmp/kept"))
    lines: Sequence[str] = shown.splitlines()
    assert lines[:3] == ["/workspace", "[]", "0022"]
    assert lines[3] != "50"
    assert lines[4] == "/tmp/kept"

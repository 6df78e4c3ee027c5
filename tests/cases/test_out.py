"""Group OUT of the cases: what comes back of a program's output, and what it costs."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import Stockade
from stockade.terms.grant import Profile
from stockade.terms.result import Stream
from tests import kernel
from tests.cases.asking import answering, code, error_code, narrower_lease, out, texts
from tests.cases.conftest import LeaseFactory
from tests.daemons import WAIT_S, Daemon, wait_until

CAP = 32 * 1024  # kept text per stream
MIB = 1024 * 1024
# Longer than every usual socket timeout (60 s).
SILENCE_S = 62


@pytest.fixture(scope="module", autouse=True)
def silent(daemon: Daemon) -> Iterator[Future[Result]]:
    """A call that says nothing for a minute, running while the other tests of this module do."""
    with ThreadPoolExecutor(1) as pool:
        lease = daemon.stockade.lease()
        try:
            yield pool.submit(lease.bash, f"sleep {SILENCE_S}; echo done", 120_000)
        finally:
            lease.release().check()


def stdout(result: Result) -> Stream:
    assert result.stdout is not None
    return result.stdout


def both(result: Result) -> tuple[Stream, Stream]:
    assert result.stdout is not None
    assert result.stderr is not None
    return result.stdout, result.stderr


# B13: the last bytes.


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, MIB])
def test_b13_the_last_bytes_are_never_lost(lease: Lease, size: int) -> None:
    command = f"head -c {size} /dev/zero | tr '\\0' a; printf END"
    for _ in range(75):
        result = lease.bash(command)
        kept = stdout(result)
        assert kept.total_bytes == size + 3
        assert kept.text.endswith("aEND")
        assert kept.artifact_id is not None
    assert kept.artifact_id is not None
    whole = lease.artifact(kept.artifact_id)
    assert whole == b"a" * size + b"END"


def test_b13_below_the_cap_every_byte_is_in_the_text(lease: Lease) -> None:
    for number in range(100):
        size = CAP - 3 - number
        result = lease.bash(f"head -c {size} /dev/zero | tr '\\0' a; printf END")
        assert stdout(result).text == "a" * size + "END"
        assert not stdout(result).truncated


def test_b13_a_slow_reader_gets_every_byte(lease: Lease) -> None:
    size = 8 * MIB
    started = threading.Event()
    got: list[bytes] = []

    def slow(data: bytes) -> None:
        if not started.is_set():
            started.set()
            threading.Event().wait(1)  # the case: a reader that is away for a second
        got.append(data)

    script = f"head -c {size} /dev/zero | tr '\\0' a; printf END"
    result = lease.run(["bash", "-c", script], stdout=slow)
    assert b"".join(got) == b"a" * size + b"END"
    assert stdout(result).total_bytes == size + 3


# B15: output is bounded while it is read.


@pytest.mark.parametrize(
    ("command", "timeout_ms", "total"),
    [
        ("yes", 2_000, None),
        ("cat /dev/zero", 2_000, None),
        ("yes >&2 & cat /dev/zero", 2_000, None),
        ("head -c 1G /dev/zero", 60_000, 1 << 30),
        ("head -c 256M /dev/zero | tr '\\0' a", 60_000, 1 << 28),
    ],
)
@pytest.mark.parametrize("stream", [1, 2])
def test_b15_the_daemons_memory_does_not_grow_with_the_output(
    daemon: Daemon,
    fresh_lease: LeaseFactory,
    command: str,
    timeout_ms: int,
    total: int | None,
    stream: int,
) -> None:
    lease, other = fresh_lease(), fresh_lease()
    # Both leases have their sandboxes, and the daemon's threads their buffers.
    warm = lease.bash(f"(head -c 200M /dev/zero) >&{stream}")
    assert code(warm) == 0
    assert out(other.bash(":")) == ""
    with answering(daemon, other) as took:
        assert wait_until(lambda: len(took) > 2)
        kernel.forget_peak(daemon.pid)
        before = kernel.memory(daemon.pid, "VmHWM")
        result = lease.bash(f"({command}) >&{stream}", timeout_ms=timeout_ms)
        grown = kernel.memory(daemon.pid, "VmHWM") - before
    # The neighbour's calls fill the ledger's page caches meanwhile: 2 MiB for each connection.
    assert grown < 8 * MIB
    assert max(took) < 2
    kept = both(result)[stream - 1]
    assert kept.truncated
    assert len(kept.text) < CAP + 200
    artifact = next(one for one in result.artifacts if one.id == kept.artifact_id)
    assert not artifact.complete
    assert artifact.bytes == 64 * MIB
    if total is None:
        assert result.status.value == "timed_out"
        assert kept.total_bytes > 64 * MIB
    else:
        assert result.status.value == "succeeded"
        assert kept.total_bytes == total
    assert sum(map(len, daemon.log.lines)) < MIB


def test_b15_run_holds_a_program_back_instead_of_its_output(daemon: Daemon, lease: Lease) -> None:
    """Streams of `run` are whole: memory stays bounded because the program waits for its reader."""
    counted = 0

    def count(data: bytes) -> None:
        nonlocal counted
        counted += len(data)

    lease.run(["head", "-c", "64M", "/dev/zero"], stdout=count).check()
    counted = 0
    kernel.forget_peak(daemon.pid)
    before = kernel.memory(daemon.pid, "VmHWM")
    result = lease.run(["head", "-c", "512M", "/dev/zero"], stdout=count)
    assert counted == stdout(result).total_bytes == 512 * MIB
    assert kernel.memory(daemon.pid, "VmHWM") - before < 4 * MIB


def test_b15_what_a_leases_artifacts_hold_is_bounded_together(fresh_lease: LeaseFactory) -> None:
    """1 GiB: sixteen of the largest. The calls go on, and say that nothing more was kept."""
    lease = fresh_lease()
    fill = "head -c 70M /dev/zero | tee /dev/stderr"
    for _ in range(8):
        assert all(kept.artifact_id for kept in both(lease.bash(fill).check()))
    result = lease.bash("head -c 70M /dev/zero").check()
    kept = stdout(result)
    assert kept.total_bytes == 70 * MIB
    assert kept.truncated
    assert kept.artifact_id is None
    assert "artifact" not in kept.text
    assert [(one.bytes, one.complete) for one in result.artifacts] == [(0, False)]


# B16: characters on a border.


@pytest.mark.parametrize("character", ["€", "🦆", "é"])
@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_b16_a_cut_never_goes_through_a_character(
    lease: Lease, character: str, padding: int
) -> None:
    size = len(character.encode())
    script = f"import sys; sys.stdout.write('x' * {padding} + '{character}' * 200_000)"
    result = lease.bash(f'python3 -c "{script}"')
    kept = stdout(result)
    assert kept.truncated
    assert not kept.lossy
    assert "\ufffd" not in kept.text
    assert kept.total_bytes == padding + 200_000 * size
    head, marker, tail = kept.text.split("\n")
    assert head == "x" * padding + character * ((CAP // 2 - padding) // size)
    assert tail == character * (CAP // 2 // size)
    assert len(head.encode()) == kept.head_bytes
    assert len(tail.encode()) == kept.tail_bytes
    assert str(kept.total_bytes - kept.head_bytes - kept.tail_bytes) in marker


# B17: bytes that are not text.


@pytest.mark.parametrize("redirect", ["", " >&2"])
def test_b17_bytes_that_are_not_utf8_are_replaced_and_said(lease: Lease, redirect: str) -> None:
    number = 1 if redirect else 0
    mixed = lease.bash("printf '\\xfe\\xff\\x00\\x80ok\\n'" + redirect)
    kept = both(mixed.check())[number]
    assert kept.text == "\ufffd\ufffd\0\ufffdok\n"
    assert kept.lossy
    assert kept.total_bytes == 7
    for command in ("head -c 4096 /dev/urandom", "head -c 300000 /dev/urandom"):
        random = lease.bash(command + redirect)
        assert both(random.check())[number].lossy
        assert json.loads(random.to_json())["status"] == "succeeded"
    zeros = lease.bash("head -c 16M /dev/zero" + redirect)
    kept = both(zeros.check())[number]
    assert not kept.lossy, "NUL is a character of UTF-8"
    assert kept.total_bytes == 16 * MIB
    assert kept.text.startswith("\0" * (CAP // 2) + "\n[...")
    assert json.loads(zeros.to_json())["exit"]["code"] == 0


def test_b17_the_raw_bytes_can_be_had(lease: Lease) -> None:
    command = "head -c 40000 /dev/urandom | tee raw"
    kept = stdout(lease.bash(command).check())
    assert kept.artifact_id is not None
    digest = out(lease.bash("sha256sum < raw"))
    assert digest.split()[0] == hashlib.sha256(lease.artifact(kept.artifact_id)).hexdigest()


# B19: head and tail, one marker.


def test_b19_head_and_tail_are_kept_with_one_marker(lease: Lease) -> None:
    script = (
        "seq 1 50000; echo FAILED: reason; "
        "(echo Traceback; seq 1 50000; echo ValueError: bad) >&2; exit 1"
    )
    result = lease.bash(script)
    assert code(result) == 1
    lines = sum(len(f"{number}\n") for number in range(1, 50_001))
    for kept, first, last in (
        (both(result)[0], "", "FAILED: reason\n"),
        (both(result)[1], "Traceback\n", "ValueError: bad\n"),
    ):
        assert kept.truncated
        assert kept.text.startswith(first + "1\n2\n3\n")
        assert kept.text.endswith("49999\n50000\n" + last)
        assert kept.text.count("bytes omitted") == 1
        omitted = kept.total_bytes - kept.head_bytes - kept.tail_bytes
        assert f"{omitted} bytes omitted" in kept.text
        assert kept.total_bytes == len(first) + lines + len(last)
    told = result.for_model()
    assert "FAILED: reason" in told
    assert "ValueError: bad" in told


@pytest.mark.parametrize("size", [CAP - 1, CAP, CAP + 1])
def test_b19_there_is_a_marker_exactly_when_something_was_cut(lease: Lease, size: int) -> None:
    kept = stdout(lease.bash(f"head -c {size} /dev/zero | tr '\\0' '#'").check())
    cut = size > CAP
    assert kept.truncated is cut
    assert ("omitted" in kept.text) is cut
    assert kept.text.count("#") == (CAP if cut else size)
    assert (kept.artifact_id is not None) is cut


def test_b19_a_programs_own_marker_is_not_ours(lease: Lease) -> None:
    kept = stdout(lease.bash("echo '[... 5 bytes omitted ...]'").check())
    assert not kept.truncated


# B21: colours and progress bars.


def test_b21_terminal_output_is_raw_in_the_result_and_clean_for_a_model(lease: Lease) -> None:
    script = (
        "printf '\\033[?25l'; for i in $(seq 0 100); do "
        "printf '\\r\\033[32mprogress %3d%%\\033[0m' $i; done; "
        "printf '\\033[?25h\\r\\nline one\\r\\nline two\\r\\n'; echo done"
    )
    result = lease.bash(script)
    kept = stdout(result.check())
    assert kept.text.startswith("\x1b[?25l\r\x1b[32mprogress   0%\x1b[0m\r")
    assert kept.text.count("\r") == 104
    told = result.for_model()
    assert "progress 100%\nline one\nline two\ndone" in told
    assert "progress  99%" not in told
    assert "\x1b" not in told
    assert "\r" not in told


def test_b21_there_is_no_terminal(lease: Lease) -> None:
    asked = "echo $TERM; for i in 0 1 2; do test -t $i || echo no $i; done; ls --color=auto /"
    text = out(lease.bash(asked))
    assert text.startswith("dumb\nno 0\nno 1\nno 2\n")
    assert "\x1b" not in text


@pytest.mark.parametrize("profile", [Profile.AGENT, Profile.STRICT])
def test_b21_the_streams_can_be_opened_by_their_names(
    daemon: Daemon, fresh_lease: LeaseFactory, profile: Profile
) -> None:
    lease = narrower_lease(daemon, fresh_lease, profile=profile)
    script = "echo one > /dev/stdout; echo two > /dev/stderr; echo three | tee /dev/stderr"
    assert texts(lease.bash(script)) == ("one\nthree\n", "two\nthree\n")


# B14: silence.


@contextmanager
def relay(target: str, directory: Path) -> Iterator[tuple[str, threading.Event]]:
    """A socket that passes one request on and, when told to, drops the connection."""
    path, drop = str(directory / "relay.sock"), threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def carry() -> None:
            front, _ = listener.accept()
            with front, socket.socket(socket.AF_UNIX) as back:
                back.connect(target)
                back.sendall(front.recv(65536))
                assert drop.wait(WAIT_S)

        with ThreadPoolExecutor(1) as pool:
            carrying = pool.submit(carry)
            yield path, drop
            carrying.result(WAIT_S)


def test_b14_a_lost_connection_is_told_apart_from_the_command(
    daemon: Daemon, fresh_lease: LeaseFactory, tmp_path: Path
) -> None:
    lease = fresh_lease()
    command = "until [ -e go ]; do sleep 0.05; done; echo x >> n"
    with (
        relay(daemon.socket, tmp_path) as (path, drop),
        ThreadPoolExecutor(1) as pool,
        Stockade.connect(path) as through,
    ):
        attached = through.attach(lease.id, lease.token)
        running = pool.submit(attached.bash, command, 60_000)
        assert wait_until(lambda: daemon.commands(lease.id))
        drop.set()
        result = running.result(WAIT_S)
    assert result.status.value == "unknown"
    assert error_code(result) == "connection_lost"
    assert result.error is not None
    assert result.error.fault.value == "host"
    assert result.exit is None
    lease.bash("touch go").check()
    assert wait_until(lambda: not daemon.commands(lease.id))
    assert out(lease.bash("cat n")) == "x\n", "it ran on, once"


def test_b14_a_daemon_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with Stockade.connect(tmp_path / "none.sock") as nobody:
        result = nobody.attach("local/x").bash("sleep 5")
    assert result.status.value == "unavailable"
    assert error_code(result) == "daemon_unreachable"


def test_b14_silence_longer_than_a_minute_is_no_fault(silent: Future[Result]) -> None:
    result = silent.result(120)
    assert texts(result) == ("done\n", "")
    assert code(result) == 0
    assert result.usage is not None
    assert result.usage.wall_ms >= SILENCE_S * 1000

"""What a command with the guest's own uid can do to the guest, each with its positive control."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stockade.host.spare import Exited

if TYPE_CHECKING:
    from tests.unit.sandbox.conftest import Start

LONG_S = 20.0
SANDBOX = Path(__file__).parents[3] / "sandbox"
# setpriv still has root's capabilities when it executes, and so may read the guest: env has none.
AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--", "env")
DENIED = {errno.EACCES, errno.EPERM}


@pytest.fixture(scope="session")
def variants(programs: Path) -> Path:
    """The guest with each of its two defences alone, and with none."""
    stub = programs / "stub.c"
    stub.write_text("int __wrap_prctl(int option, ...) { (void)option; return 0; }\n")
    sources = [SANDBOX / "guest.c", SANDBOX / "wire.c", stub]
    options = ["gcc", "-std=gnu11", "-static", "-Wl,--wrap=prctl", "-o", str(programs / "bare")]
    subprocess.run([*options, *map(str, sources)], check=True)
    shutil.copy(programs / "bare", programs / "mode-only")
    shutil.copy(programs / "guest", programs / "prctl-only")
    for name, mode in (("bare", 0o755), ("mode-only", 0o711), ("prctl-only", 0o755)):
        (programs / name).chmod(mode)
    return programs


def look(start: Start, programs: Path, name: str) -> dict[str, int]:
    guest = start(program=programs / name, before=AS_NOBODY)
    event, output = guest.run(os.fsencode(programs / "probe"), b"look")
    assert isinstance(event, Exited)
    guest.answers()
    return {line.split()[0]: int(line.split()[1]) for line in output.decode().splitlines()}


@pytest.mark.parametrize("name", ["guest", "prctl-only", "mode-only"])
def test_guest_cannot_be_read_or_traced(start: Start, variants: Path, name: str) -> None:
    outcomes = look(start, variants, name)
    assert len(outcomes) == 8
    assert set(outcomes.values()) <= DENIED, outcomes


def test_guest_without_its_defences_can_be(start: Start, variants: Path) -> None:
    assert set(look(start, variants, "bare").values()) == {0}


def test_waiting_spare_cannot_be_read_or_traced(start: Start) -> None:
    guest = start(before=AS_NOBODY)
    guest.spare()
    event, output = guest.shell(
        "for p in /proc/[0-9]*; do [ $p = /proc/$$ ] || readlink $p/exe; done; readlink /proc/$$/exe"
    )
    assert isinstance(event, Exited)
    assert len(output.splitlines()) == 1


def test_no_signal_ends_the_guest(start: Start, programs: Path) -> None:
    guest = start(before=AS_NOBODY)
    event, output = guest.run(os.fsencode(programs / "probe"), b"signal")
    assert isinstance(event, Exited)
    assert output.splitlines().count(b"kill 0") == 64
    guest.answers()
    assert guest.run(b"/bin/echo", b"alive")[1] == b"alive\n"


def test_kill_of_everything_leaves_the_guest_and_spoils_only_spares(
    start: Start,
) -> None:
    guest = start(before=AS_NOBODY)
    event, _ = guest.shell("kill -TERM -1; kill -9 -1; kill -9 $$")
    assert isinstance(event, Exited)
    assert event.signal == signal.SIGKILL
    assert guest.run(b"/bin/echo", b"alive")[1] == b"alive\n"


def test_a_traced_stop_is_no_exit(start: Start, programs: Path) -> None:
    guest = start(before=AS_NOBODY)
    source, sink = os.pipe()
    spare = guest.begin((os.fsencode(programs / "probe"), b"forge"), out=sink)
    os.close(sink)
    assert os.read(source, 100) == b"traceme 0\n"
    guest.answers()
    assert spare.receive(0.2) is None
    state = Path(f"/proc/{spare.pid}/stat").read_text().rsplit(") ", 1)[1][0]
    assert state == "t"
    os.kill(spare.pid, signal.SIGKILL)
    event = spare.receive(LONG_S)
    assert isinstance(event, Exited)
    assert event.signal == signal.SIGKILL
    os.close(source)

"""The real guest in a pid namespace of its own, with no other wall around it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.host import guest_wire as wire
from stockade.host.guest_link import GuestLink
from stockade.host.spare import ExecFailed, Exited, Spare

SANDBOX = Path(__file__).parents[3] / "sandbox"
ENV = ((b"PATH", b"/usr/bin:/bin"), (b"LANG", b"C.UTF-8"))
LONG_S = 20.0


class Running:
    """One guest: its process as started here, its listening socket's path, its link."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self.process = process
        self.path = path
        self.link = GuestLink.connect(str(path), LONG_S)
        self._spares: list[Spare] = []

    def spare(self) -> Spare:
        self._spares.append(self.link.prefork(len(self._spares) + 1, LONG_S))
        return self._spares[-1]

    def fork(self, shell: Spare, out: int, keep: tuple[int, ...] = ()) -> Spare:
        """Of a held shell, one that writes to `out`."""
        number = len(self._spares) + 1
        self._spares.append(self.link.fork(shell, (out, out), number, LONG_S, keep))
        return self._spares[-1]

    def answers(self) -> None:
        """A round trip: it has read what it was sent before, and lives."""
        wire.send_command(self.link._sock, wire.TAKE, wire.CALLS_MAX)
        assert wire.wait(time.monotonic() + LONG_S, self.link._sock)
        report = wire.read(self.link._sock)
        assert report is not None
        assert report.type == wire.CALL

    def close(self) -> None:
        self.link.close()
        for spare in self._spares:
            spare.close()

    def begin(
        self,
        argv: tuple[bytes, ...],
        *,
        out: int,
        paths: tuple[bytes, ...] | None = None,
        env: tuple[tuple[bytes, bytes], ...] = ENV,
        cwd: bytes = b"/",
    ) -> Spare:
        """Start a command with empty stdin and `out` for both streams."""
        spare = self.spare()
        with open("/dev/null", "rb") as null:
            fds = (null.fileno(), out, out)
            spare.start(paths=paths or argv[:1], argv=argv, env=env, cwd=cwd, fds=fds)
        return spare

    def run(
        self,
        *argv: bytes,
        paths: tuple[bytes, ...] | None = None,
        env: tuple[tuple[bytes, bytes], ...] = ENV,
        cwd: bytes = b"/",
    ) -> tuple[Exited | ExecFailed | None, bytes]:
        """A command to its end, and what it and its children printed."""
        source, sink = os.pipe()
        with open(source, "rb") as reader:
            try:
                spare = self.begin(argv, out=sink, paths=paths, env=env, cwd=cwd)
            finally:
                os.close(sink)
            output = reader.read()
        event = spare.receive(LONG_S)
        spare.close()
        return event, output

    def shell(self, text: str) -> tuple[Exited | ExecFailed | None, bytes]:
        return self.run(b"/bin/bash", b"-c", text.encode())

    def children(self) -> set[int]:
        """Pids, as the host sees them, of the guest's children: spares, commands, orphans."""
        pid = self.link.pid
        return {int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


Start = Callable[..., Running]


def build(target: str, out: Path, *settings: str) -> None:
    command = ["make", "-s", "-C", str(SANDBOX), target, f"OUT={out}", f"BUILD={out}", *settings]
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """A directory, open to every user, with the guest and the probe."""
    place = Path(tempfile.mkdtemp(prefix="stockade-test-guest-"))
    try:
        place.chmod(0o755)
        build("all", place)
        probe = Path(__file__).with_name("probe.c")
        subprocess.run(["gcc", "-static", "-o", place / "probe", probe], check=True)
        yield place
    finally:
        shutil.rmtree(place)


@pytest.fixture
def start(programs: Path, tmp_path: Path) -> Iterator[Start]:
    """`start(*options, program=…, before=…)` gives a running guest; all are ended afterwards.
    `before` is a command that becomes the guest, say to change its user."""
    started: list[subprocess.Popen[bytes]] = []
    running: list[Running] = []

    def begin(*options: str, program: Path | None = None, before: tuple[str, ...] = ()) -> Running:
        path = tmp_path / ("d" * 100) / f"guest-{len(started)}.sock"
        path.parent.mkdir(exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener:
            directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
            os.close(directory)
            listener.listen(4)
            guest = str(program or programs / "guest")
            unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
            command = [*unshare, "--", *before, guest, str(listener.fileno()), *options]
            with (tmp_path / "guest.log").open("wb") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(listener.fileno(),),
                    restore_signals=False,  # as a careless launcher would: SIGPIPE stays ignored
                )
        started.append(process)
        running.append(Running(process, path))
        return running[-1]

    try:
        yield begin
    finally:
        for guest in running:
            guest.close()
        for process in started:
            process.kill()
            process.wait(LONG_S)


@pytest.fixture
def guest(start: Start) -> Running:
    return start()

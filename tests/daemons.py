"""A real `stockade serve` in a process of its own, and what such a process may leave on the host.

Nothing here sleeps for a fixed time: a daemon is ready when its log says so, a process is dead when
its pidfd is readable, and what only the kernel can tell (a loop device given back) is asked again
until a deadline.
"""

from __future__ import annotations

import ctypes
import os
import platform
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import Stockade
from stockade.host import cgroup
from stockade.terms.result import Error, ToolResult
from tests import kernel, raw

PROGRAM: Final = str(Path(sys.executable).with_name("stockade"))
WAIT_S: Final = raw.WAIT_S
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_KEEP: Final = ctypes.c_uint(0xFFFFFFFF)


def wait_until(true: Callable[[], object], seconds: float = WAIT_S) -> bool:
    """Ask until it is true; False when it still is not after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        select.select((), (), (), 0.01)
    return True


def until(true: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Ask until it is true; fails with `what` after `seconds`."""
    assert wait_until(true, seconds), f"not within {seconds:.0f} s: {what}"


def gone(pid: int, seconds: float = WAIT_S) -> None:
    """Wait for the end of any process."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(seconds * 1000), f"process {pid} still runs"
    finally:
        os.close(pidfd)


class Log:
    """Lines of a process's stderr as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def lines(self) -> list[str]:
        with self._changed:
            return list(self._lines)

    def wait(self, part: str, seconds: float = WAIT_S) -> bool:
        """Whether a line with `part` came before the process closed its stderr."""

        def found() -> bool:
            return any(part in line for line in self._lines)

        with self._changed:
            assert self._changed.wait_for(lambda: found() or self._ended, seconds), self._lines
            return found()

    def close(self) -> None:
        self._thread.join(WAIT_S)
        if self._process.stderr is not None:
            self._process.stderr.close()


class Daemon:
    """One state directory and socket, and the daemon on them: started, killed, started again."""

    def __init__(self, directory: Path, config: str | None = "", name: str = "state") -> None:
        """`config` None is for one that is only looked at."""
        self.state = directory / name
        self.socket = str(directory / f"{name}.sock")
        self.config = directory / f"{name}.toml"
        if config is not None:
            directory.chmod(0o711)
            self.config.write_text(config)
        self.program: tuple[str, ...] = (PROGRAM,)
        self.environment: Mapping[str, str] = {}  # beside the test's own
        self.process: subprocess.Popen[str] | None = None
        self._log: Log | None = None

    def launch(self, before: str = "") -> Log:
        """Start the process without waiting for it to answer. `before` is a shell command that
        runs first, in a mount namespace that only this daemon sees."""
        if self._log is not None:
            self._log.close()
        command = [*self.program, "serve", "--config", str(self.config)]
        command += ["--state-dir", str(self.state), "--socket", self.socket]
        if before:
            script = f'{before} && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", script, "launch", *command]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        )
        self._log = Log(self.process)
        return self._log

    def start(self, before: str = "") -> None:
        log = self.launch(before)
        assert log.wait("listening on"), log.lines

    @property
    def log(self) -> Log:
        """Of the one that was launched last."""
        assert self._log is not None
        return self._log

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; gives the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(WAIT_S)
        self.log.close()
        return status

    def kill(self) -> None:
        assert self.end(signal.SIGKILL) == -signal.SIGKILL

    def stop(self) -> None:
        """End it with its sandboxes, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGINT)
        elif self._log is not None:
            self._log.close()

    def keepers(self) -> list[int]:
        """Host pids of what keeps the mounts of this instance."""
        return [pid for top in self.tops() for pid in _pids(top / cgroup.KEEPER)]

    def end_survivors(self) -> None:
        """What a daemon that was killed, or left its sandboxes, has left behind."""
        for top in self.tops():
            if (top / "cgroup.kill").exists():
                cgroup.kill(top, WAIT_S)

    @cached_property
    def stockade(self) -> Stockade:
        """One connection for many tests. Who uses it closes it."""
        return self.connect()

    def connect(self) -> Stockade:
        return Stockade.connect(self.socket)

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        return raw.ask(self.socket, method, target, body, headers)

    @property
    def instance(self) -> str:
        """The id that everything of this state directory carries; "none" before its first start."""
        lock = self.state / "lock"
        return lock.read_text() if lock.is_file() else "none"

    def groups(self) -> list[Path]:
        """Every cgroup of this instance's leases, in every hierarchy."""
        found = (Path(path) for top in self.tops() for path, _, _ in os.walk(top))
        tops = self.tops()
        return [path for path in found if path not in tops and path.name != cgroup.KEEPER]

    def tops(self) -> list[Path]:
        """The instance's own groups: they hold those of the leases."""
        found = (root / f"{cgroup.PREFIX}{self.instance}" for root in kernel.roots())
        return [path for path in found if path.is_dir()]

    def guests(self) -> list[int]:
        """Host pids of the first processes of this instance's sandboxes."""
        groups = (group for group in self.groups() if group.parent.name == "guests")
        # A process that was just made for the next call is there for a moment as well.
        return [pid for group in groups for pid in _pids(group) if kernel.is_first(pid)]

    def lease_group(self, lease_id: str) -> Path:
        """The group that all of a lease's sandboxes are in, in the unified hierarchy."""
        return cgroup.of_this_host().unified / f"{cgroup.PREFIX}{self.instance}" / lease_id

    def commands(self, lease_id: str) -> list[int]:
        """Host pids of everything that a lease's calls run or left running. Prepared processes
        that have not got a command yet, and each sandbox's pid 1, are not among them."""
        groups = self.lease_group(lease_id).glob("limits/*/call-*")
        return [pid for group in groups for pid in _pids(group) if not kernel.is_guest(pid)]

    def inside(self) -> set[int]:
        """Host pids of everything that runs in this instance's sandboxes."""
        return {pid for group in self.groups() for pid in _pids(group)}

    def named(self, program: str) -> set[int]:
        """Those of `inside` that run it."""
        found = set()
        for pid in self.inside():
            with suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == program:
                    found.add(pid)
        return found

    def loops(self) -> list[str]:
        """Loop devices whose file is in the state directory, also when it is unlinked."""
        return kernel.loop_devices(str(self.state))

    def mounts(self) -> list[str]:
        """Mounts of the host that name the state directory."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if f" {self.state}" in line]

    def sandboxes(self) -> list[str]:
        """What engine and runtime keep on disk of sandboxes."""
        places = (self.state / "sandboxes", self.state / "runtime")
        found = [path for place in places if place.is_dir() for path in place.iterdir()]
        return [str(path) for path in found if path.name != kernel.RUNTIMES_OWN]

    def leases_on_disk(self) -> set[str]:
        place = self.state / "leases"
        return set(os.listdir(place)) if place.is_dir() else set()

    def nothing_runs(self) -> None:
        """No process, group, device or mount of a sandbox is left on the host."""
        until(lambda: not self.inside(), f"processes end: {self.inside()}")
        until(lambda: not self.groups(), f"groups are removed: {self.groups()}")
        until(lambda: not self.loops(), f"loop devices are given back: {self.loops()}")
        assert not self.mounts()
        until(lambda: not self.sandboxes(), f"sandboxes are removed: {self.sandboxes()}")


def _pids(group: Path) -> list[int]:
    return kernel.pids(group / "cgroup.procs")


@contextmanager
def place() -> Iterator[Path]:
    """A directory with a short name (a socket's path has at most 107 bytes) on a disk."""
    made = Path(tempfile.mkdtemp(prefix="sdm-", dir="/var/tmp"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


@contextmanager
def disk(point: Path, size_bytes: int) -> Iterator[None]:
    """A file system of its own at `point`, in a sparse file beside it."""
    image = point.with_name("small.ext4")
    with image.open("xb") as made:
        made.truncate(size_bytes)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", str(image)], check=True)
    point.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    try:
        point.chmod(0o711)
        yield
    finally:
        subprocess.run(["umount", str(point)], check=True)


@contextmanager
def daemon(
    config: str = "", *, before: str = "", start: bool = True, disk_bytes: int = 0
) -> Iterator[Daemon]:
    """A started daemon; at the end nothing of it is left, whatever the test did to it. `before`
    may name the state directory as $STATE, which is on a file system of its own of `disk_bytes`."""
    with ExitStack() as host:
        directory = host.enter_context(place())
        made = Daemon(directory, config)
        if disk_bytes:
            host.enter_context(disk(made.state, disk_bytes))
        try:
            if start:
                made.start(before.replace("$STATE", str(made.state)))
            yield made
        finally:
            made.stop()
            made.end_survivors()
            until(lambda: not made.inside(), "the sandboxes end")
            until(lambda: not made.loops(), "the loop devices are given back")
            keepers = [top / cgroup.KEEPER for top in made.tops()]
            kept = [group for group in keepers if group.is_dir()]
            for group in [*sorted(made.groups(), reverse=True), *kept, *made.tops()]:
                group.rmdir()


def peers(operator: int | None = None, **tenants: int) -> str:
    """A configuration with the users of tenants, by the tenants' names, and of an operator. A token
    is over at its end."""
    roles = {uid: f'role = "tenant"\ntenant = "{name}"\n' for name, uid in tenants.items()}
    if operator is not None:
        roles[operator] = 'role = "operator"\n'
    named = [f"[[peer]]\nuid = {uid}\n{role}" for uid, role in roles.items()]
    return "".join(["socket_mode = 0o666\n", *named, "[tokens]\nskew_s = 0\n"])


def printed(result: ToolResult) -> str:
    """What a call wrote to its stdout, whatever became of it."""
    assert result.stdout is not None
    return result.stdout.text


def text(result: ToolResult) -> str:
    """What a call that succeeded printed."""
    assert result.error is None, result.error
    return printed(result)


def output(lease: Lease, command: str) -> str:
    return text(lease.bash(command))


def error(result: ToolResult) -> Error:
    assert result.error is not None, result.status
    return result.error


class InCall:
    """A program that has started (its first output came) and runs until it is let go or ended."""

    def __init__(self, lease: Lease, script: str) -> None:
        self.call_id = f"c-{secrets.token_hex(4)}"
        self._started = threading.Event()
        self._results: list[Result] = []

        def work() -> None:
            out = lease.run(
                ["bash", "-c", f"echo started; {script}"],
                call_id=self.call_id,
                stdout=lambda data: self._started.set(),
            )
            self._results.append(out)
            self._started.set()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        assert self._started.wait(WAIT_S)

    @property
    def running(self) -> bool:
        return not self._results

    def result(self, seconds: float = WAIT_S) -> Result:
        self._thread.join(seconds)
        assert self._results, "the call has not come back"
        return self._results[0]


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Connections made in this thread come from `uid`. The raw system call changes one thread;
    the C library's wrapper would change all of them."""
    _seteuid(uid)
    try:
        yield
    finally:
        _seteuid(0)


def _seteuid(uid: int) -> None:
    number = {"x86_64": 117, "aarch64": 147}[platform.machine()]
    if _LIBC.syscall(number, _KEEP, ctypes.c_uint(uid), _KEEP) != 0:
        raise OSError(ctypes.get_errno(), "setresuid")

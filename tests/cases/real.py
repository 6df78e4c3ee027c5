"""A real daemon process for the cases, and what can be seen of it from the host.

`Daemon.start` runs `stockade serve` on a state directory and socket of its own; `stop` ends it by
SIGINT and says what it left behind. Nothing here asks the daemon about itself: processes, groups,
mounts and loop devices are read from the kernel.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stockade.edge.client.sdk import Stockade
from stockade.host import cgroup

PROGRAM = str(Path(sys.executable).with_name("stockade"))
START_S = 60.0
STOP_S = 60.0
LOADED_S = 30.0  # what takes milliseconds may take this long on a busy machine


@dataclass
class Daemon:
    """A running `stockade serve`. `secret` is the value of SECRET_X in its environment."""

    process: subprocess.Popen[bytes]
    state_dir: Path
    socket: str
    log: Path
    secret: str
    stockade: Stockade
    instance: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @classmethod
    def start(cls, environment: Mapping[str, str] | None = None) -> Daemon:
        """On a new state directory. Raises AssertionError with the log when it does not answer."""
        # Not below pytest's own directory: mapped users search all parents of a sandbox's root,
        # a socket's path has at most 107 bytes, and /tmp may be memory.
        state_dir = Path(tempfile.mkdtemp(prefix="stockade-cases-", dir="/var/tmp"))
        state_dir.chmod(0o711)
        secret = f"secret-{secrets.token_hex(16)}"
        log, socket = state_dir / "daemon.log", str(state_dir / "daemon.sock")
        config = state_dir / "config.toml"
        # So that a token is over at its end.
        config.write_text("[tokens]\nskew_s = 0\n")
        with log.open("ab") as out:
            process = subprocess.Popen(
                # It ends with the tests, also where they are killed.
                [
                    *("setpriv", "--pdeathsig", "INT", PROGRAM, "serve"),
                    *("--state-dir", str(state_dir), "--socket", socket),
                    *("--config", str(config)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "SECRET_X": secret, **(environment or {})},
            )
        answered = wait_until(
            lambda: os.path.exists(socket) or process.poll() is not None, timeout_s=START_S
        )
        if not answered or process.poll() is not None:
            process.kill()
            process.wait()
            said = log.read_text()
            shutil.rmtree(state_dir)
            raise AssertionError(f"the daemon did not start:\n{said}")
        instance = (state_dir / "lock").read_text().strip()
        return cls(process, state_dir, socket, log, secret, Stockade.connect(socket), instance)

    def stop(self) -> list[str]:
        """End it by SIGINT; gives what is left of it, empty when all is gone."""
        self.stockade.close()
        family = descendants(self.pid)
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return [f"the daemon was still running {STOP_S} s after SIGINT:\n{self.log_tail()}"]
        left = [] if code == 0 else [f"the daemon's status was {code}:\n{self.log_tail()}"]
        # The kernel takes a dead namespace's mounts down a little after its last process.
        wait_until(lambda: not self.remains(family), timeout_s=5)
        left += self.remains(family)
        if not left:
            shutil.rmtree(self.state_dir)
        return left

    def remains(self, family: Mapping[int, int]) -> list[str]:
        """Processes, groups, mounts and loop devices that belong to this daemon."""
        name = str(self.state_dir)
        found = [f"process {pid}" for pid, start in family.items() if start_time(pid) == start]
        found += [f"group {group}" for group in self.groups()]
        found += [f"loop device {device}" for device in loop_devices(name)]
        return found + [f"mount {mount}" for mount in mounts(name)]

    def groups(self) -> list[Path]:
        """Its directories in every cgroup hierarchy."""
        hierarchies = cgroup.of_this_host()
        roots = {hierarchies.unified, *hierarchies.v1.values()}
        return [made for root in roots for made in root.glob(f"stockade-{self.instance}")]

    def lease_group(self, lease_id: str) -> Path:
        """The group that all of a lease's sandboxes are in, in the unified hierarchy."""
        hierarchies = cgroup.of_this_host()
        return hierarchies.unified / f"stockade-{self.instance}" / lease_id

    def commands(self, lease_id: str) -> list[int]:
        """Host pids of everything that a lease's calls run or left running. Prepared processes
        that have not got a command yet, and each sandbox's pid 1, are not among them."""
        found: list[int] = []
        for procs in self.lease_group(lease_id).glob("limits/*/call-*/cgroup.procs"):
            found += [pid for pid in read_pids(procs) if not is_guest(pid)]
        return found

    def memory(self, field: str) -> int:
        """Bytes of VmRSS or VmHWM, from proc_pid_status(5)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024

    def forget_peak(self) -> None:
        """Restart VmHWM at the present VmRSS (proc_pid_clear_refs(5))."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def wait_until(holds: Callable[[], object], timeout_s: float = LOADED_S) -> bool:
    """Look until `holds` is true; False when it still is not after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    pause = subprocess.Popen(["sleep", "infinity"])  # its wait is the pause between two looks
    try:
        while not holds():
            if time.monotonic() > deadline:
                return False
            try:
                pause.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
        return True
    finally:
        pause.kill()
        pause.wait()


def read_pids(procs: Path) -> list[int]:
    try:
        return [int(line) for line in procs.read_text().split()]
    except (FileNotFoundError, OSError):
        return []


def is_guest(pid: int) -> bool:
    """Whether the process has no command yet: it still runs our guest program, or it is a shell
    that waits on its call's socket."""
    try:
        if Path(f"/proc/{pid}/comm").read_text().startswith("guest"):
            return True
        return os.readlink(f"/proc/{pid}/fd/3").startswith("socket:")
    except FileNotFoundError:
        return not Path(f"/proc/{pid}").exists()
    except OSError:
        return True


def start_time(pid: int) -> int | None:
    """Clock ticks since boot; with the pid it names one process for ever (proc_pid_stat(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def descendants(pid: int) -> dict[int, int]:
    """Pid and start time of everything below a process."""
    found: dict[int, int] = {}
    todo = [pid]
    while todo:
        parent = todo.pop()
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            for child in read_pids(children):
                started = start_time(child)
                if started is not None and child not in found:
                    found[child] = started
                    todo.append(child)
    return found


def loop_devices(prefix: str) -> list[str]:
    """Loop devices whose file lies below `prefix`."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().startswith(prefix):
                found.append(backing.parts[3])
        except OSError:
            continue  # it was detached meanwhile
    return found


def mounts(prefix: str) -> list[str]:
    """Mounts below `prefix` in any process's mount namespace."""
    found: set[str] = set()
    seen: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            namespace = os.readlink(process / "ns/mnt")
            if namespace in seen:
                continue
            seen.add(namespace)
            text = (process / "mountinfo").read_text(errors="replace")
        except OSError:
            continue  # it has ended
        found |= {line.split()[4] for line in text.splitlines() if f" {prefix}" in line}
    return sorted(found)

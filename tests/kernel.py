"""What the kernel of the host says of processes, cgroups, devices and mounts. Nothing here asks the
daemon."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from stockade.host import cgroup

# What crun of 1.21 keeps of filters below its root, for all sandboxes; each start of the
# daemon removes it.
RUNTIMES_OWN: Final = ".cache"


def roots() -> list[Path]:
    """Where the cgroup hierarchies of this host begin."""
    found = cgroup.of_this_host()
    return sorted({found.unified, *found.v1.values()})


def pids(procs: Path) -> list[int]:
    """Those in a cgroup.procs or children file; none when it is gone."""
    try:
        return [int(text) for text in procs.read_text().split()]
    except OSError:
        return []


def is_first(pid: int) -> bool:
    """Whether it is pid 1 of a namespace."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in lines)


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
            for child in pids(children):
                started = start_time(child)
                if started is not None and child not in found:
                    found[child] = started
                    todo.append(child)
    return found


def zombies(parent: int) -> list[str]:
    """Children of a running process that it has not collected."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"\nPPid:\t{parent}\n" in text and "\nState:\tZ" in text:
            found.append(text.splitlines()[0])
    return found


def memory(pid: int, field: str) -> int:
    """Bytes of VmRSS or VmHWM, from proc_pid_status(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def forget_peak(pid: int) -> None:
    """Restart VmHWM at the present VmRSS (proc_pid_clear_refs(5))."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def loop_devices(prefix: str) -> list[str]:
    """Loop devices whose file is below `prefix`, also when it is unlinked."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            text = backing.read_text().strip()
        except OSError:
            continue  # given back meanwhile
        if text.startswith(f"{prefix}/"):
            found.append(f"{backing.parent.parent.name} {text}")
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

"""What this host can enforce, found by looking: files of /proc and /sys, programs, versions.

Nothing is changed, and nothing is started except `crun --version`, `rg --version` and a shell in a user
namespace. A check that can't be made says so and counts as not fine: an unreadable file is never read
as good news.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from stockade.host import idmap, programs, syscalls
from stockade.host.in_memory import in_memory
from stockade.host.openat2 import SYS_OPENAT2

# cgroup.kill came with 5.14, overlays over idmapped mounts with 5.19.
_MIN_KERNEL: Final = (5, 19)
_MIN_FREE_BYTES: Final = 2 * 1024**3
_MIN_MEMORY_BYTES: Final = 1024**3
# A sandbox with its waiting shells holds some 40: enough for 400.
_MIN_OPEN_FILES: Final = 16_384
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_MODULES: Final = Path("/lib/modules")
_MODULES_DISABLED: Final = Path("/proc/sys/kernel/modules_disabled")
_CONTROLLERS: Final = ("cpu", "memory", "pids")
# The fixes of CVE-2025-31133, -52565 and -52881 came with these.
_FIXED_RUNC: Final = (1, 2, 8)
_GIVE_UP_S: Final = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """`required`: without it no sandbox can be made. `remedy` is null when nothing is to do."""

    name: str
    ok: bool
    required: bool
    detail: str
    remedy: str | None = None


def examine(state_dir: str) -> list[Finding]:
    """Every check, in a fixed order. `state_dir` need not exist yet. Never raises."""
    checks: tuple[tuple[str, bool, Callable[[], Finding]], ...] = (
        *((name, True, check) for name, check in _unalterable(state_dir)),
        ("overlayfs", True, lambda: _filesystem("overlay", "overlayfs", "modprobe overlay")),
        ("ext4", True, lambda: _filesystem("ext4", "ext4", "modprobe ext4")),
        ("loop devices", True, _loop),
        ("mkfs.ext4", True, lambda: _program("mkfs.ext4", "e2fsprogs")),
        ("crun", True, _crun),
        ("runc", False, _runc),
        ("ripgrep", True, _ripgrep),
        ("disk space", True, lambda: _disk(state_dir)),
        ("durable state", False, lambda: durable(state_dir)),
        ("memory", True, _memory),
        ("open files", False, _open_files),
        ("core dumps", False, _core_dumps),
    )
    return [_made(name, required, check) for name, required, check in checks]


def impossible(state_dir: str) -> Finding | None:
    """The first reason why no sandbox can be made here, whatever else is installed, loaded or
    freed later; None when there is none. `state_dir` need not exist yet. For start-up: it takes
    some milliseconds."""
    findings = (_made(name, True, check) for name, check in _unalterable(state_dir))
    return next((finding for finding in findings if not finding.ok), None)


def _unalterable(state_dir: str) -> tuple[tuple[str, Callable[[], Finding]], ...]:
    return (
        ("root", _root),
        ("kernel", _kernel),
        ("mount calls", _mount_calls),
        ("user namespaces", _user_namespaces),
        ("idmapped mounts", lambda: _idmapped_mounts(state_dir)),
        ("cgroups", _cgroups),
        ("cgroup2", _cgroup2),
        ("seccomp", _seccomp),
    )


def _made(name: str, required: bool, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Finding(name, False, required, f"can't be checked: {error}")


def _root() -> Finding:
    uid = os.geteuid()
    detail = "running as root" if uid == 0 else f"running as uid {uid}"
    return Finding("root", uid == 0, True, detail, None if uid == 0 else "run as root (sudo)")


def _kernel() -> Finding:
    release = platform.release()
    found = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    ok = found >= _MIN_KERNEL
    wanted = ".".join(str(part) for part in _MIN_KERNEL)
    return Finding(
        "kernel", ok, True, f"Linux {release}", None if ok else f"use Linux {wanted} or later"
    )


def _mount_calls() -> Finding:
    # Without these, paths would have to be trusted between a check and a mount.
    libc = ctypes.CDLL(None, use_errno=True)
    missing = []
    for name, number in (
        ("move_mount", syscalls.SYS_MOVE_MOUNT),
        ("openat2", SYS_OPENAT2),
        ("mount_setattr", syscalls.SYS_MOUNT_SETATTR),
    ):
        ctypes.set_errno(0)
        # Arguments that no kernel accepts: one that knows the call refuses them otherwise.
        libc.syscall(number, -1, None, -1, None, 0)
        if ctypes.get_errno() == errno.ENOSYS:
            missing.append(name)
    ok = not missing
    detail = "openat2, move_mount, mount_setattr" if ok else f"missing: {', '.join(missing)}"
    return Finding("mount calls", ok, True, detail, None if ok else "use a later kernel")


def _user_namespaces() -> Finding:
    allowed = int(Path("/proc/sys/user/max_user_namespaces").read_text())
    if allowed == 0:
        remedy = "sysctl user.max_user_namespaces=10000"
        return Finding("user namespaces", False, True, "max_user_namespaces is 0", remedy)
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    # Root makes them; the restriction is told because a daemon of another user would fail.
    note = ""
    if restricted.exists() and restricted.read_text().strip() != "0":
        note = ", restricted by AppArmor to privileged users"
        if os.geteuid() != 0:
            remedy = "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
            return Finding("user namespaces", False, True, f"{allowed} allowed{note}", remedy)
    # What else forbids them (a chroot, a limit of an outer namespace, a security module) shows only
    # when one is made.
    try:
        os.close(idmap.user_namespace(programs.SEARCH_PATH))
    except subprocess.CalledProcessError as error:
        said = error.output.decode(errors="replace").strip()
        remedy = "run outside of chroots and containers, or let them make user namespaces"
        return Finding("user namespaces", False, True, said or "none can be made", remedy)
    return Finding("user namespaces", True, True, f"{allowed} allowed{note}")


def _idmapped_mounts(state_dir: str) -> Finding:
    # What a sandbox's system is made of: files of ours below the state directory, and the host's
    # (images/host.json).
    own = str(_nearest(state_dir))
    places = {
        own: "put the state directory on ext4, xfs or btrfs",
        "/usr": "use a host with /usr on ext4, xfs or btrfs",
        "/etc": "use a host with /etc on ext4, xfs or btrfs",
    }
    userns = idmap.user_namespace(programs.SEARCH_PATH)
    try:
        for place, remedy in places.items():
            try:
                idmap.attempt(place, userns)
            except OSError as error:
                detail = f"the file system of {place} has none ({error.strerror})"
                return Finding("idmapped mounts", False, True, detail, remedy)
    finally:
        os.close(userns)
    return Finding("idmapped mounts", True, True, f"on {', '.join(places)}")


def _nearest(path: str) -> Path:
    """The directory itself, or the first above it that is there."""
    found = Path(path)
    while not found.exists():
        found = found.parent
    return found


def _unified() -> Path | None:
    for path in (_CGROUP_ROOT, _CGROUP_ROOT / "unified"):
        if (path / "cgroup.controllers").exists():
            return path
    return None


def _cgroups() -> Finding:
    unified = _unified()
    in_v2 = (unified / "cgroup.controllers").read_text().split() if unified else []
    in_v1 = [name for name in _CONTROLLERS if (_CGROUP_ROOT / name / "cgroup.procs").exists()]
    mode = "v2" if unified == _CGROUP_ROOT else "hybrid" if unified else "v1"
    missing = [name for name in _CONTROLLERS if name not in in_v2 and name not in in_v1]
    detail = f"{mode}; v1: {' '.join(in_v1) or 'none'}; v2: {' '.join(in_v2) or 'none'}"
    if missing:
        remedy = f"enable the controllers {', '.join(missing)} in the kernel's command line"
        return Finding("cgroups", False, True, detail, remedy)
    return Finding("cgroups", True, True, detail)


def _cgroup2() -> Finding:
    # `cgroup.kill`, which ends a tree for certain, exists only in this hierarchy.
    unified = _unified()
    if unified is None:
        remedy = "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
        return Finding("cgroup2", False, True, "no cgroup2 hierarchy is mounted", remedy)
    return Finding("cgroup2", True, True, str(unified))


def _seccomp() -> Finding:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    ok = "errno" in actions and "allow" in actions
    return Finding(
        "seccomp", ok, True, " ".join(actions), None if ok else "use a kernel with seccomp filters"
    )


def _filesystem(kernel_name: str, name: str, remedy: str) -> Finding:
    known = {
        line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines() if line
    }
    if kernel_name in known:
        return Finding(name, True, True, "known to the kernel")
    # The first mount makes the kernel load it (request_module in fs/filesystems.c): on a fresh
    # Debian nobody has loaded overlayfs.
    if _loadable(kernel_name):
        return Finding(name, True, True, "a module that the kernel loads when it is needed")
    return Finding(name, False, True, "neither loaded nor a module that could be", remedy)


def _loadable(module: str) -> bool:
    try:
        if _MODULES_DISABLED.read_text().strip() != "0":
            return False
        listed = (_MODULES / platform.release() / "modules.dep").read_text()
    except FileNotFoundError:  # a kernel without modules; a container without the host's
        return False
    return re.search(rf"^(?:.*/)?{module}\.ko(?:\.\w+)?:", listed, re.MULTILINE) is not None


def _loop() -> Finding:
    ok = Path("/dev/loop-control").is_char_device()
    return Finding(
        "loop devices",
        ok,
        True,
        "/dev/loop-control" if ok else "/dev/loop-control is missing",
        None if ok else "modprobe loop",
    )


def _program(name: str, package: str) -> Finding:
    path = programs.find(name)
    remedy = None if path else f"apt-get install {package}"
    return Finding(name, path is not None, True, path or "not installed", remedy)


def _crun() -> Finding:
    version = _version("crun")
    if version is None:
        return Finding("crun", False, True, "not installed", "apt-get install crun")
    return Finding("crun", True, True, version)


def _runc() -> Finding:
    """Not needed. An old one is told, because whoever uses it beside Stockade should know."""
    version = _version("runc")
    if version is None:
        return Finding("runc", True, False, "not installed; not needed")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < _FIXED_RUNC:
        detail = f"{version}: lacks the fixes of CVE-2025-31133, CVE-2025-52565, CVE-2025-52881"
        return Finding("runc", False, False, detail, "use crun, or runc 1.2.8 or later")
    return Finding("runc", True, False, version)


def _ripgrep() -> Finding:
    version = _version("rg")
    if version is None:
        return Finding("ripgrep", False, True, "not installed", "apt-get install ripgrep")
    return Finding("ripgrep", True, True, version)


def _disk(state_dir: str) -> Finding:
    path = _nearest(state_dir)
    free = psutil.disk_usage(str(path)).free
    ok = free >= _MIN_FREE_BYTES
    detail = f"{free // 1024**2} MiB free at {path}"
    return Finding("disk space", ok, True, detail, None if ok else "free at least 2 GiB there")


def durable(state_dir: str) -> Finding:
    """Whether what a daemon keeps in `state_dir` outlives the power. Raises OSError."""
    path = _nearest(state_dir)
    kind = in_memory(path)
    if kind is None:
        return Finding("durable state", True, False, f"{path} is on no memory file system")
    return Finding(
        "durable state",
        False,
        False,
        f"{path} is on {kind}, which is memory: claims, leases and the audit end with the power",
        "put the state directory on a disk",
    )


def _memory() -> Finding:
    free = psutil.virtual_memory().available
    ok = free >= _MIN_MEMORY_BYTES
    detail = f"{free // 1024**2} MiB available"
    return Finding("memory", ok, True, detail, None if ok else "free at least 1 GiB")


def _open_files() -> Finding:
    soft, hard = psutil.Process().rlimit(psutil.RLIMIT_NOFILE)
    ok = hard == -1 or hard >= _MIN_OPEN_FILES
    remedy = None if ok else f"raise the open-file limit to {_MIN_OPEN_FILES} (LimitNOFILE=)"
    return Finding("open files", ok, False, f"soft {soft}, hard {hard}", remedy)


def _core_dumps() -> Finding:
    """A limit of 0 keeps the kernel from writing a file, not from starting the program of a pipe:
    whoever crashes inside would start it on the host, as root, and write its standard input."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|"):
        program, _, _ = pattern[1:].strip().partition(" ")
        remedy = "sysctl kernel.core_pattern=core, where that program is not needed"
        return Finding("core dumps", False, False, f"go to {program}", remedy)
    return Finding("core dumps", True, False, f"written to files named {pattern}")


def _version(program: str) -> str | None:
    """First line of `program --version`, or None when it is not installed."""
    path = programs.find(program)
    if path is None:
        return None
    done = subprocess.run(
        [path, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_GIVE_UP_S,
        check=False,
    )
    lines = done.stdout.decode(errors="replace").splitlines()
    return lines[0].strip() if lines else "version unknown"

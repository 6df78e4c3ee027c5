"""Runs one program under crun in a throw-away bundle: user namespace of its own, host's /usr below.

The caller has every capability of that user namespace, so that what is refused is refused by the
filter under test. crun runs in a private mount namespace, in which the directories of
/sys/fs/cgroup that it would trip over are covered by small file systems; nothing of the host
changes, and everything is gone when the program has ended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

Json = Mapping[str, object]
UID_BASE = 3_000_000_000
NAMESPACES = ("pid", "ipc", "uts", "mount", "network", "user", "cgroup")
CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FOWNER", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT"),
        *("SYS_PTRACE", "SETUID", "SETGID"),
    )
)

# $1 the bundle; a directory that is a mount of its own is left alone, except the cgroup2 one.
LAUNCH = """
for directory in /sys/fs/cgroup/*/; do
  if [ "$directory" = /sys/fs/cgroup/unified/ ] || ! mountpoint -q "$directory"; then
    mount -t tmpfs -o size=64k none "$directory" || exit 97
  fi
done
exec crun --root "$1/state" --cgroup-manager=disabled run --bundle "$1" "$2"
"""

Run = Callable[[Sequence[str], Json | None], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def oci_bundle() -> Callable[[Sequence[Path]], AbstractContextManager[Run]]:
    """bundle(files) is a context that gives run(argv, seccomp); `files` are copied into the root
    directory inside."""
    return _bundle


@contextmanager
def _bundle(files: Sequence[Path]) -> Iterator[Run]:
    # Not below pytest's own directory: the mapped root must be able to search all parents.
    root = Path(tempfile.mkdtemp(prefix="stockade-test-", dir="/var/tmp"))
    try:
        root.chmod(0o755)
        rootfs = root / "rootfs"
        for name in ("usr", "etc", "proc", "dev", "tmp", "mnt"):
            (rootfs / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (rootfs / name).symlink_to(f"usr/{name}")
        (rootfs / "etc/passwd").write_text("root:x:0:0::/tmp:/bin/sh\n")
        for file in files:
            shutil.copy(file, rootfs / file.name)

        def run(argv: Sequence[str], seccomp: Json | None) -> subprocess.CompletedProcess[str]:
            (root / "config.json").write_text(json.dumps(_config(argv, seccomp)))
            command = ["unshare", "--mount", "--propagation", "private", "--"]
            command += ["sh", "-c", LAUNCH, "launch", str(root), root.name]
            return subprocess.run(
                command,
                input="",  # a pipe: crun gives its standard streams to the container's user
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        yield run
    finally:
        shutil.rmtree(root)


def _config(argv: Sequence[str], seccomp: Json | None) -> Json:
    ids = [{"containerID": 0, "hostID": UID_BASE, "size": 65536}]
    linux: dict[str, object] = {
        "namespaces": [{"type": name} for name in NAMESPACES],
        "uidMappings": ids,
        "gidMappings": ids,
    }
    if seccomp is not None:
        linux["seccomp"] = seccomp
    sets = ("bounding", "effective", "permitted")
    tmpfs = {"type": "tmpfs", "source": "tmpfs"}
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(argv),
            "env": ["PATH=/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8"],
            "cwd": "/",
            "capabilities": dict.fromkeys(sets, CAPABILITIES),
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", **tmpfs, "options": ["nosuid", "mode=755", "size=64k"]},
            {"destination": "/dev/shm", **tmpfs, "options": ["nosuid", "mode=1777", "size=16m"]},
            {"destination": "/tmp", **tmpfs, "options": ["nosuid", "mode=1777", "size=64m"]},
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
        ],
        "linux": linux,
    }

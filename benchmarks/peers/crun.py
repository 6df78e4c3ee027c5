"""A crun container of our own with the features of the `agent` grant, entered by `crun exec`.

On a hybrid host Debian's crun refuses to run while cgroup2 holds a controller. A thread that has a
mount namespace of its own covers that hierarchy and runs every crun from there, so nothing of the
host is changed and nothing is left below its cgroups. crun makes the limits' groups itself, and
each exec is moved into them, as it would be in use.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Final, Self

from pydantic import JsonValue

from benchmarks.peers import groups, rootfs
from benchmarks.peers.features import Features
from stockade.host import cgroup
from stockade.host.mounts import MountHolder

_UID_BASE: Final = 1_500_000_000
_RANGE: Final = 65_536
_PERIOD_US: Final = 100_000
_CGROUPS: Final = Path("/sys/fs/cgroup")


class Crun:
    """`directory` must not exist; its parents must be searchable by everybody. `with` starts one
    container that sleeps."""

    def __init__(self, directory: Path, features: Features) -> None:
        self._directory = directory
        directory.mkdir(mode=0o711)
        rootfs.make(directory / "rootfs")
        self._features = features
        self._holder = MountHolder(directory / "mounts")
        self._holder.run(_cover)
        self._count = 0
        self._name = ""

    def __enter__(self) -> Self:
        try:
            self._name = self.start()
        except BaseException:
            self._holder.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove(self._name)
        self._holder.close()
        # A start that fails leaves its groups.
        groups.remove(f"{self._directory.name}-*")

    def start(self) -> str:
        """`crun run -d` of a new container; gives its name."""
        self._count += 1
        name = f"{self._directory.name}-{self._count}"
        bundle = self._directory / name
        bundle.mkdir(mode=0o711)
        (bundle / "config.json").write_text(json.dumps(self._config(name)))
        self._crun("run", "-d", "--bundle", str(bundle), name)
        return name

    def exec(self, *argv: str, name: str | None = None) -> None:
        self._holder.run(lambda: self._inside(("exec", name or self._name, *argv)))

    def remove(self, name: str) -> None:
        self._crun("delete", "--force", name)
        shutil.rmtree(self._directory / name)

    def _crun(self, *arguments: str) -> None:
        self._holder.run(lambda: self._inside(arguments))

    def _inside(self, arguments: Sequence[str]) -> None:
        argv = ["/usr/bin/crun", "--root", str(self._directory / "runtime"), *arguments]
        log = self._directory / "crun.log"
        # Empty files, because crun gives its standard streams to the container's user: the host's
        # /dev/null would be its own from then on.
        with log.open("wb") as said, TemporaryFile() as empty, TemporaryFile() as dropped:
            done = subprocess.run(argv, env={}, stdin=empty, stdout=dropped, stderr=said)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv[3:])}: {log.read_text(errors='replace')[:300]}")

    def _config(self, name: str) -> JsonValue:
        plan = self._features.plan
        capabilities: list[JsonValue] = list(plan.capabilities)
        namespaces: list[JsonValue] = [
            {"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup", "user", "network")
        ]
        mappings: list[JsonValue] = [{"containerID": 0, "hostID": _UID_BASE, "size": _RANGE}]
        quiet: list[JsonValue] = ["nosuid", "nodev"]
        mounts: list[JsonValue] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "mode=755"],
            },
            {
                "destination": "/usr",
                "source": "/usr",
                "options": ["rbind", "ro", "nosuid", "nodev"],
            },
            {
                "destination": "/tmp",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": [*quiet, "size=64m"],
            },
            {
                "destination": "/workspace",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": [*quiet, "size=64m"],
            },
        ]
        return {
            "ociVersion": "1.0.0",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": ["/usr/bin/sleep", "infinity"],
                "env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8"],
                "cwd": "/workspace",
                "capabilities": {
                    "bounding": capabilities,
                    "effective": capabilities,
                    "permitted": capabilities,
                },
                "noNewPrivileges": True,
            },
            "root": {"path": str(self._directory / "rootfs"), "readonly": True},
            "hostname": plan.hostname,
            "mounts": mounts,
            "linux": {
                "uidMappings": mappings,
                "gidMappings": mappings,
                "namespaces": namespaces,
                "cgroupsPath": f"/{name}",
                "resources": {
                    "memory": {"limit": plan.limits.memory_bytes},
                    "pids": {"limit": plan.limits.pids},
                    "cpu": {
                        "quota": plan.limits.cpu_millis * _PERIOD_US // 1000,
                        "period": _PERIOD_US,
                    },
                },
                "seccomp": self._features.seccomp,
                "maskedPaths": list(plan.masked),
                "readonlyPaths": list(plan.readonly),
            },
        }


def _cover() -> None:
    """Hide the cgroup2 hierarchy and every cgroup directory that is no mount, where v1 is in use."""
    hierarchies = cgroup.of_this_host()
    if not hierarchies.hybrid:
        return
    for entry in _CGROUPS.iterdir():
        plain = entry.is_dir() and not entry.is_symlink() and not entry.is_mount()
        if entry == hierarchies.unified or plain:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(entry)], check=True
            )

"""A private Docker engine for the time of a run: its own data, sockets and cgroups, no network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.peers import groups
from benchmarks.peers.docker import answers

_START_S: Final = 60.0
_STOP_S: Final = 30.0


class PrivateDockerd:
    """Needs Debian's docker.io. It changes neither firewall nor forwarding, and makes no bridge."""

    def __init__(self) -> None:
        program = shutil.which("dockerd")
        if program is None:
            raise RuntimeError("dockerd is not installed: apt-get install docker.io")
        self._directory = Path(tempfile.mkdtemp(prefix="stockade-bench-docker-", dir="/var/tmp"))
        self._cgroup = self._directory.name
        self.url: Final = f"unix://{self._directory}/docker.sock"
        self._log = (self._directory / "log").open("wb")
        self._process = subprocess.Popen(
            [
                program,
                "--data-root",
                str(self._directory / "data"),
                "--exec-root",
                str(self._directory / "exec"),
                "--pidfile",
                str(self._directory / "pid"),
                "--cgroup-parent",
                f"/{self._cgroup}",
                "--bridge=none",
                "--iptables=false",
                "--ip6tables=false",
                "--ip-forward=false",
                "--ip-masq=false",
                "--host",
                self.url,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _START_S
        while not answers({**os.environ, "DOCKER_HOST": self.url}):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self._directory / "log").read_text(errors="replace")[-1000:]
                self._end()
                raise RuntimeError(f"dockerd does not start: {said}")
            time.sleep(0.2)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._unmount()
        shutil.rmtree(self._directory)
        groups.remove(self._cgroup)

    def _unmount(self) -> None:
        """Network namespaces and layers that the engine left mounted below its directory."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        mine = [
            line.split()[4] for line in lines if line.split()[4].startswith(str(self._directory))
        ]
        for target in reversed(mine):
            subprocess.run(["umount", "-l", target], check=True)

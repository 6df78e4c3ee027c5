"""A real daemon process with a state directory of its own, and a client of it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from stockade import Stockade, StockadeError

# Disk images are sparse files: not below /tmp, which may be memory.
PLACE: Final = "/var/tmp"
_START_S: Final = 30.0
_STOP_S: Final = 60.0


class Daemon:
    """`with` starts it, waits until it answers, and stops it with everything it made."""

    def __init__(self, program: Sequence[str] | None = None) -> None:
        """`program` stands in for the command `stockade`."""
        self.directory = Path(tempfile.mkdtemp(prefix="stockade-bench-", dir=PLACE))
        # Workspaces' host side must be searchable by the sandboxes' users.
        self.directory.chmod(0o711)
        self.socket: Final = self.directory / "socket"
        self._log = (self.directory / "log").open("wb")
        command = program or [str(Path(sys.executable).parent / "stockade")]
        self._process = subprocess.Popen(
            [
                *command,
                "serve",
                "--state-dir",
                str(self.directory / "state"),
                "--socket",
                str(self.socket),
            ],
            stdin=subprocess.DEVNULL,
            stderr=self._log,
        )
        self.pid: Final = self._process.pid
        self.sdk: Final = Stockade.connect(self.socket)

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.sdk.health()
                return self
            except StockadeError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._end()
                    raise RuntimeError(
                        f"the daemon does not start: {error}; {self.said()}"
                    ) from error
                time.sleep(0.02)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for view in self.sdk.leases():
                self.sdk.attach(view.lease_id).release()
        finally:
            self.sdk.close()
            self._end()

    def said(self) -> str:
        """The end of its log."""
        return (self.directory / "log").read_text(errors="replace")[-2000:]

    def memory_kib(self, key: str) -> int:
        """VmRSS or VmHWM of /proc/PID/status. The kernel batches these counters: they may be off
        by 32 pages for each processor."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0])
        raise RuntimeError(f"the kernel does not tell {key}")

    def restart_peak(self) -> None:
        """Set VmHWM back to the present VmRSS (proc_pid_clear_refs(5))."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _end(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self.directory)

"""The main job on real input: `make demo`.

Starts a daemon on a unix socket, leases a workspace made from this repository, and through the
daemon searches it, views a file, makes an exact edit, runs tests with the shell inside, shows a call
refused by its capability, one that times out and one whose output is truncated, exports the patch
and resets the workspace. Exits non-zero when anything is not as it should be.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from stockade import Lease, Result, Stockade

REPOSITORY: Final = Path(__file__).resolve().parents[1]
BIN: Final = Path(sys.executable).parent
FILE: Final = "sandbox/wire.c"
EXCLUDES: Final = (".venv", "build", ".mypy_cache", ".ruff_cache", ".pytest_cache", "__pycache__")


class Demo:
    """Collects one row per step and whether each was as expected."""

    def __init__(self) -> None:
        self.table = Table(title="What happened", title_justify="left")
        for name in ("step", "call", "status", "ms", "what it shows"):
            self.table.add_column(name, justify="right" if name == "ms" else "left")
        self.failures: list[str] = []

    def row(self, call: str, result: Result, expected: str, shows: str) -> Result:
        wall = str(result.usage.wall_ms) if result.usage else "-"
        status = str(result.status)
        self.table.add_row(str(len(self.table.rows) + 1), call, status, wall, shows)
        if status != expected:
            self.failures.append(f"{call}: {status} instead of {expected}: {result.error}")
        return result


def start_daemon(state: Path) -> tuple[subprocess.Popen[bytes], Path]:
    socket = state / "stockade.sock"
    log = (state / "log").open("wb")
    daemon = subprocess.Popen(
        [BIN / "stockade", "serve", "--state-dir", state / "state", "--socket", socket], stderr=log
    )
    deadline = time.monotonic() + 30
    while not socket.exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise SystemExit((state / "log").read_text())
        time.sleep(0.02)
    return daemon, socket


def main_job(demo: Demo, lease: Lease) -> bytes:
    found = demo.row(
        "grep_search", lease.grep("wire_split", "/workspace/sandbox"), "succeeded", "ripgrep inside"
    )
    assert found.data is not None
    assert found.data.kind == "grep_search"
    first = found.data.matches[0]
    demo.row(
        "file_view",
        lease.view(FILE, limit=20),
        "succeeded",
        f"{found.data.matches_total} matches, the first at {first.path}:{first.line}",
    )
    edit = lease.edit(FILE, "EBADMSG", "EPROTO", allow_multiple=True)
    demo.row("file_edit", edit, "succeeded", "byte-exact and atomic, with a diff")
    broken = lease.bash("make -s -C sandbox check BUILD=/tmp/check", timeout_ms=60_000)
    demo.row("bash_execute", broken, "failed", "the project's own tests notice the edit")
    patch = lease.export_patch()
    edit = lease.edit(FILE, "EPROTO", "EBADMSG", allow_multiple=True)
    demo.row("file_edit", edit, "succeeded", "the inverse edit")
    good = lease.bash("make -s -C sandbox check BUILD=/tmp/check", timeout_ms=60_000)
    demo.row("bash_execute", good, "succeeded", "the tests pass again")
    return patch


def refusals(demo: Demo, lease: Lease) -> None:
    reader = lease.narrowed(write=(), execute=(), tools=("file_view", "grep_search"))
    demo.row(
        "bash_execute",
        reader.bash("rm -rf ."),
        "denied",
        "under a narrower capability, made offline",
    )
    hook = lease.edit(".git/hooks/pre-commit", "x", "y")
    demo.row("file_edit", hook, "denied", "a denied path, also while it is absent")
    slow = lease.bash("(setsid sleep 600 &) ; sleep 600", timeout_ms=1000)
    demo.row("bash_execute", slow, "timed_out", "the whole tree is dead, confirmed")
    long = lease.bash("seq 1 100000; echo 'FAILED: reason' >&2; exit 1")
    demo.row("bash_execute", long, "failed", "truncated: head and tail kept, all in an artifact")
    assert long.stdout is not None
    if not (long.stdout.truncated and long.stdout.artifact_id):
        demo.failures.append("the long output was not truncated, or has no artifact")


def main() -> int:
    console, demo = Console(), Demo()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stockade-demo-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o711)
        daemon, socket = start_daemon(Path(directory))
        try:
            with (
                Stockade.connect(socket) as stockade,
                stockade.lease(REPOSITORY, excludes=EXCLUDES) as lease,
            ):
                console.print(
                    f"daemon on a unix socket, lease {lease.id} on a copy of this checkout"
                )
                patch = main_job(demo, lease)
                refusals(demo, lease)
                demo.row("lease reset", lease.reset(), "succeeded", "everything written is gone")
                clean = lease.changes()
                demo.row("lease export", clean, "succeeded", "nothing differs from the source")
                if clean.data is None or clean.data.kind != "export" or clean.data.modified:
                    demo.failures.append(f"the reset left changes: {clean.data}")
        finally:
            daemon.send_signal(signal.SIGINT)
            daemon.wait(30)
    console.print(f"\nThe patch of the edit, as exported ({len(patch)} bytes):\n")
    for line in patch.decode().splitlines()[:12]:
        console.print(f"    {line}", markup=False, highlight=False)
    console.print()
    console.print(demo.table)
    for failed in demo.failures:
        console.print(f"NOT AS EXPECTED: {failed}", style="bold red", markup=False)
    console.print(f"done in {time.monotonic() - began:.1f} s")
    return 1 if demo.failures else 0


if __name__ == "__main__":
    sys.exit(main())

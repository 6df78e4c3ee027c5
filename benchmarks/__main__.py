"""`python -m benchmarks`: measure, print a table, write build/bench.json."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks import table
from benchmarks.figures import (
    audit,
    calls,
    capability,
    claims,
    deadline,
    files,
    handover,
    leases,
    output,
    reset,
    search,
)
from benchmarks.report import Figure, Report
from benchmarks.trees import ROOT
from benchmarks.world import World, opened
from stockade import __version__

_WIDTH: Final = 140
GROUPS: Final[dict[str, Callable[[World], list[Figure]]]] = {
    "calls": calls.measure,
    "leases": leases.measure,
    "files": files.measure,
    "search": search.measure,
    "output": output.measure,
    "deadline": deadline.measure,
    "reset": reset.measure,
    "capability": capability.measure,
    "claims": claims.measure,
    "audit": audit.measure,
    "handover": handover.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few samples each: a smoke test")
    parser.add_argument("--only", action="append", choices=tuple(GROUPS), help="may be repeated")
    parser.add_argument("--docker", action="store_true", help="start a private dockerd as a peer")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    started, load = datetime.now(UTC), os.getloadavg()[0]
    figures: list[Figure] = []
    with opened(quick=options.quick, private_docker=options.docker) as world:
        for name in options.only or GROUPS:
            console.print(f"measuring {name} …", style="dim")
            figures += GROUPS[name](world)
        host = describe(world)
    report = Report(
        quick=options.quick,
        started_at=started.isoformat(timespec="seconds"),
        host=host,
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        figures=figures,
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report.model_dump_json(indent=1) + "\n")
    table.show(report, console)
    console.print(f"written to {options.out}")
    missed = [one for figure in figures for one in figure.limits if one.holds is False]
    # A smoke test has too few samples to judge.
    return 1 if missed and not options.quick else 0


def describe(world: World) -> dict[str, str]:
    crun = subprocess.run(["crun", "--version"], capture_output=True, text=True)
    return {
        "stockade": __version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
        "crun": crun.stdout.partition("\n")[0],
        "docker": world.docker.version if world.docker is not None else "no engine",
    }


if __name__ == "__main__":
    sys.exit(main())

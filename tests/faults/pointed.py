"""`stockade serve` that dies at a named point of a call, when a file in its state directory says so.

    python -m tests.faults.pointed STATE_DIR serve …

The file `die-at` of the state directory names the point. It is removed first, so the next daemon
lives.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from stockade import command, daemon
from stockade.runtime import open_runtime
from stockade.testing.faults import die


def _point(armed: Path, name: str) -> None:
    try:
        wanted = armed.read_text()
    except FileNotFoundError:
        return
    if wanted == name:
        armed.unlink()
        die()


def main() -> None:
    armed = Path(sys.argv[1]) / "die-at"
    pointed = partial(open_runtime, fault_point=partial(_point, armed))
    setattr(daemon, "open_runtime", pointed)  # noqa: B010 - it is no part of its surface
    sys.argv[1:] = sys.argv[2:]
    command.main()


if __name__ == "__main__":
    main()

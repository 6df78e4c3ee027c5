"""Where the data that the package ships is: in the wheel, or in the repository of a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parents[1]


def data_directory(name: str) -> Path:
    """`policy` or `images`: the wheel's copy if there is one, else the directory beside `src/`."""
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parents[1] / name


def native_program(name: str) -> Path:
    """A program built from `sandbox/`: `guest`, `launch`, `keep`, `hold.so`, `regular.so`, and for
    the selftest `attack` and `guest-control`."""
    return _PACKAGE / "_sandbox" / name

"""Source trees to make leases from: ten files, this project's own source, and generated ones.

Generated trees are the same in every run. Their text is words of a small vocabulary in lines of
usual length, so that a search does the work that it does on source.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

NEEDLE: Final = "def settle_account"
ROOT: Final = Path(__file__).parents[1]
_OWN: Final = ("src", "tests", "sandbox", "policy", "docs")
_TEXT: Final = (
    "return value self index request reply buffer count for in if else not None True lease path "
    "length offset import from class def assert error result state"
)
_LINES: Final = 90
_PER_DIRECTORY: Final = 50


def generate(directory: Path, files: int, *, lines: int = _LINES, needle_every: int = 100) -> Path:
    """`files` text files, 50 to a directory; each `needle_every`th one holds `NEEDLE` once."""
    dice = random.Random(files)
    words = _TEXT.split()
    for number in range(files):
        place = directory / f"package_{number // _PER_DIRECTORY:04d}"
        if number % _PER_DIRECTORY == 0:
            place.mkdir(parents=True)
        text = [" ".join(dice.choices(words, k=9)) for _ in range(lines)]
        if number % needle_every == 0:
            text[lines // 2] = f"{NEEDLE}(number: int) -> None:  # {number}"
        (place / f"module_{number:05d}.py").write_text("\n".join(text) + "\n")
    return directory


def own_source(directory: Path) -> Path:
    """A copy of this project's source, without what is built."""
    directory.mkdir()
    for name in _OWN:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                directory / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "_sandbox", "*.o"),
            )
    return directory

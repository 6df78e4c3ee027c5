"""What an export could not give back, for the caller to see."""

from __future__ import annotations

from typing import Final

from stockade.terms.pathname import to_text

_MAX_NAMED: Final = 1000


class LeftOut:
    """What could not be given back, by name and reason; names are bounded, the count is not.
    Adding the same again counts it: a directory stands for all that is below it."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: dict[str, int] = {}
        self._unnamed = 0

    def add(self, path: bytes, reason: str) -> None:
        self.count += 1
        line = f"{to_text(path)}: {reason}"
        if line in self._lines or len(self._lines) < _MAX_NAMED:
            self._lines[line] = self._lines.get(line, 0) + 1
        else:
            self._unnamed += 1

    def lines(self) -> tuple[str, ...]:
        named = [line if n == 1 else f"{line} ({n} entries)" for line, n in self._lines.items()]
        return (*named, f"and {self._unnamed} more") if self._unnamed else tuple(named)

"""What an export could not give back, for the caller to see."""

from __future__ import annotations

from typing import Final

from stockade.terms.pathname import to_text

_MAX_NAMED: Final = 1000


class LeftOut:
    """What could not be given back, by name and reason; names are bounded, the count is not."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: list[str] = []

    def add(self, path: bytes, reason: str) -> None:
        self.count += 1
        if len(self._lines) < _MAX_NAMED:
            self._lines.append(f"{to_text(path)}: {reason}")

    def lines(self) -> tuple[str, ...]:
        more = self.count - len(self._lines)
        return (*self._lines, f"and {more} more") if more else tuple(self._lines)

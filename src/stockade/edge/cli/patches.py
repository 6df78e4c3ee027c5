"""The lines before the first file of a patch, which name what is not in it, for stderr as well."""

from __future__ import annotations

from typing import Final

from stockade.edge.cli.output import say
from stockade.edge.wire import NOT_IN_PATCH

_MAX_TOLD: Final = 5
_MARK: Final = NOT_IN_PATCH.encode()


class PatchHeading:
    """`feed` it the patch piece by piece, then `tell`."""

    def __init__(self) -> None:
        self._text = b""
        self._lines: list[str] = []
        self._ended = False

    def feed(self, data: bytes) -> None:
        if self._ended:
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            if not line.startswith(_MARK):
                self._ended, self._text = True, b""
                return
            self._lines.append(line.decode(errors="replace"))

    def tell(self) -> None:
        for line in self._lines[:_MAX_TOLD]:
            say(line.removeprefix("# "))
        more = len(self._lines) - _MAX_TOLD
        if more > 0:
            say(f"{more} more lines like this are the first of the patch")

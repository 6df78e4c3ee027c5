"""Where the command line writes a patch, and what the patch says that it does not hold."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import IO, Final

import click

from stockade.edge.cli.output import say
from stockade.edge.wire import NOT_IN_PATCH

_MAX_TOLD: Final = 5
_MARK: Final = NOT_IN_PATCH.encode()


class PatchFile:
    """FILE, or standard output for "-". It is opened with the first bytes, so a refusal leaves a
    file that is there as it was. At the end the lines before the patch's first file, which name
    what is not in it, are said on stderr as well. `put` and `with` raise OSError."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None
        self._text = b""
        self._lines: list[str] = []
        self._heading = True

    def __enter__(self) -> PatchFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            if kind is None:
                self.put(b"")  # an empty patch is a file, too
        if kind is None:
            self._tell()

    def put(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._stack.enter_context(click.open_file(self._path, "wb"))
        self._file.write(data)
        self._file.flush()
        if self._heading:
            self._read(data)

    def _read(self, data: bytes) -> None:
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            if not line.startswith(_MARK):
                self._heading, self._text = False, b""
                return
            self._lines.append(line.decode(errors="replace"))

    def _tell(self) -> None:
        for line in self._lines[:_MAX_TOLD]:
            say(line.removeprefix("# "))
        more = len(self._lines) - _MAX_TOLD
        if more > 0:
            say(f"{more} more lines like this are the first of the patch")

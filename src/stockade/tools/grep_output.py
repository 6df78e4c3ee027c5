"""The matches in ripgrep's JSON records, bounded.

One record per line: `begin`, `match`…, `end` for each file that has a match, and a `summary` at the
end. Files come in the order in which parallel workers finish; they are put in the order of their
names first, so that the same tree gives the same answer, and only then the first matches are taken
and decoded. What the capture did not keep is never guessed: then the counts are lower bounds.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from stockade.terms.outcome import Captured
from stockade.terms.pathname import to_text
from stockade.terms.result import GrepMatch
from stockade.tools.text import decode, without_cut_end, without_cut_start

MAX_SHOWN: Final = 200
MAX_TEXT_BYTES: Final = 32 * 1024
MAX_LINE_BYTES: Final = 500
_BEFORE_BYTES: Final = 150
# ripgrep stops in a file after as many; then the count is a lower bound.
MATCHES_PER_FILE: Final = 1000

_BEGIN: Final = b'{"type":"begin"'
_MATCH: Final = b'{"type":"match"'
_END: Final = b'{"type":"end"'
# A quotation mark in a string is escaped, so no name and no line holds this.
_NOT_BINARY: Final = b'"binary_offset":null'


class _Text(BaseModel):
    """Bytes as ripgrep writes them: `text` if they are UTF-8, else `bytes` in base64."""

    text: str | None = None
    encoded: Annotated[str, Field(alias="bytes")] = ""

    def raw(self) -> bytes:
        if self.text is not None:
            return self.text.encode()
        return base64.b64decode(self.encoded, validate=True)


class _Submatch(BaseModel):
    start: Annotated[int, Field(ge=0)]


class _Record(BaseModel):
    path: _Text
    lines: _Text | None = None
    line_number: int | None = None
    submatches: tuple[_Submatch, ...] = ()
    binary_offset: int | None = None


class _Line(BaseModel):
    data: _Record


_LINE: Final = TypeAdapter(_Line)


@dataclass(frozen=True, slots=True)
class Matches:
    """`complete` says that the program came to its end and every record of it was kept. `binary`
    are files, `unshowable` matching lines of which no record was kept whole."""

    shown: tuple[GrepMatch, ...]
    total: int
    at_least: bool
    files: int
    binary: int
    unshowable: int
    complete: bool


@dataclass(slots=True)
class _File:
    """One file's records, still undecoded."""

    path: bytes
    matches: list[bytes] = field(default_factory=list)
    binary: bool = False


def parse_matches(captured: Captured) -> Matches:
    """Never raises: what is no record of ripgrep's counts as missing."""
    cut = not captured.whole
    raw = captured.head if cut else captured.head + captured.tail
    lines = raw.split(b"\n")
    # The last piece is empty, or a record whose end is missing.
    unfinished = lines.pop()
    files, ended = _files(lines)
    texts = sorted((item for item in files if not item.binary), key=lambda item: item.path)
    total = sum(len(item.matches) for item in texts)
    shown, unreadable = _show(texts)
    complete = ended and not cut
    return Matches(
        shown=tuple(shown),
        total=total,
        at_least=not complete or any(len(f.matches) >= MATCHES_PER_FILE for f in texts),
        files=sum(1 for item in texts if item.matches),
        binary=sum(1 for item in files if item.binary),
        unshowable=unreadable + int(unfinished.startswith(_MATCH)),
        complete=complete,
    )


def _files(lines: list[bytes]) -> tuple[list[_File], bool]:
    """The files in the order of the output, and whether the summary was there."""
    files: list[_File] = []
    for line in lines:
        if line.startswith(_MATCH):
            if files:
                files[-1].matches.append(line)
        elif line.startswith(_BEGIN):
            record = _record(line)
            if record is not None:
                files.append(_File(record.path.raw()))
        elif line.startswith(_END) and _NOT_BINARY not in line:
            record = _record(line)
            if record is not None and files:
                files[-1].binary = record.binary_offset is not None
    return files, bool(lines) and _is_summary(lines[-1])


def _show(files: list[_File]) -> tuple[list[GrepMatch], int]:
    shown: list[GrepMatch] = []
    room, unreadable = MAX_TEXT_BYTES, 0
    for item in files:
        path = to_text(item.path)
        for line in item.matches:
            if len(shown) == MAX_SHOWN:
                return shown, unreadable
            record = _record(line)
            if record is None or record.lines is None or record.line_number is None:
                unreadable += 1
                continue
            start = record.submatches[0].start if record.submatches else 0
            text, was_cut = around(record.lines.raw(), start)
            room -= len(text.encode())
            if room < 0:
                return shown, unreadable
            shown.append(
                GrepMatch(
                    path=path, line=record.line_number, column=start + 1, text=text, cut=was_cut
                )
            )
    return shown, unreadable


def around(raw: bytes, start: int) -> tuple[str, bool]:
    """A matching line without its end; of a long one 500 bytes around `start`, cut on character
    borders, with what is missing named on either side."""
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    if len(raw) <= MAX_LINE_BYTES:
        return decode(raw)[0], False
    first = max(0, min(start - _BEFORE_BYTES, len(raw) - MAX_LINE_BYTES))
    part = raw[first : first + MAX_LINE_BYTES]
    kept = without_cut_start(part) if first else part
    first += len(part) - len(kept)
    if first + len(kept) < len(raw):
        kept = without_cut_end(kept)
    left = len(raw) - first - len(kept)
    before = f"[{first} bytes cut] " if first else ""
    after = f" [{left} bytes cut]" if left else ""
    return before + decode(kept)[0] + after, True


def _record(line: bytes) -> _Record | None:
    try:
        record = _LINE.validate_json(line).data
        record.path.raw()
        if record.lines is not None:
            record.lines.raw()
    except (ValidationError, binascii.Error):
        return None
    return record


def _is_summary(line: bytes) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("type") == "summary"

"""Reading a window of lines, in memory and time that the answer's size bounds.

The file is read in blocks, and a block is split into lines only where it meets the window; before
and after it, newlines are counted. Of a line only as much is kept as may be shown.

A file of at most 16 MiB is read to the end that it had when it was opened: total lines, line
endings and version are exact. A larger one is read only as far as the window needs: `total_lines`
is then a lower bound (at least one more than the last line shown, if anything follows),
`line_endings` is of what was read, and the version comes from the inode (see file_content). A
window that begins beyond its first 64 MiB is refused with file_too_large.

What is a line: what ends in LF, or the rest of the file after the last LF. A lone CR ends nothing.
The empty file has 0 lines. An offset beyond the end gives no lines and the true total. A BOM is
reported and not part of the first line, so that what is shown can be found by an edit.
"""

from __future__ import annotations

import hashlib
import os
from io import BytesIO
from itertools import islice
from typing import Final

from stockade.host.file_content import (
    EXACT_BYTES,
    content_version,
    read_block,
    require_text,
    stat_version,
)
from stockade.terms.call import ViewOperation
from stockade.terms.fault import Code, failure
from stockade.terms.outcome import ViewOutcome
from stockade.terms.pathname import to_text

SEEK_BYTES: Final = 64 << 20
BOM: Final = b"\xef\xbb\xbf"
_WIDEST_CHAR: Final = 4  # bytes of the longest UTF-8 character


def view_file(fd: int, state: os.stat_result, path: bytes, operation: ViewOperation) -> ViewOutcome:
    """The window of `operation` in the regular file `fd`, resolved as `path`.

    Each line is cut to `max_line_chars` characters, its ending included in `lines` unless it was
    cut. Lines are added while `max_bytes` holds them; the first is always given. Raises Failure:
    not_a_text_file, file_too_large; OSError.
    """
    window = _Window(operation)
    exact = state.st_size <= EXACT_BYTES
    end = state.st_size if exact else min(state.st_size, SEEK_BYTES)
    digest = hashlib.sha256()
    position = 0
    last = b""
    bom = False
    shorter = False
    while position < end and (exact or not window.complete):
        block = read_block(fd, position, end)
        if not block:
            shorter = True
            break
        text = block
        if not position:
            require_text(block, path)
            bom = block.startswith(BOM)
            text = block.removeprefix(BOM)
        if exact:
            digest.update(block)
        window.feed(text)
        position += len(block)
        last = block[-1:]
    at_end = shorter or position == state.st_size
    window.finish(at_end)
    if not at_end and operation.offset > window.total:
        raise failure(
            Code.FILE_TOO_LARGE,
            f"line {operation.offset} of {to_text(path)} lies beyond its first {SEEK_BYTES >> 20}"
            " MiB",
            bytes=state.st_size,
        )
    hashed = exact and at_end
    return ViewOutcome(
        path=to_text(path),
        lines=tuple(window.lines),
        first_line=operation.offset,
        total_lines=window.total,
        bytes=position if hashed else state.st_size,
        version=content_version(digest.digest()) if hashed else stat_version(state),
        line_endings=window.line_endings,
        final_newline=(last if hashed else _last_byte(fd, state.st_size)) == b"\n",
        bom=bom,
        cut=tuple(window.cut),
        stopped_at_bytes=window.stopped_at_bytes,
        total_lines_at_least=not at_end,
    )


def _last_byte(fd: int, size: int) -> bytes:
    return os.pread(fd, 1, size - 1)


class _Window:
    """Takes a file block by block, counts its lines and keeps those that were asked for.

    `_partial` is the beginning of the line that a block's end cut in two, as much as shows
    whether it has to be cut, and `_open` whether such a line exists.
    """

    def __init__(self, operation: ViewOperation) -> None:
        self._first = operation.offset
        self._last = operation.offset + operation.limit - 1
        self._chars = operation.max_line_chars
        self._keep = operation.max_line_chars * _WIDEST_CHAR + len(b"\r\n") + 1
        self._room = operation.max_bytes
        self._partial = b""
        self._open = False
        self._newlines = 0
        self._crlf = 0
        self._ends_in_cr = False
        self.lines: list[bytes] = []
        self.cut: list[int] = []
        self.stopped_at_bytes = False
        self.total = 0

    @property
    def complete(self) -> bool:
        """Nothing that follows can change the lines of the window."""
        return self.stopped_at_bytes or self._newlines >= self._last

    @property
    def line_endings(self) -> str:
        if not self._newlines:
            return "none"
        if not self._crlf:
            return "lf"
        return "crlf" if self._crlf == self._newlines else "mixed"

    def feed(self, block: bytes) -> None:
        if not block:
            return
        newlines = block.count(b"\n")
        if not self.complete and self._newlines + newlines >= self._first - 1:
            self._collect(block)
        if b"\r" in block:  # counting pairs takes three times as long as counting newlines
            self._crlf += block.count(b"\r\n")
        self._crlf += self._ends_in_cr and block[:1] == b"\n"
        self._ends_in_cr = block.endswith(b"\r")
        self._newlines += newlines
        self._open = not block.endswith(b"\n")

    def finish(self, at_end: bool) -> None:
        """The file, or what may be read of it, is over. Settles `total`."""
        if self._partial and not self.complete:
            self._take(self._newlines + 1, self._partial)
        self.total = self._newlines + self._open
        if not at_end and not self._open:
            self.total += 1  # something follows the last newline that was read

    def _collect(self, block: bytes) -> None:
        """Take the lines of `block` that lie in the window."""
        wanted = self._last - self._newlines
        lines = list(islice(BytesIO(block), wanted))
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        skipped = max(0, self._first - 1 - self._newlines)
        if lines and self._partial:
            lines[0] = self._partial + lines[0]
            self._partial = b""
        self._take_all(self._newlines + skipped + 1, lines[skipped:])
        if self.stopped_at_bytes:
            return
        if skipped <= len(lines) < wanted:
            self._partial = (self._partial + rest[: self._keep])[: self._keep]

    def _take_all(self, first: int, lines: list[bytes]) -> None:
        """Lines that follow each other, of which `first` is the first one's number."""
        size = sum(map(len, lines))
        # Mostly all of them fit as they are: 200 lines one by one cost 25 us more.
        if size <= self._room and max(map(len, lines), default=0) <= self._chars:
            self.lines += lines
            self._room -= size
            return
        for number, line in enumerate(lines, first):
            self._take(number, line)
            if self.stopped_at_bytes:
                return

    def _take(self, number: int, line: bytes) -> None:
        shown = line if len(line) <= self._chars else self._shorten(line)
        if self.lines and len(shown) > self._room:
            self.stopped_at_bytes = True
            return
        if len(shown) < len(line):
            self.cut.append(number)
        self._room -= len(shown)
        self.lines.append(shown)

    def _shorten(self, line: bytes) -> bytes:
        """The first `max_line_chars` characters, on a character's border; an undecodable byte
        counts as one. A line with room for all of it keeps its ending, which counts nothing."""
        body = line[: self._keep].removesuffix(b"\n").removesuffix(b"\r")
        text = body.decode("utf-8", "surrogateescape")
        if len(text) <= self._chars:
            return line
        return text[: self._chars].encode("utf-8", "surrogateescape")

"""Finding the text of an edit in a file's bytes, and saying how near a miss was.

Bytes are bytes: nothing in either argument is expanded, unescaped or normalised, and nothing
outside a match changes. One translation exists, because what was viewed must be matchable and a
viewer shows lines: where *every* line of the file ends in CRLF and neither argument holds a CR, an
LF in the arguments means the file's line ending, CRLF. In such a file a bare LF could only match by
splitting a line ending, or break the file by adding one that is different. A file with mixed
endings is never translated; there a miss that is due to line endings says so.

Matches are counted with overlaps ("aa" is twice in "aaa"), so that "exactly one" is never a matter
of where the search began. Replacing many goes from left to right without overlaps. Counting ends at
10,000 matches, or when it has compared 64 MiB: the count is then a lower bound.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stockade.terms.invisible import show_invisible

COUNT_LIMIT: Final = 10_000
COMPARE_BYTES: Final = 64 << 20
NEAR_BYTES: Final = 1 << 20  # a file beyond this gets no near miss but that of line endings
NEAR_LINES: Final = 4_000
NEAR_COMPARED: Final = 100  # full comparisons, up to 1 ms each where lines are long and alike
_SIMILAR: Final = 0.6
_SHOWN_CHARS: Final = 200
_NAME: Final = re.compile(rb"<U\+[0-9A-F]{4,6}>")


@dataclass(frozen=True, slots=True)
class Near:
    """`kind` is line_endings, undecodable, invisible, whitespace, case or similar_line; `line` is
    1-based in the file; `text` that line as it is there, at most 200 characters, undecodable bytes
    as \\xNN."""

    kind: str
    line: int
    text: str


def as_written(content: bytes, old: bytes, new: bytes) -> tuple[bytes, bytes]:
    """The arguments in the file's line endings (see above)."""
    if b"\n" not in old + new or b"\r" in old + new:
        return old, new
    newlines = content.count(b"\n")
    if not newlines or content.count(b"\r\n") != newlines:
        return old, new
    return old.replace(b"\n", b"\r\n"), new.replace(b"\n", b"\r\n")


def find_overlapping(content: bytes, old: bytes) -> tuple[list[int], bool]:
    """Where `old` begins, and whether counting was ended early."""
    limit = max(2, min(COUNT_LIMIT, COMPARE_BYTES // len(old)))
    found: list[int] = []
    position = content.find(old)
    while position >= 0:
        if len(found) == limit:
            return found, True
        found.append(position)
        position = content.find(old, position + 1)
    return found, False


def find_separate(content: bytes, old: bytes, limit: int) -> list[int]:
    """The first `limit` places, from left to right without overlaps."""
    found: list[int] = []
    position = content.find(old)
    while position >= 0 and len(found) < limit:
        found.append(position)
        position = content.find(old, position + len(old))
    return found


def lines_of(content: bytes, positions: list[int]) -> tuple[int, ...]:
    """The 1-based line numbers of ascending positions."""
    numbers: list[int] = []
    line = 1
    before = 0
    for position in positions:
        line += content.count(b"\n", before, position)
        before = position
        numbers.append(line)
    return tuple(numbers)


def near_miss(content: bytes, old: bytes) -> Near | None:
    """What `old`, which is not in `content`, was probably meant to be."""
    near = _modulo(content, old, "line_endings", lambda text: text.replace(b"\r\n", b"\n"))
    if near or len(content) > NEAR_BYTES:
        return near
    return (
        _modulo(content, old, "undecodable", _decoded)
        or _modulo(content, old, "invisible", _seen)
        or _modulo(content, old, "whitespace", _collapse)
        or _modulo(content, old, "case", lambda text: _collapse(text).lower())
        or _similar(content, old)
    )


def _modulo(content: bytes, old: bytes, kind: str, fold: Callable[[bytes], bytes]) -> Near | None:
    """A match once both sides are folded; folds keep the number of lines."""
    wanted = fold(old)
    if not wanted.strip():
        return None
    folded = fold(content)
    position = folded.find(wanted)
    if position < 0:
        return None
    return _at(content, kind, folded.count(b"\n", 0, position) + 1)


def _decoded(text: bytes) -> bytes:
    """With U+FFFD for what is no UTF-8, as a viewer shows it."""
    return text.decode("utf-8", "replace").encode()


def _seen(text: bytes) -> bytes:
    """What is left of a text without characters that nobody sees, and without their names, which
    stand for them in a result."""
    return _NAME.sub(b"", show_invisible(text.decode("utf-8", "replace"))[0].encode())


def _collapse(text: bytes) -> bytes:
    return b"\n".join(b" ".join(line.split()) for line in text.split(b"\n"))


def _similar(content: bytes, old: bytes) -> Near | None:
    """The line of the file that is most like the first line of `old` with something in it."""
    wanted = next((line.strip() for line in old.split(b"\n") if line.strip()), b"")
    if not wanted:
        return None
    lines = content.split(b"\n")
    stripped = [line.strip() for line in lines]
    if wanted in stripped:
        return _at(content, "similar_line", stripped.index(wanted) + 1)
    if len(lines) > NEAR_LINES:
        return None
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(_show(wanted))
    best, ratio, compared = 0, _SIMILAR, 0
    for number, line in enumerate(stripped, 1):
        matcher.set_seq1(_show(line))
        if matcher.real_quick_ratio() > ratio and matcher.quick_ratio() > ratio:
            score = matcher.ratio()
            compared += 1
            if score > ratio:
                best, ratio = number, score
        if compared == NEAR_COMPARED:
            break
    return _at(content, "similar_line", best) if best else None


def _at(content: bytes, kind: str, line: int) -> Near:
    start = 0
    for _ in range(line - 1):
        start = content.index(b"\n", start) + 1
    end = content.find(b"\n", start)
    return Near(kind, line, _show(content[start : end if end >= 0 else len(content)]))


def _show(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "backslashreplace")[:_SHOWN_CHARS]

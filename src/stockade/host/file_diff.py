"""The unified diff of an edit, from the places that changed and not from two whole files.

difflib compares line by line, in time that grows with the product of both sides; a file of a few
megabytes would take minutes. The edit knows where it replaced what, so only a few lines around each
place are compared, and no more places than the answer has room for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CONTEXT_LINES: Final = 3
# Above this many pairs of lines a place is shown as all removed, all added.
_PAIRS: Final = 40_000


@dataclass(frozen=True, slots=True)
class Swap:
    """Every `old` replaced by `new`, from left to right; `places` are the byte positions of the
    first ones: all, or as many as the diff may have bytes, which is more than it can show."""

    old: bytes
    new: bytes
    places: list[int]


def edit_diff(path: str, content: bytes, swap: Swap, max_bytes: int) -> tuple[str, bool]:
    """The diff that `swap` makes in `content`, and whether it was cut.

    At most `max_bytes` of UTF-8, whole lines, with a last line that says what was cut. Bytes that
    are not UTF-8 are shown as \\xNN.
    """
    out: list[str] = []
    marker = f"[diff cut at {max_bytes} bytes]\n"
    room = max_bytes - len(marker)
    for line in _lines(path, content, swap):
        room -= len(line.encode())
        if room < 0:
            return "".join(out) + marker, True
        out.append(line)
    return "".join(out), False


def _lines(path: str, content: bytes, swap: Swap) -> Iterator[str]:
    yield f"--- {path}\n"
    yield f"+++ {path}\n"
    shift = 0  # lines that earlier hunks added
    line, counted = 1, 0  # the number of the line that begins at byte `counted`
    for places in _groups(content, swap):
        start, stop = _around(content, places[0], places[-1] + len(swap.old))
        line += content.count(b"\n", counted, start)
        counted = start
        before = content[start:stop]
        # No match reaches into these lines from outside: it would be in this group.
        after = before.replace(swap.old, swap.new)
        yield from _hunk(before, after, line, line + shift)
        shift += after.count(b"\n") - before.count(b"\n")


def _groups(content: bytes, swap: Swap) -> Iterator[list[int]]:
    """Places whose surroundings touch belong into one hunk."""
    group: list[int] = []
    reached = 0
    for place in swap.places:
        start, stop = _around(content, place, place + len(swap.old))
        if group and reached <= start:
            yield group
            group = []
        group.append(place)
        reached = stop
    if group:
        yield group


def _around(content: bytes, start: int, stop: int) -> tuple[int, int]:
    """Widened to whole lines and the context before and after them."""
    for _ in range(CONTEXT_LINES + 1):
        start = content.rfind(b"\n", 0, start)
        if start < 0:
            break
    for _ in range(CONTEXT_LINES + 1):
        stop = content.find(b"\n", stop) + 1
        if not stop:
            stop = len(content)
            break
    return start + 1, stop


def _hunk(before: bytes, after: bytes, line: int, new_line: int) -> Iterator[str]:
    """One surrounding as a hunk; its first line has number `line` and then `new_line`."""
    old, new = _split(before), _split(after)
    shortest = min(len(old), len(new))
    same = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    rest = shortest - same
    tail = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    lead = min(same, CONTEXT_LINES)
    follow = old[len(old) - tail :][:CONTEXT_LINES]
    removed, added = old[same : len(old) - tail], new[same : len(new) - tail]
    around = lead + len(follow)
    yield (
        f"@@ -{_range(line + same - lead, len(removed) + around)}"
        f" +{_range(new_line + same - lead, len(added) + around)} @@\n"
    )
    yield from (_show(" ", text) for text in old[same - lead : same])
    yield from _changes(removed, added)
    yield from (_show(" ", text) for text in follow)


def _changes(removed: list[bytes], added: list[bytes]) -> Iterator[str]:
    # Lines of which none is on both sides need no comparison either: mostly it is one and one.
    if len(removed) * len(added) > _PAIRS or set(removed).isdisjoint(added):
        yield from (_show("-", text) for text in removed)
        yield from (_show("+", text) for text in added)
        return
    matcher = difflib.SequenceMatcher(None, removed, added, autojunk=False)
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if kind == "equal":
            yield from (_show(" ", text) for text in removed[i1:i2])
            continue
        yield from (_show("-", text) for text in removed[i1:i2])
        yield from (_show("+", text) for text in added[j1:j2])


def _range(start: int, count: int) -> str:
    """As diff(1): an empty range names the line before it."""
    return f"{start if count else start - 1},{count}"


def _split(text: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in text.split(b"\n")]
    last = lines.pop().removesuffix(b"\n")
    return [*lines, last] if last else lines


def _show(sign: str, line: bytes) -> str:
    text = sign + line.decode("utf-8", "backslashreplace")
    return text if line.endswith(b"\n") else f"{text}\n\\ No newline at end of file\n"

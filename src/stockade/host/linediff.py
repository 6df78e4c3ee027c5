"""The difference of two lists of lines, in a time that a hostile file can't raise.

Common lines at both ends are set aside; what is left is cut at lines that occur exactly once on
both sides, taken as anchors in the longest order that both sides share (patience). Each gap between
anchors is treated the same way, at most `_DEPTH` times; a gap without anchors is replaced whole. So
the cost is O(depth · n log n) for any input, and the result is always right, if not always minimal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class Block:
    """Lines [old_start, old_end) of the old side give way to [new_start, new_end) of the new."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def blocks(old: Sequence[bytes], new: Sequence[bytes]) -> list[Block]:
    """What to replace, in order; between two blocks the sides are equal."""
    found: list[Block] = []
    todo: list[tuple[Block, int]] = [(Block(0, len(old), 0, len(new)), _DEPTH)]
    while todo:
        gap, depth = todo.pop()
        gap = _trimmed(old, new, gap)
        if gap.old_start == gap.old_end and gap.new_start == gap.new_end:
            continue
        anchors = _anchors(old, new, gap) if depth else []
        if not anchors:
            found.append(gap)
            continue
        parts: list[tuple[Block, int]] = []
        old_at, new_at = gap.old_start, gap.new_start
        for i, j in anchors:
            parts.append((Block(old_at, i, new_at, j), depth - 1))
            old_at, new_at = i + 1, j + 1
        parts.append((Block(old_at, gap.old_end, new_at, gap.new_end), depth - 1))
        todo += reversed(parts)
    return found


def _trimmed(old: Sequence[bytes], new: Sequence[bytes], gap: Block) -> Block:
    i, i_end, j, j_end = gap.old_start, gap.old_end, gap.new_start, gap.new_end
    while i < i_end and j < j_end and old[i] == new[j]:
        i, j = i + 1, j + 1
    while i < i_end and j < j_end and old[i_end - 1] == new[j_end - 1]:
        i_end, j_end = i_end - 1, j_end - 1
    return Block(i, i_end, j, j_end)


def _anchors(old: Sequence[bytes], new: Sequence[bytes], gap: Block) -> list[tuple[int, int]]:
    """Pairs of lines that are unique on both sides, in the longest increasing order."""
    old_unique = _unique(old, gap.old_start, gap.old_end)
    new_unique = _unique(new, gap.new_start, gap.new_end)
    pairs = sorted((i, new_unique[line]) for line, i in old_unique.items() if line in new_unique)
    # Patience sorting: piles of new-side positions, each pair remembering its predecessor.
    tops: list[int] = []
    top_pairs: list[int] = []
    previous: list[int] = []
    for index, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        previous.append(top_pairs[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(j)
            top_pairs.append(index)
        else:
            tops[pile] = j
            top_pairs[pile] = index
    chain: list[tuple[int, int]] = []
    index = top_pairs[-1] if top_pairs else -1
    while index >= 0:
        chain.append(pairs[index])
        index = previous[index]
    return chain[::-1]


def _unique(lines: Sequence[bytes], start: int, end: int) -> dict[bytes, int]:
    at: dict[bytes, int] = {}
    repeated: set[bytes] = set()
    for index in range(start, end):
        line = lines[index]
        if line in at:
            repeated.add(line)
        at[line] = index
    for line in repeated:
        del at[line]
    return at

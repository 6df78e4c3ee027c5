from __future__ import annotations

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from stockade.host.linediff import Block, blocks

LINES = st.lists(st.sampled_from([b"a", b"b", b"c", b"{", b"}"]), max_size=40)


def patched(old: list[bytes], new: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    at = 0
    for block in blocks(old, new):
        out += old[at : block.old_start] + new[block.new_start : block.new_end]
        at = block.old_end
    return out + old[at:]


@given(LINES, LINES)
def test_carrying_the_blocks_out_gives_the_new_side(old: list[bytes], new: list[bytes]) -> None:
    assert patched(old, new) == new


@given(LINES, LINES)
def test_blocks_are_in_order_and_apart(old: list[bytes], new: list[bytes]) -> None:
    found = blocks(old, new)
    for one, two in itertools.pairwise(found):
        assert one.old_end < two.old_start or one.new_end < two.new_start
        assert two.old_start - one.old_end == two.new_start - one.new_end
    assert all(b.old_end > b.old_start or b.new_end > b.new_start for b in found)


def test_equal_sides_have_no_blocks() -> None:
    assert blocks([b"x"] * 5, [b"x"] * 5) == []


def test_unique_lines_keep_a_moved_function_small() -> None:
    old = [b"%d" % i for i in range(100)]
    new = [*old[:10], b"new", *old[10:50], *old[52:]]
    assert blocks(old, new) == [Block(10, 10, 10, 11), Block(50, 52, 51, 51)]


def test_hostile_sides_take_no_longer_than_others() -> None:
    """Lines without an anchor, and anchors in reverse: quadratic for a textbook algorithm."""
    count = 200_000
    begin = time.monotonic()
    same = [b"a", b"b"] * count
    assert patched(same[1:], same) == same
    reverse = [b"%d" % i for i in range(count)]
    assert patched(reverse[::-1], reverse) == reverse
    assert time.monotonic() - begin < 10

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stockade.host.file_diff import Swap, edit_diff
from stockade.host.file_match import find_separate

LINES = st.lists(st.sampled_from([b"a", b"b", b"ab", b"", b"c"]), max_size=60).map(b"\n".join)


def diff(content: bytes, old: bytes, new: bytes, limit: int = 100_000) -> tuple[str, bool]:
    return edit_diff("f", content, Swap(old, new, find_separate(content, old, limit)), limit)


@given(content=LINES, old=st.sampled_from([b"a", b"b\n", b"\n", b"ab", b"c\na"]), new=LINES)
def test_the_diff_turns_the_old_content_into_the_new_one(
    content: bytes, old: bytes, new: bytes
) -> None:
    assume(old in content and old != new)
    text, cut = diff(content, old, new)
    assert not cut
    assert apply(content, text) == content.replace(old, new)


def apply(content: bytes, text: str) -> bytes:
    """A strict patch: positions, counts, context and removed lines have to agree."""
    before = content.split(b"\n")
    marked = text.replace("\n\\ No newline at end of file\n", "\0\n").encode()
    source = [line + b"\n" for line in before[:-1]] + ([before[-1]] if before[-1] else [])
    out: list[bytes] = []
    at = 0
    lines = marked.split(b"\n")[2:-1]
    while lines:
        head = lines.pop(0).split()
        start, removed = map(int, head[1][1:].split(b","))
        target, added = map(int, head[2][1:].split(b","))
        first = start - 1 if removed else start
        out += source[at:first]
        at = first
        assert len(out) == (target - 1 if added else target)
        while removed or added:
            line = lines.pop(0)
            body = line[1:-1] if line.endswith(b"\0") else line[1:] + b"\n"
            if line[:1] in b" -":
                assert source[at] == body
                at += 1
                removed -= 1
            if line[:1] in b" +":
                out.append(body)
                added -= 1
    return b"".join(out + source[at:])


def test_patch_accepts_it(tmp_path: Path) -> None:
    content = b"".join(b"line %d\n" % i for i in range(100))
    text, _ = diff(content, b"5\n", b"five\nmore")
    (tmp_path / "f").write_bytes(content)
    command = ["git", "apply", "--unsafe-paths", "--directory", str(tmp_path), "-p0", "-"]
    subprocess.run(command, input=text.encode(), check=True, cwd=tmp_path)
    assert (tmp_path / "f").read_bytes() == content.replace(b"5\n", b"five\nmore")


@pytest.mark.parametrize("limit", [200, 4096])
def test_it_is_cut_on_a_line_and_says_so(limit: int) -> None:
    text, cut = diff(b"\n".join(b"%d x" % i for i in range(3000)), b"x", b"yy", limit)
    assert cut
    assert len(text.encode()) <= limit
    assert text.endswith(f"\n[diff cut at {limit} bytes]\n")


def test_many_matches_on_one_line_are_all_shown() -> None:
    text, cut = diff(b"a" * 1500 + b"\n", b"a", b"b", 4096)
    assert not cut
    assert "+" + "b" * 1500 + "\n" in text


def test_a_line_that_stays_between_others_is_context() -> None:
    text, _ = diff(b"x\n", b"x\n", b"a\nx\nb\n")
    assert text == "--- f\n+++ f\n@@ -1,1 +1,3 @@\n+a\n x\n+b\n"
    text, _ = diff(b"x\ny\n", b"x\ny\n", b"a\nx\nb\n")
    assert text == "--- f\n+++ f\n@@ -1,2 +1,3 @@\n+a\n x\n-y\n+b\n"
    text, _ = diff(b"x\ny\n", b"x\ny\n", b"a\nb\n")
    assert text == "--- f\n+++ f\n@@ -1,2 +1,2 @@\n-x\n-y\n+a\n+b\n"


def test_a_large_file_costs_no_more_than_its_change() -> None:
    content = b"".join(b"%d\n" % i for i in range(1_000_000))
    text, cut = diff(content, b"\n500000\n", b"\n5e5\n")
    assert not cut
    assert text.splitlines()[2] == "@@ -499998,7 +499998,7 @@"


def test_bytes_that_are_not_text_are_shown_as_numbers() -> None:
    assert r"-x\xff" in diff(b"x\xff\n", b"x", b"y")[0]

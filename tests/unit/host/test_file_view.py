from __future__ import annotations

import hashlib
import os
import socket
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.host.file_view import SEEK_BYTES, _Window
from stockade.terms.call import ViewOperation
from stockade.terms.fault import Code, Failure

if TYPE_CHECKING:
    from tests.unit.host.conftest import LeaseTree


def code(act: Callable[[], object]) -> Code:
    with pytest.raises(Failure) as caught:
        act()
    return caught.value.fault.code


def test_a_window_of_numbered_lines_with_totals_and_version(tree: LeaseTree) -> None:
    content = b"".join(b"line %d\n" % number for number in range(1, 301))
    (tree.workspace / "f").write_bytes(content)
    outcome = tree.view("f", 100, 50)
    assert outcome.path == "/workspace/f"
    assert outcome.lines == tuple(b"line %d\n" % number for number in range(100, 150))
    assert (outcome.first_line, outcome.total_lines) == (100, 300)
    assert not outcome.total_lines_at_least
    assert outcome.bytes == len(content)
    assert outcome.version == hashlib.sha256(content).hexdigest()[:32]
    assert (outcome.line_endings, outcome.final_newline, outcome.bom) == ("lf", True, False)
    assert not outcome.cut
    assert not outcome.stopped_at_bytes


@pytest.mark.parametrize(
    ("content", "lines", "total", "endings", "final"),
    [
        (b"", (), 0, "none", False),
        (b"a", (b"a",), 1, "none", False),
        (b"\n", (b"\n",), 1, "lf", True),
        (b"a\nb", (b"a\n", b"b"), 2, "lf", False),
        (b"a\r\nb\r\n", (b"a\r\n", b"b\r\n"), 2, "crlf", True),
        (b"a\r\nb\n", (b"a\r\n", b"b\n"), 2, "mixed", True),
        (b"a\rb\r", (b"a\rb\r",), 1, "none", False),
        (b"a\n\r\n\n", (b"a\n", b"\r\n", b"\n"), 3, "mixed", True),
        (b"caf\xe9\n", (b"caf\xe9\n",), 1, "lf", True),
    ],
)
def test_b37_what_a_line_is(
    tree: LeaseTree, content: bytes, lines: tuple[bytes, ...], total: int, endings: str, final: bool
) -> None:
    (tree.workspace / "f").write_bytes(content)
    outcome = tree.view("f")
    assert outcome.lines == lines
    assert (outcome.total_lines, outcome.line_endings, outcome.final_newline) == (
        total,
        endings,
        final,
    )
    assert outcome.version == hashlib.sha256(content).hexdigest()[:32]


def test_b37_an_offset_beyond_the_end_gives_no_lines_and_the_total(tree: LeaseTree) -> None:
    (tree.workspace / "f").write_bytes(b"a\nb\n")
    for offset in (3, 10**15):
        outcome = tree.view("f", offset)
        assert (outcome.lines, outcome.first_line, outcome.total_lines) == ((), offset, 2)


def test_b39_a_bom_is_reported_and_not_shown(tree: LeaseTree) -> None:
    (tree.workspace / "f").write_bytes(b"\xef\xbb\xbfa\nb")
    outcome = tree.view("f")
    assert (outcome.lines, outcome.bom, outcome.bytes) == ((b"a\n", b"b"), True, 6)
    (tree.workspace / "f").write_bytes(b"\xef\xbb\xbf")
    outcome = tree.view("f")
    assert (outcome.lines, outcome.bom, outcome.total_lines) == ((), True, 0)


def test_a_long_line_is_cut_on_a_characters_border(tree: LeaseTree) -> None:
    lines = [
        "é" * 2000 + "\r\n",
        "é" * 2001 + "\n",
        "𝄞" * 2000 + "\r\n",
        "𝄞" * 5000 + "\n",
        "short\n",
    ]
    (tree.workspace / "f").write_bytes("".join(lines).encode() + b"\xff" * 2001)
    outcome = tree.view("f")
    assert outcome.cut == (2, 4, 6)
    assert outcome.lines == (
        lines[0].encode(),
        ("é" * 2000).encode(),
        lines[2].encode(),
        ("𝄞" * 2000).encode(),
        b"short\n",
        b"\xff" * 2000,
    )


def test_lines_stop_before_the_bytes_do_not_fit(tree: LeaseTree) -> None:
    (tree.workspace / "f").write_bytes(b"a" * 99 + b"\n" + b"b" * 99 + b"\n" + b"c\n")
    outcome = tree.view("f", max_bytes=199)
    assert outcome.lines == (b"a" * 99 + b"\n",)
    assert outcome.stopped_at_bytes
    assert outcome.total_lines == 3
    assert not tree.view("f", max_bytes=202).stopped_at_bytes
    assert tree.view("f", max_bytes=1).lines == (b"a" * 99 + b"\n",)


def test_what_a_window_holds_is_counted_over_all_blocks() -> None:
    window = _Window(ViewOperation("f", 1, 200, 8, 4))
    window.feed(b"a\nb\nc\n")
    window.feed(b"d\ne\nf\n")
    window.finish(True)
    assert window.lines == [b"a\n", b"b\n", b"c\n", b"d\n"]
    assert window.stopped_at_bytes
    assert window.total == 6


BITS = st.binary(max_size=120).map(lambda raw: bytes(b"ab\n\n\r\xc3\xa9\xff"[b % 8] for b in raw))


@given(content=BITS, sizes=st.lists(st.integers(1, 9), min_size=1), data=st.data())
def test_blocks_do_not_matter(content: bytes, sizes: list[int], data: st.DataObject) -> None:
    operation = ViewOperation(
        "f",
        data.draw(st.integers(1, 12)),
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(1, 60)),
        data.draw(st.integers(1, 8)),
    )
    whole, parts = _Window(operation), _Window(operation)
    whole.feed(content)
    at = index = 0
    while at < len(content):
        parts.feed(content[at : at + sizes[index % len(sizes)]])
        at += sizes[index % len(sizes)]
        index += 1
    whole.finish(True)
    parts.finish(True)
    for name in ("lines", "cut", "stopped_at_bytes", "total", "line_endings"):
        assert getattr(whole, name) == getattr(parts, name)
    lines = content.split(b"\n")
    total = len(lines) - (not lines[-1])
    assert whole.total == total
    first = operation.offset - 1
    wanted = lines[:total][first : first + operation.limit]
    if not whole.stopped_at_bytes:
        assert len(whole.lines) == len(wanted)
    for shown, line in zip(whole.lines, wanted, strict=False):
        assert (line + b"\n").startswith(shown)


@pytest.mark.timeout(20)
def test_b36_what_is_not_a_regular_file_is_refused_at_once(tree: LeaseTree) -> None:
    os.mkfifo(tree.workspace / "fifo")
    os.mkfifo(tree.tmp / "fifo")
    os.symlink("fifo", tree.workspace / "link")
    (tree.workspace / "dir").mkdir()
    os.symlink("dir", tree.workspace / "dirlink")
    os.mknod(tree.workspace / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(tree.workspace / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    here = os.open(".", os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(tree.workspace)
        listener.bind("socket")
        os.fchdir(here)
        os.close(here)
        for name in (
            "fifo",
            "/tmp/fifo",
            "link",
            "dir",
            "dirlink",
            "zero",
            "disk",
            "socket",
            "/tmp",
        ):
            for act in (partial(tree.view, name), partial(tree.edit, name, b"a", b"b")):
                assert code(act) is Code.NOT_A_REGULAR_FILE, name
    for name in ("/dev/zero", "/proc/kmsg", "/proc/self/mem"):
        assert code(partial(tree.view, name)) is Code.OUTSIDE_WORKSPACE


@pytest.mark.timeout(20)
def test_b36_a_file_under_a_file_lease_does_not_block(tree: LeaseTree) -> None:
    (tree.tmp / "f").write_bytes(b"a\n")
    holder = (
        "import fcntl, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", holder, str(tree.tmp / "f")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        started = time.monotonic()
        assert code(lambda: tree.view("/tmp/f")) is Code.BUSY
        assert time.monotonic() - started < 10  # the kernel takes the lease away after 45 s
        process.communicate()
    assert tree.view("/tmp/f").lines == (b"a\n",)


def _sparse(tree: LeaseTree, head: bytes) -> None:
    (tree.workspace / "big").write_bytes(head)
    os.truncate(tree.workspace / "big", 20 << 30)


def test_b37_a_sparse_giant_is_read_no_further_than_the_window(tree: LeaseTree) -> None:
    _sparse(tree, b"first\n" + b"text\n" * 2000)
    started = time.monotonic()
    outcome = tree.view("big", 1, 1)
    assert time.monotonic() - started < 0.5
    assert outcome.lines == (b"first\n",)
    assert outcome.total_lines >= 2
    assert outcome.total_lines_at_least
    assert outcome.bytes == 20 << 30
    assert outcome.version.startswith("m:")
    assert not outcome.final_newline


def test_b37_beyond_the_searched_part_of_a_giant_is_refused(tree: LeaseTree) -> None:
    _sparse(tree, b"first\n" + b"text\n" * 2000)
    last = tree.view("big", 2001, 5)
    assert last.lines == (b"text\n", b"\0" * 2000)
    assert last.cut == (2002,)
    assert last.total_lines_at_least
    with pytest.raises(Failure) as caught:
        tree.view("big", 2003)
    assert caught.value.fault.code is Code.FILE_TOO_LARGE
    assert f"first {SEEK_BYTES >> 20} MiB" in caught.value.fault.message


def test_b37_nul_bytes_at_the_start_are_no_text(tree: LeaseTree) -> None:
    _sparse(tree, b"first\n")
    started = time.monotonic()
    assert code(lambda: tree.view("big", 1, 1)) is Code.NOT_A_TEXT_FILE
    assert time.monotonic() - started < 0.5
    (tree.workspace / "utf16").write_bytes("text\n".encode("utf-16"))
    assert code(lambda: tree.view("utf16")) is Code.NOT_A_TEXT_FILE


def test_b37_a_giant_line_is_cut_in_bounded_memory(tree: LeaseTree) -> None:
    with open(tree.workspace / "line", "wb") as out:
        for _ in range(48):
            out.write(b"a" * (1 << 20))
        out.write(b"\nend\n")
    tracemalloc.start()
    outcome = tree.view("line", 1, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20
    assert outcome.lines == (b"a" * 2000, b"end\n")
    assert outcome.cut == (1,)
    assert outcome.total_lines == 2
    assert not outcome.total_lines_at_least


def test_a_giant_read_to_its_end_has_an_exact_total(tree: LeaseTree) -> None:
    line = b"x" * 99 + b"\n"
    with open(tree.workspace / "log", "wb") as out:
        for _ in range(20):
            out.write(line * 10_000)
    first = tree.view("log", 1, 200)
    assert first.total_lines_at_least
    assert first.version == tree.view("log", 50, 1).version
    last = tree.view("log", 199_901, 200)
    assert (len(last.lines), last.total_lines, last.total_lines_at_least) == (100, 200_000, False)
    with open(tree.workspace / "log", "ab") as out:
        out.write(b"more\n")
    assert tree.view("log").version != first.version


def test_viewing_does_not_change_the_file_nor_copy_it_up(tree: LeaseTree) -> None:
    (tree.workspace / "f").write_bytes(b"a\n")
    before = os.stat(tree.workspace / "f")
    tree.view("f")
    after = os.stat(tree.workspace / "f")
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)

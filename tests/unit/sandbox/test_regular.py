"""What is preloaded into the search program (sandbox/regular.c), here preloaded into Python, whose
`os.open`, `os.read`, `os.lseek` and `os.close` are the functions that it defines, and into ripgrep.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

AHEAD: Final = 64 * 1024
PAGE: Final = 4096
# Around where a read ends with the file, with a page, and with what is read ahead.
SIZES: Final = (0, 1, 3, PAGE - 1, PAGE, PAGE + 1, AHEAD - 1, AHEAD, AHEAD + 1, 3 * AHEAD + 5)


def run(programs: Path, text: str, *arguments: object) -> str:
    """The output of a Python program that has it preloaded."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", text, *map(str, arguments)],
        env={"LD_PRELOAD": str(programs / "regular.so")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# pread(2) is not among what it defines.
WHOLE = """
import os, random, sys
dice = random.Random(7)
for path in sys.argv[1:]:
    for most in (1 << 20, 1 << 16, 5000):
        fd = os.open(path, os.O_RDONLY)
        expected = os.pread(fd, 1 << 20, 0)
        whole = os.read(fd, 3)
        while part := os.read(fd, dice.randint(1, most)):
            whole += part
            assert os.lseek(fd, 0, os.SEEK_CUR) == len(whole)
        assert os.read(fd, 10) == b""
        assert whole == expected, (path, most)
        os.close(fd)
print("the same")
"""


def files(directory: Path) -> list[Path]:
    made = []
    for size in SIZES:
        made.append(directory / f"f{size}")
        made[-1].write_bytes(random.Random(size).randbytes(size))
    return made


def test_every_byte_is_read_once_and_in_order(programs: Path, tmp_path: Path) -> None:
    assert run(programs, WHOLE, *files(tmp_path)) == "the same\n"


MANY = """
import os, sys
kept = [os.open(path, os.O_RDONLY) for path in sys.argv[1:] * 20]
assert max(kept) > 100
for fd in kept:
    whole = b""
    while part := os.read(fd, 4000):
        whole += part
    assert len(whole) == os.fstat(fd).st_size
    os.close(fd)
# The number of a closed file says nothing about the next one.
out, into = os.pipe()
os.write(into, b"piped")
assert os.read(out, 10) == b"piped"
print("the same")
"""


def test_descriptors_beyond_those_that_are_read_ahead(programs: Path, tmp_path: Path) -> None:
    assert run(programs, MANY, *files(tmp_path)) == "the same\n"


SOUGHT = """
import os, sys
for offset, whence in ((10, 0), (5, 1), (-2, 1), (-7, 2), (0, 0), (70000, 0), (0, 1)):
    fd = os.open(sys.argv[1], os.O_RDONLY)
    expected = os.pread(fd, 1 << 20, 0)
    assert os.read(fd, 4) == expected[:4]
    place = (0, 4, len(expected))[whence] + offset
    assert os.lseek(fd, offset, whence) == place
    whole = b""
    while part := os.read(fd, 60_000):
        whole += part
    assert whole == expected[place:]
    os.close(fd)
print("the same")
"""


def test_a_move_goes_where_it_says(programs: Path, tmp_path: Path) -> None:
    assert run(programs, SOUGHT, files(tmp_path)[-1]) == "the same\n"


AHEAD_OF_TIME = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.truncate(sys.argv[1], 0)
print(os.read(fd, 3) + os.read(fd, 100) + os.read(fd, 100))
"""


def test_a_small_file_is_answered_from_memory(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"what it was when it was opened")
    said = run(programs, AHEAD_OF_TIME, tmp_path / "f")
    assert said == "b'what it was when it was opened'\n"


GROWING = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
with open(sys.argv[1], "ab") as file:
    file.write(b"more")
whole = b""
while part := os.read(fd, 1 << 20):
    whole += part
print(len(whole), whole[-4:])
"""


def test_a_read_that_ended_with_a_page_is_not_taken_for_the_end(
    programs: Path, tmp_path: Path
) -> None:
    """An error of the disk leaves such a short read, and only the next one returns it."""
    (tmp_path / "f").write_bytes(bytes(PAGE))
    assert run(programs, GROWING, tmp_path / "f") == f"{PAGE + 4} b'more'\n"


OPENED = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDONLY))
        print("opened")
    except OSError as error:
        print(error.strerror)
"""
ABSENT = "No such file or directory"


def test_what_is_no_regular_file_is_as_good_as_absent(programs: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nobody")
    os.mkfifo(tmp_path / "somebody")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "f").write_bytes(b"a file")
    writer = os.open(tmp_path / "somebody", os.O_RDWR)
    try:
        os.write(writer, b"not for a search")
        paths = [tmp_path / name for name in ("nobody", "somebody", "zero", "f")]
        said = run(programs, OPENED, *paths, "/dev/full", "/dev/urandom", tmp_path)
        assert said.splitlines() == [
            ABSENT, ABSENT, ABSENT, "opened", ABSENT, ABSENT, "opened"
        ]  # fmt: skip
        assert os.read(writer, 100) == b"not for a search"
    finally:
        os.close(writer)


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_PATH])
def test_other_ways_of_opening_are_left_alone(programs: Path, tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    text = f"import os, sys; os.close(os.open(sys.argv[1], {flags})); print('opened')"
    assert run(programs, text, tmp_path / "fifo") == "opened\n"


def awkward(directory: Path) -> None:
    """Lines that match at every border, in files of several encodings."""
    line = "x" * 40 + " needle \u00e9\n"
    for size in SIZES:
        text = (line * (size // len(line) + 1)).encode()
        (directory / f"f{size}").write_bytes(text[-size:] if size else b"")
    for name in ("utf-8-sig", "utf-16", "utf-16-be", "latin-1"):
        mark = b"\xfe\xff" if name == "utf-16-be" else b""
        (directory / name).write_bytes(mark + (line * 3000).encode(name))
    (directory / "binary").write_bytes(line.encode() * 3000 + b"\0" + line.encode())
    (directory / "two").write_bytes(b"needle\nneedle\n" * AHEAD)
    (directory / ".ignore").write_bytes(b"unseen\n" + b"#" * AHEAD + b"\nunseen-too\n")
    (directory / "unseen").write_bytes(b"needle\n")
    (directory / "unseen-too").write_bytes(b"needle\n")


@pytest.mark.parametrize(
    ("pattern", "more"),
    [
        ("needle", ()),
        ("absent", ()),
        ("needle", ("--multiline",)),
        (r"needle\nneedle", ("--multiline",)),
    ],
)
def test_ripgrep_finds_the_same(
    programs: Path, tmp_path: Path, pattern: str, more: tuple[str, ...]
) -> None:
    awkward(tmp_path)
    options = ("--json", "--binary", "--no-mmap", "--no-config", "--no-require-git", "--sort=path")
    found = [
        [
            line
            for line in subprocess.run(
                ["rg", *options, *more, f"--regexp={pattern}", "--", "."],
                cwd=tmp_path,
                env={"PATH": "/usr/bin:/bin", **env},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                check=False,
            ).stdout.splitlines()
            if line.startswith((b'{"type":"begin"', b'{"type":"match"'))
        ]
        for env in ({}, {"LD_PRELOAD": str(programs / "regular.so")})
    ]
    assert found[0] == found[1]
    assert bool(found[0]) is (pattern != "absent")

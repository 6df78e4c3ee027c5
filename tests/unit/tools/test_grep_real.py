"""Searches by the real ripgrep: the operation's own argument vector over a tree mounted at /tmp.

The mount is private to the search's process, so nothing is left behind.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stockade.terms.call import ExecOperation
from stockade.terms.fault import Code, Status
from stockade.terms.outcome import End
from stockade.terms.result import GrepData, Warn
from stockade.tools import catalog
from stockade.tools.definition import Shaped
from stockade.tools.grep_output import MATCHES_PER_FILE
from tests.unit.tools.support import GREP, LIMITS, captured, ended

NOBODY = 65534
# Instead of the sandbox's loader and copy: six words in front of the options.
LOADER_WORDS = 6

Search = Callable[..., Shaped]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir(mode=0o755)
    return tmp_path / "tree"


@pytest.fixture
def search(tree: Path) -> Search:
    def run(pattern: str, path: str = "/tmp", uid: int = 0, **more: Any) -> Shaped:
        arguments, _ = catalog.parse_arguments(GREP, {"pattern": pattern, "path": path, **more})
        operation = GREP.operation(arguments, LIMITS)
        assert isinstance(operation, ExecOperation)
        mount = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount --bind "$1" /tmp; cd /tmp; shift; exec "$@"',
        ]
        drop = ["setpriv", f"--reuid={uid}", "--clear-groups", "--"] if uid else []
        done = subprocess.run(
            [*mount, "sh", str(tree), *drop, "rg", *operation.argv[LOADER_WORDS:]],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        outcome = ended(
            End.EXITED,
            done.returncode,
            stdout=captured(done.stdout, operation.capture),
            stderr=captured(done.stderr, operation.capture),
        )
        return GREP.shape(arguments, outcome)

    return run


def data_of(shaped: Shaped) -> GrepData:
    assert isinstance(shaped.data, GrepData)
    return shaped.data


def places(shaped: Shaped) -> list[str]:
    return [m.path.removeprefix("/tmp/") for m in data_of(shaped).matches]


def skipped(shaped: Shaped) -> list[tuple[str, int]]:
    return [(w.message, w.count) for w in shaped.warnings if w.code is Warn.SKIPPED]


@pytest.mark.parametrize("pattern", ["--help", "-n", "-e", "--pre=/tmp/x.sh", "-f/etc/passwd"])
def test_b55_a_pattern_that_looks_like_an_option_is_searched(
    tree: Path, search: Search, pattern: str
) -> None:
    (tree / "x.sh").write_text("#!/bin/sh\ntouch /tmp/ran\n")
    (tree / "x.sh").chmod(0o755)
    (tree / "a").write_text(f"see {pattern} here\n")
    shaped = search(pattern)
    assert places(shaped) == ["a"]
    assert data_of(shaped).matches[0].column == 5
    assert not (tree / "ran").exists()


def test_b55_a_path_and_a_glob_that_look_like_options(tree: Path, search: Search) -> None:
    (tree / "-rf").write_text("needle\n")
    (tree / "--no-ignore").write_text("needle\n")
    assert places(search("needle", "/tmp/-rf")) == ["-rf"]
    assert places(search("needle", glob="--no-ignore")) == ["--no-ignore"]


def test_b56_six_results_that_differ(tree: Path, search: Search) -> None:
    (tree / "a").write_text("needle\n")
    none = search("absent")
    assert (none.status, data_of(none).matches_total, data_of(none).truncated) == (
        Status.SUCCEEDED, 0, False,
    )  # fmt: skip

    invalid = search("(")
    assert invalid.fault is not None
    assert (invalid.status, invalid.fault.code) == (Status.INVALID, Code.INVALID_PATTERN)
    assert "unclosed group" in invalid.fault.message
    assert "DEBUG" not in invalid.fault.message

    for path in ("/tmp/missing", "/tmp/a/below", "/tmp/new\\x0aline"):
        missing = search("needle", path)
        assert missing.fault is not None
        assert (missing.status, missing.fault.code) == (Status.REJECTED, Code.NOT_FOUND)

    assert places(search("needle", "/tmp/a")) == ["a"]

    (tree / "empty").mkdir()
    empty = search("needle", "/tmp/empty")
    assert (empty.status, data_of(empty).matches_total) == (Status.SUCCEEDED, 0)


def test_b56_an_unreadable_file_makes_it_partial_and_keeps_the_matches(
    tree: Path, search: Search
) -> None:
    (tree / "a").write_text("needle\n")
    (tree / "secret: x").write_text("needle\n")
    (tree / "secret: x").chmod(0)
    (tree / "locked").mkdir(mode=0)
    shaped = search("needle", uid=NOBODY)
    assert shaped.status is Status.PARTIAL
    assert places(shaped) == ["a"]
    assert shaped.items is not None
    assert shaped.items.failed == 2
    assert sorted((e.item, e.code) for e in shaped.items.errors) == [
        ("/tmp/locked", "permission_denied"),
        ("/tmp/secret: x", "permission_denied"),
    ]


def test_b56_no_match_beside_an_unreadable_file_is_not_a_plain_no_match(
    tree: Path, search: Search
) -> None:
    (tree / "secret").write_text("needle\n")
    (tree / "secret").chmod(0)
    shaped = search("needle", uid=NOBODY)
    assert shaped.status is Status.PARTIAL
    assert data_of(shaped).matches_total == 0


def test_b56_a_bad_glob_names_the_glob(search: Search) -> None:
    shaped = search("needle", glob="[")
    assert shaped.fault is not None
    assert shaped.fault.code is Code.INVALID_ARGUMENT
    assert shaped.fault.details["field"] == "glob"


@pytest.mark.parametrize("times", [1, 5000])
def test_b57_a_line_of_five_megabytes_is_shown_around_the_match(
    tree: Path, search: Search, times: int
) -> None:
    filler = "x" * (5_000_000 // times // 2)
    (tree / "min.js").write_text((filler + "needle" + filler) * times)
    data = data_of(search("needle"))
    assert data.matches_total == 1
    match = data.matches[0]
    assert match.cut
    assert match.column == len(filler) + 1
    assert "needle" in match.text
    assert len(match.text) < 600
    assert match.text.startswith("[")
    assert match.text.endswith(" bytes cut]")


def test_b57_a_hundred_thousand_matches(tree: Path, search: Search) -> None:
    (tree / "many").write_text("needle\n" * 100_000)
    data = data_of(search("needle"))
    assert len(data.matches) == 200
    assert data.truncated
    assert data.at_least
    assert data.matches_total == MATCHES_PER_FILE
    assert [m.line for m in data.matches] == list(range(1, 201))


def test_b57_an_exact_total_below_the_bound(tree: Path, search: Search) -> None:
    for number in range(3):
        (tree / f"f{number}").write_text("needle\nhay\n" * 300)
    data = data_of(search("needle"))
    assert (data.matches_total, data.at_least, data.truncated) == (900, False, True)
    assert data.files_with_matches == 3
    assert {m.path for m in data.matches} == {"/tmp/f0"}


def test_b57_the_text_of_all_matches_is_bounded(tree: Path, search: Search) -> None:
    (tree / "wide").write_text(("needle " + "y" * 490 + "\n") * 150)
    data = data_of(search("needle"))
    assert sum(len(m.text) for m in data.matches) <= 32 * 1024
    assert data.matches_total == 150
    assert data.truncated


def test_b57_more_output_than_is_kept_gives_lower_bounds(tree: Path, search: Search) -> None:
    for number in range(4):
        (tree / f"min{number}.js").write_text("needle" + "x" * 4_000_000 + "\n")
    data = data_of(search("needle"))
    assert data.at_least
    assert data.truncated
    assert 1 <= data.matches_total < 4
    assert len(data.matches) == data.matches_total


@pytest.fixture
def ignoring(tree: Path) -> Path:
    for name in (".hid/x", "ign/f", "a.log", "src/a.py", "src/deep/b.ts", "c.js", "[a]b", ".git/z"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("needle\n")
    (tree / ".gitignore").write_text("ign/\n*.log\n")
    return tree


def test_b58_what_is_skipped_is_said(ignoring: Path, search: Search) -> None:
    shaped = search("needle")
    assert places(shaped) == ["[a]b", "c.js", "src/a.py", "src/deep/b.ts"]
    [(message, count)] = skipped(shaped)
    assert count == 5
    assert "3 hidden, 2 ignored and 0 special" in message
    assert shaped.status is Status.SUCCEEDED


def test_b58_nothing_is_said_when_nothing_was_skipped(tree: Path, search: Search) -> None:
    (tree / "a").write_text("needle\n")
    assert search("needle").warnings == ()


@pytest.mark.parametrize("path", [".hid", ".hid/x", ".git", "ign", "ign/f", "a.log"])
def test_b58_an_explicit_path_is_always_searched(ignoring: Path, search: Search, path: str) -> None:
    assert len(places(search("needle", f"/tmp/{path}"))) == 1


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*.py", ["src/a.py"]),
        ("**/*.py", ["src/a.py"]),
        ("src/**", ["src/a.py", "src/deep/b.ts"]),
        ("*.{js,ts}", ["c.js", "src/deep/b.ts"]),
        ("!c.js", ["[a]b", "src/a.py", "src/deep/b.ts"]),
        ("[a]*", ["a.log", "src/a.py"]),
        ("*.log", ["a.log"]),
        ("ign/*", []),
        ("{/tmp/src/*.py,/tmp/src/deep/*}", ["src/a.py", "src/deep/b.ts"]),
        ("{/tmp/c.js,./b.ts}", ["c.js"]),
        ("{/src/deep,/tmp/none}/*", ["src/deep/b.ts"]),
        ("{/tmp/[c],\\[a}*", ["[a]b", "c.js"]),
        ("!{/tmp/c.js,/tmp/src/**}", ["[a]b"]),
    ],
)
def test_b58_globs(ignoring: Path, search: Search, glob: str, found: list[str]) -> None:
    shaped = search("needle", glob=glob)
    assert places(shaped) == found
    [(message, count)] = skipped(shaped)
    assert (count, "glob" in message) == (0, True)


def test_b58_binary_files_that_match_are_counted(tree: Path, search: Search) -> None:
    (tree / "a.bin").write_bytes(b"needle\0x\n")
    (tree / "quiet.bin").write_bytes(b"hay\0x\n")
    (tree / "text").write_text("needle\n")
    shaped = search("needle")
    assert places(shaped) == ["text"]
    assert data_of(shaped).matches_total == 1
    [(message, count)] = skipped(shaped)
    assert (count, message.startswith("binary")) == (1, True)


def test_b36_pipes_and_links_are_passed_over_and_counted(tree: Path, search: Search) -> None:
    os.mkfifo(tree / "pipe")
    (tree / "link").symlink_to("/etc/passwd")
    (tree / "a").write_text("root\n")
    shaped = search("root")
    assert places(shaped) == ["a"]
    [(message, count)] = skipped(shaped)
    assert (count, "2 special" in message) == (2, True)


def test_names_that_are_hard_to_print(tree: Path, search: Search) -> None:
    names = [b"-n", b"a:1:b", b"new\nline", b"bad\xff", b"b\\s", b"\xc3\xa9"]
    for name in names:
        (tree / os.fsdecode(name)).write_text("needle\n")
    shaped = search("needle")
    shown = sorted(["-n", "a:1:b", "new\\x0aline", "bad\\xff", "b\\x5cs", "é"])
    assert sorted(places(shaped)) == shown
    for text in shown:
        assert places(search("needle", f"/tmp/{text}")) == [text]


def test_a_pattern_with_a_newline(tree: Path, search: Search) -> None:
    (tree / "a").write_text("x\none\ntwo\ny\n")
    for pattern in ("one\ntwo", "one\\ntwo"):
        [match] = data_of(search(pattern)).matches
        assert (match.line, match.column, match.text) == (2, 1, "one\ntwo")


def test_text_that_is_no_utf_8_and_crlf(tree: Path, search: Search) -> None:
    (tree / "a").write_bytes(b"caf\xe9 needle\r\n")
    [match] = data_of(search("needle")).matches
    assert (match.column, match.text, match.cut) == (6, "caf\ufffd needle", False)


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(.*\\n){0,40}x"])
def test_b60_no_pattern_backtracks(tree: Path, search: Search, pattern: str) -> None:
    (tree / "a").write_text("a" * 40 + "!\n")
    assert search(pattern).status is Status.SUCCEEDED


def test_b60_a_search_killed_at_its_limit_gives_what_it_found(tree: Path, search: Search) -> None:
    arguments, _ = catalog.parse_arguments(GREP, {"pattern": "needle", "path": "/tmp"})
    line = (
        b'{"type":"begin","data":{"path":{"text":"/tmp/a"}}}\n'
        b'{"type":"match","data":{"path":{"text":"/tmp/a"},"lines":{"text":"needle\\n"},'
        b'"line_number":1,"absolute_offset":0,"submatches":[{"match":{"text":"needle"},'
        b'"start":0,"end":6}]}}\n{"type":"match","data":{"path"'
    )
    operation = GREP.operation(arguments, LIMITS)
    assert isinstance(operation, ExecOperation)
    shaped = GREP.shape(arguments, ended(End.DEADLINE, stdout=captured(line, operation.capture)))
    assert shaped.status is Status.TIMED_OUT
    data = data_of(shaped)
    assert (len(data.matches), data.at_least, data.truncated) == (1, True, True)


def test_the_same_tree_gives_the_same_answer(tree: Path, search: Search) -> None:
    for number in range(300):
        (tree / f"f{number:03}").write_text("needle\n")
    first = data_of(search("needle"))
    assert [m.path for m in first.matches] == [f"/tmp/f{n:03}" for n in range(200)]
    assert first == data_of(search("needle"))

"""Group GREP of the cases: what a search finds, and what it can't be made to do."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.terms.result import GrepData
from tests.cases.asking import error_code, out
from tests.cases.conftest import LeaseFactory
from tests.daemons import Daemon, wait_until


def data(result: Result) -> GrepData:
    assert isinstance(result.data, GrepData), result
    return result.data


def found(result: Result) -> list[str]:
    """The matching lines of a search that succeeded, as name:line:text."""
    assert result.status == "succeeded", result
    return [
        f"{match.path.removeprefix('/workspace/')}:{match.line}:{match.text}"
        for match in data(result).matches
    ]


def names(result: Result) -> set[str]:
    return {line.split(":")[0] for line in found(result)}


# B55: what begins with a hyphen.

OPTIONS = ["--help", "-n", "-e", "--pre=/workspace/x.sh", "-f/etc/passwd", "--", "-"]
DASHED = r"""
printf '#!/bin/sh\ntouch /workspace/ran /tmp/ran\necho forged\n' > x.sh; chmod 755 x.sh
cp x.sh /tmp/x.sh; mkdir -- -rf --no-ignore
echo inside > ./-rf/f; echo inside > ./--no-ignore/f; echo inside > ./--pre=x.sh
"""


@pytest.fixture(scope="module")
def dashed(daemon: Daemon) -> Iterator[Lease]:
    with daemon.stockade.lease() as made:
        lines = " ".join(shlex.quote(line) for line in [*OPTIONS, "plain"])
        made.bash(f"{DASHED}\nprintf '%s\\n' {lines} > options", 60_000).check()
        yield made


@pytest.mark.parametrize("pattern", OPTIONS)
def test_b55_a_pattern_that_looks_like_an_option_is_searched_for(
    dashed: Lease, pattern: str
) -> None:
    expected = [line for line in OPTIONS if pattern in line]
    shown = [line.split(":", 2)[2] for line in found(dashed.grep_search(pattern, "options"))]
    assert shown == expected
    assert out(dashed.bash("ls /workspace/ran /tmp/ran 2>/dev/null; true")) == ""


@pytest.mark.parametrize("path", ["-rf", "--no-ignore", "--pre=x.sh"])
def test_b55_so_is_a_path(dashed: Lease, path: str) -> None:
    assert {name.split("/")[0] for name in names(dashed.grep_search("inside", path))} == {path}


@pytest.mark.parametrize(
    "glob", ["--no-ignore", "-n", "-e", "--pre=/workspace/x.sh", "-f/etc/passwd", "--help"]
)
def test_b55_so_is_a_glob(dashed: Lease, glob: str) -> None:
    assert found(dashed.grep_search("plain", ".", glob)) == []
    assert found(dashed.grep_search("inside", ".", "--pre=x.sh")) == ["--pre=x.sh:1:inside"]
    assert out(dashed.bash("ls /workspace/ran /tmp/ran 2>/dev/null; true")) == ""


def test_b55_no_file_of_the_tree_configures_the_search(dashed: Lease) -> None:
    dashed.bash("echo --pre=/workspace/x.sh > .ripgreprc; cp .ripgreprc /tmp; cp .ripgreprc ~")
    assert found(dashed.grep_search("forged|inside", "-rf")) == ["-rf/f:1:inside"]
    assert out(dashed.bash("ls /workspace/ran /tmp/ran 2>/dev/null; true")) == ""


# B56: six different ends.


def test_b56_six_ends_are_six_results(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    lease.bash("mkdir some empty; echo hit > some/a; echo hit > some/b; chmod 0 some/b").check()
    none = lease.grep_search("nothing-like-it", "some/a")
    assert (none.status, data(none).matches_total, none.items) == ("succeeded", 0, None)
    part = lease.grep_search("hit", "some")
    assert part.status == "partial"
    assert [match.path for match in data(part).matches] == ["/workspace/some/a"]
    assert part.items is not None
    assert (part.items.completed, part.items.failed) == (1, 1)
    assert part.items.errors[0].item == "/workspace/some/b"
    assert part.items.errors[0].code == "permission_denied"
    assert "some/b" in part.for_model()
    for pattern in ("(", "[a", "*a", "a{2,1}", r"\p{None}", r"(?=a)", r"(a)\1"):
        wrong = lease.grep_search(pattern, ".")
        assert (wrong.status, error_code(wrong)) == ("invalid", "invalid_pattern")
        assert wrong.error is not None
        assert pattern in wrong.error.message
        assert "pcre2" not in wrong.error.message.lower()
    missing = lease.grep_search("hit", "missing")
    assert (missing.status, error_code(missing)) == ("rejected", "not_found")
    assert found(lease.grep_search("hit", "some/a")) == ["some/a:1:hit"]
    assert found(lease.grep_search("hit", "empty")) == []


def test_b56_a_search_that_could_read_nothing_is_not_an_empty_one(
    fresh_lease: LeaseFactory,
) -> None:
    lease = fresh_lease()
    lease.bash("mkdir -p d/in; echo hit > d/in/f; echo hit > f; chmod 0 d f").check()
    for path in (".", "d", "f", "d/in", "d/in/f"):
        result = lease.grep_search("hit", path)
        assert result.status == "partial", path
        assert result.items is not None
        assert result.items.failed >= 1
    assert error_code(lease.grep_search("hit", ".", "[")) == "invalid_argument"


# B57: what comes back has a bound.

LONG = r"""
import random
needle = "ne" + "edle"
open("once", "w").write("x" * 2_500_000 + needle + "y" * 2_500_000)
open("often", "w").write((needle + "z" * 994) * 5_000)
open("short", "w").write((needle + "\n") * 100_000)
open("wide", "w").write("\u00e9" * 3_000 + needle + "\U0001f600" * 3_000 + "\n")
"""
MAX_REPLY = 64 * 1024


@pytest.fixture(scope="module")
def long(daemon: Daemon) -> Iterator[Lease]:
    with daemon.stockade.lease() as made:
        made.bash(
            f"python3 -c {shlex.quote(LONG)}; for n in $(seq 300); do echo needle > n$n; done"
        )
        yield made


def test_b57_a_line_is_shown_around_the_match(long: Lease) -> None:
    for name, column in (("once", 2_500_001), ("often", 1), ("wide", 6_001)):
        result = long.grep_search("needle", name)
        assert len(result.to_json()) < MAX_REPLY
        (match,) = data(result.check()).matches
        assert (match.line, match.column, match.cut) == (1, column, True)
        assert "needle" in match.text
        assert "bytes cut]" in match.text
        assert "\ufffd" not in match.text
        assert data(result).truncated
        assert (data(result).matches_total, data(result).at_least) == (1, False)


def test_b57_the_number_of_matches_has_a_bound_and_is_told(long: Lease) -> None:
    many = long.grep_search("needle", "short").check()
    assert len(many.to_json()) < MAX_REPLY
    assert len(data(many).matches) == 200
    assert (data(many).truncated, data(many).at_least) == (True, True)
    assert data(many).matches_total >= 1000
    assert "at least" in many.for_model()
    files = long.grep_search("needle", ".", "n*").check()
    assert (len(data(files).matches), data(files).matches_total) == (200, 300)
    assert (data(files).truncated, data(files).at_least) == (True, False)
    assert data(files).files_with_matches == 300
    every = long.grep_search("^", ".").check()
    assert len(every.to_json()) < MAX_REPLY
    assert (data(every).truncated, data(every).at_least) == (True, True)


# B58: what is searched, and what is not.

SKIPPED = r"""
git init -q .; mkdir -p .hid ignored src/deep; printf 'ignored/\nsecret.txt\n' > .gitignore
for f in secret.txt .hid/x ignored/f src/a.py src/deep/b.py top.py x.js y.ts src/z.js a1.txt \
  .hidden.py .git/inner; do echo needle > $f; done
"""


@pytest.fixture(scope="module")
def skipped(daemon: Daemon) -> Iterator[Lease]:
    with daemon.stockade.lease() as made:
        made.bash(SKIPPED, 60_000).check()
        yield made


def test_b58_what_is_skipped_is_said(skipped: Lease) -> None:
    result = skipped.grep_search("needle", ".")
    assert names(result) == {
        "a1.txt", "src/a.py", "src/deep/b.py", "src/z.js", "top.py", "x.js", "y.ts",
    }  # fmt: skip
    (warning,) = (warning for warning in result.warnings if warning.code == "skipped")
    assert warning.count >= 5
    assert "hidden" in warning.message
    assert "ignored" in warning.message
    assert "not searched" in result.for_model()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("secret.txt", "secret.txt"), (".hid", ".hid/x"), (".hid/x", ".hid/x"),
        ("ignored", "ignored/f"), ("ignored/f", "ignored/f"), (".git", ".git/inner"),
        (".git/inner", ".git/inner"), (".hidden.py", ".hidden.py"),
    ],
)  # fmt: skip
def test_b58_a_path_that_is_given_is_always_searched(skipped: Lease, path: str, name: str) -> None:
    assert names(skipped.grep_search("needle", path)) == {name}


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.py", {".hidden.py", "src/a.py", "src/deep/b.py", "top.py"}),
        ("**/*.py", {".hidden.py", "src/a.py", "src/deep/b.py", "top.py"}),
        ("src/**", {"src/a.py", "src/deep/b.py", "src/z.js"}),
        ("src/*", {"src/a.py", "src/z.js"}),
        ("/workspace/src/*.py", {"src/a.py"}),  # a whole path, as everywhere else
        ("./src/*.py", {"src/a.py"}),
        ("./top.py", {"top.py"}),
        ("!/workspace/src/**", {"a1.txt", "top.py", "x.js", "y.ts"}),
        ("/workspace-evil/*.py", set()),
        ("*.{js,ts}", {"src/z.js", "x.js", "y.ts"}),
        ("!*.py", {"a1.txt", "src/z.js", "x.js", "y.ts"}),
        ("!src", {"a1.txt", "top.py", "x.js", "y.ts"}),
        ("[a]*", {"a1.txt", "src/a.py"}),
        ("secret.txt", {"secret.txt"}),  # named, so searched
        ("ignored/**", set()),  # a directory that is ignored is not entered
        ("*.none", set()),
    ],
)
def test_b58_globs_follow_the_rule_that_is_documented(
    skipped: Lease, glob: str, expected: set[str]
) -> None:
    result = skipped.grep_search("needle", ".", glob)
    assert names(result) == expected
    assert any(warning.code == "skipped" for warning in result.warnings)


def test_b58_a_glob_is_relative_to_the_workspace_wherever_the_search_begins(
    skipped: Lease,
) -> None:
    assert names(skipped.grep_search("needle", "src", "src/deep/**")) == {"src/deep/b.py"}
    assert names(skipped.grep_search("needle", "src", "deep/**")) == set()
    assert names(skipped.grep_search("needle", "src", "*.js")) == {"src/z.js"}


# B60: patterns and trees without end.


def test_b60_no_pattern_backtracks(lease: Lease) -> None:
    lines = "a" * 40 + "!\\n" + "a" * 5000 + "\\nline\\n" * 60
    lease.bash(f"mkdir -p re; printf '{lines}' > re/f").check()
    started = time.monotonic()
    for pattern, matches in (
        (r"(a+)+$", 1),
        (r"(a|aa)+$", 1),
        (r"(a*)*b", 0),
        (r"^(a?){40}a{40}!$", 1),
        (r"(x+x+)+y", 0),
        (r"^(.*\n){0,40}x", 0),
        (r"(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)z", 0),
    ):
        assert data(lease.grep_search(pattern, "re").check()).matches_total == matches, pattern
    assert time.monotonic() - started < 15


def test_b60_links_in_a_circle_and_other_file_systems(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    lease.bash("mkdir -p a/b; ln -s ../.. a/b/up; ln -s loop loop; ln -s / root; echo x > a/f")
    lease.bash("ln -s /proc proc; ln -s /proc/self/fd fds; ln -s /dev dev").check()
    assert names(lease.grep_search("x", ".")) == {"a/f"}
    for path in ("/proc", "/", "/dev", "/sys", "proc", "root", "dev", "fds"):
        assert error_code(lease.grep_search("x", path)) == "outside_workspace"
    assert error_code(lease.grep_search("x", "loop")) == "not_found"


def limited(daemon: Daemon, lease: Lease, wall_ms: int) -> Lease:
    """The same lease, its calls with less time."""
    assert lease.token is not None
    parent = inspect(lease.token).blocks[-1]
    per_call = parent.per_call.model_copy(update={"wall_ms": wall_ms})
    token = attenuate(lease.token, narrow(parent, per_call=per_call))
    return daemon.stockade.attach(lease.id, token)


def test_b60_a_search_ends_at_its_limit_and_the_daemon_answers_meanwhile(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    """Half a gigabyte of lines that a slow pattern looks at, under a limit of two seconds."""
    lease, other = fresh_lease(), fresh_lease()
    lease.bash(
        "echo needle > first; head -c 3M /dev/urandom | base64 -w 100 > one; "
        "for n in $(seq 128); do cat one; done > many",
        120_000,
    ).check()
    hurried = limited(daemon, lease, 2_000)
    slow = r"(needle|\w{20,60}[aeiou]{8}|(?i:[a-z\d+/]{30}qqqq\w*z))"
    with ThreadPoolExecutor(4) as pool:
        started = time.monotonic()
        searches = [pool.submit(hurried.grep_search, slow, ".") for _ in range(2)]
        answered = 0
        slowest = 0.0
        while not all(search.done() for search in searches):
            before = time.monotonic()
            assert out(other.bash("echo alive")) == "alive\n"
            assert daemon.stockade.health() is not None
            slowest = max(slowest, time.monotonic() - before)
            answered += 1
        took = time.monotonic() - started
    assert answered >= 2
    assert slowest < 20
    assert took < 40
    for search in searches:
        result = search.result()
        assert (result.status, error_code(result)) == ("timed_out", "deadline_exceeded")
        assert data(result).truncated
        assert data(result).at_least
    # Everything that the searches started is dead, and the next one works.
    assert wait_until(lambda: daemon.commands(lease.id) == [])
    assert names(lease.grep_search("needle", "first")) == {"first"}


# B36, where ripgrep itself opens a file: an ignore file may be anything.


def test_b36_an_ignore_file_that_is_no_regular_file_is_not_waited_for(
    fresh_lease: LeaseFactory,
) -> None:
    lease = fresh_lease()
    hostile = "mkfifo .gitignore d/.ignore; ln -s /dev/zero .rgignore"
    lease.bash(f"mkdir d; echo needle > d/f; echo needle > g; {hostile}").check()
    result = lease.grep("needle")
    assert names(result) == {"d/f", "g"}
    # Positive control: an ignore file that is one is obeyed.
    lease.bash("rm .gitignore; echo g > .gitignore").check()
    assert names(lease.grep("needle")) == {"d/f"}

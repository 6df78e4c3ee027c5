"""Group FILE of the cases: file_view and file_edit, on what a program inside has left for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result, StockadeError
from stockade.terms.result import EditData, ViewData
from tests import daemons, kernel
from tests.cases.asking import error_code, narrower_lease, out
from tests.cases.conftest import LeaseFactory
from tests.daemons import Daemon, wait_until

MIB = 1024 * 1024
AT_ONCE_S = 10.0  # far below the 30 s that a blocked search or command would take


def view(result: Result) -> ViewData:
    assert isinstance(result.check().data, ViewData)
    return result.data  # type: ignore[return-value]


def edited(result: Result) -> EditData:
    assert isinstance(result.check().data, EditData)
    return result.data  # type: ignore[return-value]


def hexadecimal(lease: Lease, path: str) -> str:
    """The bytes of a file as a program inside sees them."""
    return out(lease.bash(f"od -An -v -tx1 {path} | tr -d ' \\n'"))


# B36: what is no regular file.

SPECIAL = r"""
mkfifo fifo; ln -s fifo to-fifo; mkdir directory; ln -s directory to-directory
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('/workspace/socket')"
ln -s /dev/zero to-zero; ln -s /proc/kmsg to-kmsg; ln -s /proc/self/fd/0 to-fd
mkfifo /tmp/fifo; ln -s /tmp/fifo to-other-fifo; echo needle > plain
"""
REFUSED = {
    "fifo": "not_a_regular_file",
    "to-fifo": "not_a_regular_file",
    "to-other-fifo": "not_a_regular_file",
    "/tmp/fifo": "not_a_regular_file",
    "socket": "not_a_regular_file",
    "directory": "not_a_regular_file",
    "to-directory": "not_a_regular_file",
    "to-zero": "outside_workspace",
    "to-kmsg": "outside_workspace",
    "to-fd": "outside_workspace",
    "/dev/zero": "outside_workspace",
    "/proc/kmsg": "outside_workspace",
    "/proc/self/status": "outside_workspace",
}


def refusal(act: Callable[[], object]) -> str:
    """The code of a transfer that was refused."""
    with pytest.raises(StockadeError) as caught:
        act()
    return caught.value.error.code.value


@pytest.fixture(scope="module")
def special(daemon: Daemon) -> Iterator[Lease]:
    with daemon.stockade.lease() as made:
        made.bash(SPECIAL, 120_000).check()
        yield made


@pytest.mark.parametrize(("path", "code"), REFUSED.items())
def test_b36_nothing_blocks_on_what_is_no_regular_file(
    special: Lease, tmp_path: Path, path: str, code: str
) -> None:
    (tmp_path / "up").write_text("up")
    started = time.monotonic()
    assert error_code(special.file_view(path)) == code
    assert error_code(special.file_edit(path, "a", "b")) == code
    assert refusal(lambda: special.download(path, tmp_path / "down")) == code
    assert refusal(lambda: special.upload(tmp_path / "up", path)) == code
    if "directory" not in path:
        assert error_code(special.grep_search("x", path)) == code
    assert time.monotonic() - started < AT_ONCE_S
    assert not (tmp_path / "down").exists()


def test_b36_a_search_skips_what_is_no_regular_file(special: Lease) -> None:
    found = special.grep_search("needle", "/workspace").check()
    assert found.data is not None
    assert found.data.kind == "grep_search"
    assert [match.path for match in found.data.matches] == ["/workspace/plain"]
    assert any("special" in warning.message for warning in found.warnings)


def test_b36_changes_patch_export_and_reset_pass_them_by(special: Lease, tmp_path: Path) -> None:
    started = time.monotonic()
    assert special.changes().check().data is not None
    assert b"+needle" in special.export_patch()
    done = special.export_to(tmp_path).check().data
    assert done is not None
    assert done.kind == "export"
    # A FIFO, a socket, and the links that would lead out of the target.
    assert done.skipped >= 5
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "plain", "directory", "to-directory", "to-fifo",
    }  # fmt: skip
    special.reset().check()
    assert time.monotonic() - started < AT_ONCE_S
    assert out(special.bash("ls")) == ""


def test_b36_a_regular_file_that_keeps_turning_into_a_fifo(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    lease.bash("echo text > f; mkfifo p").check()
    swap = "while [ ! -e stop ]; do ln -f p x; mv -fT x f; echo text > y; mv -fT y f; done"
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(lease.bash, swap, 60_000)
        seen = set()
        started = time.monotonic()
        for _ in range(150):
            result = lease.file_view("f")
            seen.add(error_code(result) if result.error else view(result).content.strip())
            result = lease.file_edit("f", "text", "other")
            seen.add(error_code(result) if result.error else "edited")
        took = time.monotonic() - started
        lease.bash("touch stop").check()
        swapping.result().check()
    assert took < 60
    assert seen <= {
        "1\ttext", "1\tother", "edited", "not_a_regular_file", "not_found", "version_conflict",
        "no_match", "busy",
    }  # fmt: skip
    assert out(lease.bash("ls -A | grep -v '^.git$'")).split() == ["f", "p", "stop"]


# B37: giants, and the edges of offset and limit.

GIANTS = r"""
truncate -s 20G sparse; printf 'first\n' | dd conv=notrunc of=sparse status=none
head -c 500M /dev/zero | tr '\0' a > line
seq 1 3000000 > lines
: > empty; printf 'a\nb\nc' > three
"""


@pytest.fixture(scope="module")
def giants(daemon: Daemon) -> Iterator[Lease]:
    with daemon.stockade.lease() as made:
        made.bash(GIANTS, 300_000).check()
        yield made


def test_b37_memory_and_time_are_bounded_by_what_is_returned(giants: Lease, daemon: Daemon) -> None:
    kernel.forget_peak(daemon.pid)
    before = kernel.memory(daemon.pid, "VmRSS")
    started = time.monotonic()
    assert error_code(giants.file_view("sparse", 1, 1)) == "not_a_text_file"
    one = view(giants.file_view("line", 1, 1))
    assert (one.cut_lines, one.bytes) == ([1], 500 * MIB)
    assert one.content.endswith("a [line cut at 2000 characters]\n")
    assert len(one.content) < 2100
    assert error_code(giants.file_view("line", 2, 1)) == "file_too_large"
    assert error_code(giants.file_edit("sparse", "first", "x")) == "file_too_large"
    assert time.monotonic() - started < AT_ONCE_S
    assert kernel.memory(daemon.pid, "VmHWM") - before < 32 * MIB


def test_b37_a_lower_bound_is_no_total(giants: Lease) -> None:
    result = giants.file_view("lines", 10, 2)
    some = view(result)
    assert some.content == "    10\t10\n    11\t11\n"
    assert 11 < some.total_lines < 3_000_000
    assert some.total_lines_at_least
    assert some.next_offset == 12
    assert f"lines 10-11 of at least {some.total_lines}," in result.for_model()
    last = view(giants.file_view("lines", 2_999_999, 5))
    assert last.content == "2999999\t2999999\n3000000\t3000000\n"
    assert (last.total_lines, last.total_lines_at_least) == (3_000_000, False)
    assert last.next_offset is None


def test_b37_every_edge_has_its_answer(giants: Lease) -> None:
    whole = view(giants.file_view("three"))
    assert whole.content == "     1\ta\n     2\tb\n     3\tc"
    assert (whole.total_lines, whole.next_offset, whole.final_newline) == (3, None, False)
    assert view(giants.file_view("three", 1, 1)).next_offset == 2
    for offset in (4, 1_000_000, 2**53 - 1):
        beyond = view(giants.file_view("three", offset))
        assert (beyond.content, beyond.total_lines, beyond.next_offset) == ("", 3, None)
        assert beyond.last_line == offset - 1
    nothing = view(giants.file_view("empty"))
    assert (nothing.content, nothing.total_lines, nothing.bytes) == ("", 0, 0)
    for arguments in ((0, 1), (-1, 1), (1, 0), (1, -1), (1, 501)):
        assert error_code(giants.file_view("three", *arguments)) == "invalid_argument"
    assert giants.file_view("three", 2**60).status == "invalid"


# B39: line endings, byte-order mark, final newline.


def test_b39_what_was_viewed_can_be_edited_and_the_rest_stays(lease: Lease) -> None:
    lease.bash(
        r"printf 'one\r\ntwo\r\nthree\r\n' > crlf; printf 'one\r\ntwo\nthree\r\nfour' > mixed;"
        r"printf '\xef\xbb\xbfone\ntwo\nthree' > bom"
    ).check()
    crlf = view(lease.file_view("crlf", 1, 2))
    assert (crlf.line_endings, crlf.content) == ("crlf", "     1\tone\r\n     2\ttwo\r\n")
    edited(lease.file_edit("crlf", "one\r\ntwo\r\n", "1\r\n2\r\n"))
    assert hexadecimal(lease, "crlf") == b"1\r\n2\r\nthree\r\n".hex()
    mixed = view(lease.file_view("mixed"))
    assert mixed.line_endings == "mixed"
    shown = "".join(line.split("\t", 1)[1] for line in mixed.content.splitlines(keepends=True)[1:3])
    edited(lease.file_edit("mixed", shown, "TWO\nTHREE\r\n"))
    assert hexadecimal(lease, "mixed") == b"one\r\nTWO\nTHREE\r\nfour".hex()
    bom = view(lease.file_view("bom"))
    assert (bom.bom, bom.final_newline) == (True, False)
    edited(lease.file_edit("bom", "one\ntwo", "1\n2"))
    assert hexadecimal(lease, "bom") == b"\xef\xbb\xbf1\n2\nthree".hex()


def test_b39_line_ends_that_differ_are_named(lease: Lease) -> None:
    lease.bash(r"printf 'one\r\ntwo\nthree\r\n' > ends; printf 'one\ntwo\n' > lf").check()
    before = hexadecimal(lease, "ends")
    missed = lease.file_edit("ends", "one\ntwo\n", "x")
    assert error_code(missed) == "no_match"
    assert missed.error is not None
    assert missed.error.details is not None
    assert missed.error.details["near_miss"] == "line_endings"
    assert error_code(lease.file_edit("lf", "one\r\ntwo", "x")) == "no_match"
    assert hexadecimal(lease, "ends") == before
    # A file whose every line ends in CRLF takes the lines as a model writes them.
    lease.bash(r"printf 'one\r\ntwo\r\nthree\r\n' > all").check()
    edited(lease.file_edit("all", "one\ntwo\n", "1\n2\n2b\n"))
    assert hexadecimal(lease, "all") == b"1\r\n2\r\n2b\r\nthree\r\n".hex()


# B40: bytes that are no text.


def test_b40_bytes_outside_the_match_stay_whatever_they_are(lease: Lease) -> None:
    every = bytes(byte for byte in range(1, 256) if byte != 10)
    escaped = "".join(rf"\x{byte:02x}" for byte in every)
    lease.bash(rf"printf 'x = 1\n// caf\xe9\n{escaped}' > latin").check()
    edited(lease.file_edit("latin", "x = 1", "x = 2"))
    assert hexadecimal(lease, "latin") == (b"x = 2\n// caf\xe9\n" + every).hex()
    assert view(lease.file_view("latin")).lossy


def test_b40_what_is_no_text_is_refused_and_untouched(lease: Lease) -> None:
    lease.bash(
        r"printf 'x = 1\0\n' > nul; python3 -c "
        r""" "open('utf16', 'wb').write('x = 1\n'.encode('utf-16'))" """
    ).check()
    for name in ("nul", "utf16"):
        before = hexadecimal(lease, name)
        assert error_code(lease.file_view(name)) == "not_a_text_file"
        assert error_code(lease.file_edit(name, "x = 1", "x = 2")) == "not_a_text_file"
        assert hexadecimal(lease, name) == before


# B41: nothing is a template.


@pytest.mark.parametrize(
    "text",
    [
        r"$& $$ $1 $` $' \1 \0 \g<0> \g<name> \n \t \x41 \u0041 \' \" \\ %s %(a)s {x} {{}} ${HOME}",
        "$(id) `id` ; rm -rf / & | > < * ? [a-z] ~ ! # ^",
        "a.*b(c)[d]{2,3}^$|\\",
        "line\n\n\twith\r\nends\x0b\x0c\u2028\u00e9\U0001f600\x1b[31m",
    ],
)
def test_b41_both_texts_are_taken_byte_for_byte(lease: Lease, text: str) -> None:
    lease.bash(r"printf 'before\nHERE\nafter\n' > template").check()
    edited(lease.file_edit("template", "HERE", text))
    assert hexadecimal(lease, "template") == f"before\n{text}\nafter\n".encode().hex()
    edited(lease.file_edit("template", text, "HERE"))
    assert hexadecimal(lease, "template") == b"before\nHERE\nafter\n".hex()


# B42: exactly one.


def test_b42_no_match_many_matches_and_no_change(lease: Lease) -> None:
    lease.bash(r"printf 'a\nb\na\naaa\n' > counts; touch -d 2001-01-01T00:00:00Z counts").check()
    look = "stat -c '%Y %i %s' counts; cat counts"
    before = out(lease.bash(look))
    for old, new, code in (
        ("q", "z", "no_match"),
        ("z", "b", "no_match"),  # only in the text to come
        ("A", "z", "no_match"),
        ("a", "z", "multiple_matches"),
        ("aa", "z", "multiple_matches"),  # overlapping
        ("", "z", "invalid_argument"),
        ("b", "b", "no_change"),
        ("a\nb\na\naaa\n", "a\nb\na\naaa\n", "no_change"),
    ):
        assert error_code(lease.file_edit("counts", old, new)) == code, (old, new)
    many = lease.file_edit("counts", "a", "z")
    assert many.error is not None
    assert many.error.details is not None
    assert many.error.details["count"] == 5
    assert many.error.details["lines"] == [1, 3, 4, 4, 4]
    stale = lease.file_edit("counts", "b", "c", expected_version="0" * 32)
    assert error_code(stale) == "version_conflict"
    assert out(lease.bash(look)) == before
    assert edited(lease.file_edit("counts", "b", "bb")).replacements == 1
    assert edited(lease.file_edit("counts", "a\nbb\na\naaa\n", "a\n")).replacements == 1
    assert edited(lease.file_edit("counts", "a\n", "aaa\n")).replacements == 1
    assert edited(lease.file_edit("counts", "a", "ba", allow_multiple=True)).replacements == 3
    assert out(lease.bash("cat counts")) == "bababa\n"


# B44: what is not content.

MODES = r"""
mkdir kept; cd kept
for name in tool secret shared su sticky; do echo old > $name; done
chown 1000:1000 tool; chgrp 33 shared; chown 5:6 su
chmod 755 tool; chmod 600 secret; chmod 2664 shared; chmod 4755 su; chmod 1644 sticky
python3 - <<'PYTHON'
import os, struct
os.setxattr("secret", "user.note", b"\0kept\xff")
entries = [(1, 6, -1), (2, 4, 1000), (4, 0, -1), (16, 4, -1), (32, 0, -1)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
os.setxattr("tool", "system.posix_acl_access", acl)
PYTHON
for name in read-only none; do echo old > $name; done; chmod 444 read-only; chmod 0 none
chown 1000:1000 .; chmod 555 .
"""
SHOW = r"""cd kept; stat -c '%n %a %u %g %h' *; python3 -c "
import os
for name in sorted(os.listdir()):
    print(name, [(key, os.getxattr(name, key)) for key in sorted(os.listxattr(name))])
" """


def test_b44_mode_owner_and_attributes_are_kept(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    lease.bash(MODES).check()
    before = out(lease.bash(SHOW))
    assert "'system.posix_acl_access'" in before
    assert "'user.note', b'\\x00kept\\xff'" in before
    assert "shared 2664 0 33 1" in before
    for name in ("tool", "secret", "shared", "su", "sticky"):
        edited(lease.file_edit(f"kept/{name}", "old", "new"))
    for name in ("read-only", "none"):
        assert error_code(lease.file_edit(f"kept/{name}", "old", "new")) == "read_only_file"
    assert out(lease.bash(SHOW)) == before
    said = out(lease.bash("cd kept; head -qn1 tool secret shared su sticky read-only none; ls -A"))
    assert said.split()[:7] == ["new"] * 5 + ["old"] * 2
    assert not [name for name in said.split() if name.startswith(".stockade")]


def test_b44_a_full_disk_leaves_the_original_and_no_other(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = narrower_lease(daemon, fresh_lease, disk_bytes=16 * MIB)
    lease.bash("seq 1 100000 > f; chmod 750 f; md5sum f > sum").check()
    lease.bash("cat /dev/zero > fill; ls")
    failed = lease.file_edit("f", "\n100000\n", "\n" + "x" * (900 * 1024))
    assert error_code(failed) == "disk_full"
    assert out(lease.bash("md5sum -c sum; stat -c %a f; ls -A")).split() == [
        "f:", "OK", "750", ".git", "f", "fill", "sum",
    ]  # fmt: skip
    lease.bash("rm fill").check()
    edited(lease.file_edit("f", "\n100000\n", "\nlast\n"))


# B47: many at once.


def edit_until_heard(lease: Lease, path: str, old: str, new: str) -> Result:
    """Again while the lease already has as many calls as it may have."""
    while True:
        result = lease.file_edit(path, old, new)
        if result.error is None or result.error.code != "busy":
            return result


def test_b47_twenty_edits_of_one_file_at_once_are_all_there(lease: Lease) -> None:
    lease.bash("mkdir -p many; for n in $(seq 20); do echo line-$n-end; done > many/f").check()
    with ThreadPoolExecutor(20) as pool:
        results = list(
            pool.map(
                lambda n: edit_until_heard(lease, "many/f", f"line-{n}-end", f"edit-{n}-end"),
                range(1, 21),
            )
        )
    assert [result.status for result in results] == ["succeeded"] * 20
    assert out(lease.bash("cat many/f")) == "".join(f"edit-{n}-end\n" for n in range(1, 21))
    assert out(lease.bash("ls -A many")) == "f\n"


APPEND = r"""
n=0; while [ ! -e stop ]; do n=$((n+1)); echo append-$n >> f; PAUSE; done; echo $n
"""
READ = r"""
python3 - <<'PYTHON'
import os
seen = 0
while not os.path.exists("stop"):
    lines = open("f").read().split("\n")[:20]  # an append can be seen half done, an edit never
    assert [line[4:] for line in lines] == [f"-{n}-end" for n in range(1, 21)], lines
    seen += 1
print(seen)
PYTHON
"""


@pytest.mark.parametrize("pause", [":", "sleep 0.005"])
def test_b47_edits_beside_a_program_that_appends_and_one_that_reads(
    fresh_lease: LeaseFactory, pause: str
) -> None:
    """Without a pause most edits are conflicts; none waits for the file to come to rest."""
    lease = fresh_lease()
    lease.bash("for n in $(seq 20); do echo line-$n-end; done > f").check()
    with ThreadPoolExecutor(3) as pool:
        appending = pool.submit(lease.bash, APPEND.replace("PAUSE", pause), 60_000)
        reading = pool.submit(lease.bash, READ, 60_000)
        assert wait_until(lambda: "append-1\n" in view(lease.file_view("f", 21, 5)).content)
        landed, started = [], time.monotonic()
        for number in range(1, 21):
            result = lease.file_edit("f", f"line-{number}-end", f"edit-{number}-end")
            if result.error is None:
                landed.append(number)
            else:
                assert error_code(result) == "version_conflict"
        took = time.monotonic() - started
        lease.bash("touch stop").check()
        appended, read = int(out(appending.result())), int(out(reading.result()))
    assert read > 0
    assert took < 20
    assert landed or pause == ":"
    lines = out(lease.bash("cat f > all; head -n 20 all")).splitlines()
    assert [number for number in range(1, 21) if f"edit-{number}-end" in lines] == landed
    assert out(lease.bash("grep -c append- f")) == f"{appended}\n"
    assert out(lease.bash("ls -A | grep -v '^.git$'")).split() == ["all", "f", "stop"]


def test_b47_a_program_that_keeps_a_file_open_for_writing_is_a_conflict(lease: Lease) -> None:
    hold = "exec 9>>open; touch holds; read -r line < gate; echo late >&9; exec 9>&-; touch closed"
    lease.bash(
        f"echo text > open; mkfifo gate; ({hold}) >/dev/null 2>&1 & "
        "while [ ! -e holds ]; do :; done"
    ).check()
    assert error_code(lease.file_edit("open", "text", "other")) == "version_conflict"
    assert out(lease.bash("cat open; echo > gate; while [ ! -e closed ]; do :; done")) == "text\n"
    edited(lease.file_edit("open", "text", "other"))
    assert out(lease.bash("cat open")) == "other\nlate\n"


def test_b47_a_daemon_killed_in_mid_edit_leaves_whole_files() -> None:
    """Killed while four files are edited back and forth, each large enough to be cut."""
    size = 4 * MIB
    whole = {f"{letter * 8}\n".encode() for letter in "ab"}
    with daemons.daemon() as other, other.connect() as stockade:
        lease = stockade.lease(trajectory="killed")
        lease.bash(f"for n in 1 2 3 4; do yes {'a' * 8} | head -c {size} > f$n; done").check()
        landed = threading.Event()

        def edit(name: str) -> None:
            for old, new in (("a", "b"), ("b", "a")) * 1000:
                if lease.file_edit(name, old, new, allow_multiple=True).error is not None:
                    return
                landed.set()

        with ThreadPoolExecutor(4) as pool:
            editing = [pool.submit(edit, f"f{number}") for number in range(1, 5)]
            assert landed.wait(60)
            other.kill()
            for done in editing:
                done.result()
        other.start()
        lease = stockade.attach(lease.id, lease.token)
        names = out(lease.bash("ls -A | grep -v '^.git$'")).split()
        # A name on its way is there for a few system calls. If the kill fell between them the next
        # daemon has removed it.
        assert names == ["f1", "f2", "f3", "f4"]
        for number in range(1, 5):
            assert int(out(lease.bash(f"stat -c %s f{number}"))) == size
            lines = out(lease.bash(f"head -c {size - size % 9} f{number} | sort -u"))
            assert lines.encode() in whole
        lease.release().check()

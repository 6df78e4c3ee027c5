from __future__ import annotations

import hashlib
import os
import platform
import re
import stat
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from stockade.host import file_edit
from stockade.host.file_content import EXACT_BYTES
from stockade.host.file_edit import still_same
from stockade.host.file_replace import Replacement
from stockade.host.file_writers import Writers
from stockade.host.paths import LeaseRoot
from stockade.terms.fault import Code, Failure, Fault, failure
from stockade.terms.outcome import EditOutcome

if TYPE_CHECKING:
    from tests.unit.host.conftest import LeaseTree, MakeTree

ACL = "system.posix_acl_access"
LINUX = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def fault(act: Callable[[], object]) -> Fault:
    with pytest.raises(Failure) as caught:
        act()
    return caught.value.fault


def put(tree: LeaseTree, content: bytes, name: str = "f") -> Path:
    path = tree.workspace / name
    path.write_bytes(content)
    return path


def marks(path: Path) -> tuple[int, ...]:
    state = path.stat()
    return (state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_nlink)


def test_an_edit_gives_versions_and_a_diff(tree: LeaseTree) -> None:
    path = put(tree, b"a\nb\nc\n")
    outcome = tree.edit("f", b"b\n", b"B\nBB\n")
    assert path.read_bytes() == b"a\nB\nBB\nc\n"
    assert outcome.path == "/workspace/f"
    assert outcome.replacements == 1
    assert outcome.old_version == hashlib.sha256(b"a\nb\nc\n").hexdigest()[:32]
    assert outcome.new_version == tree.view("f").version
    assert outcome.diff == (
        "--- /workspace/f\n+++ /workspace/f\n@@ -1,3 +1,4 @@\n a\n-b\n+B\n+BB\n c\n"
    )
    assert not outcome.diff_truncated


def test_the_diff_is_of_the_place_that_changed(tree: LeaseTree) -> None:
    lines = [b"%d\n" % number for number in range(1, 21)]
    put(tree, b"".join(lines))
    for old, new, multiple in ((b"15", b"x", False), (b"x", b"15", True)):
        outcome = tree.edit("f", old, new, allow_multiple=multiple)
        assert outcome.diff == (
            "--- /workspace/f\n+++ /workspace/f\n@@ -12,7 +12,7 @@\n"
            f" 12\n 13\n 14\n-{old.decode()}\n+{new.decode()}\n 16\n 17\n 18\n"
        )


def test_an_edit_says_what_it_is_going_to_do(tree: LeaseTree) -> None:
    path = put(tree, b"old\n")
    foreseen: list[tuple[EditOutcome, bytes]] = []
    outcome = tree.edit(
        "f", b"old", b"new", before=lambda edit: foreseen.append((edit, path.read_bytes()))
    )
    assert foreseen == [(outcome, b"old\n")]
    assert path.read_bytes() == b"new\n"


def test_an_edit_that_may_not_be_made_changes_nothing(tree: LeaseTree) -> None:
    path = put(tree, b"old\n")
    was = marks(path)

    def refuse(edit: EditOutcome) -> None:
        raise failure(Code.STORAGE_UNAVAILABLE, "not recorded")

    refused = fault(lambda: tree.edit("f", b"old", b"new", before=refuse))
    assert refused.code is Code.STORAGE_UNAVAILABLE
    assert (path.read_bytes(), marks(path)) == (b"old\n", was)
    assert tree.litter() == []


def test_an_edit_that_begins_again_says_it_again(tree: LeaseTree) -> None:
    path = put(tree, b"old 1\n")
    versions: list[str] = []

    def write(edit: EditOutcome) -> None:
        versions.append(edit.old_version)
        if len(versions) == 1:
            path.write_bytes(b"old 2\n")

    outcome = tree.edit("f", b"old", b"new", before=write)
    assert path.read_bytes() == b"new 2\n"
    assert versions == [versions[0], outcome.old_version]
    assert versions[0] != versions[1]


def test_a_file_of_the_read_only_layer_is_edited_in_the_writable_one(make_tree: MakeTree) -> None:
    tree = make_tree({"d/f": b"old\n"})
    tree.edit("d/f", b"old", b"new")
    assert (tree.workspace / "d/f").read_bytes() == b"new\n"
    assert (tree.root.parent / "lower/d/f").read_bytes() == b"old\n"
    assert tree.litter() == []


@pytest.mark.parametrize(
    "content",
    [
        b"one\r\ntwo\r\nthree\r\n",
        b"one\r\ntwo\nthree\r\n",
        b"\xef\xbb\xbfone\ntwo\nthree",
        b"\xef\xbb\xbfone\r\ntwo\r\nthree",
        b"one\rtwo\rthree\r",
    ],
)
def test_b39_what_was_viewed_can_be_edited_and_the_rest_stays(
    tree: LeaseTree, content: bytes
) -> None:
    path = put(tree, content)
    shown = b"".join(tree.view("f").lines)
    at = content.index(shown)
    tree.edit("f", shown, shown.replace(b"two", b"2"))
    assert (
        path.read_bytes() == content[:at] + shown.replace(b"two", b"2") + content[at + len(shown) :]
    )


def test_b39_line_feeds_match_a_file_whose_every_line_ends_in_crlf(tree: LeaseTree) -> None:
    path = put(tree, b"one\r\ntwo\r\nthree")
    tree.edit("f", b"one\ntwo\n", b"1\n2\n")
    assert path.read_bytes() == b"1\r\n2\r\nthree"
    tree.edit("f", b"three", b"3\n4")
    assert path.read_bytes() == b"1\r\n2\r\n3\r\n4"
    tree.edit("f", b"1\r\n", b"1\n")
    assert path.read_bytes() == b"1\n2\r\n3\r\n4", "a CR in an argument: bytes are bytes"


def test_a_miss_that_is_due_to_what_results_change_says_so(tree: LeaseTree) -> None:
    put(tree, "a\u202eb\nkey=hunter2\n".encode())
    found = fault(lambda: tree.edit("f", b"a<U+202E>b", b"x"))
    assert found.code is Code.NO_MATCH
    assert "old_str needs the characters themselves" in found.message
    found = fault(lambda: tree.edit("f", b"key=[redacted:KEY]", b"x"))
    assert "it stands for text that results hide" in found.message
    tree.edit("f", "a\u202eb".encode(), b"ab")


def test_b39_a_miss_that_is_due_to_line_endings_says_so(tree: LeaseTree) -> None:
    path = put(tree, b"one\r\ntwo\r\nthree\n")
    before = marks(path)
    found = fault(lambda: tree.edit("f", b"one\ntwo\n", b"x"))
    assert found.code is Code.NO_MATCH
    assert "differs only in line endings" in found.message
    assert (found.details["near_miss"], found.details["near_line"]) == ("line_endings", 1)
    put(tree, b"one\ntwo\n", "g")
    found = fault(lambda: tree.edit("g", b"one\r\ntwo\r\n", b"x"))
    assert "differs only in line endings" in found.message
    assert marks(path) == before


@pytest.mark.parametrize("byte", [b"\xe9", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80"])
def test_b40_bytes_that_are_not_text_stay(tree: LeaseTree, byte: bytes) -> None:
    path = put(tree, b"x = 1\n// caf" + byte + b"\n")
    tree.edit("f", b"x = 1", b"x = 2")
    assert path.read_bytes() == b"x = 2\n// caf" + byte + b"\n"


def test_b40_utf_16_and_nul_bytes_are_refused_untouched(tree: LeaseTree) -> None:
    for content in ("x = 1\n".encode("utf-16"), b"x = 1\n\0"):
        path = put(tree, content)
        before = marks(path)
        assert fault(lambda: tree.edit("f", b"x", b"y")).code is Code.NOT_A_TEXT_FILE
        assert (path.read_bytes(), marks(path)) == (content, before)


def test_b41_neither_argument_is_a_pattern_or_a_template(tree: LeaseTree) -> None:
    old = rb"a.*[b]+(c)? \d $ ^ | {2} \n"
    new = rb"$& $$ $1 \1 \g<0> \n \' %s {x} \\ \x41 &amp;"
    path = put(tree, b"before " + old + b" after\n")
    tree.edit("f", old, new)
    assert path.read_bytes() == b"before " + new + b" after\n"


def test_b42_first_of_several_matches_is_never_replaced(tree: LeaseTree) -> None:
    path = put(tree, b"a = 1\nb = 2\na = 1\n")
    before = marks(path)
    found = fault(lambda: tree.edit("f", b"a = 1", b"a = 3"))
    assert found.code is Code.MULTIPLE_MATCHES
    assert found.details == {"count": 2, "count_at_least": False, "lines": (1, 3)}
    assert path.read_bytes() == b"a = 1\nb = 2\na = 1\n"
    assert marks(path) == before


def test_b42_no_match_no_change_and_no_text_are_told_apart(tree: LeaseTree) -> None:
    path = put(tree, b"a = 1\n")
    before = marks(path)
    assert fault(lambda: tree.edit("f", b"zzz", b"x")).code is Code.NO_MATCH
    assert fault(lambda: tree.edit("f", b"a", b"a")).code is Code.NO_CHANGE
    assert fault(lambda: tree.edit("f", b"", b"a")).code is Code.INVALID_ARGUMENT
    assert marks(path) == before


def test_b42_the_whole_file_and_a_text_that_the_new_one_contains(tree: LeaseTree) -> None:
    path = put(tree, b"a\n")
    tree.edit("f", b"a\n", b"a\na\n")
    assert path.read_bytes() == b"a\na\n"
    tree.edit("f", b"a\na\n", b"")
    assert path.read_bytes() == b""
    assert fault(lambda: tree.edit("f", b"a", b"b")).code is Code.NO_MATCH


def test_overlapping_matches_are_counted_and_replaced_from_left_to_right(tree: LeaseTree) -> None:
    path = put(tree, b"aaa\n")
    found = fault(lambda: tree.edit("f", b"aa", b"b"))
    assert (found.code, found.details["count"]) == (Code.MULTIPLE_MATCHES, 2)
    assert tree.edit("f", b"aa", b"b", allow_multiple=True).replacements == 1
    assert path.read_bytes() == b"ba\n"


def test_many_matches_are_all_replaced_where_that_is_asked(tree: LeaseTree) -> None:
    path = put(tree, b"a.a\na\n")
    outcome = tree.edit("f", b"a", b"bb", allow_multiple=True)
    assert outcome.replacements == 3
    assert outcome.diff.endswith("\n@@ -1,2 +1,2 @@\n-a.a\n-a\n+bb.bb\n+bb\n")
    assert path.read_bytes() == b"bb.bb\nbb\n"
    assert fault(lambda: tree.edit("f", b"a", b"c", allow_multiple=True)).code is Code.NO_MATCH


def test_the_lines_of_many_matches_are_listed_up_to_twenty(tree: LeaseTree) -> None:
    put(tree, b"a\n" * 50)
    found = fault(lambda: tree.edit("f", b"a", b"b"))
    assert found.details["lines"] == tuple(range(1, 21))
    assert found.details["count"] == 50
    assert "…" in found.message


def test_an_expected_version_that_is_not_the_files_is_a_conflict(tree: LeaseTree) -> None:
    path = put(tree, b"a\n")
    version = tree.view("f").version
    path.write_bytes(b"ab\n")
    found = fault(lambda: tree.edit("f", b"a", b"c", expected_version=version))
    assert found.code is Code.VERSION_CONFLICT
    current = found.details["current_version"]
    assert current == tree.view("f").version
    tree.edit("f", b"a", b"c", expected_version=str(current))
    assert path.read_bytes() == b"cb\n"


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o664 | stat.S_ISGID, 0o4755, 0o200])
@pytest.mark.parametrize("uid", [0, 1000, 4_000_000])
def test_b44_mode_and_owner_stay(tree: LeaseTree, mode: int, uid: int) -> None:
    path = put(tree, b"a\n")
    os.chown(path, uid, uid + 1)
    os.chmod(path, mode)
    tree.workspace.chmod(0o555)
    tree.edit("f", b"a", b"b")
    state = path.stat()
    assert path.read_bytes() == b"b\n"
    assert (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid) == (mode, uid, uid + 1)


def acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


SHARED = acl(
    (1, 6, 2**32 - 1), (2, 6, 1234), (4, 4, 2**32 - 1), (16, 6, 2**32 - 1), (32, 0, 2**32 - 1)
)


@pytest.mark.parametrize("place", ["workspace", "tmp"])
def test_b44_attributes_and_acl_stay(tree: LeaseTree, place: str) -> None:
    path = tree.root / place / "f"
    path.write_bytes(b"a\n")
    kept = {ACL: SHARED, "user.origin": b"\0there"}
    if place == "tmp" and LINUX < (6, 6):  # tmpfs has no attributes of users before
        del kept["user.origin"]
    for name, value in kept.items():
        os.setxattr(path, name, value)
    mode = path.stat().st_mode
    tree.edit(f"/{place}/f", b"a", b"b")
    assert path.read_bytes() == b"b\n"
    assert {name: os.getxattr(path, name) for name in kept} == kept
    assert path.stat().st_mode == mode


def test_b44_a_directorys_default_acl_is_not_given_to_an_old_file(tree: LeaseTree) -> None:
    path = put(tree, b"a\n")
    path.chmod(0o640)
    os.setxattr(tree.workspace, "system.posix_acl_default", SHARED)
    tree.edit("f", b"a", b"b")
    assert ACL not in os.listxattr(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_b44_a_full_disk_leaves_the_original_and_no_temporary_file(tree: LeaseTree) -> None:
    path = tree.tmp / "f"
    path.write_bytes(b"old\n" + b"x" * (1 << 20))
    (tree.tmp / "filler").write_bytes(b"x" * (5 << 19))
    before = marks(path)
    found = fault(lambda: tree.edit("/tmp/f", b"old", b"new"))
    assert found.code is Code.DISK_FULL
    assert (path.read_bytes()[:4], marks(path)) == (b"old\n", before)
    assert tree.litter() == []
    (tree.tmp / "filler").unlink()
    tree.edit("/tmp/f", b"old", b"new")
    assert path.read_bytes()[:4] == b"new\n"


def test_an_edit_separates_hard_links(tree: LeaseTree) -> None:
    path = put(tree, b"a\n")
    other = tree.workspace / "other"
    os.link(path, other)
    tree.edit("f", b"a", b"b")
    assert (path.read_bytes(), other.read_bytes()) == (b"b\n", b"a\n")
    assert path.stat().st_nlink == 1


def test_a_read_only_file_is_refused(tree: LeaseTree) -> None:
    path = put(tree, b"a\n")
    path.chmod(0o444)
    found = fault(lambda: tree.edit("f", b"a", b"b"))
    assert found.code is Code.READ_ONLY_FILE
    assert "0444" in found.message
    assert path.read_bytes() == b"a\n"


@pytest.mark.parametrize("target", ["d/f", "/workspace/d/f", "../workspace/d/f", "/tmp/f"])
def test_a_links_target_changes_and_the_link_stays(tree: LeaseTree, target: str) -> None:
    (tree.workspace / "d").mkdir()
    for place in (tree.workspace / "d", tree.tmp):
        (place / "f").write_bytes(b"a\n")
    os.symlink(target, tree.workspace / "link")
    outcome = tree.edit("link", b"a", b"b")
    assert os.readlink(tree.workspace / "link") == target
    assert outcome.path == ("/tmp/f" if target.startswith("/tmp") else "/workspace/d/f")
    changed = tree.root / outcome.path[1:]
    assert changed.read_bytes() == b"b\n"
    assert tree.litter() == []


def test_a_file_beyond_the_bound_and_a_result_beyond_it_are_refused(tree: LeaseTree) -> None:
    path = put(tree, b"a\n")
    os.truncate(path, EXACT_BYTES + 1)
    assert fault(lambda: tree.edit("f", b"a", b"b")).code is Code.FILE_TOO_LARGE
    put(tree, b"a" * 100_000)
    found = fault(lambda: tree.edit("f", b"a", b"b" * 1000, allow_multiple=True))
    assert found.code is Code.FILE_TOO_LARGE
    assert found.details["bytes"] == 100_000_000


def test_b47_twenty_concurrent_edits_of_one_file_all_land(tree: LeaseTree) -> None:
    path = put(tree, b"".join(b"line %02d\n" % number for number in range(20)))
    with ThreadPoolExecutor(20) as pool:
        edits = [
            pool.submit(tree.edit, "f", b"line %02d" % number, b"LINE %02d" % number)
            for number in range(20)
        ]
        versions = [edit.result().new_version for edit in edits]
    assert path.read_bytes() == b"".join(b"LINE %02d\n" % number for number in range(20))
    assert len(set(versions)) == 20
    assert tree.litter() == []


def test_b47_edits_beside_a_program_that_appends_land_or_conflict(tree: LeaseTree) -> None:
    path = put(tree, b"".join(b"line %02d\n" % number for number in range(20)))
    loop = 'for ((i = 0; i < 2000; i++)); do echo "$i" >> "$1"; done'
    landed: list[bool] = []
    codes: set[Code] = set()
    with subprocess.Popen(["bash", "-c", loop, "bash", str(path)]) as program:
        while program.poll() is None:
            words = (b"LINE", b"line") if len(landed) // 20 % 2 else (b"line", b"LINE")
            old, new = (b"%s %02d" % (word, len(landed) % 20) for word in words)
            try:
                landed.append(bool(tree.edit("f", old, new).replacements))
            except Failure as error:
                codes.add(error.fault.code)
    assert codes <= {Code.VERSION_CONFLICT}
    lines = path.read_bytes().splitlines()
    rounds, rest = divmod(len(landed), 20)
    words = (b"LINE", b"line") if rounds % 2 else (b"line", b"LINE")
    assert lines[:20] == [b"%s %02d" % (words[n < rest], n) for n in range(20)]
    assert lines[20:] == sorted(lines[20:], key=int)
    assert tree.litter() == []


@pytest.mark.parametrize(("writes", "lands"), [(1, True), (7, True), (8, False)])
def test_b47_a_program_that_writes_during_an_edit_loses_nothing(
    tree: LeaseTree, monkeypatch: pytest.MonkeyPatch, writes: int, lands: bool
) -> None:
    path = put(tree, b"a\n")
    stage = Replacement.stage
    staged = 0

    def write_and_stage(replacement: Replacement, name: bytes) -> None:
        nonlocal staged
        if staged < writes:
            with path.open("ab") as out:
                out.write(b"%d\n" % staged)
        staged += 1
        stage(replacement, name)

    monkeypatch.setattr(Replacement, "stage", write_and_stage)
    written = b"".join(b"%d\n" % number for number in range(writes))
    if lands:
        tree.edit("f", b"a", b"b")
    else:
        assert fault(lambda: tree.edit("f", b"a", b"b")).code is Code.VERSION_CONFLICT
    assert path.read_bytes() == (b"b\n" if lands else b"a\n") + written
    assert tree.litter() == []


def test_b47_what_a_program_puts_in_place_at_the_last_moment_is_not_lost(
    tree: LeaseTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tree, b"a 1\n")
    exchange = Replacement.exchange

    def replace_and_exchange(replacement: Replacement, name: bytes) -> None:
        if path.read_bytes() == b"a 1\n":
            os.replace(put(tree, b"a 2\n", "g"), path)
        exchange(replacement, name)

    monkeypatch.setattr(Replacement, "exchange", replace_and_exchange)
    tree.edit("f", b"a", b"b")
    assert path.read_bytes() == b"b 2\n"
    assert tree.litter() == []


def test_b47_a_program_that_wants_to_write_at_the_last_moment_has_the_old_file(
    tree: LeaseTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tree, b"a\n")
    waiting, asked = Writers.waiting, 0

    def one_waits(writers: Writers) -> bool:
        nonlocal asked
        asked += 1
        return asked == 1 or waiting(writers)

    monkeypatch.setattr(Writers, "waiting", one_waits)
    inode = path.stat().st_ino
    put_back: list[int] = []
    tree.edit("f", b"a", b"b", before=lambda _: put_back.append(path.stat().st_ino))
    assert put_back == [inode, inode]
    assert path.read_bytes() == b"b\n"


def test_b47_a_write_that_leaves_no_mark_in_the_files_times_is_not_lost(
    tree: LeaseTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many bytes within a tick of the clock of files."""
    path = put(tree, b"a 1\n")
    stage = Replacement.stage

    def write_and_stage(replacement: Replacement, name: bytes) -> None:
        state = path.stat()
        if path.read_bytes() == b"a 1\n":
            path.write_bytes(b"a 2\n")
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        stage(replacement, name)

    monkeypatch.setattr(Replacement, "stage", write_and_stage)
    monkeypatch.setattr(file_edit, "_marks", lambda state: (state.st_ino, state.st_size))
    tree.edit("f", b"a", b"b")
    assert path.read_bytes() == b"b 2\n"
    assert tree.litter() == []


def test_a_file_is_the_same_only_while_nothing_of_it_changed(tree: LeaseTree) -> None:
    path = put(tree, b"a\n")
    with LeaseRoot(tree.root_fd).resolve(b"/workspace/f", bool) as resolved:
        changes: list[Callable[[], object]] = [
            lambda: path.write_bytes(b"b\n"),
            lambda: path.write_bytes(b"longer\n"),
            lambda: path.chmod(0o600),
            lambda: os.replace(put(tree, b"longer\n", "g"), path),
            path.unlink,
        ]
        for change in changes:
            os.utime(path, (0, 0))  # what is written next has another time, whatever the tick
            state = path.stat()
            assert still_same(resolved, state)
            change()
            assert not still_same(resolved, state)


def test_b47_readers_see_the_old_or_the_new_content(tree: LeaseTree) -> None:
    path = put(tree, b"a" * 100_000 + b"\n")
    stop = Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    reader = Thread(target=read)
    reader.start()
    for old, new in [(b"a", b"b"), (b"b", b"a")] * 30:
        tree.edit("f", old * 100_000, new * 100_000)
    stop.set()
    reader.join()
    assert seen <= {b"a" * 100_000 + b"\n", b"b" * 100_000 + b"\n"}


def test_a_name_that_is_not_text_is_edited_by_its_escapes(tree: LeaseTree) -> None:
    name = os.fsencode(tree.workspace) + b"/caf\xe9\n\\"
    Path(os.fsdecode(name)).write_bytes(b"a\n")
    outcome = tree.edit(r"caf\xe9\x0a\x5c", b"a", b"b")
    assert outcome.path == r"/workspace/caf\xe9\x0a\x5c"
    assert Path(os.fsdecode(name)).read_bytes() == b"b\n"
    assert outcome.diff.startswith("--- /workspace/caf\\xe9\\x0a\\x5c\n")

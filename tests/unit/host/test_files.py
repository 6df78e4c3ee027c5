from __future__ import annotations

import hashlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stockade.host.file_content import version_of
from stockade.host.file_replace import Replacement, edit_name
from stockade.terms.call import EditOperation
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.grant import CheckPrefix
from stockade.terms.outcome import EditOutcome
from stockade.terms.ports import PathScope

if TYPE_CHECKING:
    from tests.unit.host.conftest import LeaseTree


def fault(act: Callable[[], object]) -> Fault:
    with pytest.raises(Failure) as caught:
        act()
    return caught.value.fault


def scope(
    read: tuple[str, ...], write: tuple[str, ...] = (), deny: tuple[str, ...] = ()
) -> PathScope:
    return PathScope(read, write, deny)


def write(tree: LeaseTree, path: str, content: bytes, allowed: PathScope | None = None) -> str:
    return tree.files.write(path, iter([content]), allowed or tree.everywhere)


def test_a_new_file_belongs_to_the_lease_with_the_directories_above_it(tree: LeaseTree) -> None:
    version = write(tree, "a/b/f", b"content")
    path = tree.workspace / "a/b/f"
    assert path.read_bytes() == b"content"
    assert version == hashlib.sha256(b"content").hexdigest()[:32] == tree.view("a/b/f").version
    for place, mode in ((path, 0o644), (path.parent, 0o755), (path.parent.parent, 0o755)):
        state = place.stat()
        assert (state.st_uid, state.st_gid) == (tree.owner, tree.owner)
        assert stat.S_IMODE(state.st_mode) == mode
    assert tree.litter() == []


def test_a_directory_that_exists_keeps_its_owner(tree: LeaseTree) -> None:
    (tree.workspace / "a").mkdir(mode=0o700)
    write(tree, "a/f", b"")
    state = (tree.workspace / "a").stat()
    assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (0, 0o700)


def test_replacing_keeps_mode_and_owner_and_refuses_a_read_only_file(tree: LeaseTree) -> None:
    path = tree.workspace / "f"
    path.write_bytes(b"old")
    os.chown(path, 1000, 1001)
    path.chmod(0o750)
    write(tree, "f", b"new")
    state = path.stat()
    assert path.read_bytes() == b"new"
    assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (1000, 1001, 0o750)
    path.chmod(0o400)
    assert fault(lambda: write(tree, "f", b"x")).code is Code.READ_ONLY_FILE
    assert path.read_bytes() == b"new"


def test_writing_through_a_link_changes_its_target(tree: LeaseTree) -> None:
    os.symlink("/tmp/new/f", tree.workspace / "link")
    write(tree, "link", b"content")
    assert (tree.tmp / "new/f").read_bytes() == b"content"
    assert os.readlink(tree.workspace / "link") == "/tmp/new/f"


@pytest.mark.parametrize("target", ["../../outside", "/outside", "/etc/stockade-test"])
def test_b49_writing_through_a_link_never_leads_outside(tree: LeaseTree, target: str) -> None:
    os.symlink(target, tree.workspace / "link")
    for path in ("link", "link/f"):
        assert fault(partial(write, tree, path, b"x")).code is Code.OUTSIDE_WORKSPACE
    assert not (tree.root.parent / "outside").exists()


def test_what_is_not_a_regular_file_is_not_replaced(tree: LeaseTree) -> None:
    (tree.workspace / "d").mkdir()
    os.mkfifo(tree.workspace / "fifo")
    for path in ("d", "fifo", "/workspace", "/tmp"):
        assert fault(partial(write, tree, path, b"x")).code is Code.NOT_A_REGULAR_FILE
    assert fault(lambda: write(tree, "fifo/f", b"x")).code is Code.NOT_FOUND
    assert fault(lambda: write(tree, "new/", b"x")).code is Code.NOT_FOUND
    assert fault(lambda: write(tree, "new/../f", b"x")).code is Code.NOT_FOUND


def test_content_that_ends_in_an_error_leaves_nothing(tree: LeaseTree) -> None:
    def content() -> Iterator[bytes]:
        yield b"some"
        raise ConnectionResetError

    (tree.workspace / "f").write_bytes(b"old")
    for path in ("f", "g"):
        with pytest.raises(Failure):
            tree.files.write(path, content(), tree.everywhere)
    assert os.listdir(tree.workspace) == ["f"]
    assert (tree.workspace / "f").read_bytes() == b"old"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_name_that_a_killed_edit_leaves_is_known(
    tree: LeaseTree, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after the new file is in its place."""
    (tree.workspace / "f").write_bytes(b"old")
    operation = EditOperation("/workspace/f", b"old", b"new", False, None, 100)
    exchange = Replacement.exchange

    def killed(replacement: Replacement, name: bytes) -> None:
        if after:
            exchange(replacement, name)
        os.kill(os.getpid(), signal.SIGKILL)

    told: list[EditOutcome] = []
    with monkeypatch.context() as patch:
        patch.setattr(Replacement, "exchange", killed)
        child = os.fork()
        if not child:
            tree.files.edit(operation, tree.everywhere)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    [left] = tree.litter()
    if not after:
        assert (tree.workspace / "f").read_bytes() == b"old"
        # The same edit again finds its name taken.
        tree.files.edit(operation, tree.everywhere, told.append)
        assert tree.litter() == [left]
        tree.files.tidy(told[0], tree.everywhere)
    else:
        edit = EditOutcome("/workspace/f", 1, version_of(b"old"), version_of(b"new"), "", False)
        tree.files.tidy(edit, tree.everywhere)
        tree.files.tidy(edit, tree.everywhere)
    assert tree.litter() == []
    assert (tree.workspace / "f").read_bytes() == b"new"


def test_what_a_program_has_put_under_an_edits_name_stays(tree: LeaseTree) -> None:
    """A write to the old file, say, between the edit and the end of its daemon."""
    edit = EditOutcome("/workspace/f", 1, version_of(b"old"), version_of(b"new"), "", False)
    (tree.workspace / "f").write_bytes(b"new")
    left = tree.workspace / os.fsdecode(edit_name(edit))
    left.write_bytes(b"old, and a line more")
    os.chown(left, tree.owner, tree.owner)
    tree.files.tidy(edit, tree.everywhere)
    assert left.read_bytes() == b"old, and a line more"
    left.unlink()
    left.symlink_to("f")
    tree.files.tidy(edit, tree.everywhere)
    left.unlink()
    os.mkfifo(left)
    tree.files.tidy(edit, tree.everywhere)
    left.unlink()
    left.mkdir()
    tree.files.tidy(edit, tree.everywhere)
    assert (left.is_dir(), (tree.workspace / "f").read_bytes()) == (True, b"new")
    left.rmdir()
    left.write_bytes(b"old")
    os.chown(left, tree.owner, tree.owner)
    tree.files.tidy(edit, tree.everywhere)
    assert not left.exists()


def test_a_part_of_an_edits_content_is_known_after_a_kill(
    tree: LeaseTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system has no O_TMPFILE the content is written under the edit's name."""
    (tree.workspace / "f").write_bytes(b"old")

    def killed(replacement: Replacement, content: bytes) -> None:
        os.write(replacement.fd, content[:2])
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(Replacement, "_nameless", lambda replacement: None)
        patch.setattr(Replacement, "write", killed)
        child = os.fork()
        if not child:
            tree.edit("/workspace/f", b"old", b"new")
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    [left] = tree.litter()
    assert Path(left).read_bytes() == b"ne"
    edit = EditOutcome("/workspace/f", 1, version_of(b"old"), version_of(b"new"), "", False)
    tree.files.tidy(edit, tree.everywhere)
    assert tree.litter() == []
    assert (tree.workspace / "f").read_bytes() == b"old"


def test_b47_a_daemon_killed_in_mid_write_leaves_the_old_content_alone(tree: LeaseTree) -> None:
    def content() -> Iterator[bytes]:
        yield b"x" * 100_000
        os.kill(os.getpid(), signal.SIGKILL)

    (tree.workspace / "f").write_bytes(b"old")
    child = os.fork()
    if not child:
        tree.files.write("f", content(), tree.everywhere)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    if has_o_tmpfile(tree.workspace):
        assert os.listdir(tree.workspace) == ["f"]
    assert (tree.workspace / "f").read_bytes() == b"old"


def has_o_tmpfile(directory: Path) -> bool:
    """Overlayfs has it since Linux 6.10. Without it the temporary name of an upload stays."""
    try:
        os.close(os.open(directory, os.O_RDWR | os.O_TMPFILE, 0o600))
    except OSError:
        return False
    return True


def test_a_full_disk_leaves_the_old_content(tree: LeaseTree) -> None:
    (tree.tmp / "f").write_bytes(b"old")
    blocks = (b"x" * (1 << 20) for _ in range(8))
    found = fault(lambda: tree.files.write("/tmp/f", blocks, tree.everywhere))
    assert found.code is Code.DISK_FULL
    assert (tree.tmp / "f").read_bytes() == b"old"
    assert tree.litter() == []


def test_reading_gives_the_size_and_the_bytes(tree: LeaseTree) -> None:
    content = os.urandom(600_000)
    (tree.workspace / "f").write_bytes(content)
    size, blocks = tree.files.read("f", tree.everywhere)
    assert size == len(content)
    assert b"".join(blocks) == content


def test_a_file_that_grows_or_shrinks_while_it_is_read(tree: LeaseTree) -> None:
    path = tree.workspace / "f"
    path.write_bytes(b"x" * 600_000)
    size, blocks = tree.files.read("f", tree.everywhere)
    path.write_bytes(b"x" * 700_000)
    assert sum(len(block) for block in blocks) == size
    _, blocks = tree.files.read("f", tree.everywhere)
    next(blocks)
    os.truncate(path, 10)
    assert fault(lambda: next(blocks)).code is Code.VERSION_CONFLICT


def test_a_reading_that_is_dropped_closes_its_file(tree: LeaseTree) -> None:
    (tree.workspace / "f").write_bytes(b"x")
    before = os.listdir("/proc/self/fd")
    tree.files.read("f", tree.everywhere)
    assert os.listdir("/proc/self/fd") == before


def test_outside_of_what_may_be_read_existence_is_not_told(tree: LeaseTree) -> None:
    (tree.workspace / "open").mkdir()
    (tree.workspace / "secret").mkdir()
    (tree.workspace / "secret/there").write_bytes(b"x")
    for name in ("there", "absent"):
        os.symlink(f"../secret/{name}", tree.workspace / "open" / name)
    only = scope(("/workspace/open",), ("/workspace/open",))
    for place in (
        "secret/{}",
        "open/{}",
        "open/../secret/{}",
        "secret/{}/x",
        "secret/{}/../../open",
    ):
        answers = set()
        for name in ("there", "absent"):
            path = place.format(name)
            for act in (
                partial(tree.view, path, scope=only),
                partial(tree.edit, path, b"x", b"y", scope=only),
                partial(write, tree, path, b"y", only),
                partial(tree.files.read, path, only),
            ):
                found = fault(act)
                answers.add((found.code, found.rule, found.message.replace(name, "NAME")))
        assert {answer[0] for answer in answers} == {Code.RIGHT_NOT_GRANTED}
        assert {answer[1] for answer in answers} == {"scope.read"}
        assert len(answers) == 1, answers


def test_authority_is_checked_on_the_resolved_path(tree: LeaseTree) -> None:
    for name in ("a", "b"):
        (tree.workspace / name).mkdir()
        (tree.workspace / name / "f").write_bytes(b"x")
    os.symlink("../b/f", tree.workspace / "a/link")
    both = scope(("/workspace",), ("/workspace/a",))
    assert tree.view("a/link", scope=both).path == "/workspace/b/f"
    for act in (
        lambda: tree.edit("a/link", b"x", b"y", scope=both),
        lambda: tree.edit("a/../b/f", b"x", b"y", scope=both),
        lambda: write(tree, "a/link", b"y", both),
    ):
        found = fault(act)
        assert (found.code, found.rule) == (Code.RIGHT_NOT_GRANTED, "scope.write")
    assert (tree.workspace / "b/f").read_bytes() == b"x"
    tree.edit("a/f", b"x", b"y", scope=both)


def test_a_link_does_not_lead_round_a_check_on_the_path(tree: LeaseTree) -> None:
    (tree.workspace / "in").mkdir()
    (tree.workspace / "in" / "here").write_bytes(b"a")
    (tree.workspace / "out").write_bytes(b"a")
    (tree.workspace / "in" / "link").symlink_to("../out")
    (tree.workspace / "back").symlink_to("in/here")
    check = CheckPrefix(kind="prefix", tool="t", argument="path", paths=("/workspace/in",))
    allowed = replace(tree.everywhere, checks=(check,))
    operations: list[Callable[[str, PathScope], object]] = [
        lambda path, scope: tree.view(path, scope=scope),
        lambda path, scope: tree.edit(path, b"a", b"a b", scope=scope),
        lambda path, scope: tree.files.look(path, scope),
        lambda path, scope: tree.files.read(path, scope),
        lambda path, scope: write(tree, path, b"a", scope),
    ]
    for act in operations:
        for path in ("in/link", "out", "in/../out"):
            found = fault(partial(act, path, allowed))
            assert (found.code, found.rule) == (Code.CHECK_FAILED, "checks")
        assert (tree.workspace / "out").read_bytes() == b"a"
        act("in/here", allowed)
        act("back", allowed)
        act("in/link", tree.everywhere)
        (tree.workspace / "out").write_bytes(b"a")


def test_b48_a_neighbour_with_the_same_prefix_is_not_covered(tree: LeaseTree) -> None:
    (tree.workspace / "src").mkdir()
    (tree.workspace / "src-evil").mkdir()
    (tree.workspace / "src-evil/f").write_bytes(b"x")
    only = scope(("/workspace/src",))
    assert fault(lambda: tree.view("src-evil/f", scope=only)).rule == "scope.read"
    assert fault(lambda: tree.view("src/../src-evil/f", scope=only)).rule == "scope.read"


def test_writing_leaves_no_descriptor_open(tree: LeaseTree) -> None:
    os.mkfifo(tree.workspace / "fifo")
    before = os.listdir("/proc/self/fd")
    for path in ("new", "new", "deep/er/new", "fifo", "new/below", "/tmp/new"):
        with suppress(Failure):
            write(tree, path, b"x")
    assert os.listdir("/proc/self/fd") == before
    assert (tree.workspace / "deep/er/new").read_bytes() == b"x"


def test_what_is_denied_is_not_written_also_while_it_is_absent(tree: LeaseTree) -> None:
    denied = scope(("/workspace",), ("/workspace",), ("/workspace/.git/hooks",))
    for path in (".git/hooks/pre-commit", ".git/hooks", ".git", "x/../.git/hooks/a"):
        (tree.workspace / "x").mkdir(exist_ok=True)
        found = fault(partial(write, tree, path, b"x", denied))
        assert (found.code, found.rule) == (Code.RIGHT_NOT_GRANTED, "deny"), path
    assert not (tree.workspace / ".git").exists()
    (tree.workspace / ".git/hooks").mkdir(parents=True)
    (tree.workspace / ".git/hooks/pre-commit").write_bytes(b"x")
    os.symlink(".git/hooks/pre-commit", tree.workspace / "link")
    for path in (".git/hooks/pre-commit", "link"):
        assert tree.view(path, scope=denied).lines == (b"x",)
        assert fault(partial(tree.edit, path, b"x", b"y", scope=denied)).rule == "deny"
    write(tree, ".git/hooks-evil", b"x", denied)
    # The control: nothing else stands in the way.
    tree.edit("link", b"x", b"y")


def test_a_hard_link_to_a_denied_file_does_not_change_it(tree: LeaseTree) -> None:
    denied = scope(("/workspace",), ("/workspace",), ("/workspace/d",))
    (tree.workspace / "d").mkdir()
    (tree.workspace / "d/f").write_bytes(b"x")
    os.link(tree.workspace / "d/f", tree.workspace / "f")
    tree.edit("f", b"x", b"y", scope=denied)
    write(tree, "f", b"z", denied)
    assert (tree.workspace / "d/f").read_bytes() == b"x"


@pytest.mark.parametrize("path", ["", "a\0b", "a\nb", "a\\b", "\ud800", "x" * 5000])
def test_b48_a_path_that_is_no_path_is_invalid(tree: LeaseTree, path: str) -> None:
    for act in (
        lambda: tree.view(path),
        lambda: tree.edit(path, b"a", b"b"),
        lambda: write(tree, path, b""),
        lambda: tree.files.read(path, tree.everywhere),
    ):
        found = fault(act)
        assert found.code is Code.INVALID_ARGUMENT
        assert found.details == {"argument": "path"}


def test_b36_a_search_begins_at_a_directory_or_a_regular_file(tree: LeaseTree) -> None:
    (tree.workspace / "d").mkdir()
    (tree.workspace / "f").write_bytes(b"")
    (tree.workspace / "link").symlink_to("d")
    (tree.workspace / "out").symlink_to("/etc")
    (tree.workspace / "to-fifo").symlink_to("fifo")
    os.mkfifo(tree.workspace / "fifo")

    def look(path: str, allowed: PathScope) -> Callable[[], None]:
        return lambda: tree.files.look(path, allowed)

    for path in ("/workspace", "d", "f", "link", "/tmp", "d/.."):
        tree.files.look(path, tree.everywhere)
    for path, code in (
        ("fifo", Code.NOT_A_REGULAR_FILE),
        ("to-fifo", Code.NOT_A_REGULAR_FILE),
        ("out", Code.OUTSIDE_WORKSPACE),
        ("none", Code.NOT_FOUND),
        ("f/none", Code.NOT_FOUND),
    ):
        assert fault(look(path, tree.everywhere)).code is code
    narrow = scope(("/workspace/d",))
    tree.files.look("d", narrow)
    for path in ("f", "link", "none"):
        assert fault(look(path, narrow)).code is Code.RIGHT_NOT_GRANTED


@pytest.mark.parametrize("prefix", ["/", "/workspace", "/workspace/a", "/workspace/a/b/c"])
def test_what_is_visible_is_decided_by_the_first_names(tree: LeaseTree, prefix: str) -> None:
    write(tree, "a/b/c/d/e/f", b"x\n")
    write(tree, "ab/c/d", b"x\n")
    (tree.workspace / "a/b/c/link").symlink_to("d/e/f")
    allowed = scope((prefix,))
    assert tree.view("a/b/c/d/e/f", scope=allowed).total_lines == 1
    assert tree.view("a/b/c/link", scope=allowed).total_lines == 1
    narrow = prefix not in ("/", "/workspace")
    for path in ("ab/c/d", "ab/../ab/c/d"):
        if narrow:
            refused = fault(lambda path=path: tree.view(path, scope=allowed))  # type: ignore[misc]
            assert refused.code is Code.RIGHT_NOT_GRANTED
        else:
            assert tree.view(path, scope=allowed).total_lines == 1

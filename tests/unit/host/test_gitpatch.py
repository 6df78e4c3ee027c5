from __future__ import annotations

import functools
import io
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.host.changes import Differences
from stockade.host.gitpatch import FILE_BYTES, TEXT_BYTES, git_directory, quoted, write_patch
from stockade.host.leftout import LeftOut

Tree = dict[bytes, tuple[str, bytes]]  # path to (kind: file, exec, link) and content
KINDS: Final = {"file": 0o644, "exec": 0o755}


def build(root: Path, tree: Tree) -> None:
    root.mkdir()
    for path, (kind, content) in tree.items():
        full = os.path.join(os.fsencode(root), path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if kind == "link":
            os.symlink(content, full)
        else:
            with open(full, "wb") as f:
                f.write(content)
            os.chmod(full, KINDS[kind])


def read(root: Path) -> Tree:
    """What git can know of a tree."""
    found: Tree = {}
    top = os.fsencode(root)
    for here, directories, files in os.walk(top):
        for name in files + [d for d in directories if os.path.islink(os.path.join(here, d))]:
            full = os.path.join(here, name)
            path = os.path.relpath(full, top)
            mode = os.lstat(full).st_mode
            if stat.S_ISLNK(mode):
                found[path] = ("link", os.readlink(full))
            else:
                with open(full, "rb") as f:
                    found[path] = ("exec" if mode & 0o100 else "file", f.read())
    return found


def patch_of(old: Path, new: Path) -> tuple[bytes, tuple[str, ...]]:
    """The patch between two whole trees: an opaque directory hides everything of the base."""
    for here, _, _ in os.walk(os.fsencode(new)):
        os.setxattr(here, "trusted.overlay.opaque", b"y")
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (new, old)]
    out, left_out = io.BytesIO(), LeftOut()
    try:
        size = write_patch(Differences(fds[0], fds[1], left_out), out, left_out)
    finally:
        for fd in fds:
            os.close(fd)
    assert size == len(out.getvalue())
    return out.getvalue(), left_out.lines()


def git_apply(root: Path, patch: bytes, *options: str) -> None:
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", *options, "-"],
        cwd=root,
        input=patch,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(root.parent)},
    )
    assert done.returncode == 0, (done.stderr.decode(), patch[:3000])


LINK_THAT_BECAME_A_FILE: Final = b"""\
diff --git a/l b/l
deleted file mode 120000
index 788636f..0000000
--- a/l
+++ /dev/null
@@ -1 +0,0 @@
-to
\\ No newline at end of file
diff --git a/l b/l
new file mode 100644
index 0000000..b33d0a5
--- /dev/null
+++ b/l
@@ -0,0 +1 @@
+to
"""


@functools.cache
def git_makes_links_again() -> bool:
    """Whether this git, backwards, makes a link of what became a file: 2.47 makes a file with the
    target in it, of its own patches too."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "l").write_bytes(b"to\n")
        git_apply(Path(name), LINK_THAT_BECAME_A_FILE, "-R")
        return (Path(name) / "l").is_symlink()


def given_back(old: Tree, new: Tree) -> Tree:
    lost = {
        path: ("file", content)
        for path, (kind, content) in old.items()
        if kind == "link" and new.get(path, (kind, b""))[0] != kind
    }
    return old if git_makes_links_again() else {**old, **lost}


def check(tmp: Path, old: Tree, new: Tree) -> bytes:
    """Applying the patch to the old tree gives the new one, and backwards the old one."""
    build(tmp / "old", old)
    build(tmp / "new", new)
    patch, left_out = patch_of(tmp / "old", tmp / "new")
    assert left_out == ()
    shutil.copytree(tmp / "old", tmp / "applied", symlinks=True)
    if patch:
        git_apply(tmp / "applied", patch)
    assert read(tmp / "applied") == new
    if patch:
        git_apply(tmp / "applied", patch, "-R")
    assert read(tmp / "applied") == given_back(old, new)
    return patch


TEXT = b"".join(b"line %d\n" % i for i in range(60))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param({}, {b"new": ("file", TEXT)}, id="added"),
        pytest.param({b"gone": ("file", TEXT)}, {}, id="deleted"),
        pytest.param({b"a": ("file", TEXT)}, {b"a": ("file", TEXT[7:-8] + b"x")}, id="modified"),
        pytest.param({b"a": ("file", b"")}, {b"b": ("file", b"")}, id="empty-files"),
        pytest.param({b"a": ("file", b"")}, {b"a": ("file", b"x\n")}, id="from-empty"),
        pytest.param({b"a": ("file", b"x\n")}, {b"a": ("file", b"")}, id="to-empty"),
        pytest.param({b"a": ("file", b"x")}, {b"a": ("file", b"x\n")}, id="final-newline"),
        pytest.param({b"a": ("file", b"x\n")}, {b"a": ("file", b"x\ny")}, id="no-final-newline"),
        pytest.param({b"a": ("file", b"x\n")}, {b"a": ("exec", b"x\n")}, id="mode"),
        pytest.param({b"a": ("file", b"x\n")}, {b"a": ("exec", b"y\n")}, id="mode-and-content"),
        pytest.param({b"a": ("file", b"x\r\n")}, {b"a": ("file", b"x\r\ny\r\n")}, id="crlf"),
        pytest.param(
            {b"a": ("file", b"x\r")}, {b"a": ("file", b"\x0c\x1e\xe2\x80\xa8\n")}, id="odd"
        ),
        pytest.param({b"a": ("file", b"\xff\n")}, {b"a": ("file", b"\xfe\n")}, id="no-utf8"),
        pytest.param({b"a": ("file", b"\0old")}, {b"a": ("file", os.urandom(5000))}, id="binary"),
        pytest.param({b"a": ("file", b"\0")}, {}, id="binary-deleted"),
        pytest.param({}, {b"a": ("exec", b"\0" * 100)}, id="binary-added"),
        pytest.param(
            {b"a": ("file", TEXT)}, {b"a": ("file", b"big\n" * (TEXT_BYTES // 4 + 1))}, id="large"
        ),
        pytest.param({b"l": ("link", b"to")}, {b"l": ("link", b"elsewhere")}, id="link"),
        pytest.param({b"l": ("link", b"to")}, {b"l": ("file", b"to\n")}, id="link-to-file"),
        pytest.param({b"l": ("file", b"to")}, {b"l": ("link", b"to")}, id="file-to-link"),
        pytest.param({b"a": ("file", b"1\n")}, {b"a/b": ("file", b"2\n")}, id="file-to-directory"),
        pytest.param({b"a/b": ("file", b"1\n")}, {b"a": ("file", b"2\n")}, id="directory-to-file"),
        pytest.param({b"a/b/c": ("file", b"1\n")}, {b"z": ("file", b"2\n")}, id="tree-gone"),
        pytest.param(
            {},
            dict.fromkeys(
                (
                    b"with space",
                    b" lead/trail ",
                    b'q"uote',
                    b"back\\slash",
                    b"new\nline",
                    b"tab\t",
                    b"\xff\xfe",
                    "ünï/çödé".encode(),
                    b"-rf",
                    b"a b/c d",
                    b"\x01\x7f",
                ),
                ("file", b"x\n"),
            ),
            id="names",
        ),
    ],
)
def test_git_applies_the_patch_both_ways(tmp_path: Path, old: Tree, new: Tree) -> None:
    assert check(tmp_path, old, new)


def test_the_patch_of_nothing_is_empty(tmp_path: Path) -> None:
    tree: Tree = {b"a": ("file", TEXT), b"d/l": ("link", b"x")}
    assert check(tmp_path, tree, tree) == b""


def test_a_small_change_is_a_small_hunk(tmp_path: Path) -> None:
    changed = TEXT.replace(b"line 30\n", b"line thirty\n")
    patch = check(tmp_path, {b"a": ("file", TEXT)}, {b"a": ("file", changed)})
    assert patch.count(b"\n-line") == 1
    assert b"@@ -28,7 +28,7 @@\n" in patch


def test_permissions_git_does_not_know_are_no_change(tmp_path: Path) -> None:
    for name in ("old", "new"):
        build(tmp_path / name, {b"a": ("file", b"x\n")})
    (tmp_path / "new/a").chmod(0o600)
    assert patch_of(tmp_path / "old", tmp_path / "new") == (b"", ())


def test_what_git_would_refuse_or_run_is_left_out_and_named(tmp_path: Path) -> None:
    names = (b".git/hooks/pre-commit", b"sub/.git/config", b".GIT/x", b"git~1/x", b".git", b"ok")
    build(tmp_path / "old", {})
    build(tmp_path / "new", {name: ("file", b"x\n") for name in names if name != b".git"})
    patch, left_out = patch_of(tmp_path / "old", tmp_path / "new")
    assert left_out == (
        ".GIT: git's own directory",
        ".git: git's own directory",
        "git~1: git's own directory",
        "sub/.git: git's own directory",
    )
    (tmp_path / "applied").mkdir()
    git_apply(tmp_path / "applied", patch)
    assert read(tmp_path / "applied") == {b"ok": ("file", b"x\n")}


def test_links_that_lead_out_are_left_out_and_named(tmp_path: Path) -> None:
    build(tmp_path / "old", {b"was": ("link", b"ok"), b"ok": ("file", b"x\n")})
    links = {b"was": b"/etc/passwd", b"up": b"../x", b"d/in": b"../ok", b"d/e": b"../../x"}
    new: Tree = {name: ("link", target) for name, target in links.items()}
    build(tmp_path / "new", {**new, b"ok": ("file", b"x\n")})
    patch, left_out = patch_of(tmp_path / "old", tmp_path / "new")
    reason = "a link that leads out of the tree"
    assert left_out == (f"d/e: {reason}", f"up: {reason}", f"was: {reason}")
    git_apply(tmp_path / "old", patch)
    assert read(tmp_path / "old") == {
        b"was": ("link", b"ok"),
        b"ok": ("file", b"x\n"),
        b"d/in": ("link", b"../ok"),
    }


@pytest.mark.parametrize("name", [b".gitignore", b".github/x", b"git", b"a.git/x", b"x.git"])
def test_names_that_only_look_like_git(name: bytes) -> None:
    assert git_directory(name) is None


def test_files_above_the_bound_are_left_out_and_named(tmp_path: Path) -> None:
    build(tmp_path / "old", {})
    build(tmp_path / "new", {b"big": ("file", b""), b"just": ("file", b"")})
    os.truncate(tmp_path / "new/big", FILE_BYTES + 1)
    os.truncate(tmp_path / "new/just", FILE_BYTES)
    patch, left_out = patch_of(tmp_path / "old", tmp_path / "new")
    assert left_out == (f"big: larger than {FILE_BYTES} bytes",)
    (tmp_path / "applied").mkdir()
    git_apply(tmp_path / "applied", patch)
    assert (tmp_path / "applied/just").stat().st_size == FILE_BYTES


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a/plain name", b"a/plain name"),
        (b'a/"', b'"a/\\""'),
        (b"a/\\", b'"a/\\\\"'),
        (b"a/\n\t", b'"a/\\n\\t"'),
        (b"a/\xc3\xa9", b'"a/\\303\\251"'),
    ],
)
def test_names_are_quoted_as_git_does(name: bytes, shown: bytes) -> None:
    assert quoted(name) == shown


NAMES = st.sampled_from([b"a", b"b", b"d/a", b"d/e/f", b"\xe9 x", b"d e/\n"])
CONTENTS = st.one_of(
    st.lists(st.sampled_from([b"one\n", b"two\n", b"{\n", b"\n", b"tail"]), max_size=30).map(
        b"".join
    ),
    st.binary(max_size=300),
)
FILES = st.tuples(st.sampled_from(["file", "exec"]), CONTENTS)
LINKS = st.tuples(
    st.just("link"), st.binary(min_size=1, max_size=20).map(lambda b: b"l" + b.hex().encode())
)
TREES = st.dictionaries(NAMES, st.one_of(FILES, FILES, LINKS), max_size=6)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=TREES, new=TREES)
def test_law_any_two_trees(tmp_path_factory: pytest.TempPathFactory, old: Tree, new: Tree) -> None:
    tmp = tmp_path_factory.mktemp("trees")
    check(tmp, old, new)
    shutil.rmtree(tmp)


GITMODULES: Final = (
    b".gitmodules",
    b".GitModules .",
    b"GITMOD~1",
    b"gi7eba~1",
    b"gi7e~123",
    b"d/.gitmodules",
)


@pytest.mark.parametrize("name", GITMODULES)
def test_a_link_for_whose_name_git_refuses_the_whole_patch_is_left_out(
    tmp_path: Path, name: bytes
) -> None:
    build(tmp_path / "old", {b"d/x": ("file", b"x\n")})
    build(tmp_path / "new", {b"d/x": ("file", b"y\n"), name: ("link", b"ok")})
    patch, left_out = patch_of(tmp_path / "old", tmp_path / "new")
    assert left_out == (f"{name.decode()}: a link that git refuses, because of its name",)
    git_apply(tmp_path / "old", patch)
    assert read(tmp_path / "old") == {b"d/x": ("file", b"y\n")}


def test_a_file_of_the_name_that_git_refuses_for_a_link_is_in_the_patch(tmp_path: Path) -> None:
    build(tmp_path / "old", {b".gitmodules": ("file", b"x\n")})
    build(tmp_path / "new", {b".gitmodules": ("file", b"y\n")})
    patch, left_out = patch_of(tmp_path / "old", tmp_path / "new")
    assert left_out == ()
    git_apply(tmp_path / "old", patch)
    assert read(tmp_path / "old") == {b".gitmodules": ("file", b"y\n")}


def test_what_takes_the_place_of_something_left_out_is_left_out(tmp_path: Path) -> None:
    build(
        tmp_path / "old",
        {
            b"big": ("file", b""),
            b"d/big": ("file", b""),
            b"sub/.git": ("file", b"gitdir: x\n"),
            b"sub/f": ("file", b"x\n"),
            b"ok": ("file", b"x\n"),
        },
    )
    for name in ("big", "d/big"):
        os.truncate(tmp_path / "old" / name, FILE_BYTES + 1)
    build(
        tmp_path / "new",
        {
            b"big/in": ("file", b"x\n"),
            b"d": ("file", b"x\n"),
            b"sub": ("link", b"ok"),
            b"ok": ("file", b"y\n"),
        },
    )
    patch, left_out = patch_of(tmp_path / "old", tmp_path / "new")
    reason = "in the place of something that is left out"
    assert left_out == (
        f"big: larger than {FILE_BYTES} bytes",
        f"big/in: {reason}",
        f"d/big: larger than {FILE_BYTES} bytes",
        f"d: {reason}",
        "sub/.git: git's own directory",
        f"sub: {reason}",
    )
    git_apply(tmp_path / "old", patch)
    assert set(read(tmp_path / "old")) == {b"big", b"d/big", b"sub/.git", b"ok"}

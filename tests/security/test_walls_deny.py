"""What `deny` and granted prefixes hold against, in real sandboxes (docs/capabilities.md).

Who tries is root inside with a shell, and every refusal has its control: the same act on a path
that is not denied.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Profile
from tests.security.inside import Inside, entered, grant_for, leased
from tests.worlds import OciWorld, spec_for

# Swaps two names in one step (renameat2(2) with RENAME_EXCHANGE), which mv of Debian 12 can't.
EXCHANGE = (
    'python3 -c "import ctypes, os, sys; a, b = map(os.fsencode, sys.argv[1:]); '
    "c = ctypes.CDLL(None, use_errno=True); "
    'sys.exit(c.renameat2(-100, a, -100, b, 2) and ctypes.get_errno())"'
)


@pytest.fixture(scope="module")
def levels(oci_world: OciWorld) -> Iterator[Inside]:
    """Two denied paths, one of them three levels down, none of which exists beforehand."""
    grant = grant_for(
        oci_world, Profile.AGENT, deny=("/workspace/a/b/c", "/workspace/a/x", "/tmp/t/u")
    )
    with leased(oci_world) as tree, entered(oci_world, grant, tree) as made:
        yield made


@pytest.mark.parametrize("path", ["a/b/c", "a/x", "/tmp/t/u"])
@pytest.mark.parametrize(
    "act",
    [
        "echo x > {}/f",
        "mkdir {}/d",
        "ln -s /etc {}/l",
        "mknod {}/p p",
        "chmod 0777 {}",
        "chown 7 {}",
        "touch {}",
        "rmdir {}",
        "mv {} /workspace/moved",
        "mv -T /workspace/empty {}",
        "cp -r /workspace/full {}/",
        "python3 -c \"import os; os.setxattr('{}', 'user.x', bytes(1))\"",
    ],
)
def test_nothing_changes_at_or_below_a_denied_path(levels: Inside, path: str, act: str) -> None:
    levels.run("cd /workspace; mkdir -p empty full other; echo 1 > full/f").value  # noqa: B018
    assert levels.run(act.format(path)).value not in (0, 127, None)
    assert levels.says(f"ls -A {path}") == ""
    # Control: the same act on a directory beside it.
    levels.run("rm -rf /workspace/other /workspace/moved; mkdir /workspace/other")
    assert levels.run(act.format("/workspace/other")).value == 0


@pytest.mark.parametrize("parent", ["a", "a/b", "/tmp/t"])
def test_no_ancestor_of_a_denied_path_moves(levels: Inside, parent: str) -> None:
    levels.run("mkdir -p /workspace/other /workspace/second /tmp/other /tmp/second")
    beside = "/tmp" if parent.startswith("/tmp") else "/workspace"
    for act in (
        f"mv {parent} {beside}/away",
        f"mv -T {beside}/other {parent}",
        f"{EXCHANGE} {parent} {beside}/other",
        f"{EXCHANGE} {beside}/other {parent}",
        f"rm -rf {parent}",
        f"rmdir {parent}",
        f"ln -sfn /etc {parent} && test -L {parent}",
    ):
        assert levels.run(act).value not in (0, 127, None), act
        assert levels.run(f"test -d {parent} && ! test -L {parent}").value == 0, act
    for act in (
        f"mv {beside}/second {beside}/third && mv {beside}/third {beside}/second",
        f"{EXCHANGE} {beside}/other {beside}/second",
        f"mkdir -p {parent}/new && echo x > {parent}/new/f && rm -r {parent}/new",
    ):
        assert levels.run(act).value == 0, act


def test_no_hard_link_leads_into_or_out_of_a_denied_path(oci_world: OciWorld) -> None:
    with leased(oci_world) as tree:
        with entered(oci_world, grant_for(oci_world, Profile.AGENT, deny=()), tree) as wide:
            assert wide.run("mkdir -p .git/hooks; echo old > .git/hooks/h; echo 1 > f").value == 0
        with entered(oci_world, grant_for(oci_world, Profile.AGENT), tree) as made:
            assert made.run("ln .git/hooks/h out").value not in (0, None)
            assert made.run("ln f .git/hooks/in").value not in (0, None)
            assert made.run("ln f g && ln .git/hooks/../../f i").value == 0
            # By a descriptor that was opened for reading, as well.
            link = (
                "import os; d = os.open('.git/hooks/h', os.O_RDONLY); "
                "os.link(f'/proc/self/fd/{d}', 'out', follow_symlinks=True)"
            )
            assert made.run(f'python3 -c "{link}"').value not in (0, None)
            reopen = "exec 3< .git/hooks/h; echo new > /proc/self/fd/3"
            assert made.run(reopen).value not in (0, None)
            assert made.says("cat .git/hooks/h") == "old"


def test_a_hard_link_of_the_source_leads_to_nothing_that_is_denied(
    oci_world: OciWorld, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("old\n")
    os.link(tmp_path / "d" / "f", tmp_path / "e")
    spec = replace(spec_for(f"ls_{secrets.token_hex(8)}"), source=str(tmp_path))
    oci_world.workspaces.create(spec)
    tree = oci_world.workspaces.attach(spec).tree
    grant = grant_for(oci_world, Profile.AGENT, deny=("/workspace/d",))
    try:
        with entered(oci_world, grant, tree) as made:
            assert made.run("echo new > d/f").value not in (0, None)
            assert made.run("echo new > e").value == 0
            assert made.says("cat e d/f") == "new\nold"
    finally:
        oci_world.engine.release(tree.lease_id)


def test_deny_holds_below_a_narrower_write(oci_world: OciWorld) -> None:
    grant = grant_for(
        oci_world,
        Profile.AGENT,
        read=("/workspace",),
        write=("/workspace/w", "/workspace/only"),
        deny=("/workspace/w/d", "/workspace/only"),
    )
    with leased(oci_world) as tree, entered(oci_world, grant, tree) as made:
        assert made.run("echo x > w/f && mkdir -p w/e/d && echo x > w/e/d/f").value == 0
        for act in ("echo x > w/d/f", "mv w v", "mv w/d w/g", "rmdir w/d", "echo x > only/f"):
            assert made.run(act).value not in (0, None), act
        assert made.run("echo x > elsewhere").value not in (0, None)


def test_a_denied_file_stays_as_it_is(oci_world: OciWorld) -> None:
    with leased(oci_world) as tree:
        with entered(oci_world, grant_for(oci_world, Profile.AGENT, deny=()), tree) as wide:
            assert wide.run("mkdir c; echo old > c/lock; echo old > c/other").value == 0
        grant = grant_for(oci_world, Profile.AGENT, deny=("/workspace/c/lock",))
        with entered(oci_world, grant, tree) as made:
            for act in (
                "echo x > {}", "echo x >> {}", "rm -f {}", "mv {} c/m", "ln {} c/n",
                "echo x > c/t; mv -f c/t {}", "sed -i s/old/new/ {}", "chmod 0 {}", "truncate -s 0 {}",
            ):  # fmt: skip
                assert made.run(act.format("c/lock")).value not in (0, None), act
            assert made.says("cat c/lock") == "old"
            assert made.run("sed -i s/old/new/ c/other && rm c/other").value == 0


GIT = """
set -e
export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=n
export GIT_CONFIG_KEY_1=user.email GIT_CONFIG_VALUE_1=e@example.org
export GIT_CONFIG_KEY_2=init.defaultBranch GIT_CONFIG_VALUE_2=main
git init -q .
echo 1 > f; git add f; git commit -qm first
git branch side; git checkout -q side; echo 2 > g; git add g; git commit -qm second
git checkout -q main; echo 3 > f; git commit -qam third; git merge -q --no-edit side
git worktree add -q ../workspace/tree side; echo 4 > tree/g; git -C tree commit -qam fourth
git worktree remove tree; git tag v1; git stash -q || true
git clone -q . /tmp/copy; git clone -q . clone; git -C clone fetch -q; git -C clone log -1 --format=%s
echo 5 > f; git stash -q; git stash pop -q; git checkout -q f; git rebase -q side~1 main
git gc -q --prune=now; git fsck --strict 2>&1 | grep -v dangling || true
rm -rf clone; git mv f h; git commit -qm fifth; git reset -q --hard HEAD~1; git reflog -q expire --all || true
git log --format=%s | wc -l
"""


@pytest.mark.parametrize("profile", list(Profile))
def test_git_works_where_its_hooks_are_denied(oci_world: OciWorld, profile: Profile) -> None:
    with leased(oci_world) as tree:
        with entered(oci_world, grant_for(oci_world, profile), tree) as made:
            done = made.run(GIT, timeout_ms=60_000)
            said = (done.stdout.head + done.stderr.head).decode()
            assert done.value == 0, said
            assert made.says("git -C /workspace status --short") == ""
            assert made.run("git config core.fsmonitor x; echo x > .git/hooks/h").value != 0
            assert made.says("git log --format=%s") != ""
        # The control: without the denial the hook is there at once, and git runs it.
        with entered(oci_world, grant_for(oci_world, profile, deny=()), tree) as wide:
            hook = "printf '#!/bin/sh\\necho ran\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/*"
            assert wide.run(hook).value == 0
            assert "ran" in wide.says(
                "git -c user.name=n -c user.email=e commit --allow-empty -m x"
            )


def test_an_absent_prefix_is_made_as_an_empty_directory_of_the_leases_user(
    oci_world: OciWorld,
) -> None:
    prefixes = ("/workspace/deep/er", "/tmp/own")
    grant = grant_for(oci_world, Profile.STRICT, read=prefixes, write=prefixes)
    old = os.umask(0o077)  # the daemon's own must not matter
    try:
        with leased(oci_world) as tree, entered(oci_world, grant, tree) as made:
            for path in ("workspace/deep", "workspace/deep/er", "tmp/own"):
                info = os.stat(path, dir_fd=tree.root_fd)
                assert (info.st_uid, info.st_gid) == (tree.uid_base, tree.uid_base)
                assert stat.S_IMODE(info.st_mode) == 0o755
            assert (
                made.says("stat -c '%u %g %a' deep/er /tmp/own") == "1000 1000 755\n1000 1000 755"
            )
            assert made.says("ls -A deep/er") == ""
            assert made.run("echo x > deep/er/f && echo x > /tmp/own/f").value == 0
    finally:
        os.umask(old)


LEFT = {
    "a link to the host": "ln -s /etc p",
    "a link to a sibling": "mkdir s; ln -s s p",
    "a link that leads nowhere": "ln -s nowhere p",
    "a FIFO": "mkfifo p",
    "a file": "echo x > p",
    "a socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('p')\"",
}


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize(("path", "component"), [("p", "scope.read"), ("p/q", "scope.write")])
def test_a_prefix_that_is_no_directory_can_not_be_satisfied(
    oci_world: OciWorld, left: str, path: str, component: str
) -> None:
    with leased(oci_world) as tree:
        with entered(oci_world, grant_for(oci_world, Profile.AGENT), tree) as wide:
            assert wide.run(LEFT[left]).value == 0
        writes = (f"/workspace/{path}",) if component == "scope.write" else ()
        grant = grant_for(
            oci_world, Profile.AGENT, read=(f"/workspace/{path}",), write=writes, deny=()
        )
        with pytest.raises(Failure) as refused, entered(oci_world, grant, tree):
            pass
        assert refused.value.fault.code is Code.UNENFORCEABLE
        assert refused.value.fault.rule == "scope"
        assert f"/workspace/{path}" in refused.value.fault.message


@pytest.mark.parametrize("left", [name for name in LEFT if name != "a file"])
@pytest.mark.parametrize("path", ["p", "p/q"])
def test_a_denied_path_that_is_no_directory_can_not_be_satisfied(
    oci_world: OciWorld, left: str, path: str
) -> None:
    with leased(oci_world) as tree:
        with entered(oci_world, grant_for(oci_world, Profile.AGENT), tree) as wide:
            assert wide.run(LEFT[left]).value == 0
        grant = grant_for(oci_world, Profile.AGENT, deny=(f"/workspace/{path}",))
        with pytest.raises(Failure) as refused, entered(oci_world, grant, tree):
            pass
        fault = refused.value.fault
        assert (fault.code, fault.rule) == (Code.UNENFORCEABLE, "deny")


def test_deny_holds_where_a_part_of_the_tree_is_executable(oci_world: OciWorld) -> None:
    grant = grant_for(
        oci_world,
        Profile.AGENT,
        execute=("/usr", "/workspace/p/q/run"),
        deny=("/workspace/p/q/run/d",),
    )
    with leased(oci_world) as tree, entered(oci_world, grant, tree) as made:
        made.run("mkdir -p other/q/run/d").value  # noqa: B018
        for act in (
            "echo x > p/q/run/d/f",
            "mv p/q/run p/q/away",
            "mv p/q p/away",
            "mv p away",
            f"{EXCHANGE} p other",
            f"{EXCHANGE} p/q other/q",
        ):
            assert made.run(act).value not in (0, 127, None), act
        # Controls: beside it, and that the part is a tree of its own.
        assert made.run("mv other/q other/away && mv other/away other/q && mv other o").value == 0
        for place, status in (("p/q/run", 0), ("p/q", 126), (".", 126)):
            assert made.run(f"cp /usr/bin/true {place}/t && {place}/t").value == status, place


def test_an_executable_part_is_not_moved_to_another_name(oci_world: OciWorld) -> None:
    """Its mount would go along with the directory above it: programs ran where none may."""
    grant = grant_for(oci_world, Profile.AGENT, execute=("/usr", "/workspace/p/q/run"), deny=())
    with leased(oci_world) as tree, entered(oci_world, grant, tree) as made:
        made.run("mkdir -p other/q/run && cp /usr/bin/true p/q/run/t").value  # noqa: B018
        for act in (
            "mv p/q p/away",
            "mv p away",
            "rm -rf p/q",
            f"{EXCHANGE} p other",
            f"{EXCHANGE} p/q other/q",
        ):
            assert made.run(act).value not in (0, 127, None), act
        made.run("cp /usr/bin/true p/q/run/t; cp /usr/bin/true p/q/t").value  # noqa: B018
        assert made.run("p/q/run/t").value == 0
        assert made.run("p/q/t").value == 126
        # Controls: what holds no such part moves, and the part's own directories can be used.
        assert made.run("mv other/q other/away && mv other o").value == 0
        assert made.run("mkdir p/q/run/d && mv p/q/run/d p/q/run/e && mv p/q/t p/t").value == 0


def test_deny_holds_where_the_executable_part_itself_is_denied(oci_world: OciWorld) -> None:
    grant = grant_for(
        oci_world,
        Profile.AGENT,
        execute=("/usr", "/workspace/p/q/run", "/workspace/p/o/x/run"),
        deny=("/workspace/p/q/run", "/workspace/p/o/x"),
    )
    with leased(oci_world) as tree, entered(oci_world, grant, tree) as made:
        made.run("mkdir -p other/q/run").value  # noqa: B018
        for act in (
            "echo x > p/q/run/f",
            "echo x > p/o/x/run/f",
            "mv p/q/run p/q/away",
            "mv p/q p/away",
            "mv p/o p/away",
            "mv p away",
            f"{EXCHANGE} p other",
            f"{EXCHANGE} p/q other/q",
        ):
            assert made.run(act).value not in (0, 127, None), act
        assert made.run("echo x > p/q/f && mv other/q other/away && mv other o").value == 0


def test_deny_holds_where_its_tree_lies_in_a_private_tmp(oci_world: OciWorld) -> None:
    trees = ("/workspace", "/tmp/x/y")
    grant = grant_for(
        oci_world, Profile.AGENT, read=trees, write=trees, deny=("/tmp/x/y/d/e", "/tmp/x/y/f")
    )
    with leased(oci_world) as tree, entered(oci_world, grant, tree) as made:
        made.run("mkdir -p /tmp/other/y/d/e").value  # noqa: B018
        for act in (
            "echo x > /tmp/x/y/f/f",
            "mv /tmp/x/y/d /tmp/x/y/away",
            "mv /tmp/x/y /tmp/x/away",
            "mv /tmp/x /tmp/away",
            f"{EXCHANGE} /tmp/x /tmp/other",
        ):
            assert made.run(act).value not in (0, 127, None), act
        assert made.run("mv /tmp/other/y /tmp/other/z && mv /tmp/other /tmp/o").value == 0
        assert made.run("echo x > /tmp/x/y/g && rm /tmp/x/y/g").value == 0


def test_as_many_paths_as_a_grant_holds_are_denied(oci_world: OciWorld) -> None:
    names = [f"/workspace/p{index}/q/r" for index in range(64)]
    grant = grant_for(oci_world, Profile.AGENT, deny=tuple(names))
    with leased(oci_world) as tree, entered(oci_world, grant, tree) as made:
        left = (
            "for d in p*/q; do echo x 2>/dev/null >$d/r/f || mv $d x 2>/dev/null || echo $d; done"
        )
        assert len(made.says(left).split()) == 64

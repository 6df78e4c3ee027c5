"""Walls that hang on directories of a workspace, while other sandboxes of the lease move these.

Inside a sandbox its mount points can't be moved. Another sandbox of the lease, under a capability
that is wider there, may move them, and would take the walls along. The flow must notice before the
next call; while a sandbox is made, a swap must not choose what is mounted.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from stockade.decide.compile import compile_plan, plan_digest
from stockade.flow.sandboxes import Sandboxes
from stockade.terms.call import Capture, ExecOperation
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Grant, Profile
from stockade.terms.plan import Kind
from stockade.terms.ports import ExecContext, LeaseTree
from tests.security.inside import Inside, entered, grant_for, leased, plan_of
from tests.worlds import OciWorld

Call = Callable[[Grant, str], str]
PATTERN = r"""
while :; do
  mv -T p kept; ln -sT /etc p; rm p
  mkfifo p; rm p
  echo file > p; rm p
  mkdir p; echo other > p/other; rm -r p
  ln -sT secret p; rm p
  rmdir p; mv -T kept p
done
"""


@contextmanager
def flowing(world: OciWorld, tree: LeaseTree) -> Iterator[Call]:
    """call(grant, line): what a shell line prints in the sandbox that the flow gives it."""
    sandboxes = Sandboxes(world.engine)

    def call(grant: Grant, line: str) -> str:
        plan = plan_of(world, grant)
        with sandboxes.use(tree, plan, plan_digest(plan), 8, world.patience()) as sandbox:
            return Inside(world, tree, sandbox).says(line)

    try:
        yield call
    finally:
        sandboxes.close_lease(tree.lease_id)


MOVES = {
    "the parent is renamed": "mv .git g && mkdir -p .git/hooks",
    "the parent is removed": "rm -rf .git && mkdir -p .git/hooks",
    "the parent is replaced around the denied directory": (
        "mkdir n && mv .git g && mv -T n .git && mv g/hooks .git/hooks"
    ),
    "the denied directory is renamed": "mv .git/hooks .git/h && mkdir .git/hooks",
    "the denied directory is removed": "rmdir .git/hooks && mkdir .git/hooks",
    "both, and nothing is there any more": "rm -rf .git",
}


@pytest.mark.parametrize("move", MOVES)
def test_a_denial_holds_after_a_wider_call_moved_what_it_hangs_on(
    oci_world: OciWorld, move: str
) -> None:
    denying = grant_for(oci_world, Profile.AGENT)
    wide = grant_for(oci_world, Profile.AGENT, deny=())
    with leased(oci_world) as tree, flowing(oci_world, tree) as call:
        assert "Read-only" in call(denying, "echo x > .git/hooks/h")
        assert call(wide, f"{MOVES[move]} && echo done") == "done"
        assert "Read-only" in call(denying, "echo x > .git/hooks/h")
        assert call(denying, "mv -T .git g2 2>/dev/null || echo held") == "held"
        assert call(wide, "echo x > .git/hooks/h && cat .git/hooks/h") == "x"


def test_a_sandbox_that_nothing_moved_is_used_again(oci_world: OciWorld) -> None:
    denying = grant_for(oci_world, Profile.AGENT)
    wide = grant_for(oci_world, Profile.AGENT, deny=())
    with leased(oci_world) as tree, flowing(oci_world, tree) as call:
        assert call(denying, "echo mine > $HOME/f; cat $HOME/f") == "mine"
        # HEAD is replaced by renames, and the directories get entries and other modes.
        work = "git init -q; echo 1 > f; chmod 700 .git/hooks; touch .git/hooks/h; mkdir .git/x"
        assert call(wide, f"{work}; mv .git g; mv g .git; echo done").endswith("done")
        assert call(denying, "cat $HOME/f") == "mine"


def test_a_granted_subtree_is_the_one_of_that_name(oci_world: OciWorld) -> None:
    """Renamed, it is no longer what the narrower capability is for."""
    wide = grant_for(oci_world, Profile.AGENT, deny=())
    for profile in Profile:
        narrow = grant_for(oci_world, profile, read=("/workspace/sub",), write=(), deny=())
        with leased(oci_world) as tree, flowing(oci_world, tree) as call:
            assert call(narrow, "ls -A sub") == ""
            moved = "mv sub secret && echo s > secret/s && mkdir sub && echo o > sub/o"
            assert call(wide, f"{moved} && echo done") == "done"
            assert call(narrow, "ls sub; cat sub/*") == "o\no"


def test_a_search_looks_at_what_has_the_name_now(oci_world: OciWorld) -> None:
    wide = grant_for(oci_world, Profile.AGENT, deny=())
    narrow = grant_for(oci_world, Profile.AGENT, read=("/workspace/sub",), write=(), execute=())
    plan = compile_plan(narrow, Kind.SEARCH, oci_world.policy, image="", image_env={}, lease_env=())
    operation = ExecOperation(
        kind=Kind.SEARCH,
        paths=(b"/run/stockade/rg/ld.so",),
        argv=(
            *(b"ld.so", b"--library-path", b"/run/stockade/rg", b"/run/stockade/rg/rg"),
            *(b"--no-heading", b"needle", b"/workspace/sub"),
        ),
        env=(),
        cwd=b"/workspace",
        timeout_ms=20_000,
        capture=Capture(65536, 65536, 0),
    )
    sandboxes = Sandboxes(oci_world.engine)
    with leased(oci_world) as tree, flowing(oci_world, tree) as call:
        try:

            def search() -> bytes:
                walls = plan, plan_digest(plan), 8, oci_world.patience()
                with sandboxes.use(tree, *walls) as sandbox:
                    context = ExecContext(tree.lease_id, oci_world.cancel(), oci_world.artifacts)
                    return sandbox.execute(operation, context).stdout.head

            assert call(wide, "mkdir sub; echo needle 1 > sub/f; echo done") == "done"
            assert search().endswith(b"needle 1\n")
            moved = "mv sub secret; echo needle 2 > secret/f; mkdir sub; echo needle 3 > sub/f"
            assert call(wide, f"{moved}; echo done") == "done"
            assert search().endswith(b"sub/f:needle 3\n")
        finally:
            sandboxes.end(tree.lease_id)


@contextmanager
def swapping(made: Inside, script: str) -> Iterator[None]:
    """`script` runs in a sandbox for as long as the block."""
    assert (
        made.run(f"setsid bash -c {shlex.quote(script)} >/dev/null 2>&1 & echo $! > /tmp/pid").value
        == 0
    )
    try:
        yield
    finally:
        made.run("kill -9 -$(cat /tmp/pid)")


def test_a_swap_while_sandboxes_start_never_chooses_what_is_mounted(oci_world: OciWorld) -> None:
    wide = grant_for(oci_world, Profile.AGENT, deny=())
    narrow = grant_for(oci_world, Profile.AGENT, read=("/workspace/p",), write=(), deny=())
    codes: set[Code] = set()
    with leased(oci_world) as tree, entered(oci_world, wide, tree) as attacker:
        attacker.run("mkdir -p p secret; echo mine > p/mine; echo s > secret/s")
        with swapping(attacker, PATTERN):
            for _ in range(30):
                try:
                    with entered(oci_world, narrow, tree) as made:
                        seen = set(made.says("ls -A p").split())
                        assert seen <= {"mine", "other"}, seen
                        assert made.run("echo x > p/f").value != 0
                except Failure as refused:
                    codes.add(refused.fault.code)
    assert codes <= {Code.UNENFORCEABLE, Code.SANDBOX_UNAVAILABLE}
    assert codes, "not one of 30 met the swap: the test shows nothing"


def test_a_swap_while_a_denying_sandbox_starts(oci_world: OciWorld) -> None:
    """Whatever comes of it, a sandbox that the flow would use holds the denial."""
    wide = grant_for(oci_world, Profile.AGENT, deny=())
    denying = grant_for(oci_world, Profile.AGENT)
    script = "cd /workspace; while :; do mv .git g; mkdir -p .git/hooks; rm -rf g; done"
    met = 0
    with leased(oci_world) as tree, entered(oci_world, wide, tree) as attacker:
        attacker.run("mkdir -p .git/hooks")
        for _ in range(12):
            with ExitStack() as held:
                made = None
                with swapping(attacker, script), suppress(Failure):
                    made = held.enter_context(entered(oci_world, denying, tree))
                if made is None or not made.sandbox.alive():
                    met += 1
                    continue
                assert made.run("echo x > .git/hooks/h").value != 0
                assert made.run("mv .git away").value != 0
    assert met, "not one of 12 met the swap: the test shows nothing"


def test_the_descriptors_of_a_sandbox_end_with_it(oci_world: OciWorld) -> None:
    def held() -> int:
        found = 0
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                found += "/.git" in os.readlink(f"/proc/self/fd/{fd}")
        return found

    with leased(oci_world) as tree:
        with entered(oci_world, grant_for(oci_world, Profile.AGENT), tree):
            assert held() == 2
        assert held() == 0

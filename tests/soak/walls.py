"""Random walls in real sandboxes, and an attacker in each of them.

    python -m tests.soak.walls [--seed N] [--count 300]

For each case a lease with some of the paths there and some not: the attacker inside, a search, and
the host's file tools try every path; then a wider call moves directories, and they try again. What
succeeded, and what the lease's tree was before and after, must be what the reference says: nothing
more, and nothing less.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from stockade.decide.compile import compile_plan, plan_digest
from stockade.flow.sandboxes import Sandboxes
from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.terms.call import Capture, ExecOperation
from stockade.terms.fault import Code, Failure
from stockade.terms.outcome import ExecOutcome
from stockade.terms.pathname import to_bytes, to_text
from stockade.terms.plan import Kind
from stockade.terms.ports import ExecContext, LeaseTree, PathScope
from tests.soak.wall_plans import TOPS, Walls, above, drawn, parts, within
from tests.worlds import OciWorld

ATTACKER = Path(__file__).with_name("wall_attacker.py")
PROGRAM = b"#!/usr/bin/true\n"
MARK = b"at "
_RG = b"/run/stockade/rg/"
_SEARCH = (b"-uuu", b"--no-heading", b"-aoN", MARK + b".*", b"/workspace", b"/tmp")


class Broken(AssertionError):
    """The text names the seed, the case, the walls and what differs."""


State = tuple[int, int, int, bytes, int]


class Judge:
    def __init__(self, world: OciWorld, moves: int = 20) -> None:
        self._world = world
        self._sandboxes = Sandboxes(world.engine)
        self._moves = moves
        self.tally: Counter[str] = Counter()

    def case(self, seed: int, number: int, built: Callable[[Walls], Walls] = lambda w: w) -> None:
        """`built` gives the walls that are built where the drawn ones are promised. Raises Broken."""
        dice = Random(f"{seed}:{number}")
        walls = drawn(dice)
        tree = self._world.lease()
        found: list[str] = []
        try:
            for path in walls.targets():
                if dice.random() < 0.35:
                    put(tree, path)
            for _ in range(2):
                for look in (self._attack, self._search, self._files):
                    try:
                        found += look(tree, walls, built(walls), dice)
                    except Failure as refusal:
                        found += self._refused(tree, walls, refusal)
                stir(tree, walls, dice)
        finally:
            self._sandboxes.close_lease(tree.lease_id)
            self._world.workspaces.remove(tree.lease_id)
        self.tally["cases"] += 1
        if found:
            raise Broken(f"seed {seed}, case {number}: {walls}: {found[:20]}")

    def _attack(self, tree: LeaseTree, walls: Walls, built: Walls, dice: Random) -> Iterator[str]:
        given = {
            "targets": [to_bytes(path).hex() for path in walls.targets()],
            "program": PROGRAM.hex(),
            "seed": dice.random(),
            "moves": self._moves,
        }
        argv = (b"python3", b"-IBSc", ATTACKER.read_bytes(), json.dumps(given).encode())
        before, outcome, after = self._run(tree, built, Kind.COMMAND, b"/usr/bin/python3", argv)
        if outcome.value != 0:
            raise RuntimeError(f"the attacker failed: {outcome.value} {outcome.stderr.head!r}")
        said = json.loads(outcome.stdout.head)
        self.tally["attempts"] += said["attempts"]
        claims = {(kind, to_text(bytes.fromhex(path))): ways for kind, path, ways in said["claims"]}
        seen, hidden = (
            {
                to_text(state[3])
                for path, state in before.items()
                if walls.readable(path) is readable
            }
            for readable in (True, False)
        )
        hidden -= seen
        may: dict[str, Callable[[str], bool]] = {
            "make": walls.may_change,
            "change": walls.may_change,
            "gone": walls.may_go,
            "exec": walls.may_execute,
            "read": lambda content: content not in hidden,
            "priv": lambda _: False,
        }
        for (kind, path), ways in claims.items():
            if not may[kind](path):
                yield f"inside: {kind} {path} {ways}"
        yield from changed(walls, before, after)
        # And nothing less.
        for path in set(walls.targets()) & before.keys():
            if walls.readable(path) and path + "/f" in before:
                mark = before[path + "/f"][3]
                if mark and ("read", to_text(mark)) not in claims:
                    yield f"inside: can't read {path}"
            if not stat.S_ISDIR(before[path][0]) or not walls.writable(path):
                continue
            if ("change", path) not in claims:
                yield f"inside: can't change {path}"
            fresh = path + "/.new"
            if walls.writable(fresh) and fresh not in before and ("make", fresh) not in claims:
                yield f"inside: can't make {fresh}"
            if walls.may_execute(path) and ("exec", path + "/t") not in claims:
                yield f"inside: can't execute in {path}"

    def _search(self, tree: LeaseTree, walls: Walls, built: Walls, _: Random) -> Iterator[str]:
        argv = (b"ld.so", b"--library-path", _RG[:-1], _RG + b"rg", *_SEARCH)
        before, outcome, _after = self._run(tree, built, Kind.SEARCH, _RG + b"ld.so", argv)
        for path, state in before.items():
            if state[3].startswith(MARK):
                seen = to_bytes(path) + b":" in outcome.stdout.head
                if seen != walls.readable(path):
                    yield f"search: {path} seen: {seen}"

    def _files(self, tree: LeaseTree, walls: Walls, built: Walls, _: Random) -> Iterator[str]:
        granted = built.grant(self._world.policy)
        scope = PathScope(granted.scope.read, granted.scope.write, granted.deny)
        files = LeaseFiles(tree.root_fd, FileLocks(), tree.uid_base)
        before = snapshot(tree)
        for target in walls.targets():
            for path in (target, target + "/f", target + "/.put"):
                if leads_through_a_link(tree, path):
                    continue
                self.tally["file tools"] += 2
                may = walls.writable(path) and not above(path, walls.deny)
                if (code := answer(lambda: files.write(path, iter([b"x"]), scope))) in (  # noqa: B023
                    (Code.RIGHT_NOT_GRANTED,) if may else (None,)
                ):
                    yield f"files: write {path}: {code}"
                if (code := answer(lambda: list(files.read(path, scope)[1]))) in (  # noqa: B023
                    (Code.RIGHT_NOT_GRANTED,) if walls.readable(path) else (None,)
                ):
                    yield f"files: read {path}: {code}"
        yield from changed(walls, before, snapshot(tree))

    def _run(
        self, tree: LeaseTree, walls: Walls, kind: Kind, program: bytes, argv: tuple[bytes, ...]
    ) -> tuple[dict[str, State], ExecOutcome, dict[str, State]]:
        world = self._world
        image, env = ("host", {"PATH": "/usr/bin"}) if kind is Kind.COMMAND else ("", {})
        grant = walls.grant(world.policy)
        plan = compile_plan(grant, kind, world.policy, image=image, image_env=env, lease_env=())
        operation = ExecOperation(
            kind=kind,
            paths=(program,),
            argv=argv,
            env=(),
            cwd=b"/",
            timeout_ms=60_000,
            capture=Capture(1 << 20, 1 << 16, 0),
        )
        with self._sandboxes.use(tree, plan, plan_digest(plan), 8, world.patience()) as sandbox:
            before = snapshot(tree)
            context = ExecContext(tree.lease_id, world.cancel(), world.artifacts)
            outcome = sandbox.execute(operation, context)
        self.tally[kind.value] += 1
        return before, outcome, snapshot(tree)

    def _refused(self, tree: LeaseTree, walls: Walls, refusal: Failure) -> Iterator[str]:
        named = (*walls.read, *walls.write, *walls.execute, *walls.deny)
        in_the_way = any(not_a_directory(tree, path) for path in named if within(path, TOPS))
        if refusal.fault.code is not Code.UNENFORCEABLE or not (
            in_the_way or walls.can_be_refused()
        ):
            yield f"refused: {refusal.fault}"
        self.tally["refused"] += 1


def answer(act: Callable[[], object]) -> Code | None:
    try:
        act()
    except Failure as refusal:
        return refusal.fault.code
    return None


def changed(walls: Walls, before: dict[str, State], after: dict[str, State]) -> Iterator[str]:
    """What differs in the lease's tree and should not."""
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old == new or path in TOPS:
            continue
        if walls.writable(path):
            if (
                old
                and not walls.may_go(path)
                and (not new or stat.S_IFMT(old[0]) != stat.S_IFMT(new[0]))
            ):
                yield f"tree: {path} lost its place"
        elif not (old and new and old[:-1] == new[:-1] and above(path, walls.write)):
            yield f"tree: {path} changed from {old} to {new}"


def snapshot(tree: LeaseTree) -> dict[str, State]:
    """Of each path: mode, owner, names, content, time of the last change."""
    found: dict[str, State] = {}
    root = b"/proc/self/fd/%d/." % tree.root_fd
    for directory, inner, names in os.walk(root):
        for name in (*inner, *names):
            place = directory + b"/" + name
            state = os.lstat(place)
            content = b""
            if stat.S_ISLNK(state.st_mode):
                content = os.readlink(place)
            elif stat.S_ISREG(state.st_mode):
                with open(place, "rb") as file:
                    content = file.read(4096)
            links = 0 if stat.S_ISDIR(state.st_mode) else state.st_nlink
            path = to_text(place[len(root) :])
            found[path] = (state.st_mode, state.st_uid, links, content, state.st_mtime_ns)
    return found


def at(tree: LeaseTree, path: str) -> bytes:
    return b"/proc/self/fd/%d" % tree.root_fd + to_bytes(path)


def levels(path: str) -> list[str]:
    names = parts(path)
    return ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]


def leads_through_a_link(tree: LeaseTree, path: str) -> bool:
    return any(os.path.islink(at(tree, level)) for level in levels(path))


def not_a_directory(tree: LeaseTree, path: str) -> bool:
    places = [at(tree, level) for level in levels(path)]
    return any(os.path.lexists(p) and (os.path.islink(p) or not os.path.isdir(p)) for p in places)


def put(tree: LeaseTree, path: str) -> None:
    """The directory with its parents, in each a marked file and a program."""
    for level in levels(path):
        place = at(tree, level)
        with suppress(FileExistsError):
            os.mkdir(place)
            os.chown(place, tree.uid_base, tree.uid_base)
        if level in TOPS:
            continue
        for name, content, mode in (
            (b"/f", MARK + to_bytes(level) + b"/f", 0o644),
            (b"/t", PROGRAM, 0o755),
        ):
            with suppress(OSError):
                fd = os.open(place + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
                os.write(fd, content)
                os.fchown(fd, tree.uid_base, tree.uid_base)
                os.fchmod(fd, mode)
                os.close(fd)


def stir(tree: LeaseTree, walls: Walls, dice: Random) -> None:
    """What a wider call may do: a rename here moves a mount there just the same."""
    for _ in range(dice.randint(1, 6)):
        one, other = (dice.choice(walls.targets()) for _ in range(2))
        place = at(tree, one)
        with suppress(OSError):
            match dice.choice(["rename", "remove", "make", "make", "anew", "anew", "link"]):
                case "rename":
                    os.rename(place, at(tree, other))
                case "remove":
                    shutil.rmtree(place)
                case "make":
                    put(tree, one)
                case "anew":
                    os.rename(place, place + b"~")
                    put(tree, one)
                case "link":
                    os.symlink(to_bytes(other), place)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.walls", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="stockade-walls-", dir="/var/tmp"))
    world = OciWorld(directory)
    try:
        judge = Judge(world)
        for number in range(options.first, options.first + options.count):
            judge.case(options.seed, number)
        print(f"{dict(judge.tally)} in {time.monotonic() - started:.0f} s")
    finally:
        world.close()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()

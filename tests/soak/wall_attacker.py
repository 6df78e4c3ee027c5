"""Runs inside a sandbox and tries everything at every path that it is given (tests/soak/walls.py).

It knows nothing of what is granted. What succeeded is printed as [kind, path, ways]: `make` of what
was absent, `change` of what was there, `gone` from its name, `read`, `exec`, and `priv` for what no
sandbox may do. A path is the one that the kernel reached, without links. What is changed is put back
as far as that goes; after each move everything that must hold is tried again under its own name.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
TOPS = (b"/workspace", b"/tmp")
AT_CWD = -100
EXCHANGE = 2
OPEN_TREE = 428  # on every architecture
CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY


class Attacker:
    def __init__(self, targets: list[bytes], program: bytes, dice: random.Random) -> None:
        self.targets = targets
        self.program = program
        self.dice = dice
        self.attempts = 0
        self.claims: dict[tuple[str, bytes], set[str]] = {}
        self.own: list[bytes] = []

    def claim(self, kind: str, way: str, path: bytes) -> None:
        self.claims.setdefault((kind, path), set()).add(way)

    def tries(self, kind: str, way: str, path: bytes, act: Callable[[], Any]) -> bool:
        self.attempts += 1
        try:
            act()
        except (OSError, ValueError):
            return False
        above, name = os.path.split(path)
        self.claim(kind, way, os.path.join(os.path.realpath(above), name))
        return True

    def run(self, moves: int) -> None:
        self.look()
        for directory in (*TOPS, *self.targets):
            with suppress(OSError):
                create(directory + b"/.own")
                self.own.append(directory + b"/.own")
        for path in self.targets:
            self.make(path)
            self.make(path + b"/.new")
            for changed in (path, path + b"/f", path + b"/t"):
                self.change(changed)
        self.execute()
        self.privileged()
        for path in self.targets:
            self.take(path)
            self.take(path + b"/f")
        self.move(moves)
        self.look()

    # --- one path

    def make(self, path: bytes) -> None:
        if os.path.lexists(path):
            return
        above, name = os.path.split(path)

        def by_directory(flags: int, through: bool) -> None:
            with opened(above, flags | os.O_DIRECTORY) as fd:
                if through:
                    create(b"/proc/self/fd/%d/%s" % (fd, name))
                else:
                    os.close(os.open(name, CREATE, dir_fd=fd))

        def unnamed(directories: list[bytes]) -> None:
            for directory in directories:
                with suppress(OSError), opened(directory, os.O_TMPFILE | os.O_WRONLY) as fd:
                    os.link(b"/proc/self/fd/%d" % fd, path, follow_symlinks=True)
                    return
            raise OSError

        def of_own(act: Callable[[bytes, bytes], None]) -> None:
            for source in self.own:
                with suppress(OSError):
                    act(source, path)
                    return
            raise OSError

        ways: dict[str, Callable[[], Any]] = {
            "create": lambda: create(path),
            "mkdir": lambda: os.mkdir(path),
            "symlink": lambda: os.symlink(b"/etc", path),
            "fifo": lambda: os.mkfifo(path),
            "by the root": lambda: create(b"/proc/self/root" + path),
            "by a directory": lambda: by_directory(os.O_PATH, False),
            "by /proc/self/fd": lambda: by_directory(os.O_RDONLY, True),
            "unnamed": lambda: unnamed([above]),
            "unnamed elsewhere": lambda: unnamed([os.path.dirname(own) for own in self.own]),
            "link": lambda: of_own(os.link),
            "rename": lambda: of_own(os.rename),
        }
        for way, act in ways.items():
            if self.tries("make", way, path, act):
                remove(path)

    def change(self, path: bytes) -> None:
        try:
            state = os.lstat(path)
        except OSError:
            return
        if stat.S_ISLNK(state.st_mode):
            return
        mode = stat.S_IMODE(state.st_mode)
        times = (state.st_atime_ns, state.st_mtime_ns)

        def attribute() -> None:
            os.setxattr(path, b"user.x", b"1")
            os.removexattr(path, b"user.x")

        def by_descriptor(act: Callable[[int], Any]) -> None:
            with opened(path, os.O_RDONLY) as fd:
                act(fd)

        def link_out() -> None:
            for own in self.own:
                out = os.path.dirname(own) + b"/.link"
                with suppress(OSError):
                    os.link(path, out)
                    os.unlink(out)
                    return
            raise OSError

        ways: dict[str, Callable[[], Any]] = {
            "mode": lambda: os.chmod(path, mode),
            "owner": lambda: os.chown(path, state.st_uid, state.st_gid),
            "times": lambda: os.utime(path, ns=times),
            "attribute": attribute,
            "mode by a descriptor": lambda: by_descriptor(lambda fd: os.fchmod(fd, mode)),
        }
        if stat.S_ISREG(state.st_mode):
            ways |= {
                "open": lambda: os.close(os.open(path, os.O_WRONLY)),
                "truncate": lambda: os.truncate(path, state.st_size),
                "by /proc/self/fd": lambda: by_descriptor(
                    lambda fd: os.close(os.open(b"/proc/self/fd/%d" % fd, os.O_WRONLY))
                ),
                "link": link_out,
            }
        for way, act in ways.items():
            self.tries("change", way, path, act)

    def take(self, path: bytes) -> None:
        """Away from its name, and another thing into its place."""
        if not os.path.lexists(path):
            return
        held: set[str] = set()

        def gone(way: str, act: Callable[[], Any], back: Callable[[], Any]) -> None:
            if self.tries("gone", way, path, act):
                if way not in held:  # once is enough, wherever it went
                    held.add(way)
                    self.hold()
                with suppress(OSError):
                    back()

        for place in {os.path.dirname(path), *TOPS, *map(os.path.dirname, self.own)}:
            if place == path or place.startswith(path + b"/"):
                continue
            away, other = place + b"/.away", place + b"/.other"
            gone("rename", partial(os.rename, path, away), partial(os.rename, away, path))
            with suppress(OSError):
                os.mkdir(other)
            gone("exchange", partial(exchange, path, other), partial(exchange, path, other))
            remove(other)
        gone("remove", partial(remove, path, quiet=False), partial(os.mkdir, path))

    # --- all paths

    def hold(self) -> None:
        """Something moved: can it be made at a path that is given?"""
        for path in self.targets:
            for wanted in (path, path + b"/.new"):
                if self.tries("make", "after a move", wanted, lambda: create(wanted)):  # noqa: B023
                    remove(wanted)
            with suppress(OSError):
                os.makedirs(path)
                self.claim("make", "after a move", os.path.realpath(path))
        self.look()

    def look(self) -> None:
        for top in TOPS:
            for directory, _, names in os.walk(top):
                if b"t" in names and os.access(directory + b"/t", os.X_OK):
                    self.claim("exec", "access", directory + b"/t")
                if b"f" in names:
                    with suppress(OSError), open(directory + b"/f", "rb") as file:
                        self.claim("read", "look", file.read(4096))  # whose it is stands in it

    def execute(self) -> None:
        for directory in (*TOPS, *self.targets):
            path = directory + b"/t"
            if not os.path.lexists(path):
                with suppress(OSError):
                    create(path, self.program)
                    os.chmod(path, 0o755)

            def spawn() -> None:
                child = os.posix_spawn(path, [path], {})  # noqa: B023
                if os.waitpid(child, 0)[1]:
                    raise OSError

            self.tries("exec", "spawn", path, spawn)

    def privileged(self) -> None:
        def namespaces() -> None:
            child = os.fork()
            if child == 0:
                os._exit(0 if LIBC.unshare(0x10020000) == 0 else 1)
            if os.waitpid(child, 0)[1]:
                raise OSError

        self.tries("priv", "unshare", b"/", namespaces)
        for path in (*TOPS, *self.targets):
            for way, call in {
                "umount": partial(LIBC.umount2, path, 2),
                "bind": partial(LIBC.mount, b"/dev/shm", path, None, 0x1000, None),
                "remount": partial(LIBC.mount, None, path, None, 0x1020, None),
                "open_tree": partial(LIBC.syscall, OPEN_TREE, AT_CWD, path, 1),
            }.items():
                self.tries("priv", way, path, partial(called, call))

    def move(self, moves: int) -> None:
        acts: list[Callable[[bytes, bytes], None]]
        acts = [os.rename, os.rename, exchange, chain, os.symlink, os.link, renew]
        pool = [*self.targets, b"/workspace/.m", b"/tmp/.m"]
        for _ in range(moves):
            one, other = self.dice.choice(pool), self.dice.choice(pool)
            self.attempts += 1
            with suppress(OSError):
                self.dice.choice(acts)(one, other)
                self.hold()


def chain(one: bytes, other: bytes) -> None:
    """Away, a new one in its place, and the old one somewhere else."""
    os.rename(one, one + b"~")
    os.makedirs(one)
    os.rename(one + b"~", other)


def renew(one: bytes, _other: bytes) -> None:
    os.rmdir(one)
    os.makedirs(one)


def exchange(one: bytes, other: bytes) -> None:
    called(LIBC.renameat2, AT_CWD, one, AT_CWD, other, EXCHANGE)


def called(function: Callable[..., int], *arguments: Any) -> None:
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def create(path: bytes, content: bytes = b"") -> None:
    with opened(path, CREATE) as fd:
        os.write(fd, content)


def remove(path: bytes, *, quiet: bool = True) -> None:
    try:
        os.unlink(path)
    except OSError:
        with suppress(OSError) if quiet else nullcontext():
            os.rmdir(path)


@contextmanager
def opened(path: bytes, flags: int) -> Iterator[int]:
    fd = os.open(path, flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def main() -> None:
    given = json.loads(sys.argv[1])
    targets = [bytes.fromhex(path) for path in given["targets"]]
    dice = random.Random(given["seed"])
    attacker = Attacker(targets, bytes.fromhex(given["program"]), dice)
    attacker.run(given["moves"])
    claims = [[k, p.hex(), sorted(ways)] for (k, p), ways in sorted(attacker.claims.items())]
    json.dump({"attempts": attacker.attempts, "claims": claims}, sys.stdout)


if __name__ == "__main__":
    main()

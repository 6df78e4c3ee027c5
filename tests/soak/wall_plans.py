"""Random scopes over a few names, and what the documents promise for a path under them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from stockade.decide.blocks import normal
from stockade.decide.policy import Policy
from stockade.terms.grant import Grant, Profile

TOPS = ("/workspace", "/tmp")
NAMES = ["a", "a", "b", "b", "ab", "a-b", "\\xff", "a b"]


def parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def within(path: str, prefixes: tuple[str, ...]) -> bool:
    names = parts(path)
    return any(names[: len(parts(prefix))] == parts(prefix) for prefix in prefixes)


def above(path: str, others: tuple[str, ...]) -> bool:
    """Whether one of the others lies below the path."""
    return any(other != path and within(other, (path,)) for other in others)


@dataclass(frozen=True)
class Walls:
    """A scope, and the reference: docs/capabilities.md and docs/design.md in a few lines."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    execute: tuple[str, ...]
    deny: tuple[str, ...]
    profile: Profile

    def readable(self, path: str) -> bool:
        return within(path, self.read)

    def writable(self, path: str) -> bool:
        return self.readable(path) and within(path, self.write) and not within(path, self.deny)

    def private(self, path: str) -> bool:
        """In the sandbox's own /tmp, which is there where the lease's is not granted as a whole."""
        return within(path, ("/tmp",)) and not within("/tmp", self.read) and not self.readable(path)

    def may_change(self, path: str) -> bool:
        return self.writable(path) or self.private(path)

    def may_execute(self, path: str) -> bool:
        return within("/tmp" if self.private(path) else path, self.execute)

    def may_go(self, path: str) -> bool:
        """What leads to a denied path keeps its name, as does what a mount hangs on."""
        apart = tuple(
            prefix
            for prefix in self.execute
            if self.writable(path) and not self.may_execute(path) and self.readable(prefix)
        )
        private = self.read if self.private(path) else ()
        return self.may_change(path) and not above(path, (*self.deny, *apart, *private))

    def can_be_refused(self) -> bool:
        """A denial in a private place."""
        return any(self.private(path) for path in self.deny)

    def targets(self) -> list[str]:
        """The paths that it names, what leads to them, and what lies below and beside them."""
        found: set[str] = set()
        for path in (*self.read, *self.write, *self.execute, *self.deny):
            names = parts(path)
            if within(path, TOPS):
                found |= {"/" + "/".join(names[:depth]) for depth in range(2, len(names) + 1)}
                found.add(path + "/a")
                found.add("/" + "/".join([*names[:-1], "b"] if names[1:] else [*names, "b"]))
        return sorted(found)

    def grant(self, policy: Policy) -> Grant:
        base = policy.grant("agent")
        scope = {"read": self.read, "write": self.write, "execute": self.execute}
        return normal(
            base.model_copy(
                update={
                    "system": base.system.model_copy(update={"profile": self.profile}),
                    "scope": base.scope.model_copy(update=scope),
                    "deny": self.deny,
                }
            )
        )


def drawn(dice: Random) -> Walls:
    """Most paths are equal to, below, above or beside another one of the scope."""
    pool: list[str] = []

    def path() -> str:
        names = [dice.choice(NAMES) for _ in range(dice.randint(0, 3))]
        made = "/".join([dice.choice(["/workspace", "/workspace", "/tmp"]), *names])
        if pool and dice.random() < 0.6:
            other = dice.choice(pool)
            up = other.rsplit("/", 1)[0] or other
            made = dice.choice([other, f"{other}/{dice.choice(NAMES)}", up])
        pool.append(made)
        return made

    def some(least: int, most: int) -> list[str]:
        return [path() for _ in range(dice.randint(least, most))]

    read = some(1, 3) + [top for top in TOPS if dice.random() < 0.45]
    write = (
        read if dice.random() < 0.45 else [p for p in (*read, *some(2, 4)) if dice.random() < 0.6]
    )
    return Walls(
        read=tuple(read),
        write=tuple(p for p in write if within(p, tuple(read))),
        execute=(dice.choice(["/usr", "/usr", "/"]), *some(0, 3)),
        deny=tuple(some(0, 3)),
        profile=dice.choice([Profile.AGENT, Profile.AGENT, Profile.STRICT]),
    )

"""A real sandbox to attack from inside: one plan of the compiler on one real lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stockade.decide.compile import compile_plan, plan_digest
from stockade.terms.call import Capture, ExecOperation
from stockade.terms.grant import Grant, Profile
from stockade.terms.outcome import ExecOutcome
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import ExecContext, LeaseTree, Sandbox
from tests.worlds import OciWorld


@dataclass(frozen=True)
class Inside:
    world: OciWorld
    tree: LeaseTree
    sandbox: Sandbox

    def run(self, line: str, timeout_ms: int = 20_000) -> ExecOutcome:
        operation = ExecOperation(
            kind=Kind.COMMAND,
            paths=(b"/bin/bash",),
            argv=(b"bash", b"-c", line.encode()),
            env=(),
            cwd=b"/workspace",
            timeout_ms=timeout_ms,
            capture=Capture(65536, 65536, 0),
        )
        cancel = self.world.cancel()
        context = ExecContext(self.tree.lease_id, cancel, self.world.artifacts)
        return self.sandbox.execute(operation, context)

    def says(self, line: str) -> str:
        outcome = self.run(line)
        return (outcome.stdout.head + outcome.stderr.head).decode(errors="replace").strip()


def grant_for(
    world: OciWorld,
    profile: Profile,
    *,
    deny: tuple[str, ...] | None = None,
    **scope: tuple[str, ...],
) -> Grant:
    """The default grant with another profile, other prefixes and, if given, other denials."""
    grant = world.policy.grant("agent")
    return grant.model_copy(
        update={
            "system": grant.system.model_copy(update={"profile": profile}),
            "scope": grant.scope.model_copy(update=scope),
            "deny": grant.deny if deny is None else deny,
        }
    )


def enter(world: OciWorld, grant: Grant, tree: LeaseTree | None = None) -> Inside:
    plan = plan_of(world, grant)
    tree = tree or world.lease()
    return Inside(world, tree, world.engine.create(tree, plan, plan_digest(plan), world.patience()))


def plan_of(world: OciWorld, grant: Grant) -> SandboxPlan:
    return compile_plan(
        grant,
        Kind.COMMAND,
        world.policy,
        image="host",
        image_env={"PATH": "/usr/bin:/bin"},
        lease_env=(),
    )


@contextmanager
def leased(world: OciWorld) -> Iterator[LeaseTree]:
    """A lease, released at the end."""
    tree = world.lease()
    try:
        yield tree
    finally:
        world.engine.release(tree.lease_id)


@contextmanager
def entered(world: OciWorld, grant: Grant, tree: LeaseTree) -> Iterator[Inside]:
    """A sandbox of a lease, closed at the end."""
    made = enter(world, grant, tree)
    try:
        yield made
    finally:
        made.sandbox.close()


def python(made: Inside, code: str, *arguments: str) -> str:
    """What a Python program prints inside."""
    return made.says(f"python3 - {' '.join(arguments)} <<'END'\n{code}\nEND")

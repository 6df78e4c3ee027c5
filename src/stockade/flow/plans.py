"""Stage 4 for every call: the plan of (lease, capability, kind of work), compiled once.

A compile and the plan's digest cost about 0.2 ms, a look-up less than a microsecond. A plan
depends on the grant and on the lease's image and environment. A block's id names its grant, since
it comes from a signature over the whole chain, and a lease's image and environment never change;
so the two ids stand for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stockade.decide.compile import compile_plan, plan_digest
from stockade.decide.memory import Memory
from stockade.decide.policy import Policy
from stockade.terms.call import Permit
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.plan import Kind, SandboxPlan

_REMEMBERED: Final = 512


class Plans:
    """Thread-safe."""

    def __init__(self, policy: Policy, image_env: Mapping[str, Mapping[str, str]]) -> None:
        """`image_env` are the variables of each image."""
        self._policy = policy
        self._image_env = image_env
        self._compiled: Memory[tuple[str, str, Kind], tuple[SandboxPlan, str]] = Memory(_REMEMBERED)
        self._paths: Memory[tuple[str, str], tuple[bytes, ...]] = Memory(_REMEMBERED)

    def plan(self, record: LeaseRecord, permit: Permit, kind: Kind) -> tuple[SandboxPlan, str]:
        """The plan and its digest. Raises Failure as `compile_plan`, and Failure(unenforceable)
        for an image that isn't there."""
        key = (record.id, permit.chain[-1], kind)
        found = self._compiled.get(key)
        if found is None:
            found = self._compile(record, permit, kind)
            self._compiled.put(key, found)
        return found

    def search_path(self, record: LeaseRecord, permit: Permit) -> tuple[bytes, ...]:
        """The absolute directories of a command's PATH; nothing without the right to run one.
        Raises as `plan`."""
        if not permit.grant.scope.execute:
            return ()
        key = (record.id, permit.chain[-1])
        found = self._paths.get(key)
        if found is None:
            path = dict(self.plan(record, permit, Kind.COMMAND)[0].env).get("PATH", "")
            found = tuple(part.encode() for part in path.split(":") if part.startswith("/"))
            self._paths.put(key, found)
        return found

    def _compile(self, record: LeaseRecord, permit: Permit, kind: Kind) -> tuple[SandboxPlan, str]:
        env = self._image_env.get(record.image)
        if env is None:
            raise failure(
                Code.UNENFORCEABLE, f"there is no image {record.image}", rule="system.images"
            )
        plan = compile_plan(
            permit.grant,
            kind,
            self._policy,
            image=record.image,
            image_env=env,
            lease_env=record.env,
        )
        return plan, plan_digest(plan)

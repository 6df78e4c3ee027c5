"""Verify and authorize a chain of three blocks, narrow it, and compile a plan, in microseconds.

There are three ways for a token to come. Seen before: every call of a lease carries the same one,
so this is the daemon's path. A new last block on a chain whose first two were seen: what a holder
narrowed. And nothing seen: a new lease of a new trajectory, no block of which has the bytes of
another's; what they grant was seen. The peers keep no memory, so for them all three are the same
work; they get a new token each time in the last two and the same in the first. New tokens come a
hundred at a time, so the medians are of warm code: the first call after something else takes twice
as long.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from benchmarks.measure import Contender, Samples, interleave
from benchmarks.peers import tokens
from benchmarks.peers.tokens import PATH, TokenPeer
from benchmarks.report import Figure, Limit, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade.decide.authorize import authorize
from stockade.decide.blocks import narrow, root_block
from stockade.decide.checks import Arguments
from stockade.decide.compile import compile_plan, plan_digest
from stockade.decide.tokens import KeyRing, Verifier, attenuate, mint, verify
from stockade.flow.plans import Plans
from stockade.host.policy_files import load_policy
from stockade.terms.call import Permit, Right
from stockade.terms.grant import Block, LeaseBinding, Scope
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.plan import Kind

OURS: Final = "stockade"
_LEASE: Final = LeaseBinding(id="ls_00112233445566aa", generation=1)
_SAMPLES: Final = 2000
_BLOCK: Final = 10
_NEW_BLOCK: Final = 100
_LIMIT_US: Final = 50.0
_RIGHTS: Final = (Right("read", PATH),)
_ARGUMENTS: Final[Arguments] = {"path": PATH, "offset": 1, "limit": 200}
_IMAGE_ENV: Final = {"host": {"PATH": "/usr/bin:/bin"}}


class _Chain:
    """The lease's token, and tokens of three blocks made of it or anew."""

    def __init__(self) -> None:
        self.ring = KeyRing({"k1": bytes(range(32))})
        self.grant = load_policy().grant("agent")
        self.now_s = int(time.time())
        self.number = 0
        self.lease, self.bound = self._bound("run-1", _LEASE)
        self.child = narrow(
            self.bound,
            scope=Scope(read=("/workspace/src",), write=(), execute=(), connect=()),
            tools=("file_view",),
        )
        permit = verify(self.lease, self.ring, self.now_s)
        self.record = LeaseRecord(
            id=_LEASE.id,
            tenant="acme",
            trajectory="run-1",
            name="main",
            generation=1,
            state=LeaseState.READY,
            source=None,
            excludes=(),
            image="host",
            env=(),
            uid_base=0,
            grant=permit.grant,
            token=self.lease,
            chain=permit.chain,
            created_at_s=0,
            expires_at_s=0,
            not_after_s=0,
        )

    def new_last_block(self) -> tuple[str, LeaseRecord]:
        self.number += 1
        child = self.child.model_copy(update={"not_after_s": self.child.not_after_s - self.number})
        return attenuate(self.lease, child), self.record

    def all_new(self) -> tuple[str, LeaseRecord]:
        self.number += 1
        name = f"new-{self.number}"
        lease = LeaseBinding(id=f"ls_{self.number:016x}", generation=1, nonce=f"{self.number:032x}")
        token, bound = self._bound(name, lease)
        chain = verify(token, self.ring, self.now_s).chain
        child = self.child.model_copy(update={"lease": lease, "not_after_s": bound.not_after_s})
        record = replace(self.record, id=lease.id, trajectory=name, chain=chain)
        return attenuate(token, child), record

    def _bound(self, trajectory: str, lease: LeaseBinding) -> tuple[str, Block]:
        end_s = self.now_s + 100_000 - self.number
        root = root_block(self.grant, "acme", trajectory, "k1", self.now_s - 60, end_s)
        bound = narrow(root, lease=lease)
        return attenuate(mint(self.ring, "k1", root), bound), bound


def measure(world: World) -> list[Figure]:
    chain = _Chain()
    peers, missing = tokens.load()
    verifier = Verifier(chain.ring)

    def check(given: tuple[str, LeaseRecord]) -> None:
        permit = verifier.verify(given[0], chain.now_s)
        authorize(permit, "file_view", _RIGHTS, _ARGUMENTS, given[1])

    def compared(name: str, make: Callable[[], Any], **told: Any) -> Figure:
        contenders = [_fresh(OURS, make, check)]
        contenders += [_fresh(peer, one.make, one.check) for peer, one in peers.items()]
        return _figure(world, name, contenders, missing, block=_NEW_BLOCK, **told)

    seen = chain.new_last_block()
    check(seen)
    remembered = [Contender(OURS, lambda: check(seen))]
    remembered += [_again(peer, one, one.check) for peer, one in peers.items()]
    narrowed = [Contender(OURS, lambda: attenuate(chain.lease, chain.child))]
    narrowed += [_again(peer, one, one.attenuate) for peer, one in peers.items()]
    return [
        _figure(
            world,
            "capability_remembered",
            remembered,
            missing,
            limit_us=_LIMIT_US,
            note="verify and authorize; the same token at each call, as a lease's calls carry it",
        ),
        compared(
            "capability_new_last_block",
            chain.new_last_block,
            limit_us=_LIMIT_US,
            note="verify and authorize; two of the three blocks were seen before",
        ),
        compared(
            "capability_all_new",
            chain.all_new,
            limit_us=_LIMIT_US,
            note="verify and authorize; none of the three blocks was seen before",
        ),
        _figure(world, "capability_attenuate", narrowed, missing, note="from text to text"),
        *_plans(world, chain, verify(chain.lease, chain.ring, chain.now_s)),
    ]


def _fresh(name: str, make: Callable[[], Any], check: Callable[[Any], object]) -> Contender:
    """A new token for each sample, made outside of what is timed: those of a block together, since
    making one leaves the processor's caches full of other code than what is measured."""
    ahead: list[Any] = []

    def prepare() -> None:
        if not ahead:
            ahead.extend(make() for _ in range(_NEW_BLOCK))

    return Contender(name, lambda: check(ahead.pop()), prepare=prepare)


def _again(name: str, peer: TokenPeer, act: Callable[[Any], object]) -> Contender:
    return Contender(name, functools.partial(act, peer.make()))


def _plans(world: World, chain: _Chain, permit: Permit) -> list[Figure]:
    policy = load_policy()
    plans = Plans(policy, _IMAGE_ENV)

    def cold() -> None:
        plan = compile_plan(
            permit.grant,
            Kind.COMMAND,
            policy,
            image="host",
            image_env=_IMAGE_ENV["host"],
            lease_env=(),
        )
        plan_digest(plan)

    def cached() -> None:
        plans.plan(chain.record, permit, Kind.COMMAND)

    return [
        _figure(
            world, name, [Contender(OURS, act)], [], limit_us=limit_us, note="the grant `agent`"
        )
        for name, act, limit_us in (("compile_cold", cold, 1000), ("compile_cached", cached, 10))
    ]


def _figure(
    world: World,
    name: str,
    contenders: list[Contender],
    missing: list[str],
    *,
    note: str,
    limit_us: float | None = None,
    block: int = _BLOCK,
) -> Figure:
    found = {
        contender: Samples(
            [value * 1000 for value in samples.values], samples.failures, samples.errors
        )
        for contender, samples in interleave(contenders, world.n(_SAMPLES), block=block).items()
    }
    for peer in missing:
        found[peer] = Samples(errors=["not installed"])
    limits: list[Limit] = [no_failure(found[OURS])]
    if limit_us is not None:
        median = percentile(found[OURS].values, 50)
        limits.insert(0, at_most(f"median at most {limit_us:g} us", median, limit_us))
    return figure(name, OURS, found, unit="us", note=note, limits=limits)

"""Leases as their owners see them: create, show, list, renew, reset, release.

A lease is unique by (tenant, trajectory, name) until it is released. `create` with the same
parameters gives the existing one with its token, whoever repeats it; with other parameters it is
rejected and names the one that differs, because a workspace that exists is not made over silently.
The time to live is no such parameter: a repeated create neither shortens nor extends the lease.

The generation is the fence between owners. A new owner says `take_over`: the generation is raised,
a token bound to it is minted, and what runs under the old one is cancelled. From then on each call
with the old token is `stale_generation`; the workspace stays as it is.

A lease of a child trajectory may work in the workspace of another one, or begin with a copy of it
(`children`, `families`).

Reset and release do not wait for running calls to come to their end: they cancel them. An expired
lease is gone for its owner at that moment, also before the sweeper has removed it.

"Not there" and "not yours" are one answer. Operations name the caller's tenant; None is the
operator, who sees all; and the permit of the token that came with them, if one did (`holding`). A
lease whose capability was revoked is over, as if its time had come. Errors are Failures; each
operation names its codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stockade.decide.environment import check_variables
from stockade.flow.children import (
    check_below,
    check_entitled,
    check_shared_disk,
    may_take_over,
    named_origin,
)
from stockade.flow.holding import Holder, check_holder, check_owner, check_reader, not_granted
from stockade.flow.lease_request import DEFAULT_NAME, LeaseRequest, check_same, chosen_image
from stockade.flow.locks import key_of
from stockade.flow.minting import Minter, Offer
from stockade.flow.steps import LeaseSteps
from stockade.flow.user_ids import free_base
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.moment import Moment, Timekeeper
from stockade.terms.outcome import End
from stockade.terms.ports import SourceReport, Workspace


@dataclass(frozen=True, slots=True)
class Created:
    """`report` is about the copied source, None when the lease was there already. `cut` are the
    components that the tenant's ceiling made smaller."""

    record: LeaseRecord
    report: SourceReport | None
    cut: tuple[str, ...]


class Leases:
    """Thread-safe."""

    def __init__(
        self,
        steps: LeaseSteps,
        minter: Minter,
        *,
        clock: Timekeeper,
        random_hex: Callable[[int], str],
        uid_offset: int = 0,
    ) -> None:
        """`random_hex(n)` gives 2 n hex digits. `uid_offset` is the slot (0 to `UID_SLOTS` - 1) at
        which this instance begins to give out ranges of user ids."""
        self._steps = steps
        self._ledger = steps.ledger
        self._minter = minter
        self._clock = clock
        self._random_hex = random_hex
        self._uid_offset = uid_offset

    def create(self, request: LeaseRequest) -> Created:
        """Raises Failure: invalid_argument, token and denial codes, ceiling_exceeded, key_reused
        (other parameters), unenforceable (less of a shared disk), source_unusable,
        workspace_unavailable, storage_unavailable, busy, argument_too_large (env)."""
        check_variables(dict(request.env))
        with self._origin(request) as origin:
            now = self._clock.moment()
            if origin is not None and request.capability is None:
                request = request.model_copy(update={"capability": origin.token})
            offer = self._minter.offer(request, now.wall_s, self._bound_to)
            if origin is not None:
                check_entitled(request, origin, offer)
                if request.share is not None:
                    check_shared_disk(self._steps.families.owner(origin), offer)
            image = chosen_image(request, offer.grant, origin)
            with self._steps.locks.hold((request.tenant, request.trajectory, request.name)):
                return self._create(request, offer, image, origin, now)

    def _create(
        self,
        request: LeaseRequest,
        offer: Offer,
        image: str,
        origin: LeaseRecord | None,
        now: Moment,
    ) -> Created:
        found = self._ledger.find_lease(request.tenant, request.trajectory, request.name)
        if found is None:
            return self._make(request, offer, image, origin)
        with self._steps.families.hold_below(found):
            found = self._settled(found, now)
            if found is None:
                return self._make(request, offer, image, origin)
            same = offer.chain is None or found.chain[:-1] == offer.chain
            if request.take_over:
                same = may_take_over(found, offer)
            check_same(found, request, image, offer.grant, same, origin)
            if request.take_over:
                found = self._take_over(found, offer, request.ttl_s)
            return Created(found, None, offer.cut)

    def show(self, tenant: str | None, address: str) -> LeaseRecord:
        """The lease with the id `address`, or the lease `tenant/trajectory` named "main". By its
        id a released lease is found as well. Raises Failure(lease_not_granted)."""
        if "/" in address:
            owner, _, trajectory = address.partition("/")
            record = self._ledger.find_lease(owner, trajectory, DEFAULT_NAME)
        else:
            record = self._ledger.lease(address)
        if record is None or tenant not in (None, record.tenant):
            raise not_granted()
        return record

    def list(self, tenant: str | None) -> Sequence[LeaseRecord]:
        """Every lease that is not released, oldest first."""
        return self._ledger.leases(tenant)

    def renew(
        self, tenant: str | None, address: str, ttl_s: int, holder: Holder = None
    ) -> LeaseRecord:
        """Let the lease live `ttl_s` from now, at most to its token's end. What it has already is
        never shortened. Raises Failure(lease_expired), Failure(invalid_argument)."""
        if ttl_s < 1:
            raise failure(Code.INVALID_ARGUMENT, "ttl_s must be at least 1", argument="ttl_s")
        seen = self.show(tenant, address)
        with self._steps.locks.hold(key_of(seen)):
            record = self._current(seen.id)
            check_owner(record, holder)
            now = self._clock.moment()
            left_s = min(ttl_s, self._longest_s(record, now))
            if left_s > record.left_s(now):
                record = record.ending_in(left_s, now)
                self._ledger.put_lease(record)
            return record

    def reset(self, tenant: str | None, address: str, holder: Holder = None) -> LeaseRecord:
        """Cancel running calls, close the sandboxes and drop everything written since create.
        The generation stays, the workspace version rises. After a failure no call is let in until
        a repeated reset, or the sweeper's, has succeeded."""
        seen = self.show(tenant, address)
        with self._steps.families.hold(seen):
            record = self._current(seen.id)
            check_owner(record, holder)
            if record.shares is not None:
                raise failure(
                    Code.RIGHT_NOT_GRANTED,
                    f"the workspace is that of {record.shares}, which alone can be reset",
                    rule="lease.shares",
                )
            return self._steps.reset(record)

    def release(self, tenant: str | None, address: str, holder: Holder = None) -> LeaseRecord:
        """Cancel running calls and remove everything of the lease. Idempotent. After a failure the
        lease is `dirty`: gone for its owner, and removed by a repetition or the sweeper."""
        seen = self.show(tenant, address)
        with self._steps.families.hold(seen):
            record = self._ledger.lease(seen.id)
            if record is None:
                raise not_granted()
            check_owner(record, holder)
            held = record.state in (LeaseState.READY, LeaseState.RESETTING)
            if held and record.left_s(self._clock.moment()) > 0:
                record = replace(record, given_up=True)
            return self._steps.remove(record, End.CANCELLED)

    @contextmanager
    def held(self, tenant: str | None, address: str, holder: Holder = None) -> Iterator[Workspace]:
        """The workspace, for a holder that may view all of it; no other operation of the lease
        goes on meanwhile, calls do. Raises Failure: as `show` and `admit`, right_not_granted,
        tool_not_granted, check_failed."""
        seen = self.show(tenant, address)
        with self._steps.locks.hold(key_of(seen)):
            record = self._ready(seen.id)
            check_reader(record, holder)
            yield self.workspace(record)

    def own_token(self, record: LeaseRecord) -> str:
        """The lease's own token, for who may act without one. Raises Failure(lease_expired): the
        record of a lease that is over keeps none."""
        if not record.token:
            raise self._expired(record)
        return record.token

    def admit(self, lease_id: str, permit: Permit) -> LeaseRecord:
        """The lease of a call, if `permit` is for it. What is answered holds until the call leaves
        `Running`, if it has entered before it asks. Raises Failure: lease_not_granted,
        stale_generation, lease_expired, token_revoked, busy, workspace_unavailable."""
        record = self._ledger.lease(lease_id)
        if record is None:
            raise not_granted()
        check_holder(record, permit)
        if record.state is LeaseState.RELEASED:
            raise self._expired(record)
        self._steps.authority.check(permit.chain)
        return self._usable(record)

    def workspace(self, record: LeaseRecord) -> Workspace:
        """The mounted workspace of an admitted lease; mounts it after a restart."""
        return self._steps.attach(record)

    @contextmanager
    def _origin(self, request: LeaseRequest) -> Iterator[LeaseRecord | None]:
        """The lease whose workspace the request is about, for as long as nobody changes it."""
        address = named_origin(request)
        if address is None:
            yield None
            return
        seen = self.show(request.tenant, address)
        check_below(request, seen)
        with self._steps.families.hold_line(seen):
            yield self._ready(seen.id)

    def _bound_to(self, permit: Permit) -> LeaseRecord:
        return self.admit(permit.lease_id or "", permit)

    def _longest_s(self, record: LeaseRecord, now: Moment) -> float:
        """How long it may go on: no lease outlives its token, nor the lease whose workspace it
        works in."""
        line = self._steps.families.line(record)
        return min([record.not_after_s - now.wall_s, *(above.left_s(now) for above in line[:-1])])

    def _make(
        self, request: LeaseRequest, offer: Offer, image: str, origin: LeaseRecord | None
    ) -> Created:
        lease_id = f"ls_{self._random_hex(8)}"
        now = self._clock.moment()
        bound = self._minter.bind(offer, lease_id, 1, now.wall_s, self._random_hex(16))
        shared = origin if request.share is not None else None
        forked = origin if request.fork is not None else None
        record = LeaseRecord(
            id=lease_id,
            tenant=request.tenant,
            trajectory=request.trajectory,
            name=request.name,
            generation=1,
            state=LeaseState.CREATING,
            source=request.source,
            excludes=request.excludes,
            image=image,
            env=request.env,
            uid_base=(
                free_base(self._ledger, self._uid_offset) if shared is None else shared.uid_base
            ),
            grant=bound.grant,
            token=bound.token,
            chain=bound.chain,
            created_at_s=now.wall_s,
            expires_at_s=min(now.wall_s + request.ttl_s, bound.not_after_s),
            not_after_s=bound.not_after_s,
            workspace_version=1 if shared is None else shared.workspace_version,
            shares=None if shared is None else shared.id,
            forked_from=None if forked is None else forked.id,
        )

        def begin(ready: LeaseRecord) -> LeaseRecord:
            now = self._clock.moment()
            return ready.ending_in(min(request.ttl_s, self._longest_s(ready, now)), now)

        made, report = self._steps.make(record, begin, origin)
        return Created(made, report, offer.cut)

    def _take_over(self, record: LeaseRecord, offer: Offer, ttl_s: int) -> LeaseRecord:
        now = self._clock.moment()
        nonce = self._random_hex(16)
        bound = self._minter.bind(offer, record.id, record.generation + 1, now.wall_s, nonce)
        taken = replace(
            record,
            generation=record.generation + 1,
            token=bound.token,
            chain=bound.chain,
            not_after_s=bound.not_after_s,
        )
        left_s = min(max(record.left_s(now), ttl_s), self._longest_s(taken, now))
        return self._steps.hand_over(taken.ending_in(left_s, now))

    def _settled(self, record: LeaseRecord, now: Moment) -> LeaseRecord | None:
        """Finish what an earlier operation left; None when that has freed the name."""
        ended = record.state in (LeaseState.CREATING, LeaseState.DIRTY)
        if ended or self._steps.over(record, now):
            self._steps.remove(record, End.LEASE_EXPIRED)
            return None
        return self._steps.reset(record) if record.state is LeaseState.RESETTING else record

    def _current(self, lease_id: str) -> LeaseRecord:
        """The record as it is under the operation lock, unless the lease has ended."""
        record = self._ledger.lease(lease_id)
        if record is None:
            raise not_granted()
        ended = record.state in (LeaseState.CREATING, LeaseState.DIRTY, LeaseState.RELEASED)
        if ended or record.left_s(self._clock.moment()) <= 0:
            raise self._expired(record)
        self._steps.authority.check(record.chain)
        return record

    def _ready(self, lease_id: str) -> LeaseRecord:
        return self._usable(self._current(lease_id))

    def _usable(self, record: LeaseRecord) -> LeaseRecord:
        if record.state is LeaseState.CREATING:
            raise failure(Code.BUSY, "the lease is being made", retry_after_ms=100)
        ended = record.state in (LeaseState.DIRTY, LeaseState.RELEASED)
        if ended or record.left_s(self._clock.moment()) <= 0:
            raise self._expired(record)
        if record.state is LeaseState.RESETTING:
            raise failure(
                Code.WORKSPACE_UNAVAILABLE, "the last reset of the lease failed; repeat it"
            )
        if record.shares is not None:
            if self._steps.over(record, self._clock.moment()):
                raise self._expired(record)
            self._usable(self._steps.families.above(record))
        return record

    def _expired(self, record: LeaseRecord) -> Failure:
        """The record of a lease that expired or was revoked is `released` too, as soon as it is
        removed."""
        if record.given_up:
            how = "been released"
        elif record.left_s(self._clock.moment()) <= 0:
            how = "expired"
        elif self._steps.authority.revoked(record.chain):
            how = "ended: its capability is revoked"
        elif record.state in (LeaseState.DIRTY, LeaseState.RELEASED):
            how = "been released"
        else:
            how = "ended"
        return failure(Code.LEASE_EXPIRED, f"the lease has {how}")

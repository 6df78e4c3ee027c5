"""Leases as their owners see them: create, show, list, renew, reset, export, release.

A lease is unique by (tenant, trajectory, name) until it is released. `create` with the same
parameters gives the existing one with its token, whoever repeats it; with other parameters it is
rejected and names the one that differs, because a workspace that exists is not made over silently.
The time to live is no such parameter: a repeated create neither shortens nor extends the lease.

The generation is the fence between owners. A new owner says `take_over`: the generation is raised,
a token bound to it is minted, and what runs under the old one is cancelled. From then on each call
with the old token is `stale_generation`; the workspace stays as it is.

Reset and release do not wait for running calls to come to their end: they cancel them. An expired
lease is gone for its owner at that moment, also before the sweeper has removed it.

"Not there" and "not yours" are one answer. Operations name the caller's tenant; None is the
operator, who sees all. Errors are Failures; each operation names its codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from stockade.decide.environment import check_variables
from stockade.flow.lease_request import DEFAULT_NAME, LeaseRequest, check_same, chosen_image
from stockade.flow.locks import key_of
from stockade.flow.minting import Minter, Offer
from stockade.flow.steps import LeaseSteps
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.outcome import End
from stockade.terms.ports import Clock, SourceReport, Workspace
from stockade.terms.result import ExportData

# A lease's files belong to 65,536 host user ids from here on: above all that distributions and
# directory services hand out, and below 2^32 - 1, which is no user id.
UID_FLOOR: Final = 1_073_741_824
UID_RANGE: Final = 65_536
UID_SLOTS: Final = (2**32 - 1 - UID_FLOOR) // UID_RANGE


@dataclass(frozen=True, slots=True)
class Created:
    """`report` is about the copied source, None when the lease was there already."""

    record: LeaseRecord
    report: SourceReport | None


class Leases:
    """Thread-safe."""

    def __init__(
        self,
        steps: LeaseSteps,
        minter: Minter,
        *,
        clock: Clock,
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
        (other parameters), source_unusable, workspace_unavailable, storage_unavailable, busy,
        argument_too_large (env)."""
        check_variables(dict(request.env))
        now = self._clock()
        offer = self._minter.offer(request, now)
        image = chosen_image(request, offer.grant)
        with self._steps.locks.hold((request.tenant, request.trajectory, request.name)):
            found = self._ledger.find_lease(request.tenant, request.trajectory, request.name)
            found = found and self._settled(found, now)
            if found is None:
                return self._make(request, offer, image)
            same = offer.chain is None or request.take_over or found.chain[:-1] == offer.chain
            check_same(found, request, image, offer.grant, same)
            if request.take_over:
                found = self._take_over(found, offer, request.ttl_s)
            return Created(found, None)

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

    def renew(self, tenant: str | None, address: str, ttl_s: int) -> LeaseRecord:
        """Let the lease live `ttl_s` from now, at most to its token's end. What it has already is
        never shortened. Raises Failure(lease_expired), Failure(invalid_argument)."""
        if ttl_s < 1:
            raise failure(Code.INVALID_ARGUMENT, "ttl_s must be at least 1", argument="ttl_s")
        seen = self.show(tenant, address)
        with self._steps.locks.hold(key_of(seen)):
            record = self._current(seen.id)
            until = min(self._clock() + ttl_s, record.not_after_s)
            record = replace(record, expires_at_s=max(record.expires_at_s, until))
            self._ledger.put_lease(record)
            return record

    def reset(self, tenant: str | None, address: str) -> LeaseRecord:
        """Cancel running calls, close the sandboxes and drop everything written since create.
        The generation stays, the workspace version rises. After a failure no call is let in until
        a repeated reset, or the sweeper's, has succeeded."""
        seen = self.show(tenant, address)
        with self._steps.locks.hold(key_of(seen)):
            return self._steps.reset(self._current(seen.id))

    def release(self, tenant: str | None, address: str) -> LeaseRecord:
        """Cancel running calls and remove everything of the lease. Idempotent. After a failure the
        lease is `dirty`: gone for its owner, and removed by a repetition or the sweeper."""
        seen = self.show(tenant, address)
        with self._steps.locks.hold(key_of(seen)):
            record = self._ledger.lease(seen.id)
            if record is None:
                raise not_granted()
            return self._steps.remove(record, End.CANCELLED)

    def changes(self, tenant: str | None, address: str) -> ExportData:
        """How much differs from the source. Like an export it is a state of one moment only while
        no call runs."""
        return self._export(tenant, address, lambda workspace: (0, ()), False)

    def export_to(self, tenant: str | None, address: str, target: str) -> ExportData:
        """Apply the changes to the host directory `target`. Whether the caller may write there is
        for the edge to know."""
        return self._export(tenant, address, lambda workspace: workspace.export(target), False)

    def export_patch(self, tenant: str | None, address: str, out: BinaryIO) -> ExportData:
        """Write the changes as a patch. No other operation of the lease goes on meanwhile: `out`
        is a file, never a slow reader."""
        return self._export(tenant, address, lambda workspace: workspace.patch(out), True)

    def admit(self, lease_id: str, permit: Permit) -> LeaseRecord:
        """The lease of a call, if `permit` is for it. What is answered holds until the call leaves
        `Running`, if it has entered before it asks. Raises Failure: lease_not_granted,
        stale_generation, lease_expired, busy, workspace_unavailable."""
        record = self._ledger.lease(lease_id)
        if record is None or (record.id, record.tenant, record.trajectory) != (
            permit.lease_id,
            permit.tenant,
            permit.trajectory,
        ):
            raise not_granted()
        if record.state is LeaseState.RELEASED:
            raise _expired(record)
        if permit.generation != record.generation:
            raise failure(
                Code.STALE_GENERATION,
                f"the token is for generation {permit.generation} of the lease, which has "
                f"{record.generation}",
                rule="lease.generation",
            )
        # A holder of the token that the lease was made from could append a binding of its own:
        # only what descends from the lease's token is for this lease.
        if permit.chain[: len(record.chain)] != record.chain:
            raise not_granted()
        return self._usable(record)

    def workspace(self, record: LeaseRecord) -> Workspace:
        """The mounted workspace of an admitted lease; mounts it after a restart."""
        return self._steps.attach(record)

    def _export(
        self,
        tenant: str | None,
        address: str,
        write: Callable[[Workspace], tuple[int, tuple[str, ...]]],
        is_patch: bool,
    ) -> ExportData:
        seen = self.show(tenant, address)
        with self._steps.locks.hold(key_of(seen)):
            workspace = self.workspace(self._ready(seen.id))
            kinds = Counter(change.kind for change in workspace.changes())
            size, skipped = write(workspace)
        return ExportData(
            kind="export",
            added=kinds["added"],
            modified=kinds["modified"] + kinds["type_changed"],
            deleted=kinds["deleted"],
            skipped=len(skipped),
            patch_bytes=size if is_patch else None,
        )

    def _make(self, request: LeaseRequest, offer: Offer, image: str) -> Created:
        lease_id = f"ls_{self._random_hex(8)}"
        now = self._clock()
        bound = self._minter.bind(offer, lease_id, 1, now)
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
            uid_base=self._uid_base(),
            grant=bound.grant,
            token=bound.token,
            chain=bound.chain,
            created_at_s=now,
            expires_at_s=min(now + request.ttl_s, bound.not_after_s),
            not_after_s=bound.not_after_s,
        )
        made, report = self._steps.make(
            record, lambda: min(self._clock() + request.ttl_s, bound.not_after_s)
        )
        return Created(made, report)

    def _take_over(self, record: LeaseRecord, offer: Offer, ttl_s: int) -> LeaseRecord:
        now = self._clock()
        bound = self._minter.bind(offer, record.id, record.generation + 1, now)
        return self._steps.hand_over(
            replace(
                record,
                generation=record.generation + 1,
                token=bound.token,
                chain=bound.chain,
                expires_at_s=min(max(record.expires_at_s, now + ttl_s), bound.not_after_s),
                not_after_s=bound.not_after_s,
            )
        )

    def _settled(self, record: LeaseRecord, now: float) -> LeaseRecord | None:
        """Finish what an earlier operation left; None when that has freed the name."""
        ended = record.state in (LeaseState.CREATING, LeaseState.DIRTY)
        if ended or record.expires_at_s <= now:
            self._steps.remove(record, End.LEASE_EXPIRED)
            return None
        return self._steps.reset(record) if record.state is LeaseState.RESETTING else record

    def _current(self, lease_id: str) -> LeaseRecord:
        """The record as it is under the operation lock, unless the lease has ended."""
        record = self._ledger.lease(lease_id)
        if record is None:
            raise not_granted()
        ended = record.state in (LeaseState.CREATING, LeaseState.DIRTY, LeaseState.RELEASED)
        if ended or record.expires_at_s <= self._clock():
            raise _expired(record)
        return record

    def _ready(self, lease_id: str) -> LeaseRecord:
        return self._usable(self._current(lease_id))

    def _usable(self, record: LeaseRecord) -> LeaseRecord:
        if record.state is LeaseState.CREATING:
            raise failure(Code.BUSY, "the lease is being made", retry_after_ms=100)
        if record.state is LeaseState.DIRTY or record.expires_at_s <= self._clock():
            raise _expired(record)
        if record.state is LeaseState.RESETTING:
            raise failure(
                Code.WORKSPACE_UNAVAILABLE, "the last reset of the lease failed; repeat it"
            )
        return record

    def _uid_base(self) -> int:
        """A range that no other lease of this ledger has. The counter never repeats, the ranges
        do after `UID_SLOTS` leases."""
        taken = {record.uid_base for record in self._ledger.leases()}
        for _ in range(UID_SLOTS):
            slot = (self._uid_offset + self._ledger.next_uid_slot()) % UID_SLOTS
            base = UID_FLOOR + slot * UID_RANGE
            if base not in taken:
                return base
        raise failure(Code.BUSY, f"all {UID_SLOTS} ranges of user ids are in use")


def not_granted() -> Failure:
    """One answer for a lease that isn't there and one that is another tenant's."""
    return failure(Code.LEASE_NOT_GRANTED, "there is no such lease for this caller")


def _expired(record: LeaseRecord) -> Failure:
    released = record.state in (LeaseState.DIRTY, LeaseState.RELEASED)
    return failure(
        Code.LEASE_EXPIRED, f"the lease has {'been released' if released else 'expired'}"
    )

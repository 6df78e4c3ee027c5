"""Approvals: calls that a person must say yes to, one by one.

A call that a rule of its capability fits is named by a digest over (tenant, lease, tool, arguments
with their defaults filled in), so a yes is for exactly this call. The first attempt records the
request and is answered with its id; after an operator has granted it, the same call starts once. A
denied request answers the same call until the lease ends. A lease may have `MOST_OPEN` requests
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stockade.decide.canonical import canonical, digest
from stockade.decide.checks import Arguments, approvals_needed
from stockade.terms.approval import ApprovalRecord, ApprovalState
from stockade.terms.books import ApprovalBook
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import Clock

MOST_OPEN: Final = 64
# What a person is asked about is kept and shown as a whole.
MOST_ARGUMENT_BYTES: Final = 64 * 1024


class Approvals:
    """Thread-safe."""

    def __init__(
        self,
        book: ApprovalBook,
        clock: Clock,
        hide: Callable[[LeaseRecord, Arguments], Arguments],
    ) -> None:
        """`hide` gives the arguments without the lease's registered secrets. Nothing else may be
        hidden from who decides: a caller chooses what looks like a credential."""
        self._book = book
        self._clock = clock
        self._hide = hide

    def check(
        self, permit: Permit, lease: LeaseRecord, tool: str, arguments: Arguments
    ) -> str | None:
        """The id of the granted request that this call needs; None when it needs none. Raises
        Failure: approval_needed, approval_denied, busy, argument_too_large,
        storage_unavailable."""
        if approvals_needed(permit, tool, arguments) is None:
            return None
        text = canonical(arguments)
        if len(text) > MOST_ARGUMENT_BYTES:
            raise failure(
                Code.ARGUMENT_TOO_LARGE,
                f"a call that needs approval has at most {MOST_ARGUMENT_BYTES} bytes of arguments",
                rule="approve",
            )
        found = self._book.ask(
            ApprovalRecord(
                id=approval_id(lease.tenant, lease.id, tool, text.decode()),
                tenant=lease.tenant,
                lease_id=lease.id,
                tool=tool,
                arguments=canonical(self._hide(lease, arguments)).decode(),
                state=ApprovalState.ASKED,
                asked_at_s=self._clock(),
            ),
            MOST_OPEN,
        )
        if found.state is ApprovalState.DENIED:
            raise failure(
                Code.APPROVAL_DENIED,
                "a person refused this call" + (f": {found.reason}" if found.reason else ""),
                rule="approve",
                approval=found.id,
            )
        if found.state is not ApprovalState.GRANTED:
            raise needed(found.id)
        return found.id

    def use(self, approval_id: str) -> None:
        """Use a granted request up. Raises Failure(approval_needed) when another call did."""
        if not self._book.use(approval_id):
            raise needed(approval_id)

    def give_back(self, approval_id: str) -> None:
        """The call did not start."""
        self._book.give_back(approval_id)

    def list(self) -> Sequence[ApprovalRecord]:
        return self._book.list()

    def show(self, approval_id: str) -> ApprovalRecord:
        """Raises Failure(not_found)."""
        found = self._book.get(approval_id)
        if found is None:
            raise _unknown()
        return found

    def decide(
        self, approval_id: str, *, granted: bool, by: str, reason: str | None
    ) -> ApprovalRecord:
        """Say yes or no; until the call has started it may be said again. Raises
        Failure(not_found), Failure(key_reused) for a request that is used up."""
        state = ApprovalState.GRANTED if granted else ApprovalState.DENIED
        found = self._book.decide(approval_id, state, self._clock(), by, reason)
        if found is None:
            raise _unknown()
        if found.state is not state:
            raise failure(
                Code.KEY_REUSED, "the approval is used up: its call has started", rule="approve"
            )
        return found


def approval_id(tenant: str, lease_id: str, tool: str, arguments: str) -> str:
    """`arguments` is canonical JSON."""
    return f"ap_{digest([tenant, lease_id, tool, arguments])[:32]}"


def needed(approval_id: str) -> Failure:
    return failure(
        Code.APPROVAL_NEEDED,
        f"a person must approve this call: {approval_id}",
        rule="approve",
        approval=approval_id,
    )


def _unknown() -> Failure:
    return failure(Code.NOT_FOUND, "there is no such approval request")

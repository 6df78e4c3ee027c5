"""The last gate before a call starts: a person's approval where one is needed, then the budgets.

Nothing is used up by a call that does not start. The approval is looked at first and used up only
when the budgets are counted; a call that ends with nothing having run gives both back: the approval
goes with the bill.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stockade.decide.checks import Arguments, approvals_needed
from stockade.flow.approvals import Approvals
from stockade.flow.spending import Bill, Spending
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure, Status, failure
from stockade.terms.lease import LeaseRecord

# A call that ends so has not started, or has done nothing.
NOTHING_RAN: Final = frozenset(
    {Status.INVALID, Status.DENIED, Status.APPROVAL_REQUIRED, Status.UNAVAILABLE}
)


class Gate:
    """Thread-safe."""

    def __init__(self, approvals: Approvals, spending: Spending) -> None:
        self._approvals = approvals
        self._spending = spending

    @contextmanager
    def open(
        self, permit: Permit, lease: LeaseRecord, tool: str, arguments: Arguments, *, command: bool
    ) -> Iterator[Bill]:
        """Hold what the call needs while it is carried out; the block ends the bill. Raises
        Failure: approval_needed, approval_denied, budget_exhausted, busy, argument_too_large,
        storage_unavailable."""
        approval = self._approvals.check(permit, lease, tool, arguments)
        bill = self._spending.begin(permit, tool, command=command)
        used = False
        try:
            if approval is not None:
                self._approvals.use(approval)
                used = True
            yield bill
            if used and approval is not None and bill.undone:
                self._approvals.give_back(approval)
        except BaseException as error:
            status = error.fault.status if isinstance(error, Failure) else None
            # It was cancelled while it waited for its sandbox or its process.
            waited = command and not bill.runs and status is Status.CANCELLED
            if status in NOTHING_RAN or waited or not bill.began:
                bill.give_back()
                if used and approval is not None:
                    self._approvals.give_back(approval)
            else:
                # A file tool's refusal, say. Of a command that ran nobody knows the time any more.
                bill.end(None if bill.runs else 0)
            raise

    @contextmanager
    def transfer(
        self, permit: Permit, lease: LeaseRecord, tool: str, arguments: Arguments
    ) -> Iterator[None]:
        """As `open` for a whole file that is read or written, which counts as a call of `tool`.
        Its content is no argument, so nobody could say yes to exactly this one:
        Failure(right_not_granted) where a call of the tool would need approval."""
        if approvals_needed(permit, tool, arguments) is not None:
            raise failure(
                Code.RIGHT_NOT_GRANTED,
                f"{tool} needs approval, which whole files can't have",
                rule="approve",
            )
        with self.open(permit, lease, tool, arguments, command=False) as bill:
            bill.began = True
            yield
            bill.end(0)

"""Budgets: what a call may use up, held before it starts and while it runs.

A call's amount is counted against every block of its chain that has a budget, durably and before
anything runs. Of processor time nobody knows beforehand how much it will be, so a call draws it
ahead, in slices: what is drawn counts as spent until the call gives back what it did not use. A
command is looked at before it could have used more than was drawn, at the full rate of its lease,
and ended while some is left, for the time that looking and ending take. So calls that run at once
can't together outspend a block, and after a crash what was drawn counts as spent. The claim of a
command says what bounds it and what was drawn for it, so the next process goes on with its bill.

A capability without any budget costs nothing here: no transaction, and nobody looks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from stockade.terms.base import MAX_INTEGER
from stockade.terms.books import SpendBook
from stockade.terms.call import Permit
from stockade.terms.claim import ClaimRecord
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.ports import CpuMeter
from stockade.terms.spend import Amount, Budget, Metered, Prices, Shortage, has_budget

# How much processor time a call holds ahead of what it has used, beside the reserve.
SLICE_MS: Final = 200
# How long looking late and ending a command may take, on a host that is not overloaded.
RESERVE_WALL_MS: Final = 25
LEAST_LOOK_MS: Final = 2
# Of the kernel's bandwidth control: in any time a group may use up the quotas of two more periods.
_PERIODS_MS: Final = 200

_log: Final = logging.getLogger("stockade.spend")


class Spending:
    """Thread-safe. `processors` is how many this host has; `prices_for` takes a tenant."""

    def __init__(
        self, book: SpendBook, prices_for: Callable[[str], Prices], processors: int
    ) -> None:
        self._book = book
        self._prices_for = prices_for
        self._processors = processors

    def begin(self, permit: Permit, tool: str, *, command: bool) -> Bill:
        """Count one call, and the first slice of a command's time. Raises
        Failure(budget_exhausted): nothing is counted then. Failure(storage_unavailable)."""
        prices, budgets = self._prices_for(permit.tenant), budgets_of(permit)
        watched = command and any(
            budget.total.cpu_ms < MAX_INTEGER
            or (prices.cpu_second and budget.total.cost_micro < MAX_INTEGER)
            for budget in budgets
        )
        rate = Rate(self._processors, permit.grant.per_lease.cpu_millis) if watched else None
        bill = Bill(self._book, budgets, prices, tool, rate)
        shortage = bill.open()
        if shortage is not None:
            raise exhausted(shortage)
        return bill

    def resume(self, claim: ClaimRecord) -> Bill | None:
        """The bill of a command that an earlier process began; None where no budget bounds its
        time."""
        owed = claim.metered
        if owed is None:
            return None
        prices = Prices({claim.tool: owed.call_price}, owed.cpu_second, 0)
        rate = Rate(self._processors, owed.cpu_millis)
        bill = Bill(self._book, owed.budgets, prices, claim.tool, rate)
        bill.go_on(claim)
        return bill

    def left(self, permit: Permit) -> list[tuple[Budget, Amount]]:
        """The budgets of a chain, root first, and what was spent of each. Raises
        Failure(storage_unavailable)."""
        budgets = budgets_of(permit)
        return list(zip(budgets, self._book.spent(budgets), strict=True))


def budgets_of(permit: Permit) -> tuple[Budget, ...]:
    """Of the blocks that have one."""
    return tuple(
        Budget(block, total, end)
        for block, total, end in zip(permit.chain, permit.totals, permit.ends, strict=True)
        if has_budget(total)
    )


def exhausted(shortage: Shortage) -> Failure:
    return failure(
        Code.BUDGET_EXHAUSTED,
        f"{shortage.rule} of block {shortage.block} is {shortage.total}; {shortage.left} is left, "
        "which is not enough for this call",
        rule=shortage.rule,
        budget=shortage.rule,
        block=shortage.block,
        total=shortage.total,
        left=shortage.left,
    )


class Rate:
    """How much processor time a lease can use in a given time."""

    def __init__(self, processors: int, cpu_millis: int) -> None:
        self._processors = processors
        self.cpu_millis = cpu_millis
        self.reserve_ms = self._most(RESERVE_WALL_MS)
        self.least_ms = self._most(LEAST_LOOK_MS)

    def _most(self, wall_ms: int) -> int:
        quotas = self.cpu_millis * (wall_ms + _PERIODS_MS) // 1000 + 1
        return max(1, min(self._processors * wall_ms, quotas))

    def lasts_ms(self, cpu_ms: int) -> int:
        """The time in which not more than `cpu_ms` can be used."""
        by_quota = cpu_ms * 1000 // self.cpu_millis - _PERIODS_MS if self.cpu_millis else 0
        return max(LEAST_LOOK_MS, cpu_ms // self._processors, by_quota)


class Bill:
    """What one call owes. One thread at a time, and only `more` while the command runs.

    `began`, `runs` and `claim_id` are set by whoever carries the call out: before it touches
    anything, before it starts the command, and when its claim is written. `undone` says that it was
    given back. `cost_micro` is None while or where it can't be known."""

    def __init__(
        self,
        book: SpendBook,
        budgets: tuple[Budget, ...],
        prices: Prices,
        tool: str,
        rate: Rate | None,
    ) -> None:
        self._book = book
        self._budgets = budgets
        self._prices = prices
        self._price = prices.call(tool)
        self._rate = rate
        self._drawn_ms = 0
        self._open = False
        self.began = False
        self.runs = False
        self.undone = False
        self.claim_id: str | None = None
        self.cost_micro: int | None = None
        self.shortage: Shortage | None = None

    @property
    def meter(self) -> CpuMeter | None:
        """For the engine, where a budget bounds the command's time."""
        return None if self._rate is None else self

    def noted(self, record: ClaimRecord) -> ClaimRecord:
        """The claim that is about to be written, with what `go_on` needs."""
        if self._rate is None:
            return record
        cpu_millis, cpu_second = self._rate.cpu_millis, self._prices.cpu_second
        metered = Metered(self._budgets, cpu_millis, self._price, cpu_second)
        return replace(record, metered=metered, drawn_ms=self._drawn_ms)

    def go_on(self, claim: ClaimRecord) -> None:
        """In place of `open`: the call was counted, and its command runs."""
        self.claim_id, self._drawn_ms = claim.id, claim.drawn_ms
        self._open = self.began = self.runs = True

    def open(self) -> Shortage | None:
        """Count the call. Gives the budget that does not suffice; nothing is counted then."""
        call = Amount(calls=1, cost_micro=self._price)
        if self._rate is None:
            shortage = self._book.add(self._budgets, call) if self._budgets else None
        else:
            least = self._rate.reserve_ms + self._rate.least_ms
            shortage = self._draw(self._rate.reserve_ms + SLICE_MS, least, call)
        self._open = shortage is None
        return shortage

    def more(self, used_ms: int) -> int | None:
        """Implements `terms.ports.CpuMeter`."""
        assert self._rate is not None
        spare = self._drawn_ms - used_ms - self._rate.reserve_ms
        if spare < self._rate.least_ms:
            try:
                short = self._draw(SLICE_MS - spare, self._rate.least_ms - spare, Amount())
            except Failure as error:
                _log.error("a command is ended because its time can't be recorded: %s", error)
                return None
            if short is not None:
                self.shortage = short
                return None
            spare = self._drawn_ms - used_ms - self._rate.reserve_ms
        return self._rate.lasts_ms(spare)

    def end(self, cpu_ms: int | None) -> None:
        """The call is over and has used `cpu_ms`; None when nobody knows, then all that was drawn
        is spent. Idempotent. Raises nothing: the call has happened, whatever the ledger does."""
        if not self._open:
            return
        self._open = False
        if cpu_ms is not None:
            # Said in results and records, whose numbers end there; no budget is as large.
            self.cost_micro = min(MAX_INTEGER, self._price + self._prices.cpu(cpu_ms))
        elif not self._prices.cpu_second:
            self.cost_micro = self._price
        if self._rate is None or cpu_ms is None:
            return
        with _logged():
            if cpu_ms <= self._drawn_ms:
                self._take_back(self._drawn_ms - cpu_ms, Amount())
            elif self._draw(cpu_ms - self._drawn_ms, 1, Amount()) or self._drawn_ms < cpu_ms:
                _log.warning("a command used %d ms beyond its budget", cpu_ms - self._drawn_ms)

    def give_back(self) -> None:
        """Nothing ran: undo all that was counted. Idempotent. Raises nothing."""
        if not self._open:
            return
        self._open = False
        self.undone = True
        self.cost_micro = 0
        if self._budgets:
            with _logged():
                self._take_back(self._drawn_ms, Amount(calls=1, cost_micro=self._price))

    def _draw(self, most_ms: int, least_ms: int, also: Amount) -> Shortage | None:
        """Count as much time as there is, from `least_ms` to `most_ms`, together with `also`."""
        want = most_ms
        while True:
            cost = self._prices.cpu(self._drawn_ms + want) - self._prices.cpu(self._drawn_ms)
            amount = Amount(also.calls, also.cost_micro + cost, want)
            short = self._book.add(self._budgets, amount, self.claim_id)
            if short is None:
                self._drawn_ms += want
                return None
            fits = 0
            if short.component == "cpu_ms":
                fits = short.left
            elif short.component == "cost_micro" and cost:
                # Rounding up may cost one part more than what fits.
                money = short.left - also.cost_micro
                fits = max(0, money) * 1000 // self._prices.cpu_second
            want = min(want - 1, fits)
            if want < least_ms:
                return short

    def _take_back(self, cpu_ms: int, also: Amount) -> None:
        cost = self._prices.cpu(self._drawn_ms) - self._prices.cpu(self._drawn_ms - cpu_ms)
        amount = Amount(also.calls, also.cost_micro + cost, cpu_ms)
        if amount != Amount():
            self._book.take_back(self._budgets, amount, self.claim_id)
        self._drawn_ms -= cpu_ms


@contextmanager
def _logged() -> Iterator[None]:
    """After the call nobody can be answered with a fault of the ledger; what was drawn stays."""
    try:
        yield
    except Failure as error:
        _log.error("what a call used can't be recorded; all that it drew is spent: %s", error)

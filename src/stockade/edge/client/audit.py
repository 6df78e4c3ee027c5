"""The audit through the SDK: `stockade.audit`.

Records come as lines, exactly as they are exported, and are verified here, by the reader:

```python
report = stockade.audit.verify()
assert report.flaw is None
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from stockade.decide.chain_verifier import Flaw, Verifier
from stockade.edge.audit_wire import AuditRecords, AuditStatus, ExportedRequest
from stockade.edge.client.link import Link, asked
from stockade.edge.wire import Empty
from stockade.terms import audit as words
from stockade.terms.audit import AuditLine, Checkpoint


@dataclass(frozen=True, slots=True)
class Report:
    """What a verification found: records `first` to `last`, of which those up to `sealed` are
    signed, by `signers` (public keys in hex)."""

    flaw: Flaw | None
    first: int
    last: int
    sealed: int
    count: int
    signers: tuple[str, ...]


class Audit:
    """Operators only, except `show`. Methods raise StockadeError."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def status(self) -> AuditStatus:
        return self._link.ask(self._link.message("GET", "audit"), AuditStatus)

    def show(self, call: str) -> list[AuditLine]:
        """What is recorded of a call, by its id, or by the request id of one that has none. A
        tenant sees its own."""
        message = self._link.message("GET", f"audit/calls/{quote(call, safe='')}")
        return self._link.ask(message, AuditRecords).records

    def lines(
        self,
        take: Callable[[bytes], None],
        *,
        since: int | None = None,
        since_ms: int | None = None,
        last: int | None = None,
        anchored: bool = False,
    ) -> None:
        """Give each record, as a line without its end, to `take`; see `RecordsQuery`."""
        given = {"since": since, "since_ms": since_ms, "last": last}
        query = {name: str(value) for name, value in given.items() if value is not None}
        if anchored:
            query["anchored"] = "true"
        rest = b""

        def sink(data: bytes) -> None:
            nonlocal rest
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                take(line)

        self._link.pour(self._link.message("GET", f"audit/records?{urlencode(query)}"), sink)

    def seal(self) -> AuditStatus:
        """Have everything so far signed by a checkpoint."""
        return self._link.ask(self._link.message("POST", "audit/checkpoint", Empty()), AuditStatus)

    def exported(self, through: int) -> AuditStatus:
        """Say that a copy of all records up to `through` is somewhere else, so that they may be
        dropped when they are old enough."""
        message = self._link.message(
            "POST", "audit/exported", asked(ExportedRequest, through=through)
        )
        return self._link.ask(message, AuditStatus)

    def verify(
        self,
        *,
        since: int | None = None,
        since_ms: int | None = None,
        keys: frozenset[str] = frozenset(),
        known: Iterable[Checkpoint] = (),
    ) -> Report:
        """Check the records. `keys` may have signed, and the daemon's present one; `known` are
        checkpoints that were kept elsewhere, beside the daemon's last one."""
        now = self.status()
        anchors = {made.seq: made.hash for made in known}
        if now.checkpoint is not None:
            anchors.setdefault(now.checkpoint.seq, now.checkpoint.hash)
        if now.last:
            anchors.setdefault(now.last, now.hash)
        whole = since is None and since_ms is None
        verifier = Verifier(keys=keys | {now.key}, known=anchors, whole=whole)
        check = Checking(verifier)
        self.lines(check.take, since=since, since_ms=since_ms, anchored=not whole)
        return check.report()


class Checking:
    """A verification of records as they come; what comes after the first flaw is not looked at."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._flaw: Flaw | None = None

    def take(self, line: bytes) -> None:
        if self._flaw is None:
            self._flaw = self._verifier.add_line(line)

    def take_link(self, link: words.Link) -> None:
        if self._flaw is None:
            self._flaw = self._verifier.add(link)

    def report(self) -> Report:
        found = self._verifier
        flaw = self._flaw or found.end()
        if flaw is None and not found.count:
            # Every audit begins with the start of a daemon: none is empty but one that was cut off.
            flaw = Flaw(1, "is missing: there is nothing to verify")
        return Report(
            flaw=flaw,
            first=found.first,
            last=found.last,
            sealed=found.sealed,
            count=found.count,
            signers=tuple(sorted(found.signers)),
        )

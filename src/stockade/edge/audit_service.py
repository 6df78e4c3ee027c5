"""The audit as the API asks for it: operators see all, a tenant the records of its own calls.

Records go out as they are in the ledger; whether they are what was written is for the reader to
find out, on a machine that it trusts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from stockade.decide.chain import line_of
from stockade.edge.audit_wire import (
    AuditRecords,
    AuditStatus,
    ExportedRequest,
    RecordsQuery,
)
from stockade.edge.exchange import Peer
from stockade.edge.service import Context
from stockade.flow.auditing import Auditor
from stockade.terms.audit import Acting, AuditLine, Link
from stockade.terms.fault import Fault

_CHUNK: Final = 64 * 1024


class AuditService:
    """Implements `edge.service.AuditVerbs`. Thread-safe."""

    def __init__(self, audit: Auditor, key: bytes, hide_all: Callable[[str], str]) -> None:
        """`hide_all` takes every lease's secrets out of a text."""
        self._hide_all = hide_all
        self._audit = audit
        self._key = key

    def status(self, context: Context) -> AuditStatus:
        context.operators_only("look at the audit")
        now = self._audit.log.state()
        return AuditStatus(
            first=now.first,
            last=now.head.seq,
            hash=now.head.hash.hex(),
            exported=now.exported,
            key=self._key.hex(),
            checkpoint=now.sealed,
        )

    def records(self, context: Context, query: RecordsQuery) -> Iterator[bytes]:
        context.operators_only("read the audit")
        return self._chunks(self._first(query))

    def show(self, context: Context, call: str) -> AuditRecords:
        found = self._audit.log.of_call(call, context.peer.tenant)
        return AuditRecords(records=[_line(link) for link in found])

    def refused(self, who: Acting, peer: Peer | None, what: str, fault: Fault) -> None:
        # A path may hold any lease's secret, and only operators see this record.
        what = self._hide_all(what)
        self._audit.request_refused(who, None if peer is None else peer.tenant, what, fault)

    def seal(self, context: Context) -> AuditStatus:
        context.operators_only("have the audit signed")
        self._audit.seal()
        return self.status(context)

    def exported(self, context: Context, request: ExportedRequest) -> AuditStatus:
        context.operators_only("say that the audit was exported")
        self._audit.exported(request.through, context.who)
        return self.status(context)

    def _chunks(self, first: int) -> Iterator[bytes]:
        part = bytearray()
        for link in self._audit.log.read(first):
            part += line_of(link) + b"\n"
            if len(part) >= _CHUNK:
                yield bytes(part)
                part.clear()
        if part:
            yield bytes(part)

    def _first(self, query: RecordsQuery) -> int:
        log = self._audit.log
        first = query.since or 1
        if query.since_ms is not None:
            first = log.since(query.since_ms)
        if query.last is not None:
            first = max(1, log.state().head.seq - query.last + 1)
        return log.anchor(first) if query.anchored and first > 1 else first


def _line(link: Link) -> AuditLine:
    return AuditLine.model_validate_json(line_of(link))

"""What a daemon's audit says."""

from __future__ import annotations

from stockade.decide.chain import result_digest
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import Stockade
from stockade.terms.audit import AuditLine, AuditRecord


def of_lease(stockade: Stockade, lease_id: str) -> list[AuditRecord]:
    """Every record of a lease, in their order; all records were verified."""
    report = stockade.audit.verify()
    assert report.flaw is None, report.flaw
    lines: list[bytes] = []
    stockade.audit.lines(lines.append)
    records = [AuditLine.model_validate_json(line).record for line in lines]
    return [record for record in records if record.lease_id == lease_id]


def said(record: AuditRecord) -> tuple[str, str | None, str | None]:
    return record.kind.value, record.status, record.code


def of_result(stockade: Stockade, result: Result) -> AuditRecord:
    """The record that a result names; it is of exactly this result."""
    assert result.audit is not None
    call = result.call.call_id or result.request_id
    lines = [line for line in stockade.audit.show(call) if line.record.seq == result.audit.seq]
    [line] = lines
    assert line.hash == result.audit.hash
    assert line.record.result_digest == result_digest(result)
    code = None if result.error is None else result.error.code.value
    assert (line.record.status, line.record.code) == (result.status.value, code)
    return line.record

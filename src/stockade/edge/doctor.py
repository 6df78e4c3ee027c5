"""The host's findings as a report."""

from __future__ import annotations

from stockade.edge.wire import Check, DoctorReport
from stockade.host.doctor import examine


def doctor_report(state_dir: str) -> DoctorReport:
    """`ok` is false when a required check is not fine. Takes some 20 ms: it starts programs."""
    checks = [
        Check(
            name=found.name,
            ok=found.ok,
            required=found.required,
            detail=found.detail,
            remedy=found.remedy,
        )
        for found in examine(state_dir)
    ]
    return DoctorReport(ok=all(check.ok for check in checks if check.required), checks=checks)

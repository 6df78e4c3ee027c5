"""The host's findings as a report."""

from __future__ import annotations

from pathlib import Path

from stockade.edge.wire import Check, DoctorReport
from stockade.host.doctor import examine
from stockade.host.reasons import unplaced


def doctor_report(state_dir: str, *, named: bool = True) -> DoctorReport:
    """`ok` is false when a required check is not fine. `named` says that the asker may learn where
    the state directory is. Takes some 20 ms: it starts programs."""
    checks = [
        Check(
            name=found.name,
            ok=found.ok,
            required=found.required,
            detail=found.detail if named else unplaced(found.detail, Path(state_dir)),
            remedy=found.remedy,
        )
        for found in examine(state_dir)
    ]
    return DoctorReport(ok=all(check.ok for check in checks if check.required), checks=checks)

"""`stockade selftest`: attack the boundary from inside, and show that each attack works without it."""

from __future__ import annotations

import click

from stockade.edge.cli.options import Composition, json_option
from stockade.edge.cli.output import emit, say, table
from stockade.edge.selftest import SelftestReport, Verdict

_WORDS = {
    Verdict.HELD: "held",
    Verdict.BROKEN: "BROKEN",
    Verdict.NO_CONTROL: "NO CONTROL",
    Verdict.COULD_NOT_TRY: "NOT TRIED",
}


@click.command()
@json_option
@click.option("--only", metavar="GLOB", help="Attempts whose names match, as 'deny_*'.")
@click.pass_obj
def selftest(composition: Composition, as_json: bool, only: str | None) -> int:
    """Try to get out of sandboxes, with a positive control for each attempt. Exits with 1 if any
    attempt succeeds, could not be tried, or has no working control. Needs root, and no daemon."""
    report = composition.selftest(only)
    if as_json:
        emit(report.model_dump_json(indent=2))
    else:
        _show(report)
    return 0 if report.ok else 1


def _show(report: SelftestReport) -> None:
    table(
        ("ATTEMPT", "GROUP", "RESULT", "ATTACK", "DEFENCE"),
        [(r.name, r.group, _WORDS[r.result], r.attack, r.defence) for r in report.attempts],
    )
    counts = ", ".join(f"{report.count(verdict)} {_WORDS[verdict]}" for verdict in Verdict)
    emit(f"{len(report.attempts)} attempts: {counts}")
    for row in report.attempts:
        if row.result is not Verdict.HELD:
            say(f"{row.name}: {_WORDS[row.result]}: {row.evidence} ({row.control})")

"""The report as a table on the terminal. Home of rich in the benchmarks."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.report import Figure, Limit, Report, Series

_COLUMNS = ("n", "fail", "min", "p50", "p95", "p99", "max")


def show(report: Report, console: Console) -> None:
    table = Table(title=f"Figures, quick={report.quick}, load {report.load[0]} → {report.load[1]}")
    table.add_column("figure / peer", no_wrap=True)
    table.add_column("unit")
    for column in (*_COLUMNS, "ours ÷ peer"):
        table.add_column(column, justify="right", no_wrap=True)
    for figure in report.figures:
        table.add_section()
        table.add_row(f"[bold]{figure.name}[/bold]", figure.unit, *_cells(figure.ours), "")
        for peer in figure.peers:
            ratio = "-" if peer.ratio is None else f"{peer.ratio:.3g}"
            table.add_row(f"  {peer.series.name}", figure.unit, *_cells(peer.series), ratio)
    console.print(table)
    for figure in report.figures:
        for limit in figure.limits:
            console.print(_verdict(figure, limit))
    for figure in report.figures:
        for series in (figure.ours, *(peer.series for peer in figure.peers)):
            for error in series.errors:
                console.print(f"{figure.name}, {series.name} failed: {error}", markup=False)


def _cells(series: Series) -> list[str]:
    values = (series.min, series.p50, series.p95, series.p99, series.max)
    return [
        str(series.n),
        str(series.failures),
        *("-" if v is None else f"{v:.2f}" for v in values),
    ]


def _verdict(figure: Figure, limit: Limit) -> str:
    mark = {True: "[green]holds[/green]", False: "[red]MISSED[/red]", None: "not measured"}
    value = "-" if limit.value is None else f"{limit.value:.4g}"
    bound = "-" if limit.bound is None else f"{limit.bound:.4g}"
    return f"{figure.name}: {limit.text}: {value} (bound {bound}) {mark[limit.holds]}"

"""What the commands print: results on stdout, words for people on stderr.

Text that may come from a sandbox or a peer never reaches the terminal with control characters in
it, except the streams of `run`, which are the program's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from stockade.terms.base import Model
from stockade.terms.result import Error

_PIPE_COLUMNS: Final = 4000


def printable(text: str) -> str:
    """`text` on one line, with control characters shown as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "replace").decode("ascii")
        for char in text.replace("\n", " ")
    )


def say(message: str) -> None:
    """One line on stderr, with the program's name."""
    sys.stderr.write(f"stockade: {printable(message)}\n")
    sys.stderr.flush()


def explain(error: Error) -> str:
    """An error as one line: its code, what happened, what to do next."""
    return f"{error.code}: {error.message.rstrip('.')}. {error.hint}"


def emit(data: bytes | str) -> None:
    """One value and a newline on stdout."""
    raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    sys.stdout.buffer.write(raw + b"\n")
    sys.stdout.buffer.flush()


def emit_all(models: Iterable[Model]) -> None:
    """A JSON array and a newline on stdout."""
    emit("[" + ",".join(model.model_dump_json() for model in models) + "]")


def fields(values: Iterable[tuple[str, object]]) -> None:
    """A table of one thing's fields on stdout."""
    rows = [(name, "-" if value is None else str(value)) for name, value in values]
    table(("FIELD", "VALUE"), rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout, as wide as the terminal, or as wide as it must be in a pipe."""
    # Loaded here: it costs 40 ms, and most commands print no table.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    # In a pipe nothing may be folded: a reader there takes a line for a row.
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    Console(file=sys.stdout, highlight=False, width=width).print(drawn)

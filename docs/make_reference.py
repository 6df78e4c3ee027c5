"""Writes the generated parts of docs/cli.md and docs/result.md: `make schemas`.

A part lies between two comments that name it. What is between them is never written by hand; a test
fails when it is not what this gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from stockade.edge.cli.exits import CALL_EXIT, RUN_EXIT
from stockade.edge.cli.main import cli
from stockade.terms.fault import REGISTRY, Status

HERE: Final = Path(__file__).parent
PAGES: Final = ("cli.md", "result.md")
_WIDTH: Final = 78
_PART: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    """Every command's full name and help text, in order."""
    yield from _walk(cli, "stockade", None)


def parts() -> Mapping[str, str]:
    """The generated parts by name."""
    return {"help": _help(), "exit": _exits(), "code": _codes()}


def rendered(page: str) -> str:
    """A page with its generated parts made anew."""
    found = parts()
    return _PART.sub(
        lambda part: part[1] + found[part[2]] + part[3], (HERE / page).read_text("utf-8")
    )


def _walk(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        **command.context_settings,
    )
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for below in sorted(command.commands):
            yield from _walk(command.commands[below], below, context)


def _help() -> str:
    return "".join(f"\n### `{name}`\n\n```text\n{text}\n```\n" for name, text in commands()) + "\n"


def _exits() -> str:
    rows = [f"| {status} | {CALL_EXIT[status]} | {_run(status)} |\n" for status in Status]
    return "| status | `call`, `lease …` | `run` |\n| --- | --- | --- |\n" + "".join(rows)


def _run(status: Status) -> str:
    return "its own" if status is Status.FAILED else str(RUN_EXIT[status])


def _codes() -> str:
    rows = [
        f"| `{code}` | {entry.status} | {entry.blame} | {entry.retry} | {entry.hint} |\n"
        for code, entry in REGISTRY.items()
    ]
    head = "| code | status | fault | retry | hint |\n| --- | --- | --- | --- | --- |\n"
    return head + "".join(rows)


if __name__ == "__main__":
    for page in PAGES:
        (HERE / page).write_text(rendered(page), "utf-8")

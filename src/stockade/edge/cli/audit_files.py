"""Files that `audit verify` reads: an export, a ledger, and checkpoints that were kept elsewhere.

A ledger is read with what lies beside it: its last checkpoint, so that a cut-off end is noticed.
Nothing is written to it; that it is open in a daemon does not matter.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
from pydantic import ValidationError

from stockade.decide.chain import genuine
from stockade.decide.chain_verifier import Verifier
from stockade.edge.client.audit import Checking, Report
from stockade.ledger.audit_files import CHECKPOINT_FILE, load_checkpoint
from stockade.ledger.audit_table import first_of, links
from stockade.terms.audit import Checkpoint
from stockade.terms.fault import Code, failure

_SQLITE: Final = b"SQLite format 3\0"


def verify_file(
    path: Path,
    since: int | None,
    since_ms: int | None,
    keys: frozenset[str],
    known: Iterable[Checkpoint],
) -> Report:
    """Raises Failure(storage_unavailable), OSError."""
    anchors = {made.seq: made.hash for made in known}
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE:
            return _ledger(path, since, since_ms, keys, anchors)
        file.seek(0)
        if since is not None or since_ms is not None:
            raise failure(
                Code.INVALID_ARGUMENT, "an exported file is verified as a whole", argument="since"
            )
        check = Checking(Verifier(keys=keys, known=anchors))
        for line in file:
            check.take(line.rstrip(b"\n"))
        return check.report()


def read_checkpoints(path: Path) -> list[Checkpoint]:
    """Of a file with one a line: itself, or the line of a log that says it, as text or as JSON.
    Raises UsageError, OSError."""
    found: list[Checkpoint] = []
    for line in path.read_text("utf-8").splitlines():
        line = _message(line)
        text = line[line.find("{") :] if "checkpoint " in line else line
        if not text.strip():
            continue
        try:
            made = Checkpoint.model_validate_json(text)
        except ValidationError:
            raise click.UsageError(f"{path}: a line is no checkpoint.") from None
        if not genuine(made):
            raise click.UsageError(f"{path}: the checkpoint of {made.seq} has a false signature.")
        found.append(made)
    return found


def _ledger(
    path: Path,
    since: int | None,
    since_ms: int | None,
    keys: frozenset[str],
    anchors: dict[int, str],
) -> Report:
    kept = load_checkpoint(path.with_name(CHECKPOINT_FILE))
    if kept is not None:
        anchors.setdefault(kept.seq, kept.hash)
    whole = since is None and since_ms is None
    check = Checking(Verifier(keys=keys, known=anchors, whole=whole))
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        try:
            first = 1 if whole else first_of(connection, since, since_ms)
            for link in links(connection, first):
                check.take_link(link)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} can't be read: {error}") from error
    return check.report()


def _message(line: str) -> str:
    """What a line of a log as JSON says; any other line as it is."""
    try:
        message = json.loads(line)["message"]
    except (ValueError, KeyError, TypeError):
        return line
    return message if isinstance(message, str) else line

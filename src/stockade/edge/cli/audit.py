"""`audit`: read, export and verify what was recorded.

Verification is done here, not by the daemon: of what it sends, of an exported file, or of the
ledger file itself, each record exactly as it lies there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

import click
from pydantic import ValidationError

from stockade.decide.chain import result_digest
from stockade.edge.cli.audit_files import read_checkpoints, verify_file
from stockade.edge.cli.options import json_option, socket_option
from stockade.edge.cli.output import emit, printable, say
from stockade.edge.client.audit import Audit, Report
from stockade.edge.client.sdk import Stockade
from stockade.edge.ocsf import event
from stockade.terms.audit import AuditLine, AuditRecord
from stockade.terms.result import ToolResult
from stockade.tools.shape import timestamp

BAD: Final = 1
_POLL_S: Final = 0.5
_LOOKED_AT: Final = 10_000


@click.group()
def audit() -> None:
    """What was decided and done, in a chain that shows any change."""


def since_option(command: Callable[..., int]) -> Callable[..., int]:
    return click.option(
        "--since", metavar="SEQ|TIME", help="A record's number, or a time (RFC 3339)."
    )(command)


@audit.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@since_option
@click.option("--key", multiple=True, metavar="HEX", help="A public key that may have signed.")
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Checkpoints that were kept elsewhere, one JSON object a line.",
)
@json_option
@socket_option
def verify(
    file: str | None,
    since: str | None,
    key: tuple[str, ...],
    checkpoints: tuple[str, ...],
    as_json: bool,
    socket: str | None,
) -> int:
    """Check FILE (an export, or a ledger file), or what the daemon has. Names the first record that
    is not what was written, and exits with 1 then."""
    known = [made for path in checkpoints for made in read_checkpoints(Path(path))]
    keys = frozenset(key)
    number, at_ms = _since(since)
    if file is not None:
        found = verify_file(Path(file), number, at_ms, keys, known)
    else:
        with Stockade.connect(socket) as stockade:
            found = stockade.audit.verify(since=number, since_ms=at_ms, keys=keys, known=known)
    if as_json:
        emit(_report(found))
    elif found.flaw is not None:
        emit(f"record {found.flaw.seq} {found.flaw.reason}")
    else:
        emit(
            f"ok: {found.count} records, {found.first} to {found.last}; signed up to "
            f"{found.sealed} by {', '.join(found.signers) or 'nobody'}"
        )
    return 0 if found.flaw is None else BAD


@audit.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes.")
@click.option("--tenant", metavar="T", help="Of one tenant only.")
@click.option("-n", "count", type=click.IntRange(min=0), default=20, show_default=True)
@json_option
@socket_option
def tail(follow: bool, tenant: str | None, count: int, as_json: bool, socket: str | None) -> int:
    """The last records, one a line. Operators only."""
    with Stockade.connect(socket) as stockade:
        seen = stockade.audit.status().last
        lines: list[bytes] = []
        stockade.audit.lines(lines.append, last=_LOOKED_AT if tenant else max(1, count))
        shown = [line for line in map(_line, lines) if tenant in (None, line.record.tenant)]
        for line in shown[len(shown) - min(count, len(shown)) :]:
            _show(line, as_json)
        seen = max([seen, *(line.record.seq for line in shown)])
        while follow:
            lines.clear()
            stockade.audit.lines(lines.append, since=seen + 1)
            for line in map(_line, lines):
                seen = line.record.seq
                if tenant in (None, line.record.tenant):
                    _show(line, as_json)
            time.sleep(_POLL_S)
    return 0


@audit.command()
@click.option("--format", "form", type=click.Choice(("jsonl", "ocsf")), default="jsonl")
@since_option
@click.option(
    "--to",
    metavar="FILE",
    help="A new file. Once it is on the disk, the daemon may drop what is in it (jsonl only).",
)
@socket_option
def export(form: str, since: str | None, to: str | None, socket: str | None) -> int:
    """Write every record, one a line: to stdout, or to a new file. Operators only."""
    number, at_ms = _since(since)
    with Stockade.connect(socket) as stockade:
        stockade.audit.seal()  # a file whose end is not signed could be cut unseen
        if to is None:
            _pour(stockade.audit, sys.stdout.buffer, form, number, at_ms)
            return 0
        with open(to, "xb", opener=_private) as out:
            try:
                last = _pour(stockade.audit, out, form, number, at_ms)
                out.flush()
                os.fsync(out.fileno())
            except BaseException:
                os.unlink(to)  # what is cut between two records looks whole
                raise
        now = stockade.audit.status()
        whole = at_ms is None and (number or 1) <= max(now.first, now.exported + 1)
        if form == "jsonl" and last and whole:
            stockade.audit.exported(last)
            say(f"records up to {last} are exported")
    return 0


@audit.command()
@click.argument("through", type=click.IntRange(min=1), metavar="SEQ")
@socket_option
def exported(through: int, socket: str | None) -> int:
    """Say that a copy of all records up to SEQ is somewhere else. Operators only."""
    with Stockade.connect(socket) as stockade:
        emit(stockade.audit.exported(through).model_dump_json())
    return 0


@audit.command()
@click.argument("call")
@click.option(
    "--result",
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="A stored result (JSON; - is stdin): does it fit the record?",
)
@json_option
@socket_option
def show(call: str, file: str | None, as_json: bool, socket: str | None) -> int:
    """Every record of CALL, a call's id (or the request id of a call that has none)."""
    with Stockade.connect(socket) as stockade:
        found = stockade.audit.show(call)
    for line in found:
        _show(line, as_json)
    if not found:
        say(f"there is no record of {call}")
        return BAD
    return 0 if file is None else _compare(found, file)


@audit.command()
@socket_option
def key(socket: str | None) -> int:
    """Print the public key that checkpoints are signed with (Ed25519, hex). Operators only."""
    with Stockade.connect(socket) as stockade:
        emit(stockade.audit.status().key)
    return 0


def _pour(source: Audit, out: BinaryIO, form: str, since: int | None, since_ms: int | None) -> int:
    """Gives the last record's number; 0: there was none."""
    last = 0

    def take(line: bytes) -> None:
        nonlocal last
        read = json.loads(line)
        last = int(read["record"]["seq"])
        if form == "ocsf":
            line = json.dumps(event(_line(line)), separators=(",", ":")).encode()
        out.write(line + b"\n")

    # What is to be verified on its own begins at a checkpoint.
    anchored = form == "jsonl" and (since is not None or since_ms is not None)
    source.lines(take, since=since, since_ms=since_ms, anchored=anchored)
    return last


def _compare(found: list[AuditLine], file: str) -> int:
    raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        result = ToolResult.model_validate_json(raw)
    except ValidationError:
        raise click.UsageError("the file is not a result.") from None
    digest = result_digest(result)
    fits = [line.record.seq for line in found if line.record.result_digest == digest]
    if fits:
        emit(f"the result is the one that record {fits[-1]} covers")
        return 0
    emit("the result is not one that these records cover")
    return BAD


def _since(text: str | None) -> tuple[int | None, int | None]:
    """A record's number, or milliseconds since the epoch."""
    if text is None:
        return None, None
    if text.isascii() and text.isdigit() and 0 < len(text) <= 15:
        return max(1, int(text)), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError("--since is neither a number nor a time (RFC 3339).") from None
    if moment.tzinfo is None:
        raise click.UsageError("--since needs a time with its offset from UTC, say Z.")
    return None, max(0, int(moment.timestamp() * 1000))


def _line(line: bytes) -> AuditLine:
    return AuditLine.model_validate_json(line)


def _show(line: AuditLine, as_json: bool) -> None:
    if as_json:
        emit(line.model_dump_json(exclude_none=True))
    else:
        emit(_words(line.record))


def _words(record: AuditRecord) -> str:
    parts = [str(record.seq), timestamp(record.at_ms / 1000), record.kind.value]
    named = {
        "tenant": record.tenant,
        "lease": record.lease_id,
        "call": record.call_id,
        "tool": record.tool,
        "by": record.actor,
        "status": record.status,
        "code": record.code,
        "rule": record.rule,
        **(record.detail or {}),
        "arguments": record.arguments,
    }
    parts += [f"{name}={value}" for name, value in named.items() if value is not None]
    return printable(" ".join(parts))


def _report(found: Report) -> str:
    flaw = None if found.flaw is None else {"seq": found.flaw.seq, "reason": found.flaw.reason}
    return json.dumps(
        {
            "ok": found.flaw is None,
            "flaw": flaw,
            "first": found.first,
            "last": found.last,
            "records": found.count,
            "signed_through": found.sealed,
            "signers": list(found.signers),
        }
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)

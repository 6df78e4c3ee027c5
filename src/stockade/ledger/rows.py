"""A lease record as a row of the ledger, and back.

Lists are JSON text, the source path is bytes (a host path need not be UTF-8). Reading is strict: a
row that this version did not write as it stands is refused, never half understood.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import fields
from typing import Final

from pydantic import TypeAdapter, ValidationError

from stockade.terms.fault import Code, failure
from stockade.terms.grant import Grant
from stockade.terms.lease import LeaseRecord, LeaseState

Cell = str | bytes | int | float | None

# The grant's column is `capability`: GRANT is a keyword in other dialects and in readers' minds.
COLUMNS: Final = tuple(
    "capability" if field.name == "grant" else field.name for field in fields(LeaseRecord)
)
_TEXTS: Final = TypeAdapter(tuple[str, ...])
_PAIRS: Final = TypeAdapter(tuple[tuple[str, str], ...])


def to_row(record: LeaseRecord) -> dict[str, Cell]:
    return {
        "id": record.id,
        "tenant": record.tenant,
        "trajectory": record.trajectory,
        "name": record.name,
        "generation": record.generation,
        "state": record.state.value,
        "source": None if record.source is None else os.fsencode(record.source),
        # ASCII JSON keeps names that aren't UTF-8 (lone surrogates) as escapes.
        "excludes": json.dumps(record.excludes),
        "image": record.image,
        "env": json.dumps(record.env),
        "uid_base": record.uid_base,
        "capability": record.grant.model_dump_json(),
        "token": record.token,
        "chain": json.dumps(record.chain),
        "created_at_s": record.created_at_s,
        "expires_at_s": record.expires_at_s,
        "not_after_s": record.not_after_s,
        "workspace_version": record.workspace_version,
        "shares": record.shares,
        "forked_from": record.forked_from,
        "boot": record.boot,
        "ends_boot_s": record.ends_boot_s,
        "given_up": int(record.given_up),
    }


def from_row(row: tuple[Cell, ...]) -> LeaseRecord:
    """Raises Failure(storage_unavailable) for a row that this version can't understand."""
    cell = dict(zip(COLUMNS, row, strict=True))
    source = cell["source"]
    try:
        return LeaseRecord(
            id=_text(cell["id"]),
            tenant=_text(cell["tenant"]),
            trajectory=_text(cell["trajectory"]),
            name=_text(cell["name"]),
            generation=_whole(cell["generation"]),
            state=LeaseState(_text(cell["state"])),
            source=os.fsdecode(source) if isinstance(source, bytes) else None,
            excludes=_TEXTS.validate_python(json.loads(_text(cell["excludes"]))),
            image=_text(cell["image"]),
            env=_PAIRS.validate_python(json.loads(_text(cell["env"]))),
            uid_base=_whole(cell["uid_base"]),
            grant=_grant(_text(cell["capability"])),
            token=_text(cell["token"]),
            chain=_TEXTS.validate_python(json.loads(_text(cell["chain"]))),
            created_at_s=_seconds(cell["created_at_s"]),
            expires_at_s=_seconds(cell["expires_at_s"]),
            not_after_s=_seconds(cell["not_after_s"]),
            workspace_version=_whole(cell["workspace_version"]),
            shares=_text_or_none(cell["shares"]),
            forked_from=_text_or_none(cell["forked_from"]),
            boot=_text(cell["boot"]),
            ends_boot_s=_seconds(cell["ends_boot_s"]),
            given_up=_whole(cell["given_up"]) != 0,
        )
    except (ValueError, TypeError, ValidationError) as error:
        raise failure(
            Code.STORAGE_UNAVAILABLE, f"the ledger's row of lease {cell['id']!r} can't be read"
        ) from error


@functools.lru_cache(maxsize=256)
def _grant(text: str) -> Grant:
    """Most leases share a few grants, and every call reads one: parse each text once."""
    return Grant.model_validate_json(text)


def _text(value: Cell) -> str:
    if not isinstance(value, str):
        raise TypeError("text expected")
    return value


def _text_or_none(value: Cell) -> str | None:
    return None if value is None else _text(value)


def _whole(value: Cell) -> int:
    if not isinstance(value, int):
        raise TypeError("integer expected")
    return value


def _seconds(value: Cell) -> float:
    if not isinstance(value, float):
        raise TypeError("number expected")
    return value

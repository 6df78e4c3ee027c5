"""The audit's chain: canonical bytes of a record, its hash, and what is signed.

    hash(n) = SHA-256(hash(n-1) + bytes(n)),  hash(0) = 32 zero bytes

The bytes are RFC 8785 JSON of the record with its sequence inside. Whoever changes, removes,
inserts or reorders a record without making every later hash anew breaks a link, which is found at
the first record that does not fit. Whoever makes the later hashes anew meets the next checkpoint,
a record that holds an Ed25519 signature over the hash before it. Whoever removes the end, the last
checkpoint included, meets a checkpoint that was kept elsewhere (`known`). Whoever adds records while
no daemon runs, before the next one signs them, stands between two that follow each other: a daemon
that stops in order signs its last record, and the next one its first.

`chain_verifier` checks all of this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Final, cast

from stockade.decide.canonical import JsonLike, canonical_closed
from stockade.decide.signatures import verifies
from stockade.terms.audit import (
    AUDIT_VERSION,
    AuditEvent,
    AuditKind,
    AuditUsage,
    Checkpoint,
    Head,
    Link,
)
from stockade.terms.result import ToolResult

GENESIS: Final = bytes(32)
# In the detail of a last record: nothing follows its signature but a start, signed at once.
CLOSED: Final = "closed"
UNCOVERED: Final = frozenset({"request_id", "replayed", "audit"})

_UNREFERRED: Final = '"audit":null}'
_EVENT: Final = tuple(field.name for field in fields(AuditEvent))
_USAGE: Final = tuple(field.name for field in fields(AuditUsage))
# All fields in one step: two records of 26 fields are written in each call.
_EVENT_VALUES: Final[Callable[[AuditEvent], Sequence[JsonLike]]] = attrgetter(*_EVENT)
_USAGE_VALUES: Final[Callable[[AuditUsage], Sequence[JsonLike]]] = attrgetter(*_USAGE)


def body_of(event: AuditEvent, seq: int) -> str:
    """The canonical text of an event at its place. Every string in it is text that has a UTF-8
    form; names are ASCII and there are no floats."""
    value = {"v": AUDIT_VERSION, "seq": seq, **_given(_EVENT, _EVENT_VALUES(event))}
    if event.usage is not None:
        value["usage"] = _given(_USAGE, _USAGE_VALUES(event.usage))
    return canonical_closed(value).decode()


def checkpoint_body(checkpoint: Checkpoint) -> str:
    """The record that holds `checkpoint`; it stands right after what is signed."""
    return canonical_closed(
        {
            "v": AUDIT_VERSION,
            "seq": checkpoint.seq + 1,
            "kind": AuditKind.CHECKPOINT.value,
            "at_ms": checkpoint.at_ms,
            "checkpoint": checkpoint.model_dump(),
        }
    ).decode()


def hash_of(prev: bytes, body: str) -> bytes:
    return hashlib.sha256(prev + body.encode()).digest()


def make_checkpoint(
    seq: int, head: bytes, at_ms: int, key: bytes, sign: Callable[[bytes], bytes]
) -> Checkpoint:
    signature = sign(signed_bytes(seq, head.hex(), at_ms))
    return Checkpoint(
        seq=seq, hash=head.hex(), at_ms=at_ms, key=key.hex(), signature=signature.hex()
    )


def signed_bytes(seq: int, head: str, at_ms: int) -> bytes:
    """What a checkpoint's signature is over: canonical JSON that names its purpose."""
    return canonical_closed(
        {"purpose": "stockade.audit.checkpoint/1", "seq": seq, "hash": head, "at_ms": at_ms}
    )


def genuine(checkpoint: Checkpoint) -> bool:
    """Whether the key that it names has signed it. Whose key that is, is for the reader to know."""
    return verifies(
        bytes.fromhex(checkpoint.key),
        bytes.fromhex(checkpoint.signature),
        signed_bytes(checkpoint.seq, checkpoint.hash, checkpoint.at_ms),
    )


def line_of(link: Link) -> bytes:
    """A record as one line of an export, without the line's end: canonical JSON itself."""
    head = f'{{"hash":"{link.hash.hex()}","prev":"{link.prev.hex()}","record":'
    return b"".join((head.encode(), link.body.encode(), b"}"))


def result_digest(result: ToolResult) -> str:
    """SHA-256 over the canonical bytes of a result without `request_id`, `replayed` and `audit`,
    in hex: what the record that `audit` names says of it, and what any holder can compute."""
    value = result.model_dump(mode="json", by_alias=True, exclude=set(UNCOVERED))
    return hashlib.sha256(canonical_closed(cast(JsonLike, value))).hexdigest()


def refer(result: str, place: Head) -> str:
    """A result's JSON with the place of the record that covers it: `audit` is its last key."""
    if not result.endswith(_UNREFERRED):
        return result
    # Nowhere else: within a string its quotes are escaped, and no other object has the key. One
    # copy and no second one for a part: a result may have a megabyte.
    return result.replace(
        _UNREFERRED, f'"audit":{{"seq":{place.seq},"hash":"{place.hash.hex()}"}}}}'
    )


def _given(names: Sequence[str], values: Sequence[JsonLike]) -> dict[str, JsonLike]:
    pairs = zip(names, values, strict=True)
    return {name: value for name, value in pairs if value is not None}

"""Names of calls: who makes it, and what exactly is made.

`call_name` names a call's place (tenant, trajectory, turn, call id); under one name at most one
call is ever started. `idempotency_key` names the place together with the tool and its arguments,
so two requests with one name and two keys are a mistake of the caller.

Both are HMAC-SHA256 under a fixed label. The label is a name and no secret: it keeps these digests
apart from every other use of SHA-256, and anybody can compute them, the SDK does. The text below
it is six (or four) fields, each after its length in eight bytes, so different fields never give the
same text: joined by a separator they would as soon as a field may hold it. A turn that is not given
is the empty field, which no number is.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stockade.decide.canonical import JsonLike, canonical, canonical_closed

NAME_LABEL: Final = b"stockade/call-name/1"
KEY_LABEL: Final = b"stockade/idempotency-key/1"
KEY_PATTERN: Final = r"^[0-9a-f]{64}$"
# No call id of a caller has a "!" (terms.ids.CALL_ID_PATTERN), so none meets one of these.
_DRAWN: Final = "!"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call is in its trajectory. `turn` is None where the caller counts none."""

    tenant: str
    trajectory: str
    turn: int | None
    call_id: str

    def fields(self) -> tuple[bytes, ...]:
        turn = "" if self.turn is None else str(self.turn)
        return tuple(text.encode() for text in (self.tenant, self.trajectory, turn, self.call_id))


def drawn_id(request_id: str) -> str:
    """The call id of a request that came without one: its own, so nothing is ever equal to it."""
    return _DRAWN + request_id


def is_drawn(call_id: str) -> bool:
    return call_id.startswith(_DRAWN)


def call_name(place: Place) -> str:
    """`cl_` and 32 hex digits."""
    return f"cl_{_digest(NAME_LABEL, place.fields())[:32]}"


def idempotency_key(place: Place, tool: str, arguments: bytes) -> str:
    """64 hex digits. `arguments` are canonical (RFC 8785)."""
    return _digest(KEY_LABEL, (*place.fields(), tool.encode(), arguments))


def canonical_arguments(arguments: Mapping[str, JsonLike]) -> bytes:
    """RFC 8785 bytes of arguments that a tool's model has accepted: their names are ASCII, their
    values text, flags, whole numbers and lists of text. Raises Failure(malformed_json)."""
    plain = dict(arguments)
    try:
        return canonical_closed(plain) if _is_closed(plain) else canonical(plain)
    except UnicodeEncodeError:
        return canonical(plain)  # which says what is wrong


def _is_closed(arguments: Mapping[str, JsonLike]) -> bool:
    """Whether the fast writer gives the reference's bytes (`canonical_closed`)."""
    return all(
        name.isascii() and (value is None or isinstance(value, str | int) or _is_texts(value))
        for name, value in arguments.items()
    )


def _is_texts(value: JsonLike) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def preimage(fields: tuple[bytes, ...]) -> bytes:
    """Each field after its length, 8 bytes big-endian."""
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)


def _digest(label: bytes, fields: tuple[bytes, ...]) -> str:
    return hmac.digest(label, preimage(fields), "sha256").hex()

"""The text of a token, and the blocks in it.

`stk1.` + the blocks, each its canonical JSON in unpadded base64url, + the last signature (32
bytes) likewise, joined by dots. One chain has exactly one text: other alphabets, padding, white
space and bits after the last whole byte are refused.

A block is read by the model and then written again in the canonical form of its normal form; only
a block whose bytes come out equal is a block. Nothing that a second reader could understand
differently survives that, so duplicate keys and the like need no check of their own here; the
strict reader runs only to say which of the two faults it is.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import ValidationError

from stockade.decide.blocks import (
    block_bytes,
    invalid,
    malformed,
    missing_root_field,
    normal,
    surplus_root_field,
)
from stockade.decide.canonical import parse_strict
from stockade.terms.fault import Code, Failure, Fault, failure
from stockade.terms.grant import MAX_BLOCKS, Block

PREFIX: Final = "stk1"
MAX_TOKEN_CHARS: Final = 64 * 1024
_SIGNATURE_BYTES: Final = 32
_PART: Final = re.compile(r"[A-Za-z0-9_-]+")


class TokenText(NamedTuple):
    """A token taken apart: the blocks' bytes, root first, and the last signature."""

    blocks: tuple[bytes, ...]
    signature: bytes


def split(token: str) -> TokenText:
    """Take a token apart. Raises Failure(token_too_long, token_malformed)."""
    if len(token) > MAX_TOKEN_CHARS:
        raise failure(Code.TOKEN_TOO_LONG, f"the token has more than {MAX_TOKEN_CHARS} characters")
    prefix, *parts = token.split(".")
    if prefix != PREFIX or len(parts) < 2:
        raise _form(f"a token is {PREFIX}. and at least one block and a signature")
    if len(parts) - 1 > MAX_BLOCKS:
        raise failure(
            Code.TOKEN_TOO_LONG, f"the token has {len(parts) - 1} blocks; at most {MAX_BLOCKS}"
        )
    *blocks, signature = [_decode(part) for part in parts]
    if len(signature) != _SIGNATURE_BYTES:
        raise _form("the signature does not have 32 bytes")
    return TokenText(tuple(blocks), signature)


def join(blocks: Sequence[bytes], signature: bytes) -> str:
    """The inverse of `split`."""
    return ".".join((PREFIX, *map(_encode, blocks), _encode(signature)))


def read_blocks(raws: Sequence[bytes]) -> tuple[Block, ...]:
    """The typed blocks. Raises Failure(token_malformed) if any is no block at all, else
    Failure(token_not_canonical) if any is not in canonical and normal form."""
    read: list[tuple[Block, bool]] = []
    for index, raw in enumerate(raws):
        try:
            read.append(_read(index, raw))
        except Failure as error:
            raise _in_block(index, error.fault) from None
    for index, (_, exact) in enumerate(read):
        if not exact:
            raise failure(
                Code.TOKEN_NOT_CANONICAL,
                f"block {index} is not in its canonical form",
                block=index,
            )
    return tuple(block for block, _ in read)


def _read(index: int, raw: bytes) -> tuple[Block, bool]:
    try:
        block = Block.model_validate_json(raw)
    except ValidationError as error:
        raise invalid(error) from None
    if index == 0:
        missing = missing_root_field(block)
        if missing is not None:
            raise malformed(missing, "the root block needs it")
    else:
        surplus = surplus_root_field(block)
        if surplus is not None:
            raise malformed(surplus, "only the root block has it")
    exact = block_bytes(normal(block)) == raw
    if not exact:
        try:
            parse_strict(raw, MAX_TOKEN_CHARS, floats=False)
        except Failure as error:
            raise _form(error.fault.message) from None
    return block, exact


def _decode(part: str) -> bytes:
    if not _PART.fullmatch(part):
        raise _form("a part of the token is empty or not base64url")
    try:
        raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise _form("a part of the token has an impossible length") from None
    # The last character can hold bits that decoding drops; only zeros are the one spelling.
    if _encode(raw) != part:
        raise _form("a part of the token has bits after its last byte")
    return raw


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _in_block(index: int, fault: Fault) -> Failure:
    details = {**fault.details, "block": index}
    message = f"block {index}, {fault.message}"
    return Failure(Fault(fault.code, message, fault.rule, fault.retry_after_ms, details))


def _form(message: str) -> Failure:
    return failure(Code.TOKEN_MALFORMED, message)

"""The text of a token, and the blocks in it.

`stk1.` + the blocks, each its canonical JSON in unpadded base64url, + the last signature (32
bytes) likewise, joined by dots. One chain has exactly one text: other alphabets, padding, white
space and bits after the last whole byte are refused.

A block is read by the model and then written again in the canonical form of its normal form; only
a block whose bytes come out equal is a block (`plain` knows most of those that do, sooner).
Nothing that a second reader could understand differently survives that, so duplicate keys and the
like need no check of their own here; the strict reader runs only to say which of the two faults it
is.
"""

from __future__ import annotations

import base64
import string
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stockade.decide.blocks import (
    block_bytes,
    invalid,
    malformed,
    missing_root_field,
    normal,
    surplus_root_field,
)
from stockade.decide.canonical import canonical_closed, parse_strict
from stockade.decide.plain import is_plain
from stockade.terms.fault import Code, Failure, Fault, failure
from stockade.terms.grant import MAX_BLOCKS, Block

PREFIX: Final = "stk1"
MAX_TOKEN_CHARS: Final = 64 * 1024
_SIGNATURE_BYTES: Final = 32
_ALPHABET: Final = (string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_").encode()
# The last characters, by the length modulo 4, whose bits after the last whole byte are zero.
_LAST: Final = (_ALPHABET, b"", _ALPHABET[::16], _ALPHABET[::4])
# In a third of the time of binascii, which takes 2 ns a character. All that it would take and that
# is no base64url, or has another spelling, is refused before.
_BASE64: Final[TypeAdapter[bytes]] = TypeAdapter(bytes, config=ConfigDict(val_json_bytes="base64"))
_from_base64: Final[Callable[[bytes], bytes]] = _BASE64.validator.validate_json


class TokenText(NamedTuple):
    """A token taken apart: the blocks' bytes, root first, and the last signature."""

    blocks: tuple[bytes, ...]
    signature: bytes


def cut(token: str) -> tuple[str, ...]:
    """The parts of a token, which `decode` reads: its blocks, root first, and the signature.
    Raises Failure(token_too_long, token_malformed)."""
    if len(token) > MAX_TOKEN_CHARS:
        raise failure(Code.TOKEN_TOO_LONG, f"the token has more than {MAX_TOKEN_CHARS} characters")
    prefix, *parts = token.split(".")
    if prefix != PREFIX or len(parts) < 2:
        raise _form(f"a token is {PREFIX}. and at least one block and a signature")
    if len(parts) - 1 > MAX_BLOCKS:
        raise failure(
            Code.TOKEN_TOO_LONG, f"the token has {len(parts) - 1} blocks; at most {MAX_BLOCKS}"
        )
    return tuple(parts)


def split(token: str) -> TokenText:
    """Take a token apart. Raises Failure(token_too_long, token_malformed)."""
    *blocks, signature = cut(token)
    return TokenText(tuple(map(decode, blocks)), decode_signature(signature))


def join(blocks: Sequence[bytes], signature: bytes) -> str:
    """The inverse of `split`."""
    return ".".join((PREFIX, *map(_encode, blocks), _encode(signature)))


def read_blocks(raws: Sequence[bytes], places: Collection[int] | None = None) -> tuple[Block, ...]:
    """The typed blocks, those at `places` or all. Raises Failure(token_malformed) if any is no
    block at all, else Failure(token_not_canonical) if any is not in canonical and normal form."""
    blocks: list[Block] = []
    inexact: int | None = None
    for index in range(len(raws)) if places is None else places:
        try:
            block, exact = _read(index, raws[index])
        except Failure as error:
            raise _in_block(index, error.fault) from None
        blocks.append(block)
        if inexact is None and not exact:
            inexact = index
    if inexact is not None:
        raise failure(
            Code.TOKEN_NOT_CANONICAL,
            f"block {inexact} is not in its canonical form",
            block=inexact,
        )
    return tuple(blocks)


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
    exact = is_plain(block, raw) or block_bytes(normal(block), canonical_closed) == raw
    if not exact:
        try:
            parse_strict(raw, MAX_TOKEN_CHARS, floats=False)
        except Failure as error:
            raise _form(error.fault.message) from None
    return block, exact


def decode(part: str) -> bytes:
    """The bytes of a part, which has no other spelling. Raises Failure(token_malformed)."""
    text = part.encode("ascii", "replace")
    if not text or text.translate(None, _ALPHABET):
        raise _form("a part of the token is empty or not base64url")
    surplus = len(text) % 4
    if surplus == 1:
        raise _form("a part of the token has an impossible length")
    # The last character can hold bits that decoding drops; only zeros are the one spelling.
    if text[-1] not in _LAST[surplus]:
        raise _form("a part of the token has bits after its last byte")
    return _from_base64(b'"%b"' % text)


def decode_signature(part: str) -> bytes:
    """Raises Failure(token_malformed)."""
    signature = decode(part)
    if len(signature) != _SIGNATURE_BYTES:
        raise _form("the signature does not have 32 bytes")
    return signature


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _in_block(index: int, fault: Fault) -> Failure:
    details = {**fault.details, "block": index}
    message = f"block {index}, {fault.message}"
    return Failure(Fault(fault.code, message, fault.rule, fault.retry_after_ms, details))


def _form(message: str) -> Failure:
    return failure(Code.TOKEN_MALFORMED, message)

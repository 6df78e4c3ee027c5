"""Capability tokens: minting, narrowing without a key, verifying.

A token is a chain of blocks and one signature. sig0 = HMAC-SHA256(tenant key, block0) and
sig_i = HMAC-SHA256(sig_{i-1}, block_i); only the last one is carried. So whoever holds a token can
append a block (the signature it carries is the key for the next one) and cannot take one away
(the earlier signatures can't be computed from the last). A block's id is derived from its
signature, so it can't be chosen.

`verify` looks at the form of everything first, since a form fault says nothing about authority,
then at the signature, and only then at what the blocks say. Before the signature holds, two
fields of the root are used, `kid` and `tenant`, and only to find the key that they must be signed
with. The tenant's key is derived from the root secret of `kid` by HKDF.

Every call of a lease carries the same token, and what the blocks of other tokens grant has mostly
been seen. `Verifier` remembers what held, so a token seen before costs a look-up, and a new one the
reading of what was never granted in these words. Remembered are facts about bytes: what a block's
text grants and whether such grants narrow one another (`links`), a tenant's key, and that all of a
text is good. The signature is computed over every block of every new text, the lease and the times
of each block are held against those of the one before it, and time is compared at each call
(docs/decisions/0016).
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stockade.decide.attenuation import Excess, wider_link, wider_own
from stockade.decide.blocks import block_bytes, malformed, normal, unsupported
from stockade.decide.links import Admitted, Grants, Link, link_of
from stockade.decide.memory import Memory
from stockade.decide.tokentext import TokenText, join, read_blocks, split
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.grant import Block
from stockade.terms.ids import NAME_PATTERN

SECRET_BYTES: Final = 32
_KEY_INFO: Final = b"stockade token key 1\x00"
# Longer tokens are verified each time, which bounds what remembering can cost to some 20 MiB.
_REMEMBERED_CHARS: Final = 8192
_REMEMBERED_TOKENS: Final = 256
_REMEMBERED_GRANTS: Final = 256
_REMEMBERED_CHAINS: Final = 128
_REMEMBERED_KEYS: Final = 256


class KeyRing:
    """Root secrets by key id. Several ids at once are how keys rotate: tokens of each are valid
    while its secret is here. Raises ValueError for a bad id or a secret that isn't 32 bytes."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        for kid, secret in secrets.items():
            if not re.fullmatch(NAME_PATTERN, kid):
                raise ValueError("a key id is 1 to 63 letters, digits, dots, hyphens, underscores")
            if len(secret) != SECRET_BYTES:
                raise ValueError(f"the secret of key {kid} must have {SECRET_BYTES} bytes")
        self._secrets = dict(secrets)

    def __repr__(self) -> str:
        return f"KeyRing({sorted(self._secrets)})"

    def tenant_key(self, kid: str, tenant: str) -> bytes:
        """Raises Failure(token_unknown_key)."""
        secret = self._secrets.get(kid)
        if secret is None:
            raise failure(Code.TOKEN_UNKNOWN_KEY, "the token's key id is not known here")
        info = _KEY_INFO + tenant.encode()
        return HKDF(algorithm=SHA256(), length=SECRET_BYTES, salt=None, info=info).derive(secret)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a token says of itself. Nothing here is verified; `last_id` is the id of the last block
    if the token is genuine (ids of the blocks before it can't be known without the key)."""

    blocks: tuple[Block, ...]
    last_id: str


def mint(ring: KeyRing, kid: str, block: Block) -> str:
    """A token of one block. Raises Failure(token_unknown_key, token_malformed,
    token_unsupported)."""
    if block.kid != kid:
        raise malformed("kid", "the block names another key")
    block = normal(block)
    _admit((link_of(block),))
    raw = block_bytes(block)
    token = join((raw,), _sign(ring.tenant_key(kid, _named("tenant", block.tenant)), raw))
    read_blocks(split(token).blocks)
    return token


def attenuate(token: str, child: Block) -> str:
    """Append `child`. Needs no key, no clock and no daemon.

    Accepts exactly what `verify` accepts as far as it depends on the blocks. Raises
    Failure(wider_block) with `rule` = the component, Failure(token_malformed, token_not_canonical,
    token_too_long, token_unsupported).
    """
    text = split(token)
    child = normal(child)
    raw = block_bytes(child)
    extended = join((*text.blocks, raw), _sign(text.signature, raw))
    links = [link_of(block) for block in read_blocks(split(extended).blocks)]
    _admit(links)
    return extended


def verify(token: str, ring: KeyRing, now_s: float, *, skew_s: float = 0) -> Permit:
    """What the token permits at `now_s` (seconds since the epoch).

    Valid from the latest `not_before_s` of the chain until just before the earliest
    `not_after_s`; `skew_s` widens both ends. Raises Failure with the first of: token_too_long,
    token_malformed, token_not_canonical, token_unknown_key, bad_signature, token_unsupported,
    wider_block, token_not_yet_valid, token_expired.
    """
    return _in_time(_chain(ring, token), now_s, skew_s)


class _Known:
    """What held before."""

    __slots__ = ("admitted", "grants", "keys")

    def __init__(self) -> None:
        self.admitted = Admitted(_REMEMBERED_CHAINS)
        self.grants = Grants(_REMEMBERED_GRANTS)
        self.keys: Memory[tuple[str, str], bytes] = Memory(_REMEMBERED_KEYS)


class Verifier:
    """`verify` with a memory of what held, for one key ring. Thread-safe: the memories are, and
    what they hold never changes."""

    def __init__(self, ring: KeyRing) -> None:
        self._fresh = functools.partial(_chain, ring)
        known = functools.partial(_chain, ring, known=_Known())
        self._remembered = functools.lru_cache(maxsize=_REMEMBERED_TOKENS)(known)

    def verify(self, token: str, now_s: float, *, skew_s: float = 0) -> Permit:
        """As the function `verify`."""
        short = len(token) <= _REMEMBERED_CHARS
        return _in_time(self._remembered(token) if short else self._fresh(token), now_s, skew_s)


def inspect(token: str) -> Inspection:
    """Read a token without a key. Raises Failure(token_too_long, token_malformed,
    token_not_canonical); says nothing about validity."""
    text = split(token)
    return Inspection(read_blocks(text.blocks), _block_id(text.signature))


class _Chain(NamedTuple):
    permit: Permit
    not_before_s: int


def _chain(ring: KeyRing, token: str, known: _Known | None = None) -> _Chain:
    text = split(token)
    links, new = _links(text.blocks, known)
    root, last = links[0], links[-1]
    owner = (_named("kid", root.kid), _named("tenant", root.tenant))
    seen = None if known is None else known.keys.get(owner)
    key = seen or ring.tenant_key(*owner)
    ids = _check_signature(text, key)
    grants = tuple([link.grant for link in links])
    if known is not None and grants in known.admitted:
        _check_narrower(links, wider_own)
    else:
        _admit(links)
        if known is not None:
            known.admitted.add(grants)
            for place in new:
                known.grants.learn(text.blocks[place], links[place])
    if known is not None and seen is None:
        known.keys.put(owner, key)
    ends = tuple([link.not_after_s for link in links])
    permit = Permit(
        tenant=owner[1],
        trajectory=root.trajectory or "",
        chain=ids,
        totals=tuple([grant.total for grant in grants]),
        ends=ends,
        grant=last.grant,
        lease_id=None if last.lease is None else last.lease.id,
        generation=None if last.lease is None else last.lease.generation,
        not_after_s=min(ends),
        bound_at=_bound_at(links),
    )
    return _Chain(permit, max([link.not_before_s for link in links]))


def _links(raws: Sequence[bytes], known: _Known | None) -> tuple[list[Link], Sequence[int]]:
    """The links of a chain, and the places of those that the reference had to read."""
    found = [None] * len(raws) if known is None else known.grants.links(raws)
    links = [link for link in found if link is not None]
    if len(links) == len(raws):
        return links, ()
    new = [place for place, link in enumerate(found) if link is None]
    for place, block in zip(new, read_blocks(raws, new), strict=True):
        links.insert(place, link_of(block, links[place - 1] if place else None))
    return links, new


def _bound_at(links: Sequence[Link]) -> int | None:
    """The first link of the run, up to the last, that has the last one's lease binding."""
    place = len(links) - 1
    binding = links[place].lease
    if binding is None:
        return None
    # Mostly the same object: a model that is compared with itself looks at each of its fields.
    while place and (links[place - 1].lease is binding or links[place - 1].lease == binding):
        place -= 1
    return place


def _in_time(chain: _Chain, now_s: float, skew_s: float) -> Permit:
    # Written so that a clock that gives no number (NaN) refuses.
    if not chain.not_before_s <= now_s + skew_s:
        raise failure(
            Code.TOKEN_NOT_YET_VALID,
            "the token is not valid yet",
            rule="not_before_s",
            not_before_s=chain.not_before_s,
        )
    if not now_s - skew_s < chain.permit.not_after_s:
        raise failure(
            Code.TOKEN_EXPIRED,
            "the token has expired",
            rule="not_after_s",
            not_after_s=chain.permit.not_after_s,
        )
    return chain.permit


def _check_signature(text: TokenText, key: bytes) -> tuple[str, ...]:
    ids: list[str] = []
    for raw in text.blocks:
        key = _sign(key, raw)
        ids.append(_block_id(key))
    if not hmac.compare_digest(key, text.signature):
        raise failure(Code.BAD_SIGNATURE, "the token's signature does not fit its blocks")
    return tuple(ids)


def _admit(links: Sequence[Link]) -> None:
    for index, link in enumerate(links):
        component = unsupported(link.grant)
        if component is not None:
            raise _refused(
                Code.TOKEN_UNSUPPORTED, component, index, "nothing enforces this part yet"
            )
    _check_narrower(links, wider_link)


def _check_narrower(links: Sequence[Link], wider: Callable[[Link, Link], Excess | None]) -> None:
    for index in range(1, len(links)):
        excess = wider(links[index], links[index - 1])
        if excess is not None:
            raise _refused(Code.WIDER_BLOCK, excess.component, index, excess.reason)


def _refused(code: Code, component: str, index: int, reason: str) -> Failure:
    message = f"block {index}, {component}: {reason}"
    return failure(code, message, rule=component, component=component, block=index)


def _named(field: str, value: str | None) -> str:
    if value is None:
        raise malformed(field, "the root block needs it")
    return value


def _sign(key: bytes, raw: bytes) -> bytes:
    return hmac.digest(key, raw, "sha256")


def _block_id(signature: bytes) -> str:
    return hashlib.sha256(signature).hexdigest()[:32]

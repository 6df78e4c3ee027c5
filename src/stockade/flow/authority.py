"""The daemon's authority over tokens: the keys that sign them, and the blocks that are revoked.

Keys change without a pause. The ring, its current key and the memory of the chains that held are
one value, which a rotation or a retirement replaces as a whole, after the key file was written: a
call sees the keys from before or from after, and a chain that was remembered under a retired key
goes with its memory.

A revocation is written to the ledger, then to the set in memory that every verification looks at,
and then the running calls below it are cancelled. A call that was let in before and enters its
lease's places after is asked again once it has entered (`Leases.admit`), so none slips through. The
set is the whole table: the state directory's lock makes this process its only writer. The leases
that were made below a revoked block are over, and the sweeper removes them.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stockade.decide.tokens import SECRET_BYTES, KeyRing, Verifier, inspect
from stockade.flow.running import Running
from stockade.terms.authority import MAX_KEYS, Revocation, RootKeys
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.ports import Ledger

# Whoever holds a token can make any number of blocks below it to revoke, offline.
MAX_BY_TENANTS: Final = 65_536


class Signer(NamedTuple):
    """The key that new tokens are signed with, as of one moment."""

    ring: KeyRing
    kid: str


class KeyUse(NamedTuple):
    """`leases` are those that are not over and whose token is signed with the key."""

    kid: str
    current: bool
    leases: int


class _Ring(NamedTuple):
    keys: RootKeys
    ring: KeyRing
    verifier: Verifier


class Authority:
    """Thread-safe."""

    def __init__(
        self,
        keys: RootKeys,
        *,
        save: Callable[[RootKeys], None],
        ledger: Ledger,
        running: Running,
        random_hex: Callable[[int], str],
        skew_s: float = 0,
    ) -> None:
        """A token holds from `skew_s` seconds before its time until as long after it, by the wall
        clock: whoever narrowed it has a clock of their own. `save` replaces the key file;
        `random_hex(n)` gives n random bytes in hex."""
        self._save = save
        self._ledger = ledger
        self._running = running
        self._random_hex = random_hex
        self._skew_s = skew_s
        self._changing = threading.Lock()
        self._ring = _ring(keys)
        self._revoked = {made.block: made for made in ledger.revocations()}

    def verify(self, token: str, now_s: float) -> Permit:
        """As `decide.tokens.verify`, and Failure(token_revoked)."""
        permit = self._ring.verifier.verify(token, now_s, skew_s=self._skew_s)
        self.check(permit.chain)
        return permit

    def check(self, chain: tuple[str, ...]) -> None:
        """Raises Failure(token_revoked) if a block of the chain is revoked. Does not say which: it
        may be one that the holder knows nothing of."""
        if self.revoked(chain):
            raise failure(
                Code.TOKEN_REVOKED,
                "the capability, or one that it was made from, is revoked",
                rule="revocation",
            )

    def revoked(self, chain: tuple[str, ...]) -> bool:
        return any(block in self._revoked for block in chain)

    def revocations(self) -> Sequence[Revocation]:
        """Oldest first."""
        with self._changing:
            return list(self._revoked.values())

    def revoke_token(
        self, token: str, tenant: str | None, by: str, reason: str, now_s: float
    ) -> Revocation:
        """Revoke the last block of a genuine token, whatever its time. `tenant` is the peer's, None
        for an operator. Raises Failure: token codes, lease_not_granted (another tenant's), busy."""
        permit = self._ring.verifier.verify(token, now_s, skew_s=math.inf)
        if tenant not in (None, permit.tenant):
            raise failure(Code.LEASE_NOT_GRANTED, "there is no such capability for this caller")
        block, end = permit.chain[-1], float(permit.not_after_s)
        return self._revoke(Revocation(block, now_s, by, reason, end), tenant is not None)

    def revoke_block(self, block: str, by: str, reason: str, now_s: float) -> Revocation:
        """Revoke a block by its id. Whether there is such a block is not known here."""
        return self._revoke(Revocation(block, now_s, by, reason, None), False)

    def _revoke(self, made: Revocation, by_tenant: bool) -> Revocation:
        with self._changing:
            found = self._revoked.get(made.block)
            if found is None:
                ended = self._ledger.forgotten_before_s
                for block in [b for b, old in self._revoked.items() if _ended(old, ended)]:
                    del self._revoked[block]
                if by_tenant and len(self._revoked) >= MAX_BY_TENANTS:
                    raise failure(
                        Code.BUSY,
                        f"{MAX_BY_TENANTS} blocks are revoked; only an operator may revoke more",
                    )
                self._ledger.add_revocation(made, ended)
                self._revoked[made.block] = found = made
        self._running.cancel_below(made.block)
        return found

    def signer(self) -> Signer:
        now = self._ring
        return Signer(now.ring, now.keys.current)

    def key_uses(self) -> Sequence[KeyUse]:
        """The newest, which is the current one, last."""
        keys, used = self._ring.keys, self._used()
        return [KeyUse(kid, kid == keys.current, used[kid]) for kid in keys.secrets]

    def rotate(self) -> str:
        """Add a random key and sign with it from now on; gives its id. Raises
        Failure(key_in_use) when there are as many as can be, Failure(storage_unavailable)."""
        with self._changing:
            keys = self._ring.keys
            if len(keys.secrets) >= MAX_KEYS:
                raise failure(
                    Code.KEY_IN_USE,
                    f"there are {MAX_KEYS} keys already; retire an old one first",
                    rule="keys",
                )
            kid = _next_kid(keys)
            secret = bytes.fromhex(self._random_hex(SECRET_BYTES))
            self._replace(RootKeys(kid, {**keys.secrets, kid: secret}))
            return kid

    def retire(self, kid: str, *, force: bool) -> None:
        """Remove an older key: its tokens are unknown from now on. Raises
        Failure(invalid_argument) for a key that is not there and for the current one,
        Failure(key_in_use) while leases live under it, unless `force`."""
        with self._changing:
            keys = self._ring.keys
            if kid not in keys.secrets:
                raise failure(Code.INVALID_ARGUMENT, "there is no such key", argument="kid")
            if kid == keys.current:
                raise failure(
                    Code.INVALID_ARGUMENT,
                    f"{kid} is the current key; rotate first",
                    argument="kid",
                )
            leases = self._used()[kid]
            if leases and not force:
                raise failure(
                    Code.KEY_IN_USE,
                    f"the tokens of {leases} living leases are signed with {kid}",
                    rule="leases",
                    leases=leases,
                )
            kept = {name: secret for name, secret in keys.secrets.items() if name != kid}
            self._replace(RootKeys(keys.current, kept))

    def _replace(self, keys: RootKeys) -> None:
        self._save(keys)
        self._ring = _ring(keys)

    def _used(self) -> Counter[str]:
        return Counter(_kid(record.token) for record in self._ledger.leases())


def _ring(keys: RootKeys) -> _Ring:
    ring = KeyRing(keys.secrets)
    return _Ring(keys, ring, Verifier(ring))


def _next_kid(keys: RootKeys) -> str:
    """Above every number there is: the current key is never retired, so no id comes twice."""
    taken = [int(kid[1:]) for kid in keys.secrets if kid[:1] == "k" and kid[1:].isdecimal()]
    return f"k{max(taken, default=0) + 1}"


def _kid(token: str) -> str:
    try:
        return inspect(token).blocks[0].kid or ""
    except Failure:
        return ""  # of a version whose blocks were different


def _ended(made: Revocation, before_s: float) -> bool:
    return made.not_after_s is not None and made.not_after_s < before_s

"""Verifies a stream of audit records, as `chain` makes them.

`Verifier` takes records one by one and holds none, so a chain of any length is checked in the same
memory. It stops at the first fault; what follows a broken link proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from stockade.decide.chain import CLOSED, GENESIS, genuine, hash_of, line_of
from stockade.terms.audit import AUDIT_VERSION, AuditKind, Checkpoint, Link

_ADDED: Final = "was added after the daemon had stopped"
# {"hash":"…64…","prev":"…64…","record":…}: what is hashed is cut out of a line, never written anew.
_HASH_AT: Final = len('{"hash":"')
_PREV_AT: Final = _HASH_AT + 64 + len('","prev":"')
_BODY_AT: Final = _PREV_AT + 64 + len('","record":')


def closes(body: str) -> bool:
    """Whether a record is the last one of a process."""
    value = _record(body)
    return value is not None and _closes(value)


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first record that is not what was written. `seq` is where it is, or should be."""

    seq: int
    reason: str


class Verifier:
    """Checks records in their order. `add` gives the first flaw; nothing may be added after it."""

    def __init__(
        self,
        *,
        keys: frozenset[str] = frozenset(),
        known: Mapping[int, str] | None = None,
        whole: bool = False,
    ) -> None:
        """`keys` are the public keys (hex) that may have signed; none: any, and `signers` says
        which. `known` are hashes by sequence from checkpoints that were kept elsewhere. `whole`
        says that the records are all there are: where the first ones are missing, a record that
        is signed must say that they were dropped."""
        self.signers: set[str] = set()
        self.first = self.last = self.sealed = 0
        self.count = 0
        self._keys = keys
        self._known = dict(known or {})
        self._whole = whole
        self._said_dropped = self._dropped = 0
        self._due: AuditKind | None = None
        self._closes = False
        self._hash = GENESIS

    def add_line(self, line: bytes) -> Flaw | None:
        """A record as `line_of` writes it."""
        found = _cut(line)
        if found is None:
            return Flaw(self.last + 1, "is no record of this format")
        return self._add(*found)

    def add(self, link: Link) -> Flaw | None:
        body = _record(link.body)
        if body is None or body.get("seq") != link.seq:
            return Flaw(link.seq, "is no record of this format")
        return self._add(link, body)

    def _add(self, link: Link, body: Mapping[str, object]) -> Flaw | None:
        expected = self.last + 1
        if body.get("v") != AUDIT_VERSION:
            return Flaw(link.seq, "is no record of this format")
        first = self.count == 0
        if not first and link.seq != expected:
            return Flaw(expected, f"is missing: record {link.seq} stands in its place")
        if not first and link.prev != self._hash:
            return Flaw(link.seq, "does not follow the record before it")
        if first and link.seq == 1 and link.prev != GENESIS:
            return Flaw(link.seq, "is the first one and follows another")
        if hash_of(link.prev, link.body) != link.hash:
            return Flaw(link.seq, "was changed: its hash is not its own")
        kind = body.get("kind")
        flaw = self._checkpoint(link, body) if kind == AuditKind.CHECKPOINT else None
        flaw = flaw or self._anchored(link, first) or self._added(link, kind)
        flaw = flaw or self._said(link, kind, body)
        if flaw is None:
            self.first = self.first or link.seq
            self.last, self._hash = link.seq, link.hash
            self._closes = _closes(body)
            self.count += 1
        return flaw

    def end(self) -> Flaw | None:
        """After the last record."""
        missing = [seq for seq in self._known if seq > self.last]
        if missing:
            return Flaw(
                self.last + 1, f"is missing: a checkpoint signs records up to {max(missing)}"
            )
        if self._due is AuditKind.CHECKPOINT:
            return Flaw(self.last, _ADDED)
        if self._whole and self._dropped < self.first - 1:
            return Flaw(self.first - 1, "is missing, and no signed record says that it was dropped")
        return None

    def _checkpoint(self, link: Link, body: Mapping[str, object]) -> Flaw | None:
        try:
            made = Checkpoint.model_validate(body.get("checkpoint"))
        except ValidationError:
            return Flaw(link.seq, "is a checkpoint without a signature")
        if self._keys and made.key not in self._keys:
            return Flaw(link.seq, f"is signed by an unknown key, {made.key}")
        if made.seq != link.seq - 1 or made.hash != link.prev.hex() or not genuine(made):
            return Flaw(
                link.seq,
                f"is a checkpoint that does not fit: records {self.sealed + 1} to {link.seq - 1} "
                "are not those that were signed",
            )
        self.signers.add(made.key)
        self.sealed = made.seq
        # Unsigned, it could have been put behind the end by whoever took the beginning away.
        self._dropped = self._said_dropped
        return None

    def _anchored(self, link: Link, first: bool) -> Flaw | None:
        known = self._known.get(link.seq)
        if known is not None and known != link.hash.hex():
            return Flaw(link.seq, "is not the one that a checkpoint signs")
        if first and self.sealed != link.seq - 1:
            return Flaw(
                link.seq, "is the first one here and no checkpoint: nothing says what was before it"
            )
        return None

    def _added(self, link: Link, kind: object) -> Flaw | None:
        """What stands behind the end of a process that stopped in order."""
        due, self._due = self._due, None
        if due is not None and kind != due:
            # The start that it follows was none.
            return Flaw(link.seq - (due is AuditKind.CHECKPOINT), _ADDED)
        if due is AuditKind.DAEMON_STARTED:
            self._due = AuditKind.CHECKPOINT
        elif kind == AuditKind.CHECKPOINT and self._closes:
            self._due = AuditKind.DAEMON_STARTED
        return None

    def _said(self, link: Link, kind: object, body: Mapping[str, object]) -> Flaw | None:
        """What records say of records that are not there."""
        if kind == AuditKind.DAEMON_STARTED:
            missing = _number(body, "missing_through")
            if missing:
                return Flaw(
                    link.seq,
                    f"stands where others were: there had been records up to {missing} "
                    "when the daemon started",
                )
        if kind == AuditKind.AUDIT_DROPPED:
            self._said_dropped = max(self._said_dropped, _number(body, "through"))
        return None


def _record(body: str) -> dict[str, object] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _closes(body: Mapping[str, object]) -> bool:
    detail = body.get("detail")
    stopped = body.get("kind") == AuditKind.DAEMON_STOPPED
    return stopped and isinstance(detail, dict) and detail.get(CLOSED) is True


def _number(body: Mapping[str, object], name: str) -> int:
    detail = body.get("detail")
    found = detail.get(name) if isinstance(detail, dict) else None
    return found if isinstance(found, int) else 0


def _cut(line: bytes) -> tuple[Link, dict[str, object]] | None:
    """The inverse of `line_of`, with the record; None for anything that it does not write."""
    try:
        text = line[_BODY_AT:-1].decode()
        prev = bytes.fromhex(line[_PREV_AT : _PREV_AT + 64].decode("ascii"))
        own = bytes.fromhex(line[_HASH_AT : _HASH_AT + 64].decode("ascii"))
    except ValueError:
        return None
    body = _record(text)
    seq = None if body is None else body.get("seq")
    if body is None or type(seq) is not int:
        return None
    link = Link(seq, prev, own, text)
    return (link, body) if line_of(link) == line else None

"""An audit in memory: what the ledger's table must do, in the plainest way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from stockade.decide.chain import GENESIS, body_of, checkpoint_body, hash_of, make_checkpoint
from stockade.terms.audit import (
    Acting,
    AuditEvent,
    AuditKind,
    AuditState,
    Checkpoint,
    Head,
    Link,
)
from stockade.terms.fault import Code, failure


class FakeAuditLog:
    """Implements `terms.audit.AuditLog`, for one thread."""

    def __init__(self, key: bytes, sign: Callable[[bytes], bytes]) -> None:
        self._key = key
        self._sign = sign
        self._links: list[Link] = []
        self._end = Head(0, GENESIS)
        self._exported = 0
        self._sealed: Checkpoint | None = None
        self._closed = False
        self.who: list[Acting] = []

    def write(self, event: AuditEvent) -> Head:
        return self._put(body_of(event, self._end.seq + 1))

    def write_signed(self, event: AuditEvent, at_ms: int, *, last: bool = False) -> Checkpoint:
        self.write(event)
        made = self.seal(at_ms)
        assert made is not None
        self._closed = last
        return made

    def seal(self, at_ms: int) -> Checkpoint | None:
        if not self.unsealed():
            return None
        end = self._end
        made = make_checkpoint(end.seq, end.hash, at_ms, self._key, self._sign)
        self._put(checkpoint_body(made))
        self._sealed = made
        return made

    def unsealed(self) -> int:
        return self._end.seq - (0 if self._sealed is None else self._sealed.seq + 1)

    @contextmanager
    def acting(self, who: Acting) -> Iterator[None]:
        self.who.append(who)
        yield

    def exported(self, through: int, event: AuditEvent) -> None:
        if not 1 <= through <= self._end.seq:
            raise failure(
                Code.INVALID_ARGUMENT, f"there is no record {through}", argument="through"
            )
        self._exported = max(self._exported, through)
        self.write(event)

    def drop(self, older_than_ms: int, at_ms: int) -> int:
        ends = [
            link.seq
            for link in self._links[1:]
            if _checkpoint(link)
            and link.seq - 1 <= self._exported
            and json.loads(link.body)["at_ms"] < older_than_ms
        ]
        if not ends:
            return 0
        before = len(self._links)
        self._links = [link for link in self._links if link.seq >= ends[-1]]
        gone = before - len(self._links)
        detail = {"through": ends[-1] - 1, "records": gone}
        self.write(AuditEvent(AuditKind.AUDIT_DROPPED, at_ms, detail=detail))
        self.seal(at_ms)
        return gone

    def state(self) -> AuditState:
        first = self._links[0].seq if self._links else 0
        return AuditState(first, self._end, self._exported, self._sealed)

    def read(self, first: int) -> Iterator[Link]:
        return iter([link for link in self._links if link.seq >= first])

    def anchor(self, seq: int) -> int:
        found = [link.seq for link in self._links if _checkpoint(link) and link.seq <= seq]
        return found[-1] if found else 1

    def since(self, at_ms: int) -> int:
        found = (link.seq for link in self._links if json.loads(link.body)["at_ms"] >= at_ms)
        return next(found, self._end.seq + 1)

    def of_call(self, call: str, tenant: str | None = None) -> Sequence[Link]:
        mine = [
            link for link in self._links if tenant in (None, json.loads(link.body).get("tenant"))
        ]
        return [link for link in mine if _call(link) == call][-1000:]

    def _put(self, body: str) -> Head:
        if self._closed:
            raise failure(Code.STORAGE_UNAVAILABLE, "the audit is closed")
        made = Head(self._end.seq + 1, hash_of(self._end.hash, body))
        self._links.append(Link(made.seq, self._end.hash, made.hash, body))
        self._end = made
        return made


def _checkpoint(link: Link) -> bool:
    return bool(json.loads(link.body)["kind"] == AuditKind.CHECKPOINT)


def _call(link: Link) -> object:
    value = json.loads(link.body)
    return value.get("call_id", value["request_id"]) if "request_id" in value else None

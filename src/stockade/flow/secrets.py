"""The registered secrets of leases: who has which, and who must not show which.

They are opened once and held in memory, because every call needs them. What a lease's commands get
are its own. What its results hide are also those of the leases it came from and of those that came
from it: a workspace that is shared or copied carries files from one to the other.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Final

from stockade.decide.checks import Arguments
from stockade.terms.books import SecretBook
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import Clock, Ledger
from stockade.terms.secret import (
    MAX_ALL_BYTES,
    MAX_SECRET_BYTES,
    MAX_SECRETS,
    MIN_SECRET_BYTES,
    SECRET_NAME_PATTERN,
    Secret,
)
from stockade.tools.catalog import TOOLS
from stockade.tools.clean import clean_arguments
from stockade.tools.needles import squeeze
from stockade.tools.redact import Findings, Redactor, Tokens, marker

# The sandbox's own: a program is looked for along PATH, and the loader reads LD_*.
_RESERVED: Final = re.compile(r"(?:PATH|HOME|USER|TMPDIR|LD_.*)\Z")
_NO_TOKENS: Final = Tokens(())
_NAME: Final = re.compile(SECRET_NAME_PATTERN)
_ARGUMENTS: Final = frozenset(
    name for tool in TOOLS.values() for name in tool.arguments.model_fields
)


class Secrets:
    """Thread-safe."""

    def __init__(self, book: SecretBook, ledger: Ledger, tokens: Tokens, clock: Clock) -> None:
        """Opens what the book holds. Raises Failure(storage_unavailable)."""
        self._book = book
        self._ledger = ledger
        self._tokens = tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Secret, ...]] = {}
        for secret in book.all():
            self._held[secret.lease_id] = (*self._held.get(secret.lease_id, ()), secret)
        self._plain = Redactor(tokens)
        self._redactors: dict[str, Redactor] = {}
        self._whole: Redactor | None = None

    def add(self, record: LeaseRecord, name: str, value: bytes, *, in_environment: bool) -> Secret:
        """Register it, or replace the one of that name. Raises Failure: invalid_argument,
        argument_too_large, lease_expired, storage_unavailable."""
        check_secret(name, value, in_environment=in_environment)
        secret = Secret(record.id, name, value, in_environment, self._clock())
        with self._lock:
            others = [each for each in self._held.get(record.id, ()) if each.name != name]
            if len(others) >= MAX_SECRETS:
                raise _wrong(f"a lease has at most {MAX_SECRETS} secrets")
            if sum(len(each.value) for each in others) + len(value) > MAX_ALL_BYTES:
                raise _large(f"all secrets of a lease have at most {MAX_ALL_BYTES} bytes together")
            if not self._book.put(secret):
                raise failure(Code.LEASE_EXPIRED, "the lease has ended")
            self._change(record.id, (*others, secret))
        return secret

    def of(self, record: LeaseRecord) -> Sequence[Secret]:
        """Oldest first."""
        return self._held.get(record.id, ())

    def remove(self, record: LeaseRecord, name: str) -> None:
        """Results show it from now on. Raises Failure(not_found)."""
        with self._lock:
            if not self._book.remove(record.id, name):
                raise failure(Code.NOT_FOUND, "the lease has no secret of this name")
            left = tuple(each for each in self._held.get(record.id, ()) if each.name != name)
            self._change(record.id, left)

    def forget(self, lease_id: str) -> None:
        """The lease has ended; the book has dropped its own."""
        with self._lock:
            self._change(lease_id, ())

    def environment(self, record: LeaseRecord) -> tuple[tuple[bytes, bytes], ...]:
        """The variables of the lease's commands, sorted by name."""
        mine = [each for each in self._held.get(record.id, ()) if each.in_environment]
        return tuple(sorted((each.name.encode(), each.value) for each in mine))

    def redactor(self, record: LeaseRecord | None) -> Redactor:
        """What results of this lease must pass; without one, of a call that got no further."""
        if record is None or not self._held:
            return self._plain
        found = self._redactors.get(record.id)
        if found is None:
            with self._lock:
                found = self._redactors[record.id] = self._made(record)
        return found

    def redactor_of(self, lease_id: str) -> Redactor:
        """As `redactor`, of a lease by its id."""
        return self.redactor(self._ledger.lease(lease_id))

    def arguments(self, record: LeaseRecord, arguments: Arguments) -> Arguments:
        """The arguments of a call without registered secrets, for a person to decide on."""
        if not self._held:
            return arguments
        redactor = Redactor(_NO_TOKENS, self._family(record))
        return clean_arguments(arguments, redactor, Findings())

    def recorded(self, lease_id: str | None, arguments: Arguments) -> tuple[Arguments, int]:
        """A `call_events.Redact`: the arguments as the audit may keep them, and how much was
        taken out. Of a call that was refused the names may be the caller's as well; those of the
        tools' own arguments stay."""
        redactor = self._plain if lease_id is None else self.redactor_of(lease_id)
        findings = Findings()
        named = {
            name if name in _ARGUMENTS else redactor.text(name, findings): value
            for name, value in arguments.items()
        }
        cleaned = clean_arguments(named, redactor, findings)
        return cleaned, findings.hidden.total()

    def hide_all(self, text: str) -> str:
        """A text that belongs to no lease, such as a log line, without any lease's secrets."""
        redactor = self._whole
        if redactor is None:
            with self._lock:
                every = [each for held in self._held.values() for each in held]
                redactor = self._whole = Redactor(self._tokens, every)
        return redactor.text(text, Findings())

    def _made(self, record: LeaseRecord) -> Redactor:
        family = self._family(record)
        return Redactor(self._tokens, family) if family else self._plain

    def _family(self, record: LeaseRecord) -> list[Secret]:
        root = self._root(record)
        family = list(self._held.get(record.id, ()))
        for lease_id, secrets in self._held.items():
            other = self._ledger.lease(lease_id)
            if lease_id != record.id and other is not None and self._root(other) == root:
                family += secrets
        return family

    def _root(self, record: LeaseRecord) -> str:
        above = record.shares or record.forked_from
        while above is not None:
            found = self._ledger.lease(above)
            if found is None:
                return above
            record, above = found, found.shares or found.forked_from
        return record.id

    def _change(self, lease_id: str, secrets: tuple[Secret, ...]) -> None:
        # New tables in the place of the old ones: readers take no lock.
        held = {key: value for key, value in self._held.items() if key != lease_id}
        self._held = {**held, lease_id: secrets} if secrets else held
        self._redactors = {}
        self._whole = None


def check_secret(name: str, value: bytes, *, in_environment: bool) -> None:
    """Raises Failure(invalid_argument, argument_too_large); never repeats the value."""
    if not _NAME.fullmatch(name):
        raise _wrong("a secret's name is up to 64 letters, digits and '_', not first a digit")
    if len(value) > MAX_SECRET_BYTES:
        raise _large(f"a secret has at most {MAX_SECRET_BYTES} bytes")
    if len(squeeze(value)) < MIN_SECRET_BYTES:
        raise _wrong(
            f"a secret has at least {MIN_SECRET_BYTES} bytes that are no white space: a shorter "
            "one would be hidden wherever ordinary text holds it"
        )
    if value in marker(name) or marker(name) in value:
        raise _wrong("the secret is a part of what would stand in its place")
    if not in_environment:
        return
    if _RESERVED.match(name):
        raise _wrong(f"the variable {name} is the sandbox's own; use another name")
    if b"\0" in value:
        raise _wrong("an environment variable holds no NUL; register it to be hidden only")


def _wrong(message: str) -> Failure:
    return failure(Code.INVALID_ARGUMENT, message, rule="secret")


def _large(message: str) -> Failure:
    return failure(Code.ARGUMENT_TOO_LARGE, message, rule="secret")

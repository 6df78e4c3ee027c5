"""Registered secrets as the API asks for them: who may do what, and words into values.

A secret is the lease's: who adds or removes one holds the lease itself, by its own token or, without
a token, by who the peer is. A narrower token is for calls; it could otherwise make the others'
results hide what they say, or give their commands another environment.
"""

from __future__ import annotations

import base64
import binascii

from stockade.edge.secret_wire import SecretAdd, SecretList, SecretRemove, SecretView
from stockade.edge.service import Context
from stockade.flow.auditing import Auditor
from stockade.flow.authority import Authority
from stockade.flow.holding import check_owner
from stockade.flow.leases import Leases
from stockade.flow.secrets import Secrets
from stockade.terms.audit import AuditKind, Detail
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import Clock
from stockade.terms.secret import Secret
from stockade.tools.shape import timestamp


class SecretService:
    """Implements `edge.service.SecretVerbs`. Thread-safe."""

    def __init__(
        self,
        secrets: Secrets,
        authority: Authority,
        leases: Leases,
        audit: Auditor,
        clock: Clock,
    ) -> None:
        self._audit = audit
        self._secrets = secrets
        self._authority = authority
        self._leases = leases
        self._clock = clock

    def add(self, context: Context, lease: str, request: SecretAdd) -> SecretView:
        record = self._owned(context, lease)
        try:
            value = base64.b64decode(request.value_base64, validate=True)
        except (binascii.Error, ValueError):
            # Without its cause: a message of the decoder could quote what was sent.
            raise failure(
                Code.INVALID_ARGUMENT, "value_base64 is not base64", field="value_base64"
            ) from None
        used = not request.redact_only
        added = _view(self._secrets.add(record, request.name, value, in_environment=used))
        detail: Detail = {"name": added.name, "redact_only": added.redact_only}
        self._note(context, AuditKind.SECRET_ADDED, record, detail)
        return added

    def list(self, context: Context, lease: str) -> SecretList:
        return self._listed(self._owned(context, lease))

    def remove(self, context: Context, lease: str, request: SecretRemove) -> SecretList:
        record = self._owned(context, lease)
        self._secrets.remove(record, request.name)
        self._note(context, AuditKind.SECRET_REMOVED, record, {"name": request.name})
        return self._listed(record)

    def _note(
        self,
        context: Context,
        kind: AuditKind,
        record: LeaseRecord,
        detail: Detail,
    ) -> None:
        self._audit.note_of_lease(kind, context.who, record, detail=detail)

    def _owned(self, context: Context, lease: str) -> LeaseRecord:
        token = context.token
        holder = None if token is None else self._authority.verify(token, self._clock())
        record = self._leases.show(context.peer.tenant, lease)
        check_owner(record, holder)
        return record

    def _listed(self, record: LeaseRecord) -> SecretList:
        return SecretList(secrets=[_view(each) for each in self._secrets.of(record)])


def _view(secret: Secret) -> SecretView:
    return SecretView(
        name=secret.name,
        redact_only=not secret.in_environment,
        added_at=timestamp(secret.added_at_s),
    )

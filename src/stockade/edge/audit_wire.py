"""The JSON bodies of `/v1` about the audit, shared by server and client."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stockade.terms.audit import AuditLine, Checkpoint, Hash, Whole
from stockade.terms.base import MAX_INTEGER, Model

MAX_LAST = 100_000


class AuditStatus(Model):
    """`first` and `last` are the records that are kept, `hash` the last one's; `exported` the
    newest one of which a copy is known to be somewhere else; zeros: none. `key` is the public key
    that signs now, `checkpoint` the newest one."""

    first: Whole
    last: Whole
    hash: Hash
    exported: Whole
    key: Hash
    checkpoint: Checkpoint | None


class RecordsQuery(Model):
    """From record `since`, or from the first one that is as young as `since_ms` (milliseconds since
    the epoch), or the `last` so many; all, if none is given. With `anchored` it begins at the
    checkpoint before that, so that what follows can be verified."""

    since: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = None
    since_ms: Whole | None = None
    last: Annotated[int, Field(ge=1, le=MAX_LAST)] | None = None
    anchored: bool = False


class AuditRecords(Model):
    records: list[AuditLine]


class ExportedRequest(Model):
    """A copy of all records up to `through` is somewhere else."""

    through: Annotated[int, Field(ge=1, le=MAX_INTEGER)]

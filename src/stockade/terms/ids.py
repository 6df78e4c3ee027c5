"""Identifiers: who owns what, and which call is meant. Each is bounded and safe as a file name part."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import StringConstraints

from stockade.terms.base import Model

TENANT_PATTERN: Final = r"^[a-z0-9][a-z0-9_.-]{0,62}$"
TRAJECTORY_PATTERN: Final = (
    r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,62}(/[A-Za-z0-9][A-Za-z0-9_.:@-]{0,62}){0,3}$"
)
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
LEASE_ID_PATTERN: Final = r"^ls_[0-9a-f]{16}$"
ARTIFACT_ID_PATTERN: Final = r"^ar_[0-9a-f]{16}$"
CALL_ID_PATTERN: Final = r"^[A-Za-z0-9_.:-]{1,128}$"
_LEASE_ID: Final = re.compile(LEASE_ID_PATTERN)

Tenant = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]
Trajectory = Annotated[str, StringConstraints(pattern=TRAJECTORY_PATTERN, max_length=255)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
LeaseId = Annotated[str, StringConstraints(pattern=LEASE_ID_PATTERN)]
ArtifactId = Annotated[str, StringConstraints(pattern=ARTIFACT_ID_PATTERN)]
CallId = Annotated[str, StringConstraints(pattern=CALL_ID_PATTERN)]


def is_lease_id(text: str) -> bool:
    return _LEASE_ID.fullmatch(text) is not None


class CallRef(Model):
    """What a result says about the call it answers; null where the request did not get that far."""

    lease_id: str | None
    trajectory_id: str | None
    turn: int | None
    call_id: str | None
    tool: str | None

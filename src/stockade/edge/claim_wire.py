"""The JSON bodies of `/v1` about calls that were made, shared by server and client."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from stockade.edge.wire import LeaseRef
from stockade.terms.base import Model
from stockade.terms.claim import ClaimState
from stockade.terms.ids import CallRef
from stockade.terms.result import ToolResult


class SettleAs(StrEnum):
    COMPLETED = "completed"
    NOT_EXECUTED = "not-executed"


class CallsQuery(Model):
    """`in_doubt` "true" leaves out all others; `lease` all other leases."""

    lease: LeaseRef | None = None
    in_doubt: Literal["true", "false"] = "false"


class CallView(Model):
    """A call of a lease, also of one that was released. `call.call_id` is null where the caller
    gave none. Times are RFC 3339 UTC; `settled_by` is `daemon` or `uid N`; `reason` says how it was
    settled where that was not by its own end."""

    id: str
    state: ClaimState
    call: CallRef
    tenant: str
    created_at: str
    settled_at: str | None
    settled_by: str | None
    reason: str | None


class CallList(Model):
    """At most the newest 1,000, oldest first."""

    calls: list[CallView]


class CallRecord(CallView):
    """All that is kept of one call. `result` is null while it runs and when nothing was executed;
    of a call in doubt it is what its caller was told."""

    key: str
    arguments: dict[str, JsonValue]
    request_id: str
    generation: int
    workspace_version: str
    image: str
    plan_digest: str | None
    capability_chain: list[str]
    result: ToolResult | None


class SettleRequest(Model):
    """What a person has found out about a call in doubt. The same call is answered with a result
    that says so when it was executed, and runs when it was not."""

    settle_as: Annotated[SettleAs, Field(strict=False, alias="as")]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024)]

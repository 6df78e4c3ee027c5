"""`Stockade`: the entry of the client SDK.

```python
with Stockade.connect() as stockade, stockade.lease("./repo") as lease:
    print(lease.bash("make test").check().stdout.text)
```
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from stockade.edge.authority_wire import (
    KeyList,
    MintReply,
    MintRequest,
    RetireRequest,
    RevocationList,
    RevocationView,
    RevokeRequest,
)
from stockade.edge.budget_wire import (
    ApprovalDecision,
    ApprovalList,
    ApprovalView,
    SpendReport,
)
from stockade.edge.claim_wire import CallList, CallRecord, CallView, SettleAs, SettleRequest
from stockade.edge.client.audit import Audit
from stockade.edge.client.lease import Lease, create, made
from stockade.edge.client.link import Link, asked
from stockade.edge.client.results import Result, StockadeError
from stockade.edge.client.transport import HttpTransport, Transport
from stockade.edge.exchange import CLIENT_HEADER, DEFAULT_SOCKET, MODEL_HEADER
from stockade.edge.wire import (
    DoctorReport,
    Empty,
    Health,
    LeaseCreate,
    LeaseList,
    LeaseView,
)
from stockade.terms.fault import Code, Fault
from stockade.terms.result import error_of

SOCKET_VARIABLE: Final = "STOCKADE_SOCKET"
CLIENT_VARIABLE: Final = "STOCKADE_CLIENT"
MODEL_VARIABLE: Final = "STOCKADE_MODEL"


class Stockade:
    """A connection to a daemon, or to a runtime in this process. Thread-safe."""

    def __init__(
        self, transport: Transport, *, client: str | None = None, model: str | None = None
    ) -> None:
        """`client` and `model` are what the audit is told of who calls: 1 to 128 printable ASCII
        characters each. Raises StockadeError: invalid_argument for others."""
        self._transport = transport
        self._link = Link(transport, origin=_origin(client, model))
        self.audit: Final = Audit(self._link)

    @classmethod
    def connect(
        cls,
        socket: str | os.PathLike[str] | None = None,
        *,
        client: str | None = None,
        model: str | None = None,
    ) -> Stockade:
        """The daemon at `socket`, else at $STOCKADE_SOCKET, else at the default path. Nothing is
        sent yet: a daemon that does not answer shows in the first call's result. `client` and
        `model`, else $STOCKADE_CLIENT and $STOCKADE_MODEL, are what the audit is told. Raises
        StockadeError: invalid_argument unless they are printable ASCII."""
        path = socket or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
        return cls(
            HttpTransport(os.fspath(path)),
            client=client or os.environ.get(CLIENT_VARIABLE),
            model=model or os.environ.get(MODEL_VARIABLE),
        )

    def __enter__(self) -> Stockade:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections. Leases stay until they are released or expire."""
        self._transport.close()

    def create_lease(
        self, request: LeaseCreate, capability: str | None = None
    ) -> tuple[Result, Lease | None]:
        """The result, and the lease if it was made. Never raises for what happens to it."""
        return create(self._link.with_token(capability), request)

    def lease(
        self,
        source: str | os.PathLike[str] | None = None,
        *,
        tenant: str | None = None,
        trajectory: str | None = None,
        name: str = "main",
        grant: str | None = None,
        capability: str | None = None,
        image: str | None = None,
        excludes: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        ttl_s: int | None = None,
        within_ceiling: bool = False,
    ) -> Lease:
        """A lease on a copy of directory `source` (none: an empty workspace).

        What it may do comes from `grant` (a grant file's name, "agent" when nothing is said) or
        from `capability` (a token). The same tenant, trajectory and name give the same lease
        again; without a trajectory each call makes a new one. Where that is wider than the tenant's
        ceiling it is refused, or cut if `within_ceiling` asks for it. Raises ToolError, and
        StockadeError for what no request can hold.
        """
        request = asked(
            LeaseCreate,
            tenant=tenant,
            trajectory=trajectory or f"sdk-{secrets.token_hex(8)}",
            name=name,
            source=None if source is None else os.path.abspath(source),
            excludes=list(excludes),
            image=image,
            grant=grant,
            env=dict(env or {}),
            ttl_s=ttl_s,
            within_ceiling=within_ceiling,
        )
        return made(*self.create_lease(request, capability))

    def attach(self, lease: str, token: str | None = None) -> Lease:
        """An existing lease by its id or `tenant/trajectory`. Without a token it works only for a
        peer with the daemon's own uid. Nothing is sent yet."""
        return Lease(self._link.with_token(token), lease, token)

    def leases(self) -> list[LeaseView]:
        """Those that this user may see. Raises StockadeError."""
        return self._link.ask(self._link.message("GET", "leases"), LeaseList).leases

    def mint(self, tenant: str, trajectory: str, grant: str, ttl_s: int) -> str:
        """A root capability from a grant file. Operators only. Raises StockadeError."""
        return self.mint_within(tenant, trajectory, grant, ttl_s, within_ceiling=False).token

    def mint_within(
        self, tenant: str, trajectory: str, grant: str, ttl_s: int, *, within_ceiling: bool = True
    ) -> MintReply:
        """As `mint`, cut to the tenant's ceiling; `cut` of the reply names what became smaller."""
        request = asked(
            MintRequest,
            tenant=tenant,
            trajectory=trajectory,
            grant=grant,
            ttl_s=ttl_s,
            within_ceiling=within_ceiling,
        )
        return self._link.ask(self._link.message("POST", "capabilities", request), MintReply)

    def spend(self, *, token: str | None = None, lease: str | None = None) -> SpendReport:
        """What is spent and left of the budgets of a capability, or of a lease's. Raises
        StockadeError."""
        query = "" if lease is None else f"?lease={quote(lease, safe='')}"
        link = self._link.with_token(token)
        return link.ask(link.message("GET", f"capabilities/spend{query}"), SpendReport)

    def approvals(self) -> list[ApprovalView]:
        """Requests of the leases that live. Operators only. Raises StockadeError."""
        return self._link.ask(self._link.message("GET", "approvals"), ApprovalList).approvals

    def approval(self, approval_id: str) -> ApprovalView:
        """Operators only. Raises StockadeError."""
        message = self._link.message("GET", f"approvals/{quote(approval_id, safe='')}")
        return self._link.ask(message, ApprovalView)

    def decide_approval(
        self, approval_id: str, *, granted: bool, reason: str | None = None
    ) -> ApprovalView:
        """Let the call that is asked about start once, or refuse it. Operators only. Raises
        StockadeError."""
        target = f"approvals/{quote(approval_id, safe='')}/{'grant' if granted else 'deny'}"
        message = self._link.message("POST", target, asked(ApprovalDecision, reason=reason))
        return self._link.ask(message, ApprovalView)

    def revoke(
        self, *, token: str | None = None, block: str | None = None, reason: str = ""
    ) -> RevocationView:
        """End a capability and all that was narrowed from it: by its token, or, operators only, by
        a block's id. Raises StockadeError."""
        request = asked(RevokeRequest, token=token, block=block, reason=reason)
        message = self._link.message("POST", "capabilities/revoke", request)
        return self._link.ask(message, RevocationView)

    def revocations(self) -> list[RevocationView]:
        """Operators only. Raises StockadeError."""
        message = self._link.message("GET", "capabilities/revocations")
        return self._link.ask(message, RevocationList).revocations

    def keys(self) -> KeyList:
        """Operators only. Raises StockadeError."""
        return self._link.ask(self._link.message("GET", "keys"), KeyList)

    def rotate_key(self) -> KeyList:
        """Sign with a new key from now on; tokens of the others stay valid. Operators only. Raises
        StockadeError."""
        return self._link.ask(self._link.message("POST", "keys/rotate", Empty()), KeyList)

    def retire_key(self, kid: str, *, force: bool = False) -> KeyList:
        """Remove an older key: its tokens are refused from now on. Operators only. Raises
        StockadeError: key_in_use while leases live under it, unless `force`."""
        request = asked(RetireRequest, kid=kid, force=force)
        return self._link.ask(self._link.message("POST", "keys/retire", request), KeyList)

    def calls(self, *, lease: str | None = None, in_doubt: bool = False) -> list[CallView]:
        """Calls that were made, those that this user may see: the newest thousand, oldest first.
        Raises StockadeError."""
        query = {"in_doubt": "true"} if in_doubt else {}
        if lease is not None:
            query["lease"] = lease
        target = f"calls?{urlencode(query)}" if query else "calls"
        return self._link.ask(self._link.message("GET", target), CallList).calls

    def call_record(self, call: str, token: str | None = None) -> CallRecord:
        """All that is kept of a call, by the id that `calls` gives. A tenant's user shows the
        capability that it ran under, or one that this was narrowed from. Raises StockadeError."""
        link = self._link.with_token(token)
        return link.ask(link.message("GET", f"calls/{quote(call, safe='')}"), CallRecord)

    def settle_call(self, call: str, settle_as: SettleAs, reason: str) -> CallView:
        """Say what became of a call in doubt. Raises StockadeError: key_reused for one that is
        settled."""
        request = asked(SettleRequest, **{"as": settle_as, "reason": reason})
        target = f"calls/{quote(call, safe='')}/settle"
        return self._link.ask(self._link.message("POST", target, request), CallView)

    def health(self) -> Health:
        """Raises StockadeError."""
        return self._link.ask(self._link.message("GET", "health", silence_s=5.0), Health)

    def doctor(self) -> DoctorReport:
        """What the daemon's host can enforce. Raises StockadeError."""
        return self._link.ask(self._link.message("GET", "doctor"), DoctorReport)


def _origin(client: str | None, model: str | None) -> dict[str, str]:
    """The headers. Raises StockadeError: invalid_argument for what could end a header's line and
    begin another."""
    given = (
        (CLIENT_HEADER, f"client (${CLIENT_VARIABLE})", client),
        (MODEL_HEADER, f"model (${MODEL_VARIABLE})", model),
    )
    for _, name, value in given:
        if value and not (value.isascii() and value.isprintable()):
            raise StockadeError(
                error_of(
                    Fault(
                        Code.INVALID_ARGUMENT,
                        f"{name} must be printable ASCII",
                        details={"argument": name.partition(" ")[0]},
                    )
                )
            )
    return {header: value for header, _, value in given if value}

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
from types import TracebackType
from typing import Final

from stockade.edge.client.lease import Lease
from stockade.edge.client.link import Link, reply_lost
from stockade.edge.client.results import Result, StockadeError
from stockade.edge.client.transport import HttpTransport, Transport
from stockade.edge.wire import (
    DoctorReport,
    Health,
    LeaseCreate,
    LeaseList,
    LeaseReply,
    LeaseView,
    MintReply,
    MintRequest,
)

DEFAULT_SOCKET: Final = "/run/stockade/stockade.sock"
SOCKET_VARIABLE: Final = "STOCKADE_SOCKET"
# Copying a large source.
_CREATE_S: Final = 600.0


class Stockade:
    """A connection to a daemon, or to a runtime in this process. Thread-safe."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._link = Link(transport)

    @classmethod
    def connect(cls, socket: str | os.PathLike[str] | None = None) -> Stockade:
        """The daemon at `socket`, else at $STOCKADE_SOCKET, else at the default path. Nothing is
        sent yet: a daemon that does not answer shows in the first call's result."""
        path = socket or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
        return cls(HttpTransport(os.fspath(path)))

    def __enter__(self) -> Stockade:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections. Leases stay until they are released or expire."""
        self._transport.close()

    def create_lease(
        self, request: LeaseCreate, capability: str | None = None
    ) -> tuple[Result, Lease | None]:
        """The result, and the lease if it was made. Never raises for what happens to it."""
        link = self._link.with_token(capability)
        message = link.message("POST", "leases", request, _CREATE_S)
        try:
            reply = link.ask(message, LeaseReply)
        except StockadeError as error:
            return link.refused(error), None
        result = Result.model_validate(reply.result.model_dump(by_alias=True))
        made = reply.lease
        if made is None:
            return result, None
        lease = Lease(self._link.with_token(made.token), made.lease_id, made.token)
        lease.generation, lease.expires_at = made.generation, made.expires_at
        return result, lease

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
    ) -> Lease:
        """A lease on a copy of directory `source` (none: an empty workspace).

        What it may do comes from `grant` (a grant file's name, "agent" when nothing is said) or
        from `capability` (a token). The same tenant, trajectory and name give the same lease
        again; without a trajectory each call makes a new one. Raises ToolError.
        """
        request = LeaseCreate(
            tenant=tenant,
            trajectory=trajectory or f"sdk-{secrets.token_hex(8)}",
            name=name,
            source=None if source is None else os.path.abspath(source),
            excludes=list(excludes),
            image=image,
            grant=grant,
            env=dict(env or {}),
            ttl_s=ttl_s,
        )
        result, lease = self.create_lease(request, capability)
        result.check()
        if lease is None:
            raise StockadeError(reply_lost("the daemon made a lease and did not name it"))
        return lease

    def attach(self, lease: str, token: str | None = None) -> Lease:
        """An existing lease by its id or `tenant/trajectory`. Without a token it works only for a
        peer with the daemon's own uid. Nothing is sent yet."""
        return Lease(self._link.with_token(token), lease, token)

    def leases(self) -> list[LeaseView]:
        """Those that this user may see. Raises StockadeError."""
        return self._link.ask(self._link.message("GET", "leases"), LeaseList).leases

    def mint(self, tenant: str, trajectory: str, grant: str, ttl_s: int) -> str:
        """A root capability from a grant file. Operators only. Raises StockadeError."""
        request = MintRequest(tenant=tenant, trajectory=trajectory, grant=grant, ttl_s=ttl_s)
        return self._link.ask(self._link.message("POST", "capabilities", request), MintReply).token

    def health(self) -> Health:
        """Raises StockadeError."""
        return self._link.ask(self._link.message("GET", "health", silence_s=5.0), Health)

    def doctor(self) -> DoctorReport:
        """What the daemon's host can enforce. Raises StockadeError."""
        return self._link.ask(self._link.message("GET", "doctor"), DoctorReport)

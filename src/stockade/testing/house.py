"""Everything around leases in one piece: the real ledger, artifacts, tokens, policy and file tools
over the fake engine and workspaces, on a manual clock.

Two houses opened one after the other on the same directory are a daemon before and after a restart.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

from stockade.decide import signatures
from stockade.decide.grant_file import CeilingFile
from stockade.decide.policy import Policy
from stockade.decide.tokens import SECRET_BYTES, KeyRing
from stockade.flow.assembly import Flow, Ports, Rules, assemble
from stockade.flow.auditing import Auditor
from stockade.flow.exports import Exports
from stockade.flow.lease_request import LeaseRequest
from stockade.flow.places import Places
from stockade.flow.secrets import Secrets
from stockade.host.cancel import EventfdCancel
from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.host.policy_files import load_policy
from stockade.ledger.approval_table import ApprovalTable
from stockade.ledger.artifacts import FileArtifacts
from stockade.ledger.audit_table import AuditTable
from stockade.ledger.claim_table import ClaimTable
from stockade.ledger.secret_rows import Seal
from stockade.ledger.secret_table import SecretTable
from stockade.ledger.spend_table import SpendTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.authority import RootKeys
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.outcome import End
from stockade.testing.clock import ManualClock
from stockade.testing.fake_engine import FakeEngine
from stockade.testing.fake_workspaces import FakeWorkspaces
from stockade.testing.faults import Point, unarmed
from stockade.tools.redact import Tokens

KID: Final = "k1"
TENANT: Final = "acme"
PROCESSORS: Final = 2
KEPT_S: Final = 7 * 24 * 3600.0
AUDIT_SEED: Final = bytes(range(32))


class PointedLedger(SqliteLedger):
    """The real ledger with a point before and after each write: ledger.add, ledger.put.STATE."""

    def __init__(self, path: str, point: Point) -> None:
        super().__init__(path)
        self._point = point

    def add_lease(self, record: LeaseRecord) -> None:
        self._point("ledger.add")
        super().add_lease(record)
        self._point("ledger.add.done")

    def put_lease(self, record: LeaseRecord) -> None:
        self._point(f"ledger.put.{record.state}")
        super().put_lease(record)
        self._point(f"ledger.put.{record.state}.done")


@dataclass(frozen=True, slots=True)
class House(Flow):
    """The flow, and what it works on."""

    policy: Policy
    clock: ManualClock
    ledger: SqliteLedger
    workspaces: FakeWorkspaces
    engine: FakeEngine
    artifacts: FileArtifacts
    places: Places
    table: AuditTable
    audit: Auditor
    secrets: Secrets

    def request(self, trajectory: str = "run-1", **changes: object) -> LeaseRequest:
        """A plain request of the tenant `TENANT`."""
        values = {"tenant": TENANT, "trajectory": trajectory, **changes}
        return LeaseRequest.model_validate(values)

    def permit(self, token: str) -> Permit:
        return self.authority.verify(token, self.clock())

    @property
    def exports(self) -> Exports:
        return Exports(self.leases)

    @property
    def ring(self) -> KeyRing:
        return self.authority.signer().ring

    def workspace(self, record: LeaseRecord) -> Path:
        """The host directory that holds the lease's workspace."""
        return Path(self.leases.workspace(record).tree.path) / "workspace"

    def left_behind(self) -> list[str]:
        """The ids of the leases that anything is on the disk of, once for each place."""
        places = [self.workspaces.directory, self.engine.directory, self.artifacts.directory]
        return [name for place in places if os.path.isdir(place) for name in os.listdir(place)]

    def close(self) -> None:
        self.engine.close()
        self.workspaces.close()
        self.ledger.close()


def open_house(
    directory: str,
    *,
    clock: ManualClock | None = None,
    point: Point = unarmed,
    ceiling: Callable[[CeilingFile], CeilingFile] = lambda given: given,
    boot: str = "boot-1",
    skew_s: float = 0,
) -> House:
    """Open the state below `directory`. `ceiling` changes the tenants' ceiling; another `boot` is a
    host that went down."""
    clock = clock or ManualClock()
    policy = load_policy()
    os.makedirs(directory, exist_ok=True)
    ledger = PointedLedger(os.path.join(directory, "ledger.db"), point)
    table = AuditTable(
        ledger,
        clock,
        signatures.public_key(AUDIT_SEED),
        lambda data: signatures.sign(AUDIT_SEED, data),
    )
    book = SecretTable(ledger, Seal(bytes(SECRET_BYTES), secrets.token_hex))
    kept = Secrets(book, ledger, Tokens(policy.redaction), clock)
    audit = Auditor(table, clock, redact=kept.recorded)
    workspaces = FakeWorkspaces(
        os.path.join(directory, "workspaces"),
        lambda root_fd, owner: LeaseFiles(root_fd, FileLocks(), owner),
        point,
    )
    engine = FakeEngine(os.path.join(directory, "engine"), clock, point)
    artifacts = FileArtifacts(os.path.join(directory, "artifacts"), secrets.token_hex)
    flow = assemble(
        Ports(
            ledger=ledger,
            claims=ClaimTable(ledger, table),
            approvals=ApprovalTable(ledger),
            spend=SpendTable(ledger),
            workspaces=workspaces,
            engine=engine,
            artifacts=artifacts,
            cancel=EventfdCancel,
        ),
        Rules(
            policy=policy,
            ceiling_for=lambda tenant: ceiling(policy.ceiling("default")),
            skew_s=skew_s,
            uid_offset=0,
            claims_kept_s=KEPT_S,
            processors=PROCESSORS,
        ),
        keys=RootKeys(KID, {KID: bytes(SECRET_BYTES)}),
        save_keys=lambda keys: None,
        audit=audit,
        secrets=kept,
        clock=clock,
        boot=boot,
        boottime=time.monotonic,
        random_hex=secrets.token_hex,
        version="test",
    )
    return House(
        **{part.name: getattr(flow, part.name) for part in fields(flow)},
        policy=policy,
        clock=clock,
        ledger=ledger,
        workspaces=workspaces,
        engine=engine,
        artifacts=artifacts,
        places=Places(),
        table=table,
        audit=audit,
        secrets=kept,
    )


class Caller:
    """A call inside a lease, on a thread of its own, until it is cancelled. `reason` says how."""

    def __init__(self, house: House, record: LeaseRecord) -> None:
        self._house = house
        self._record = record
        self._inside = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.reason: End | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._inside.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        record = self._record
        with self._house.running.enter(
            record.id, f"rq-{record.id}", None, 8, chain=record.chain
        ) as cancel:
            self._house.leases.admit(self._record.id, self._house.permit(self._record.token))
            self._inside.set()
            self._house.clock.wait_until(float("inf"), cancel.fileno())
            self.reason = cancel.reason()


def code_of(action: Callable[[], object]) -> Code | None:
    """The code of the Failure that `action` raises, if it does."""
    try:
        action()
    except Failure as failed:
        return failed.fault.code
    return None

"""The parts of the flow that work on leases and calls, put together over ports and books.

The runtime gives it the real ones and the test kit fakes for engine and workspaces, so that both
hang together in the same way. Nothing runs and nothing is recovered here: who opens a state calls
`sweeper.recover` and `settlement.recover` before the first call comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stockade.decide.grant_file import CeilingFile
from stockade.decide.policy import Policy
from stockade.flow.approvals import Approvals
from stockade.flow.auditing import Auditor
from stockade.flow.authority import Authority
from stockade.flow.claims import Claims
from stockade.flow.gate import Gate
from stockade.flow.leases import Leases
from stockade.flow.minting import Minter
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.secrets import Secrets
from stockade.flow.settlement import Settlement
from stockade.flow.spending import Spending
from stockade.flow.steps import LeaseSteps
from stockade.flow.sweeper import Sweeper
from stockade.flow.told import Teller
from stockade.terms.authority import RootKeys
from stockade.terms.books import ApprovalBook, ClaimBook, SpendBook
from stockade.terms.moment import Timekeeper
from stockade.terms.patience import CancelSignal
from stockade.terms.ports import ArtifactStore, Engine, Ledger, Workspaces


@dataclass(frozen=True, slots=True)
class Ports:
    """What the flow works on. `claims` are told of leases and spend of the same `ledger`."""

    ledger: Ledger
    claims: ClaimBook
    approvals: ApprovalBook
    spend: SpendBook
    workspaces: Workspaces
    engine: Engine
    artifacts: ArtifactStore
    cancel: Callable[[], CancelSignal]


@dataclass(frozen=True, slots=True)
class Rules:
    """`ceiling_for` takes a tenant; `skew_s` is that of `Authority`, `uid_offset` that of `Leases`,
    `claims_kept_s` that of `ClaimBook.sweep`."""

    policy: Policy
    ceiling_for: Callable[[str], CeilingFile]
    skew_s: float
    uid_offset: int
    claims_kept_s: float
    processors: int


@dataclass(frozen=True, slots=True)
class Flow:
    """`settlement` and `sweeper` are not started."""

    running: Running
    authority: Authority
    sandboxes: Sandboxes
    steps: LeaseSteps
    minter: Minter
    approvals: Approvals
    spending: Spending
    gate: Gate
    leases: Leases
    claims: Claims
    settlement: Settlement
    sweeper: Sweeper


def assemble(
    ports: Ports,
    rules: Rules,
    *,
    keys: RootKeys,
    save_keys: Callable[[RootKeys], None],
    audit: Auditor,
    secrets: Secrets,
    clock: Timekeeper,
    boot: str,
    boottime: Callable[[], float],
    random_hex: Callable[[int], str],
    version: str,
) -> Flow:
    """`boot` names this boot of the host and `boottime` is its clock, in seconds; `random_hex(n)`
    gives n random bytes in hex. Raises Failure(storage_unavailable): revocations are read from the ledger."""
    running = Running(ports.cancel)
    authority = Authority(
        keys,
        save=save_keys,
        ledger=ports.ledger,
        running=running,
        random_hex=random_hex,
        skew_s=rules.skew_s,
    )
    sandboxes = Sandboxes(ports.engine)
    steps = LeaseSteps(
        ledger=ports.ledger,
        workspaces=ports.workspaces,
        engine=ports.engine,
        artifacts=ports.artifacts,
        running=running,
        sandboxes=sandboxes,
        authority=authority,
        ended=secrets.forget,
    )
    minter = Minter(authority, grant_named=rules.policy.grant, ceiling_for=rules.ceiling_for)
    approvals = Approvals(ports.approvals, clock, secrets.arguments)
    spending = Spending(
        ports.spend, lambda tenant: rules.ceiling_for(tenant).price_table(), rules.processors
    )
    leases = Leases(steps, minter, clock=clock, random_hex=random_hex, uid_offset=rules.uid_offset)
    claims = Claims(ports.claims, clock=clock, boot=boot, boottime=boottime)
    settlement = Settlement(
        claims,
        Teller(ports.engine.describe(), clock, version, secrets.redactor_of),
        leases=leases,
        engine=ports.engine,
        running=running,
        artifacts=ports.artifacts,
        audit=audit,
        spending=spending,
    )
    sweeper = Sweeper(
        steps,
        clock=clock,
        settle=settlement.tick,
        forget=lambda: claims.book.sweep(clock(), rules.claims_kept_s),
        upkeep=audit.tick,
    )
    return Flow(
        running,
        authority,
        sandboxes,
        steps,
        minter,
        approvals,
        spending,
        Gate(approvals, spending),
        leases,
        claims,
        settlement,
        sweeper,
    )

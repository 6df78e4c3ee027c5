"""Every tool of the catalog, through every edge: what a capability doesn't cover is refused.

The rows come from the catalog itself: a tool that is added there is asked for arguments here, and
each right of its target table for a capability without that right. One daemon, one embedded
runtime and a lease in each serve all rows; at the end the workspaces are what they were.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import JsonValue

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.edge.cli.exits import CALL_EXIT, RUN_FAULT
from stockade.edge.cli.main import main
from stockade.edge.client.lease import Lease
from stockade.edge.client.sdk import Stockade
from stockade.edge.selftest import SelftestReport
from stockade.edge.server.config import Config
from stockade.edge.wire import LeaseCreate
from stockade.local import Stockade as Embedding
from stockade.terms.fault import Code, Status
from stockade.terms.grant import ApprovalRule, CheckOneOf, Total
from stockade.terms.result import ToolResult
from stockade.tools.catalog import TOOLS
from tests.daemons import Daemon, as_user, daemon, error, output, peers

ACME, ZETA, BOSS, STRANGER = 61_011, 61_012, 61_013, 61_014
CONFIG = peers(acme=ACME, zeta=ZETA, operator=BOSS)
SECRET = "/workspace/secret/f"
NO_BUDGET_LEFT = Total(calls=0, cost_micro=0, cpu_ms=0, egress_bytes=0)
# Each would read the secret or change something, if it were let.
ARGUMENTS: dict[str, dict[str, JsonValue]] = {
    "bash_execute": {"command": f"cat {SECRET}; touch /workspace/ran"},
    "file_view": {"path": SECRET},
    "file_edit": {"path": SECRET, "old_str": "hidden", "new_str": "changed"},
    "grep_search": {"pattern": "hidden", "path": "/workspace/secret"},
    "run": {"argv": ["touch", "/workspace/ran"]},
}
# A capability that lacks the right where `ARGUMENTS` needs it, and has it elsewhere.
WITHOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "read": {"read": ("/workspace/open",), "write": ("/workspace/open",)},
    "write": {"write": ("/workspace/open",)},
    "execute": {"execute": ("/workspace/open",)},
}


@dataclass(frozen=True)
class World:
    """A runtime, and a lease of the tenant acme in it. `server` is None for the embedded one."""

    stockade: Stockade
    server: Daemon | None
    lease: Lease
    other: Lease
    fenced: tuple[Lease, str]
    zeta: str
    revoked: str

    @property
    def token(self) -> str:
        assert self.lease.token is not None
        return self.lease.token


class Attempt(NamedTuple):
    """Whose connection it is (None: the daemon's own user), the token it sends, the lease."""

    uid: int | None
    token: str | None
    lease: Lease


class Denial(NamedTuple):
    """`file_code` is for whole files, where it differs."""

    code: Code
    attempt: Callable[[World], Attempt]
    embedded: bool = True
    file_code: Code | None = None


def narrowed(world: World, **changes: Any) -> Attempt:
    child = narrow(inspect(world.token).blocks[-1], **changes)
    return Attempt(None, attenuate(world.token, child), world.lease)


def without_tool(tool: str) -> Denial:
    others = tuple(name for name in TOOLS if name != tool)
    return Denial(Code.TOOL_NOT_GRANTED, lambda world: narrowed(world, tools=others))


def without_right(right: str) -> Denial:
    def attempt(world: World) -> Attempt:
        scope = inspect(world.token).blocks[-1].scope
        return narrowed(world, scope=scope.model_copy(update=WITHOUT[right]))

    return Denial(Code.RIGHT_NOT_GRANTED, attempt)


def flipped(token: str) -> str:
    head, _, signature = token.rpartition(".")
    return f"{head}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"


ALWAYS: dict[str, Denial] = {
    "the token of another lease": Denial(
        Code.LEASE_NOT_GRANTED, lambda world: Attempt(None, world.other.token, world.lease)
    ),
    "a stale generation": Denial(
        Code.STALE_GENERATION, lambda world: Attempt(None, world.fenced[1], world.fenced[0])
    ),
    "an expired token": Denial(
        Code.TOKEN_EXPIRED, lambda world: narrowed(world, not_after_s=int(time.time()))
    ),
    "a token of another tenant": Denial(
        Code.LEASE_NOT_GRANTED, lambda world: Attempt(None, world.zeta, world.lease)
    ),
    "a flipped signature": Denial(
        Code.BAD_SIGNATURE, lambda world: Attempt(None, flipped(world.token), world.lease)
    ),
    "a revoked capability": Denial(
        Code.TOKEN_REVOKED, lambda world: Attempt(None, world.revoked, world.lease)
    ),
    "a child of a revoked capability": Denial(
        Code.TOKEN_REVOKED,
        lambda world: Attempt(None, _less(world.revoked, depth=0), world.lease),
    ),
    "no call left in the budget": Denial(
        Code.BUDGET_EXHAUSTED, lambda world: narrowed(world, total=NO_BUDGET_LEFT)
    ),
    "a user of another tenant with the token": Denial(
        Code.LEASE_NOT_GRANTED, lambda world: Attempt(ZETA, world.token, world.lease), False
    ),
    "a user of the tenant without a token": Denial(
        Code.TOKEN_MISSING, lambda world: Attempt(ACME, None, world.lease), False
    ),
    "an operator of another user without a token": Denial(
        Code.TOKEN_MISSING, lambda world: Attempt(BOSS, None, world.lease), False
    ),
    "a user that is not configured": Denial(
        Code.PEER_NOT_ALLOWED, lambda world: Attempt(STRANGER, world.token, world.lease), False
    ),
}


def denials_of(tool: str) -> dict[str, Denial]:
    rights = dict.fromkeys(target.right for target in TOOLS[tool].targets)
    own = {"the tool is not granted": without_tool(tool)}
    own |= {f"no right to {right} the object": without_right(right) for right in rights}
    argument = next(iter(ARGUMENTS[tool]))
    own["a check on an argument does not hold"] = Denial(
        Code.CHECK_FAILED,
        lambda world: narrowed(
            world, checks=(CheckOneOf(kind="one_of", tool=tool, argument=argument, values=("x",)),)
        ),
    )
    own["a person must approve the call"] = Denial(
        Code.APPROVAL_NEEDED,
        lambda world: narrowed(
            world, approve=(ApprovalRule(tool=tool, argument=None, pattern=None),)
        ),
        file_code=Code.RIGHT_NOT_GRANTED,
    )
    if "write" in rights:
        deny = ("/workspace/secret", "/workspace/.git/hooks")
        own["the object is denied"] = Denial(
            Code.RIGHT_NOT_GRANTED, lambda world: narrowed(world, deny=deny)
        )
    return own | ALWAYS


ROWS = [(tool, name) for tool in TOOLS for name in denials_of(tool)]


@pytest.fixture(scope="module")
def served() -> Iterator[World]:
    with daemon(CONFIG) as server, server.connect() as stockade:
        yield from _world(stockade, server)


@pytest.fixture(scope="module")
def embedded() -> Iterator[World]:
    with Embedding.local() as stockade:
        yield from _world(stockade, None)


def _world(stockade: Stockade, server: Daemon | None) -> Iterator[World]:
    with (
        stockade.lease(tenant="acme", trajectory="work") as lease,
        stockade.lease(tenant="acme", trajectory="other") as other,
        stockade.lease(tenant="acme", trajectory="fenced") as first,
        stockade.lease(tenant="zeta", trajectory="work") as zeta,
    ):
        for each in (lease, first):
            made = "mkdir secret open && echo hidden > secret/f && echo seen > open/f"
            each.bash(f"{made} && find open secret -exec touch -d @1 {{}} +").check()
        take = LeaseCreate(tenant="acme", trajectory="fenced", take_over=True)
        _, fenced = stockade.create_lease(take)
        assert fenced is not None
        assert first.token is not None
        assert zeta.token is not None
        revoked = lease.narrowed(ttl_s=900).token
        assert revoked is not None
        stockade.revoke(token=revoked)
        yield World(stockade, server, lease, other, (fenced, first.token), zeta.token, revoked)
        look = "find . -type f -printf '%p %T@ '; cat */f; ls -A"
        for each in (lease, fenced):
            # Nothing was done in any of the rows, by whatever edge they came.
            seen = output(each, look)
            assert "./secret/f 1.0000000000 " in seen
            assert "./open/f 1.0000000000 " in seen
            assert seen.endswith("seen\nhidden\n.git\nopen\nsecret\n")


def served_by(world: World) -> Daemon:
    assert world.server is not None
    return world.server


def over_http(world: World, tool: str, attempt: Attempt) -> ToolResult:
    body = json.dumps({"tool": tool, "arguments": ARGUMENTS[tool], "lease": attempt.lease.id})
    headers = {} if attempt.token is None else {"Stockade-Capability": attempt.token}
    status, reply = served_by(world).ask("POST", "/v1/calls", body, headers)
    assert status == 200
    return ToolResult.model_validate_json(json.dumps(reply))


def by_sdk(world: World, tool: str, attempt: Attempt) -> ToolResult:
    held = world.stockade.attach(attempt.lease.id, attempt.token)
    return held.call(tool, ARGUMENTS[tool])


def by_new_connection(world: World, tool: str, attempt: Attempt) -> ToolResult:
    # Who a connection is from is settled when it is made.
    with Stockade.connect(served_by(world).socket) as stockade:
        return stockade.attach(attempt.lease.id, attempt.token).call(tool, ARGUMENTS[tool])


def refused(result: ToolResult, denial: Denial) -> None:
    assert error(result).code is denial.code
    asks = denial.code is Code.APPROVAL_NEEDED
    assert result.status is (Status.APPROVAL_REQUIRED if asks else Status.DENIED)
    assert result.exit is None
    assert result.retry_safe
    assert result.data is None
    assert not result.stdout
    assert not result.stderr


def test_every_tool_and_every_right_has_its_rows() -> None:
    assert set(ARGUMENTS) == set(TOOLS), "a new tool needs arguments here"
    assert set(WITHOUT) >= {target.right for tool in TOOLS.values() for target in tool.targets}


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_refused_below_is_done_under_the_leases_own_capability(
    served: World, embedded: World, tool: str
) -> None:
    """The control: the same arguments, the same edges, and a capability that covers them."""
    for world, edge in ((served, over_http), (served, by_new_connection), (embedded, by_sdk)):
        with world.stockade.lease(tenant="acme", trajectory=f"control-{tool}") as lease:
            lease.bash("mkdir secret && echo hidden > secret/f").check()
            result = edge(world, tool, Attempt(None, lease.token, lease))
            assert result.status is Status.SUCCEEDED, result.error


@pytest.mark.parametrize(("tool", "name"), ROWS)
def test_http_refuses(served: World, tool: str, name: str) -> None:
    denial = denials_of(tool)[name]
    attempt = denial.attempt(served)
    with nullcontext() if attempt.uid is None else as_user(attempt.uid):
        refused(over_http(served, tool, attempt), denial)


@pytest.mark.parametrize(("tool", "name"), ROWS)
def test_a_connected_sdk_is_refused(served: World, tool: str, name: str) -> None:
    denial = denials_of(tool)[name]
    attempt = denial.attempt(served)
    with nullcontext() if attempt.uid is None else as_user(attempt.uid):
        refused(by_new_connection(served, tool, attempt), denial)


@pytest.mark.parametrize(
    ("tool", "name"), [(tool, name) for tool, name in ROWS if denials_of(tool)[name].embedded]
)
def test_an_embedded_sdk_is_refused(embedded: World, tool: str, name: str) -> None:
    denial = denials_of(tool)[name]
    refused(by_sdk(embedded, tool, denial.attempt(embedded)), denial)


class Composition:
    """The command line is given a daemon in each row: nothing is to be started here."""

    def serve(self, config: Config) -> None:
        raise AssertionError("a daemon was started")

    def selftest(self, only: str | None) -> SelftestReport:
        raise AssertionError("a selftest was started")

    def local(self) -> Stockade:
        raise AssertionError("a runtime was started")


def printed(capfd: pytest.CaptureFixture[str]) -> ToolResult:
    return ToolResult.model_validate_json(capfd.readouterr().out)


@pytest.mark.parametrize(("tool", "name"), ROWS)
def test_the_call_command_is_refused(
    served: World, capfd: pytest.CaptureFixture[str], tool: str, name: str
) -> None:
    denial = denials_of(tool)[name]
    attempt = denial.attempt(served)
    line = ["call", tool, json.dumps(ARGUMENTS[tool]), "--lease", attempt.lease.id]
    line += ["--socket", served_by(served).socket]
    if attempt.token is not None:
        line += ["--capability", attempt.token]
    with nullcontext() if attempt.uid is None else as_user(attempt.uid):
        assert main(Composition(), line) == CALL_EXIT[Status.DENIED] == 3
    refused(printed(capfd), denial)


# `run` makes a lease of its own, so its capability is one that is bound to no lease yet; what is
# bound can't be used for it at all.
RUNS: dict[str, tuple[Code, Callable[[World, str], str]]] = {
    "the tool is not granted": (
        Code.TOOL_NOT_GRANTED,
        lambda world, token: _less(token, tools=tuple(t for t in TOOLS if t != "run")),
    ),
    "no right to execute the object": (
        Code.RIGHT_NOT_GRANTED,
        lambda world, token: _less(
            token, scope=inspect(token).blocks[-1].scope.model_copy(update=WITHOUT["execute"])
        ),
    ),
    "nothing may be executed": (
        Code.RIGHT_NOT_GRANTED,
        lambda world, token: _less(
            token, scope=inspect(token).blocks[-1].scope.model_copy(update={"execute": ()})
        ),
    ),
    "the token of a lease": (Code.LEASE_NOT_GRANTED, lambda world, token: world.token),
    "an expired token": (
        Code.TOKEN_EXPIRED,
        lambda world, token: _less(token, not_after_s=int(time.time())),
    ),
    "a flipped signature": (Code.BAD_SIGNATURE, lambda world, token: flipped(token)),
}


def _less(token: str, **changes: Any) -> str:
    return attenuate(token, narrow(inspect(token).blocks[-1], **changes))


@pytest.mark.parametrize("name", RUNS)
def test_the_run_command_is_refused(
    served: World,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    code, change = RUNS[name]
    # The command chooses the trajectory; a capability names one.
    monkeypatch.setattr("stockade.edge.cli.run.secrets.token_hex", lambda size: "fixed")
    token = change(served, served.stockade.mint("local", "run-fixed", "agent", 600))
    line = ["run", "--json", "--socket", served_by(served).socket, "--capability", token]
    line += ["--workspace", str(tmp_path), "--apply", "--", "touch", "ran"]
    before = [view.lease_id for view in served.stockade.leases()]
    assert main(Composition(), line) == RUN_FAULT == 125
    result = printed(capfd)
    assert (result.status, error(result).code) == (Status.DENIED, code)
    assert list(tmp_path.iterdir()) == []
    assert [view.lease_id for view in served.stockade.leases()] == before


FILES: Mapping[str, tuple[str, str | None]] = {
    "file_view": ("GET", None),
    "file_edit": ("PUT", "changed"),
}


# A whole file is written without being read; a capability that may write may read there anyway.
FILE_ROWS = [
    (tool, name)
    for tool, name in ROWS
    if tool in FILES and (tool, name) != ("file_edit", "no right to read the object")
]


@pytest.mark.parametrize(("tool", "name"), FILE_ROWS)
def test_whole_files_are_refused_as_the_tools_are(served: World, tool: str, name: str) -> None:
    method, content = FILES[tool]
    denial = denials_of(tool)[name]
    attempt = denial.attempt(served)
    headers = {} if attempt.token is None else {"Stockade-Capability": attempt.token}
    target = f"/v1/leases/{attempt.lease.id}/files{SECRET.removeprefix('/workspace')}"
    with nullcontext() if attempt.uid is None else as_user(attempt.uid):
        status, reply = served_by(served).ask(method, target, content, headers)
    assert (status, reply["error"]["code"]) == (403, denial.file_code or denial.code)

"""Bad input against a real daemon: one shape, the right code, nothing ran, and the next call works.

One daemon with three more users than its own serves the whole module: two tenants and an operator,
each known by its uid alone.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stockade.decide.blocks import block_bytes, narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.decide.tokentext import join, split
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import StockadeError, ToolError
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import LeaseCreate
from stockade.terms.fault import REGISTRY, Code, Status
from stockade.terms.grant import CheckPattern
from stockade.terms.result import ToolResult
from tests.daemons import Daemon, as_user, daemon, error, output, peers

ACME, ZETA, BOSS, STRANGER = 61_001, 61_002, 61_003, 61_004
CONFIG = peers(acme=ACME, zeta=ZETA, operator=BOSS)


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with daemon(CONFIG) as made:
        yield made


@pytest.fixture(scope="module")
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


@pytest.fixture(scope="module")
def acme(stockade: Stockade) -> Iterator[Lease]:
    """A lease of the tenant acme; the tests leave its workspace as it is."""
    with stockade.lease(None, tenant="acme", trajectory="work") as made:
        made.bash("echo kept > kept").check()
        yield made


@pytest.fixture
def untouched(server: Daemon, acme: Lease) -> Iterator[None]:
    """Whatever the test sent, nothing of it ran, and the lease and the daemon work as before."""
    yield
    assert output(acme, "ls") == "kept\n"
    assert server.process is not None
    assert server.process.poll() is None
    assert not [line for line in server.log.lines if "internal fault" in line]


def result_of(reply: tuple[int, Any]) -> ToolResult:
    """A reply's result, checked against the published shape and the registry."""
    status, value = reply
    assert status == 200
    result = ToolResult.model_validate_json(json.dumps(value))
    told = error(result)
    row = REGISTRY[told.code]
    assert (result.status, told.fault) == (row.status, row.blame)
    assert (told.retry, told.hint) == (row.retry, row.hint)
    assert result.exit is None
    assert result.retry_safe
    return result


def code_of(reply: tuple[int, Any]) -> Code:
    return error(result_of(reply)).code


# Bodies and arguments.

WRONG_BODIES: dict[str, tuple[str | bytes, Code]] = {
    "not JSON": ("{", Code.MALFORMED_JSON),
    "not UTF-8": (b"\xff\xfe", Code.MALFORMED_JSON),
    "duplicate keys": ('{"tool": "a", "tool": "b"}', Code.MALFORMED_JSON),
    "NaN": ('{"turn": NaN}', Code.MALFORMED_JSON),
    "a lone surrogate": ('{"tool": "\\ud800"}', Code.MALFORMED_JSON),
    "above 2^53": ('{"turn": 9007199254740993}', Code.MALFORMED_JSON),
    "deeper than anything": ('{"arguments": ' + "[" * 999 + "]" * 999 + "}", Code.MALFORMED_JSON),
    "an array": ("[]", Code.INVALID_ARGUMENT),
    "nothing": ("", Code.MISSING_FIELD),
}


@pytest.mark.parametrize("route", ["calls", "run"])
@pytest.mark.parametrize("name", WRONG_BODIES)
@pytest.mark.usefixtures("untouched")
def test_a_body_that_is_no_request(server: Daemon, name: str, route: str) -> None:
    body, code = WRONG_BODIES[name]
    if route == "calls":
        assert code_of(server.ask("POST", "/v1/calls", body)) is code
        return
    status, raw = server.ask("POST", "/v1/run", body)
    assert (status, raw[0]) == (200, 3)  # one frame, the result
    assert code_of((200, json.loads(raw[5:]))) is code


def test_a_body_of_the_wrong_kind_is_told_in_plain_words(server: Daemon, acme: Lease) -> None:
    for body in ("[]", "null", '"x"', "7"):
        told = error(result_of(server.ask("POST", "/v1/calls", body)))
        assert told.message == "the body: not a JSON object"
    changed = request(acme, arguments=[])
    told = error(result_of(server.ask("POST", "/v1/calls", changed)))
    assert told.message == "'arguments': not a JSON object"


@pytest.mark.parametrize("target", [".", "rel", ""])
def test_an_export_goes_to_no_relative_directory(server: Daemon, acme: Lease, target: str) -> None:
    """It would be one below the daemon's own working directory."""
    reply = server.ask("POST", f"/v1/leases/{acme.id}/export", json.dumps({"to": target}))
    assert code_of(reply) is Code.INVALID_ARGUMENT


WRONG_CALLS: dict[str, tuple[dict[str, object], Code]] = {
    "unknown field": ({"tenant": "zeta"}, Code.UNKNOWN_FIELD),
    "turn as text": ({"turn": "1"}, Code.INVALID_ARGUMENT),
    "turn as a bool": ({"turn": True}, Code.INVALID_ARGUMENT),
    "turn below 0": ({"turn": -1}, Code.INVALID_ARGUMENT),
    "a call id with a newline": ({"call_id": "a\nb"}, Code.INVALID_ARGUMENT),
    "no lease's name": ({"lease": "../../etc"}, Code.INVALID_ARGUMENT),
    "arguments as text": ({"arguments": "{}"}, Code.INVALID_ARGUMENT),
    "an unknown tool": ({"tool": "bash_executed"}, Code.UNKNOWN_TOOL),
}
TOUCH = "touch /workspace/ran"
WRONG_ARGUMENTS: dict[str, tuple[str, dict[str, object], Code]] = {
    "nothing": ("bash_execute", {}, Code.MISSING_FIELD),
    "unknown": ("bash_execute", {"command": TOUCH, "timeout": 5}, Code.UNKNOWN_FIELD),
    "a number": ("bash_execute", {"command": 7}, Code.INVALID_ARGUMENT),
    "a list": ("bash_execute", {"command": [TOUCH]}, Code.INVALID_ARGUMENT),
    "too long": ("bash_execute", {"command": TOUCH + " " * 8192}, Code.ARGUMENT_TOO_LARGE),
    "no time": ("bash_execute", {"command": TOUCH, "timeout_ms": 0}, Code.INVALID_ARGUMENT),
    "negative": ("bash_execute", {"command": TOUCH, "timeout_ms": -1}, Code.INVALID_ARGUMENT),
    "an hour": ("bash_execute", {"command": TOUCH, "timeout_ms": 3600000}, Code.INVALID_ARGUMENT),
    "a float": ("bash_execute", {"command": TOUCH, "timeout_ms": 5000.5}, Code.INVALID_ARGUMENT),
    "true": ("bash_execute", {"command": TOUCH, "timeout_ms": True}, Code.INVALID_ARGUMENT),
    "NUL": ("bash_execute", {"command": f"{TOUCH}\0"}, Code.INVALID_ARGUMENT),
    "line 0": ("file_view", {"path": "kept", "offset": 0}, Code.INVALID_ARGUMENT),
    "501 lines": ("file_view", {"path": "kept", "limit": 501}, Code.INVALID_ARGUMENT),
    "no path": ("file_view", {"path": ""}, Code.INVALID_ARGUMENT),
    "nothing to find": (
        "file_edit",
        {"path": "kept", "old_str": "", "new_str": "x"},
        Code.INVALID_ARGUMENT,
    ),
    "no change": ("file_edit", {"path": "kept", "old_str": "k", "new_str": "k"}, Code.NO_CHANGE),
    "no regex": ("grep_search", {"pattern": "(", "path": "."}, Code.INVALID_PATTERN),
}


def request(of: Lease, **changes: object) -> str:
    call = {"tool": "bash_execute", "arguments": {"command": TOUCH}, "lease": of.id}
    return json.dumps({**call, **changes})


@pytest.mark.parametrize("name", WRONG_CALLS)
@pytest.mark.usefixtures("untouched")
def test_a_call_with_a_wrong_field(server: Daemon, acme: Lease, name: str) -> None:
    changes, code = WRONG_CALLS[name]
    assert code_of(server.ask("POST", "/v1/calls", request(acme, **changes))) is code


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
@pytest.mark.usefixtures("untouched")
def test_a_tool_with_a_wrong_argument(server: Daemon, acme: Lease, name: str) -> None:
    tool, arguments, code = WRONG_ARGUMENTS[name]
    body = request(acme, tool=tool, arguments=arguments)
    assert code_of(server.ask("POST", "/v1/calls", body)) is code


@pytest.mark.usefixtures("untouched")
def test_an_oversized_body(server: Daemon, acme: Lease) -> None:
    body = request(acme, arguments={"command": TOUCH, "padding": "x" * (4 * 1024 * 1024)})
    assert code_of(server.ask("POST", "/v1/calls", body)) is Code.BODY_TOO_LARGE


WRONG_LEASES: dict[str, tuple[dict[str, object], set[Code]]] = {
    "unknown field": ({"owner": "x"}, {Code.UNKNOWN_FIELD}),
    "capital tenant": ({"tenant": "Acme"}, {Code.INVALID_ARGUMENT}),
    "path in a trajectory": ({"trajectory": "../x"}, {Code.INVALID_ARGUMENT}),
    "relative source": ({"source": "etc"}, {Code.INVALID_ARGUMENT, Code.SOURCE_UNUSABLE}),
    "source that is not there": ({"source": "/nowhere/at/all"}, {Code.SOURCE_UNUSABLE}),
    "source that is a file": ({"source": "/etc/passwd"}, {Code.SOURCE_UNUSABLE}),
    "source with a NUL": ({"source": "/tmp\0x"}, {Code.INVALID_ARGUMENT}),
    "exclude with a NUL": ({"excludes": ["a\0"]}, {Code.INVALID_ARGUMENT}),
    "a variable's name": ({"env": {"1A": "x"}}, {Code.INVALID_ARGUMENT}),
    "a variable's NUL": ({"env": {"A": "x\0y"}}, {Code.INVALID_ARGUMENT}),
    "a huge variable": ({"env": {"A": "x" * 200_000}}, {Code.ARGUMENT_TOO_LARGE}),
    "too many variables": ({"env": {f"A{n}": "" for n in range(300)}}, {Code.INVALID_ARGUMENT}),
    "an unknown grant": ({"grant": "root"}, {Code.INVALID_ARGUMENT}),
    "an unknown image": ({"image": "windows"}, {Code.RIGHT_NOT_GRANTED}),
    "no time": ({"ttl_s": 0}, {Code.INVALID_ARGUMENT}),
    "connect": ({"connect": ["example.org:443"]}, {Code.UNENFORCEABLE}),
}


@pytest.mark.parametrize("name", WRONG_LEASES)
@pytest.mark.usefixtures("untouched")
def test_a_lease_that_can_not_be(server: Daemon, stockade: Stockade, name: str) -> None:
    before = (len(stockade.leases()), server.leases_on_disk())
    changes, codes = WRONG_LEASES[name]
    body = json.dumps({"tenant": "acme", "trajectory": "bad", **changes})
    status, reply = server.ask("POST", "/v1/leases", body)
    assert code_of((status, reply["result"])) in codes
    assert reply["lease"] is None
    assert (len(stockade.leases()), server.leases_on_disk()) == before


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("files/..%2f..%2fetc%2fpasswd", "outside_workspace"),
        ("files/%2fetc%2fpasswd", "outside_workspace"),
        ("files/%00", "invalid_argument"),
        ("files/none", "not_found"),
        ("files/%2fworkspace", "not_a_regular_file"),
    ],
)
@pytest.mark.usefixtures("untouched")
def test_a_file_that_can_not_be_read(server: Daemon, acme: Lease, target: str, code: str) -> None:
    status, reply = server.ask("GET", f"/v1/leases/{acme.id}/{target}")
    assert 400 <= status < 500
    assert reply["error"]["code"] == code


# Tokens.


def forged(token: str, **changes: Any) -> str:
    """A block that is appended and signed as a holder can, without the checks of `attenuate`."""
    text = split(token)
    raw = block_bytes(narrow(inspect(token).blocks[-1]).model_copy(update=changes))
    return join((*text.blocks, raw), hmac.digest(text.signature, raw, "sha256"))


def token_of(lease: Lease) -> str:
    assert lease.token is not None
    return lease.token


def flipped(token: str, place: float) -> str:
    index = int(len(token) * place)
    while token[index] == ".":
        index += 1
    return token[:index] + ("A" if token[index] != "A" else "B") + token[index + 1 :]


def call_with(server: Daemon, lease: Lease, token: str) -> Code:
    body = request(lease)
    return code_of(server.ask("POST", "/v1/calls", body, {"Stockade-Capability": token}))


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
@pytest.mark.usefixtures("untouched")
def test_a_flipped_token(server: Daemon, acme: Lease, place: float) -> None:
    code = call_with(server, acme, flipped(token_of(acme), place))
    assert code in {Code.BAD_SIGNATURE, Code.TOKEN_MALFORMED, Code.TOKEN_NOT_CANONICAL}


@pytest.mark.usefixtures("untouched")
def test_an_expired_token(server: Daemon, acme: Lease) -> None:
    token = token_of(acme)
    block = narrow(inspect(token).blocks[-1], not_after_s=int(time.time()))
    assert call_with(server, acme, attenuate(token, block)) is Code.TOKEN_EXPIRED


@pytest.mark.usefixtures("untouched")
def test_a_wider_token(server: Daemon, acme: Lease) -> None:
    last = inspect(token_of(acme)).blocks[-1]
    wider = last.per_lease.model_copy(update={"pids": last.per_lease.pids + 1})
    assert call_with(server, acme, forged(token_of(acme), per_lease=wider)) is Code.WIDER_BLOCK
    later = {"not_after_s": last.not_after_s + 1}
    assert call_with(server, acme, forged(token_of(acme), **later)) is Code.WIDER_BLOCK
    assert call_with(server, acme, forged(token_of(acme), deny=())) is Code.WIDER_BLOCK


@pytest.mark.usefixtures("untouched")
def test_a_token_that_asks_for_what_nothing_enforces(server: Daemon, acme: Lease) -> None:
    deny = inspect(token_of(acme)).blocks[-1].deny
    more = tuple(sorted((*deny, "repo:acme/app")))
    code = call_with(server, acme, forged(token_of(acme), deny=more))
    assert code is Code.TOKEN_UNSUPPORTED


@pytest.mark.usefixtures("untouched")
def test_a_token_with_a_pattern_that_is_not_linear(server: Daemon, acme: Lease) -> None:
    check = CheckPattern(kind="pattern", tool="bash_execute", argument="command", pattern="(a+)+")
    linear = forged(token_of(acme), checks=(check,))
    assert call_with(server, acme, linear) is Code.CHECK_FAILED
    referring = check.model_copy(update={"pattern": r"(a+)\1"})
    code = call_with(server, acme, forged(token_of(acme), checks=(referring,)))
    assert code is Code.TOKEN_MALFORMED


@pytest.mark.usefixtures("untouched")
def test_a_token_of_no_lease_and_of_another_one(
    server: Daemon, stockade: Stockade, acme: Lease
) -> None:
    unbound = stockade.mint("acme", "work", "agent", 60)
    assert call_with(server, acme, unbound) is Code.LEASE_NOT_GRANTED
    bound = forged(unbound, lease=inspect(token_of(acme)).blocks[-1].lease)
    assert call_with(server, acme, bound) is Code.LEASE_NOT_GRANTED
    with stockade.lease(None, tenant="acme", trajectory="other") as other:
        assert call_with(server, acme, token_of(other)) is Code.LEASE_NOT_GRANTED


@pytest.mark.parametrize("token", ["x", "stk1.", "stk1.e30.e30", "stk1." + "A" * 70_000])
@pytest.mark.usefixtures("untouched")
def test_a_token_that_is_none(server: Daemon, acme: Lease, token: str) -> None:
    assert call_with(server, acme, token) in {Code.TOKEN_MALFORMED, Code.TOKEN_TOO_LONG}


@pytest.mark.parametrize("token", ["é", "a\r\nb", "", "stk1.\x00"])
@pytest.mark.usefixtures("untouched")
def test_a_token_that_no_header_can_hold(stockade: Stockade, acme: Lease, token: str) -> None:
    refused = stockade.attach(acme.id, token).bash(TOUCH)
    assert error(refused).code is Code.TOKEN_MALFORMED


@pytest.mark.parametrize("value", ["\ud83d", "x\udcff", float("nan"), float("-inf"), 2**60])
@pytest.mark.usefixtures("untouched")
def test_values_that_no_json_can_hold(acme: Lease, value: str | float) -> None:
    named = acme.call("bash_execute", {"command": value}, turn=1, call_id="none")
    assert error(named).code is Code.MALFORMED_JSON
    assert error(acme.call("file_view", {"path": value})).code is Code.MALFORMED_JSON
    if isinstance(value, str):
        assert error(acme.run(["echo", value])).code is Code.MALFORMED_JSON


@pytest.mark.usefixtures("untouched")
def test_a_narrower_token_is_obeyed(server: Daemon, acme: Lease) -> None:
    looking = acme.narrowed(tools=["file_view"], write=[], execute=[])
    assert looking.view("kept").check().data is not None
    refused = looking.bash(TOUCH)
    assert (refused.status, error(refused).code) == (Status.DENIED, Code.TOOL_NOT_GRANTED)


# Generations.


def test_a_stale_generation(server: Daemon, stockade: Stockade) -> None:
    with stockade.lease(None, tenant="acme", trajectory="fenced") as first:
        first.bash("echo mine > f").check()
        request_ = LeaseCreate(tenant="acme", trajectory="fenced", take_over=True)
        _, second = stockade.create_lease(request_, None)
        assert second is not None
        assert (second.id, first.generation, second.generation) == (first.id, 1, 2)
        late = first.bash("echo late > f")
        assert (late.status, error(late).code) == (Status.DENIED, Code.STALE_GENERATION)
        with pytest.raises(StockadeError, match="stale_generation"):
            first.cancel("any")
        assert output(second, "cat f") == "mine\n"


# Other users.


@pytest.mark.usefixtures("untouched")
def test_a_user_that_is_not_configured(server: Daemon, acme: Lease) -> None:
    headers = {"Stockade-Capability": token_of(acme)}
    with as_user(STRANGER):
        reply = server.ask("POST", "/v1/calls", request(acme), headers)
        assert code_of(reply) is Code.PEER_NOT_ALLOWED
        status, plain = server.ask("GET", "/v1/leases")
    assert (status, plain["error"]["code"]) == (403, "peer_not_allowed")


@pytest.mark.usefixtures("untouched")
def test_a_lease_of_another_tenant_and_one_that_is_not_there_are_the_same(
    server: Daemon, acme: Lease
) -> None:
    def answers(lease: str, token: str | None) -> list[object]:
        headers = {} if token is None else {"Stockade-Capability": token}
        found: list[object] = []
        body = json.dumps({"tool": "bash_execute", "arguments": {"command": TOUCH}, "lease": lease})
        named = lease.replace("/", "%2F")
        for method, target, content in (
            ("POST", "/v1/calls", body),
            ("POST", "/v1/calls/cancel", json.dumps({"lease": lease, "call_id": "c"})),
            ("GET", f"/v1/leases/{named}", None),
            ("POST", f"/v1/leases/{named}/renew", '{"ttl_s": 5}'),
            ("POST", f"/v1/leases/{named}/reset", None),
            ("POST", f"/v1/leases/{named}/release", None),
            ("POST", f"/v1/leases/{named}/export", None),
            ("GET", f"/v1/leases/{named}/patch", None),
            ("GET", f"/v1/leases/{named}/files/kept", None),
            ("PUT", f"/v1/leases/{named}/files/kept", "x"),
            ("GET", f"/v1/artifacts/{named}/ar_0123456789abcdef", None),
        ):
            status, reply = server.ask(method, target, content, headers)
            found.append((target.replace(named, "L"), status, reply["error"]))
        return found

    with as_user(ZETA):
        with server.connect() as zeta, zeta.lease(None, tenant="zeta", trajectory="work") as own:
            own.bash(":").check()
            mine = token_of(own)
        for token in (token_of(acme), mine):
            theirs = answers(acme.id, token)
            assert theirs == answers("ls_ffffffffffffffff", token)
            assert theirs == answers("acme/work", token)
            assert theirs == answers("acme/none", token)
    assert {error["code"] for _, _, error in theirs} == {"lease_not_granted"}  # type: ignore


@pytest.mark.usefixtures("untouched")
def test_a_tenant_sees_and_makes_only_its_own(server: Daemon, acme: Lease) -> None:
    with as_user(ZETA), server.connect() as zeta:
        with zeta.lease(None, tenant="zeta", trajectory="seen") as own:
            assert [view.lease_id for view in zeta.leases()] == [own.id]
            assert error(zeta.attach(own.id).bash(":")).code is Code.TOKEN_MISSING
        with pytest.raises(ToolError, match="peer_not_allowed"):
            zeta.lease(None, tenant="acme", trajectory="theirs")
        with pytest.raises(ToolError, match="peer_not_allowed"):
            zeta.lease("/etc", tenant="zeta", trajectory="hosts-files")
        with pytest.raises(StockadeError, match="peer_not_allowed"):
            zeta.mint("zeta", "t", "agent", 60)
    with as_user(ACME), server.connect() as same:
        assert acme.id in [view.lease_id for view in same.leases()]
        assert output(same.attach(acme.id, acme.token), "cat kept") == "kept\n"


@pytest.mark.usefixtures("untouched")
def test_an_operator_of_another_user_needs_the_token_too(server: Daemon, acme: Lease) -> None:
    with as_user(BOSS), server.connect() as boss:
        without = boss.attach(acme.id).bash(TOUCH)
        assert error(without).code is Code.TOKEN_MISSING
        assert output(boss.attach(acme.id, acme.token), "cat kept") == "kept\n"
        assert boss.mint("acme", "t", "read-only", 60).startswith("stk1.")


def test_an_artifact_of_another_lease(server: Daemon, stockade: Stockade, acme: Lease) -> None:
    with stockade.lease(None, tenant="acme", trajectory="loud") as loud:
        kept = loud.bash("seq 100000").check().artifacts[0]
        assert loud.artifact(kept.id, 0, 4) == b"1\n2\n"
        with pytest.raises(StockadeError, match="not_found"):
            acme.artifact(kept.id)


def test_the_log_never_holds_arguments_output_or_tokens(server: Daemon, acme: Lease) -> None:
    acme.bash("echo s3cret-$((40 + 2))").check()
    server.ask("POST", "/v1/calls", request(acme, arguments={"s3cret-name": 1}))
    server.ask("POST", "/v1/calls", request(acme, tool="s3cret tool"))
    assert server.log.wait("tool=? status=")  # the last line comes after its reply
    text = "\n".join(server.log.lines)
    assert "s3cret" not in text
    assert "stk1." not in text
    lines = [line for line in server.log.lines if "request_id=" in line]
    assert all(" status=" in line and " ms=" in line for line in lines)


def test_a_lease_without_a_tenant_is_the_peers_own(server: Daemon) -> None:
    with as_user(ZETA), server.connect() as zeta, zeta.lease(None, trajectory="mine") as lease:
        assert lease.show().tenant == "zeta"
        assert lease.run(["true"]).status is Status.SUCCEEDED
    with server.connect() as operator, operator.lease(None, trajectory="mine") as lease:
        assert lease.show().tenant == "local"

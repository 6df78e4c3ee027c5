"""What a caller can send wrong: each has one shape, a code, and nothing runs."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from pathlib import Path

import pytest

from stockade.edge.exchange import Peer, Role
from stockade.terms.result import ToolResult
from tests.edge.conftest import FakeService, Running, Start

LEASE = "ls_0123456789abcdef"
CALL: dict[str, object] = {"tool": "bash_execute", "arguments": {"command": ":"}, "lease": LEASE}


def body(**changes: object) -> str:
    return json.dumps({**CALL, **changes})


BAD_CALLS: dict[str, tuple[str | bytes, str]] = {
    "empty body": ("", "missing_field"),
    "not JSON": ("{", "malformed_json"),
    "not UTF-8": (b"\xff\xfe", "malformed_json"),
    "duplicate keys": ('{"tool": "a", "tool": "b"}', "malformed_json"),
    "duplicate keys inside": ('{"arguments": {"a": 1, "a": 2}}', "malformed_json"),
    "NaN": ('{"tool": NaN}', "malformed_json"),
    "lone surrogate": ('{"tool": "\\ud800"}', "malformed_json"),
    "integer above 2^53": ('{"turn": 9007199254740993}', "malformed_json"),
    "too deep": ('{"arguments": ' + "[" * 200 + "]" * 200 + "}", "malformed_json"),
    "two values": ("{}{}", "malformed_json"),
    "an array": ("[]", "invalid_argument"),
    "a string": ('"x"', "invalid_argument"),
    "unknown field": (body(tenant="acme"), "unknown_field"),
    "missing lease": (json.dumps({"tool": "x", "arguments": {}}), "missing_field"),
    "arguments as text": (body(arguments="{}"), "invalid_argument"),
    "turn as text": (body(turn="1"), "invalid_argument"),
    "turn as bool": (body(turn=True), "invalid_argument"),
    "turn negative": (body(turn=-1), "invalid_argument"),
    "turn as float": (body(turn=1.0), "invalid_argument"),
    "tool null": (body(tool=None), "invalid_argument"),
    "tool empty": (body(tool=""), "invalid_argument"),
    "lease not an id": (body(lease="../../etc"), "invalid_argument"),
    "call id with a newline": (body(call_id="a\nb"), "invalid_argument"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_is_an_invalid_result_and_nothing_runs(
    server: Running, service: FakeService, name: str
) -> None:
    sent, code = BAD_CALLS[name]
    status, reply = server.ask("POST", "/v1/calls", sent)
    assert status == 200
    result = ToolResult.model_validate_json(json.dumps(reply))
    assert (result.status, result.error and result.error.code) == ("invalid", code)
    assert result.retry_safe
    assert service.seen == []


def test_an_unknown_field_is_named_and_the_valid_ones_are_listed(server: Running) -> None:
    _, reply = server.ask("POST", "/v1/calls", body(timeout=5))
    details = reply["error"]["details"]
    assert details["fields"] == ["timeout"]
    assert "call_id" in details["valid"]
    assert "timeout" in reply["error"]["message"]


def test_a_message_never_repeats_the_value(server: Running) -> None:
    _, reply = server.ask("POST", "/v1/calls", body(turn="s3cret-value"))
    assert "s3cret" not in json.dumps(reply)


def test_an_unknown_fields_name_is_cut_and_escaped(server: Running) -> None:
    _, reply = server.ask("POST", "/v1/calls", body(**{"\x1b[2J" + "x" * 5000: 1}))
    assert len(reply["error"]["message"]) < 400
    assert "\x1b" not in reply["error"]["message"]


@pytest.mark.parametrize("size", [4 * 1024 * 1024 + 1, 12 * 1024 * 1024])
def test_an_oversized_call_is_invalid_in_the_one_shape(
    server: Running, service: FakeService, size: int
) -> None:
    status, reply = server.ask("POST", "/v1/calls", b'{"a":"' + b"x" * (size - 8) + b'"}')
    assert status == 200
    assert (reply["status"], reply["error"]["code"]) == ("invalid", "body_too_large")
    assert service.seen == []


def test_an_oversized_control_request_is_413(server: Running) -> None:
    status, reply = server.ask("POST", "/v1/capabilities", b" " * (5 * 1024 * 1024))
    assert (status, reply["error"]["code"]) == (413, "body_too_large")


def test_a_body_at_the_limit_is_read(server: Running, service: FakeService) -> None:
    size = 4 * 1024 * 1024
    empty = body(arguments={"command": ""})
    full = body(arguments={"command": "x" * (size - len(empty))})
    assert len(full) == size
    assert server.ask("POST", "/v1/calls", full)[1]["status"] == "succeeded"
    assert service.verbs() == ["call"]


def test_an_oversized_body_in_chunks_without_a_length_is_refused_too(server: Running) -> None:
    parts = (b"x" * 65536 for _ in range(80))
    status, reply = server.ask("POST", "/v1/calls", parts)
    assert (status, reply["error"]["code"]) == (200, "body_too_large")


def test_an_endless_body_is_cut_off(server: Running) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.path)
        raw.sendall(b"POST /v1/calls HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        block = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 100:
                raw.sendall(block)
                sent += 1
    assert 64 <= sent < 100


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v2/health", 404),
        ("GET", "/v1/health/", 404),
        ("POST", "/v1/calls/x/y", 404),
        ("GET", "/v1/leases//patch", 404),
        ("GET", "/v1/leases/" + LEASE + "/files/", 404),
        ("GET", "/v1/../v1/health", 404),
        ("PUT", "/v1/calls", 405),
        ("DELETE", "/v1/leases/" + LEASE, 405),
        ("PUT", "/v1/leases", 405),
        ("PATCH", "/v1/health", 405),
    ],
)
def test_unknown_routes_and_wrong_methods(
    server: Running, method: str, target: str, status: int
) -> None:
    got, reply = server.ask(method, target)
    assert (got, reply["error"]["code"]) == (status, "unknown_route")
    if status == 405:
        assert reply["error"]["details"]["methods"]


def test_a_path_that_is_not_utf_8_is_refused(server: Running, service: FakeService) -> None:
    status, reply = server.ask("GET", f"/v1/leases/{LEASE}/files/%ff")
    assert (status, reply["error"]["code"]) == (400, "invalid_argument")
    assert service.seen == []


@pytest.mark.parametrize(
    ("method", "target", "http_status"),
    [
        ("GET", "/v1/leases?tenant=acme", 400),  # would be taken for a filter
        ("GET", "/v1/calls?indoubt=true", 400),
        ("POST", f"/v1/leases/{LEASE}/reset?dry_run=1", 200),
        ("POST", "/v1/calls?call_id=c", 200),
    ],
)
def test_an_unknown_field_of_a_query_is_refused_and_nothing_done(
    server: Running, service: FakeService, method: str, target: str, http_status: int
) -> None:
    status, reply = server.ask(method, target, body() if "calls" in target else "")
    assert (status, reply["error"]["code"]) == (http_status, "unknown_field")
    assert service.seen == []


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("?offset=-1", "invalid_argument"),
        ("?offset=1e3", "invalid_argument"),
        ("?offset=%D9%A1", "invalid_argument"),
        ("?length=0", "invalid_argument"),
        ("?length=4194305", "invalid_argument"),
        ("?offset=99999999999999999999", "invalid_argument"),
        ("?start=1", "unknown_field"),
    ],
)
def test_artifact_ranges_are_checked(
    server: Running, service: FakeService, target: str, code: str
) -> None:
    status, reply = server.ask("GET", f"/v1/artifacts/{LEASE}/ar_0123456789abcdef{target}")
    assert (status, reply["error"]["code"]) == (400, code)
    assert service.seen == []


def test_bytes_that_are_not_http_end_the_connection_and_nothing_else(server: Running) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(server.path)
        raw.sendall(b"\x00\x01garbage\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.")
    assert server.ask("GET", "/v1/health")[0] == 200


@pytest.mark.parametrize("other", ["Stockade-Capability", "stockade-capability"])
def test_a_call_with_two_capabilities_runs_under_neither(
    server: Running, service: FakeService, other: str
) -> None:
    content = body().encode()
    head = f"POST /v1/calls HTTP/1.1\r\nContent-Length: {len(content)}\r\n"
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(server.path)
        tokens = f"Stockade-Capability: stk1.narrow\r\n{other}: stk1.wide\r\n\r\n"
        raw.sendall(head.encode() + tokens.encode() + content)
        assert raw.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert service.seen == []


# Peers.


def test_a_peer_that_is_not_configured_is_refused_on_every_kind_of_route(
    start: Start, service: FakeService
) -> None:
    server = start(peers={})
    status, call = server.ask("POST", "/v1/calls", body())
    assert status == 200
    assert (call["status"], call["error"]["code"]) == ("denied", "peer_not_allowed")
    status, made = server.ask("POST", "/v1/leases", '{"tenant": "acme", "trajectory": "t"}')
    assert status == 200
    assert (made["lease"], made["result"]["error"]["code"]) == (None, "peer_not_allowed")
    for method, target in [("GET", "/v1/health"), ("GET", "/v1/tools"), ("GET", "/v1/leases")]:
        status, plain = server.ask(method, target)
        assert (status, plain["error"]["code"]) == (403, "peer_not_allowed")
    assert service.seen == []


@pytest.fixture
def tenant(start: Start) -> Running:
    """A server to which this process is a tenant's user."""
    import os

    return start(peers={os.geteuid(): Peer(os.geteuid(), "acme", Role.TENANT, own=False)})


def test_a_peer_with_one_of_the_highest_user_ids_is_known(start: Start, socket_dir: Path) -> None:
    """User ids are unsigned 32-bit numbers; leases' own lie above 2^31 as well."""
    uid = 3_000_000_000
    server = start(peers={uid: Peer(uid, "acme", Role.TENANT, own=False)})
    socket_dir.chmod(0o755)
    Path(server.path).chmod(0o666)
    ask = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(sys.argv[1])\n"
        "s.sendall(b'GET /v1/leases HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "print(s.makefile().readline())"
    )
    answers = {
        user: subprocess.run(
            ["/usr/bin/python3", "-c", ask, server.path],
            user=user, group=user, extra_groups=[], cwd="/",
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout.split()[1]
        for user in (uid, uid + 1)
    }  # fmt: skip
    assert answers == {uid: "200", uid + 1: "403"}


def test_a_tenants_peer_can_not_act_for_another_tenant(
    tenant: Running, service: FakeService
) -> None:
    _, reply = tenant.ask("POST", "/v1/leases", '{"tenant": "other", "trajectory": "t"}')
    assert reply["result"]["error"]["code"] == "peer_not_allowed"
    _, reply = tenant.ask("POST", "/v1/leases", '{"tenant": "acme", "trajectory": "t"}')
    assert reply["lease"]["lease_id"] == LEASE
    assert service.verbs() == ["create"]
    assert service.contexts[0].peer.tenant == "acme"


def test_a_tenants_peer_can_not_make_the_daemon_read_or_write_host_paths(
    tenant: Running, service: FakeService
) -> None:
    _, made = tenant.ask(
        "POST", "/v1/leases", '{"tenant": "acme", "trajectory": "t", "source": "/root"}'
    )
    assert made["result"]["error"]["code"] == "peer_not_allowed"
    _, out = tenant.ask("POST", f"/v1/leases/{LEASE}/export", '{"to": "/root"}')
    assert (out["status"], out["error"]["code"]) == ("denied", "peer_not_allowed")
    assert service.seen == []
    assert tenant.ask("POST", f"/v1/leases/{LEASE}/export", "{}")[1]["status"] == "succeeded"


def test_a_lease_with_connect_is_refused_until_there_is_a_gateway(
    server: Running, service: FakeService
) -> None:
    asked = '{"tenant": "acme", "trajectory": "t", "connect": ["example.org:443"]}'
    _, reply = server.ask("POST", "/v1/leases", asked)
    assert reply["result"]["error"]["code"] == "unenforceable"
    assert service.seen == []


def test_a_lease_from_a_grant_and_a_capability_is_refused(
    server: Running, service: FakeService
) -> None:
    asked = '{"tenant": "acme", "trajectory": "t", "grant": "agent"}'
    _, reply = server.ask("POST", "/v1/leases", asked, {"Stockade-Capability": "st1.x.y"})
    assert reply["result"]["error"]["code"] == "invalid_argument"
    assert service.seen == []


def test_the_token_of_the_header_reaches_the_service(server: Running, service: FakeService) -> None:
    server.ask("POST", "/v1/calls", body(), {"Stockade-Capability": "st1." + "x" * 60_000})
    assert service.contexts[0].token == "st1." + "x" * 60_000

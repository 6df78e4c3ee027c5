"""The command line: what it prints, where, and with which exit status. Never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click
import pytest

from stockade.edge.api import Api
from stockade.edge.authority_wire import MintRequest
from stockade.edge.cli.main import cli, main
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
from stockade.edge.selftest import Row, SelftestReport, Verdict
from stockade.edge.server.config import Config
from stockade.edge.server.listening import ListenError
from stockade.edge.service import Context
from stockade.edge.wire import CallRequest, CancelRequest, RunRequest
from stockade.terms.fault import REGISTRY, Code, Status, failure
from stockade.terms.ports import Tee
from stockade.terms.result import Exit, ToolResult
from tests.edge.conftest import FakeService, ResultOf, Running

LEASE = "ls_0123456789abcdef"
TOKEN = "st1.token.of-the-lease"
GATE_S = 20

CALL_STATUS = {
    "succeeded": 0,
    "failed": 1,
    "partial": 1,
    "rejected": 1,
    "invalid": 2,
    "denied": 3,
    "approval_required": 3,
    "timed_out": 124,
    "limited": 1,
    "cancelled": 1,
    "unavailable": 4,
    "unknown": 5,
}
RUN_STATUS = {
    "succeeded": 0,
    "failed": 7,
    "partial": 1,
    "rejected": 125,
    "invalid": 125,
    "denied": 125,
    "approval_required": 125,
    "timed_out": 124,
    "limited": 125,
    "cancelled": 130,
    "unavailable": 125,
    "unknown": 125,
}


@dataclass
class Composition:
    """Embedded runs get the fake service."""

    transport: InProcessTransport
    served: list[Config] = field(default_factory=list)
    locals: int = 0
    attempts: tuple[Row, ...] = ()
    chosen: list[str | None] = field(default_factory=list)
    fail: Exception | None = None

    def serve(self, config: Config) -> None:
        if self.fail is not None:
            raise self.fail
        self.served.append(config)

    def selftest(self, only: str | None) -> SelftestReport:
        if self.fail is not None:
            raise self.fail
        self.chosen.append(only)
        return SelftestReport(attempts=self.attempts)

    def local(self) -> Stockade:
        if self.fail is not None:
            raise self.fail
        self.locals += 1
        return Stockade(self.transport)


@dataclass
class Said:
    status: int
    out: str
    err: str


class Cli(Protocol):
    def __call__(self, *arguments: str) -> Said: ...


@pytest.fixture
def composition(api: Api) -> Composition:
    own = Peer(os.geteuid(), None, Role.OPERATOR, own=True)
    return Composition(InProcessTransport(api, own, lambda: None))


@pytest.fixture
def stockade_cli(
    composition: Composition,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    socket_dir: Path,
) -> Cli:
    """Run one command in this process. No daemon answers unless a test says where one does."""
    monkeypatch.setenv("STOCKADE_SOCKET", str(socket_dir / "none"))
    monkeypatch.delenv("STOCKADE_CAPABILITY", raising=False)
    monkeypatch.delenv("STOCKADE_LEASE", raising=False)

    def command(*arguments: str) -> Said:
        status = main(composition, arguments)
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        assert all(line.startswith("stockade: ") for line in said.err.splitlines() if line != "err")
        return Said(status, said.out, said.err)

    return command


@pytest.fixture
def daemon(server: Running, monkeypatch: pytest.MonkeyPatch, stockade_cli: Cli) -> Running:
    monkeypatch.setenv("STOCKADE_SOCKET", server.path)
    return server


def code_of(status: Status) -> Code | None:
    """Any code that belongs to the status."""
    return next((code for code, row in REGISTRY.items() if row.status is status), None)


# Exit statuses, to exhaustion.


@pytest.mark.parametrize("status", list(Status))
def test_the_exit_status_of_call(
    stockade_cli: Cli, daemon: Running, service: FakeService, result_of: ResultOf, status: Status
) -> None:
    code = code_of(status)
    service.on_call = lambda context, _: result_of(context.request_id, status, code)
    said = stockade_cli(
        "call", "bash_execute", '{"command": ":"}', "--lease", LEASE, "--call-id", "c"
    )
    assert said.status == CALL_STATUS[status]
    assert json.loads(said.out)["status"] == status
    assert said.err == ""


@pytest.mark.parametrize("status", list(Status))
def test_the_exit_status_of_run(
    stockade_cli: Cli, service: FakeService, result_of: ResultOf, status: Status
) -> None:
    code = code_of(status)
    ended = Exit(kind="exited", code=7, signal=None) if status == "failed" else None
    service.on_run = lambda context, request, tee, stdin: result_of(
        context.request_id, status, code, exit_=ended
    )
    said = stockade_cli("run", "--", "true")
    assert said.status == RUN_STATUS[status]
    if code is not None and status != "failed":
        assert f"{status}: {code}" in said.err


@pytest.mark.parametrize("number", [2, 6, 9, 11])
def test_a_signal_of_the_programs_own_is_128_and_it(
    stockade_cli: Cli, service: FakeService, result_of: ResultOf, number: int
) -> None:
    service.on_run = lambda context, request, tee, stdin: result_of(
        context.request_id,
        Status.FAILED,
        Code.KILLED_BY_SIGNAL,
        exit_=Exit(kind="signaled", code=None, signal=number),
    )
    assert stockade_cli("run", "--", "true").status == 128 + number


@pytest.mark.parametrize("own", [0, 1, 2, 124, 125, 130, 137, 255])
def test_the_programs_own_status_passes_through(
    stockade_cli: Cli, service: FakeService, result_of: ResultOf, own: int
) -> None:
    service.on_run = lambda context, request, tee, stdin: result_of(
        context.request_id,
        Status.FAILED if own else Status.SUCCEEDED,
        Code.NONZERO_EXIT if own else None,
        exit_=Exit(kind="exited", code=own, signal=None),
    )
    assert stockade_cli("run", "--", "sh", "-c", f"exit {own}").status == own


# run


def test_run_streams_to_our_own_streams_and_says_what_changed(
    stockade_cli: Cli, service: FakeService
) -> None:
    said = stockade_cli("run", "--workspace", ".", "--", "ls", "-la", "--color")
    assert said.out == "out\n"
    assert said.err == "err\nstockade: 3 files changed (1 added, 2 modified, 0 deleted)\n"
    created, ran = service.seen[0][1], service.seen[1][1]
    assert created.source == os.getcwd()
    assert ran.argv == ["ls", "-la", "--color"]
    assert service.verbs() == ["create", "run", "export", "release"]
    assert service.contexts[-1].token == TOKEN


def test_run_json_prints_the_result_only(stockade_cli: Cli) -> None:
    said = stockade_cli("run", "--json", "--", "true")
    assert json.loads(said.out)["schema"] == "stockade.result/1"
    assert said.out.count("\n") == 1


def test_run_is_embedded_only_when_no_daemon_answers(
    stockade_cli: Cli, composition: Composition, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stockade_cli("run", "--", "true").status == 0
    assert composition.locals == 1
    monkeypatch.setenv("STOCKADE_SOCKET", server.path)
    assert stockade_cli("run", "--", "true").status == 0
    assert composition.locals == 1
    said = stockade_cli("run", "--socket", "/nowhere/s", "--", "true")
    assert (said.status, composition.locals) == (125, 1)
    assert "daemon_unreachable" in said.err


def test_run_applies_or_writes_a_patch(
    stockade_cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    assert stockade_cli("run", "--workspace", str(tmp_path), "--apply", "--", "true").status == 0
    assert service.seen[2][1][1].to == str(tmp_path)
    patch = tmp_path / "out.patch"
    assert stockade_cli("run", "--patch", str(patch), "--", "true").status == 0
    assert patch.read_bytes() == b"".join(service.patch_parts)


def test_run_keeps_stdout_for_the_program_and_export_does_not(
    stockade_cli: Cli,
    daemon: Running,
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = b"".join(service.patch_parts)
    assert stockade_cli("run", "--patch", "-", "--", "true").out == "out\n"
    assert (tmp_path / "-").read_bytes() == whole
    assert stockade_cli("lease", "export", LEASE, "--patch", "-").out.encode().startswith(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["-"]


def test_run_brings_nothing_back_of_a_program_that_was_ended(
    stockade_cli: Cli, service: FakeService, result_of: ResultOf, tmp_path: Path
) -> None:
    service.on_run = lambda context, request, tee, stdin: result_of(
        context.request_id, Status.TIMED_OUT, Code.DEADLINE_EXCEEDED
    )
    patch = tmp_path / "out.patch"
    said = stockade_cli("run", "--patch", str(patch), "--", "true")
    assert said.status == 124
    assert "not brought back" in said.err
    assert not patch.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--no-such-option", "--", "true"),
        ("--timeout-ms", "x", "--", "true"),
        ("--timeout-ms", "0", "--", "true"),
        ("--workspace", "/no/such/dir", "--", "true"),
        ("--apply", "--", "true"),
        ("--workspace", ".", "--apply", "--patch", "p", "--", "true"),
        ("--patch", "/nowhere/at/all/p", "--", "true"),
        ("--image", "../x", "--", "true"),
        ("--connect", "example.org:443", "--", "true"),
    ],
)
def test_a_run_that_can_not_start_is_125_and_one_line(
    stockade_cli: Cli, service: FakeService, arguments: tuple[str, ...]
) -> None:
    said = stockade_cli("run", *arguments)
    assert said.status == 125
    assert said.err.count("\n") == 1
    assert "run" not in service.verbs()


def test_run_releases_its_lease_whatever_happens(stockade_cli: Cli, service: FakeService) -> None:
    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        raise failure(Code.SANDBOX_UNAVAILABLE, "no")

    service.on_run = run
    assert stockade_cli("run", "--", "true").status == 125
    assert service.verbs()[-1] == "release"


def test_run_passes_stdin_on_only_with_i(
    stockade_cli: Cli,
    service: FakeService,
    result_of: ResultOf,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seen: list[int | None] = []

    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        seen.append(stdin)
        return result_of(context.request_id)

    service.on_run = run
    stockade_cli("run", "--", "cat")
    stockade_cli("run", "-i", "--", "cat")
    assert seen == [None, 0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("remote", [False, True])
def test_a_signal_cancels_the_call_waits_for_its_end_and_exits(
    stockade_cli: Cli,
    service: FakeService,
    result_of: ResultOf,
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    remote: bool,
) -> None:
    if remote:
        monkeypatch.setenv("STOCKADE_SOCKET", server.path)
    cancelled = threading.Event()

    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        os.kill(os.getpid(), number)
        assert cancelled.wait(GATE_S)
        return result_of(context.request_id, Status.CANCELLED, Code.CANCELLED)

    def cancel(request: CancelRequest) -> int:
        assert request.call_id == next(v for k, v in service.seen if k == "run").call_id
        cancelled.set()
        return 1

    service.on_run, service.on_cancel = run, cancel
    before = signal.getsignal(signal.SIGINT)  # it is ignored where a shell runs this beside itself
    said = stockade_cli("run", "--", "sleep", "1000")
    assert said.status == 128 + number
    assert service.verbs() == ["create", "run", "cancel", "release"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_during_call_cancels_it(
    stockade_cli: Cli, daemon: Running, service: FakeService, result_of: ResultOf
) -> None:
    cancelled = threading.Event()

    def call(context: Context, request: CallRequest) -> ToolResult:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(GATE_S)
        return result_of(context.request_id, Status.CANCELLED, Code.CANCELLED)

    def cancel(request: CancelRequest) -> int:
        cancelled.set()
        return 1

    service.on_call, service.on_cancel = call, cancel
    assert stockade_cli("call", "bash_execute", "{}", "--lease", LEASE).status == 130
    assert service.verbs() == ["call", "cancel"]


def test_when_our_reader_is_gone_the_program_is_cancelled(
    stockade_cli: Cli, service: FakeService, result_of: ResultOf, capfd: pytest.CaptureFixture[str]
) -> None:
    cancelled = threading.Event()

    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        for _ in range(100_000):
            tee(1, memoryview(b"y\n" * 1000))
            if cancelled.is_set():
                break
        assert cancelled.wait(GATE_S)
        return result_of(context.request_id, Status.CANCELLED, Code.CANCELLED)

    def cancel(request: CancelRequest) -> int:
        cancelled.set()
        return 1

    service.on_run, service.on_cancel = run, cancel
    read_end, write_end = os.pipe()
    kept = os.dup(1)
    os.dup2(write_end, 1)
    os.close(write_end)
    os.close(read_end)
    try:
        status = main(Composition(_transport(service)), ["run", "--", "yes"])
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert status == 141
    assert service.verbs()[-1] == "release"


def _transport(service: FakeService) -> InProcessTransport:
    own = Peer(os.geteuid(), None, Role.OPERATOR, own=True)
    return InProcessTransport(Api(service, lambda: "rq_1", "0"), own, lambda: None)


# Other commands.


def test_lease_create_prints_what_its_holder_needs(
    stockade_cli: Cli, daemon: Running, service: FakeService, tmp_path: Path
) -> None:
    said = stockade_cli(
        "lease", "create", "--tenant", "acme", "--trajectory", "t/1", "--source", str(tmp_path),
        "--exclude", "*.o", "--env", "A=b=c", "--ttl-s", "60", "--grant", "edit", "--json",
    )  # fmt: skip
    assert json.loads(said.out) == {
        "lease_id": LEASE,
        "token": TOKEN,
        "generation": 1,
        "expires_at": "2025-01-01T01:00:00Z",
    }
    [(_, request)] = service.seen
    assert (request.env, request.excludes, request.grant) == ({"A": "b=c"}, ["*.o"], "edit")
    plain = stockade_cli("lease", "create", "--tenant", "acme", "--trajectory", "t/1")
    assert f"lease_id: {LEASE}\n" in plain.out


def test_the_other_lease_commands(
    stockade_cli: Cli, daemon: Running, service: FakeService, tmp_path: Path
) -> None:
    assert LEASE in stockade_cli("lease", "list").out
    assert json.loads(stockade_cli("lease", "list", "--json").out)[0]["tenant"] == "acme"
    assert LEASE in stockade_cli("lease", "show", "acme/t1").out
    for arguments in (
        ("renew", LEASE, "--ttl-s", "60"),
        ("reset", "acme/t1"),
        ("export", LEASE, "--to", str(tmp_path)),
        ("release", LEASE, "--capability", TOKEN),
    ):
        assert stockade_cli("lease", *arguments).status == 0
    assert service.contexts[-1].token == TOKEN
    patch = tmp_path / "p"
    assert stockade_cli("lease", "export", LEASE, "--patch", str(patch)).status == 0
    assert patch.read_bytes() == b"".join(service.patch_parts)
    said = stockade_cli("lease", "show", "acme/unknown")
    assert (said.status, said.out) == (3, "")
    assert "lease_not_granted" in said.err


def test_call_cancel(stockade_cli: Cli, daemon: Running, service: FakeService) -> None:
    said = stockade_cli("call", "cancel", "--lease", LEASE, "--call-id", "c1", "--turn", "3")
    assert (said.status, json.loads(said.out)) == (0, {"cancelled": 1})
    [(_, request)] = service.seen
    assert (request.call_id, request.turn) == ("c1", 3)
    service.on_cancel = lambda request: 0
    assert stockade_cli("call", "cancel", "--lease", LEASE, "--call-id", "c1").status == 1
    assert stockade_cli("call", "cancel", "--lease", LEASE).status == 2


@pytest.mark.parametrize(
    "arguments", ["{", "[]", '{"a": NaN}', '{"a": 1, "a": 2}', '"x"', "", '{"a": 1e999}']
)
def test_b07_bad_json_on_the_command_line_is_2_and_one_line(
    stockade_cli: Cli, daemon: Running, service: FakeService, arguments: str
) -> None:
    said = stockade_cli("call", "bash_execute", arguments, "--lease", LEASE)
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert service.seen == []


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("run", "--", "ls", "bad\udcff.txt"), 125),
        (("lease", "create", "--tenant", "t", "--trajectory", "x", "--env", "A=\udcff"), 2),
        (("audit", "show", "\udcff"), 2),
        (("calls", "settle", "\udcff", "--as", "completed", "--reason", "x"), 2),
    ],
)
def test_an_argument_that_is_no_text_is_named_in_one_line(
    stockade_cli: Cli,
    daemon: Running,
    service: FakeService,
    arguments: tuple[str, ...],
    status: int,
) -> None:
    """Bytes of the command line that are no UTF-8 come as lone surrogates."""
    said = stockade_cli(*arguments)
    assert (said.status, said.out, said.err.count("\n")) == (status, "", 1)
    assert "not UTF-8" in said.err
    assert not {"run", "settle"} & set(service.verbs())


@pytest.mark.parametrize(
    ("variable", "value"),
    [("STOCKADE_CLIENT", "Büro"), ("STOCKADE_CLIENT", "\udcff"), ("STOCKADE_MODEL", "a\nb: c")],
)
def test_a_name_for_the_audit_that_no_header_can_hold_is_2_and_one_line(
    stockade_cli: Cli, daemon: Running, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    said = stockade_cli("key", "list")
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert f"(${variable}) must be printable ASCII" in said.err
    assert stockade_cli("run", "true").status == 125


def test_artifacts_are_read_to_their_end(
    stockade_cli: Cli, daemon: Running, service: FakeService
) -> None:
    service.artifact = (b"0123456789abcdef" * 64 + b"\n") * 5000
    arguments = ("artifact", "get", "ar_0123456789abcdef", "--lease", LEASE)
    assert stockade_cli(*arguments).out.encode() == service.artifact
    said = stockade_cli(*arguments, "--offset", "10", "--length", "7")
    assert said.out.encode() == service.artifact[10:17]
    assert stockade_cli("artifact", "get", "../x", "--lease", LEASE).status == 2


def test_tools_doctor_and_version_need_no_daemon(stockade_cli: Cli) -> None:
    said = stockade_cli("tools", "list")
    for name in ("bash_execute", "file_view", "file_edit", "grep_search"):
        assert name in said.out
    assert json.loads(stockade_cli("tools", "show", "file_edit").out)["effect"] == "A1"
    told = stockade_cli("tools", "show", "bash_execute", "--as-model").out
    assert set(json.loads(told)) == {"name", "description", "input_schema"}
    assert stockade_cli("tools", "show", "nope").status == 2
    assert stockade_cli("--version").out.startswith("stockade, version ")
    report = json.loads(stockade_cli("doctor", "--json").out)
    assert {check["name"] for check in report["checks"]} >= {"root", "crun", "cgroups", "ripgrep"}
    assert "crun" in stockade_cli("doctor").out


def test_serve_takes_its_options_over_the_files(
    stockade_cli: Cli, composition: Composition, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('socket = "/run/a"\nsocket_mode = 0o660\n[limits]\ncalls = 3\n')
    said = stockade_cli("serve", "--config", str(file), "--socket", "/run/b", "--state-dir", "/s")
    assert said.status == 0
    [config] = composition.served
    assert (config.socket, config.state_dir, config.socket_mode) == ("/run/b", "/s", 0o660)
    assert config.limits.calls == 3


@pytest.mark.parametrize(
    ("fail", "status"),
    [
        (ListenError("can't listen on /s: another daemon answers there"), 1),
        (failure(Code.ENGINE_UNAVAILABLE, "crun is missing"), 4),
        (PermissionError(13, "Permission denied", "/var/lib/stockade"), 1),
        (RuntimeError("first\nsecond\x1b[2J"), 1),
    ],
)
def test_whatever_fails_is_one_clean_line(
    stockade_cli: Cli, composition: Composition, fail: Exception, status: int
) -> None:
    composition.fail = fail
    said = stockade_cli("serve")
    assert (said.status, said.err.count("\n")) == (status, 1)
    assert "\x1b" not in said.err
    said = stockade_cli("run", "--", "true")
    assert (said.status, said.err.count("\n")) == (125, 1)


@pytest.mark.parametrize(
    "command",
    [
        ("calls", "settle", "cl_0", "--as", "completed", "--reason", ""),
        ("call", "cancel", "--lease", "acme/run", "--call-id", "two words"),
        ("lease", "secret", "remove", "acme/run", "two words"),
    ],
)
def test_what_can_not_be_asked_is_wrong_usage_and_is_not_repeated(
    stockade_cli: Cli, daemon: Running, command: tuple[str, ...]
) -> None:
    said = stockade_cli(*command)
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert said.err.startswith("stockade: ")
    assert "two words" not in said.err
    assert "internal" not in said.err


def test_config_check_names_file_and_place(stockade_cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[[peer]]\nuid = 4242\nrole = "tenant"\ntenant = "acme"\n')
    assert stockade_cli("config", "check", str(file)).out == f"{file}: ok\n"
    file.write_text("sokcet = 1\n")
    said = stockade_cli("config", "check", str(file))
    assert said.status == 2
    assert str(file) in said.err
    assert "sokcet" in said.err
    assert stockade_cli("config", "check", "/no/such").status == 2


def test_mint_asks_the_daemon(stockade_cli: Cli, daemon: Running, service: FakeService) -> None:
    said = stockade_cli(
        "capability", "mint", "--tenant", "acme", "--trajectory", "t", "--ttl-s", "60"
    )
    assert said.out == f"{TOKEN}\n"
    [(_, request)] = service.authority.seen
    assert isinstance(request, MintRequest)
    assert (request.grant, request.ttl_s) == ("agent", 60)


@pytest.mark.parametrize(
    "arguments",
    [
        ("capability", "mint", "--tenant", "A B", "--trajectory", "t"),
        ("capability", "mint", "--tenant", "acme", "--trajectory", "t", "--grant", "../agent"),
        ("capability", "mint", "--tenant", "acme", "--trajectory", "t", "--ttl-s", "9" * 20),
        ("lease", "renew", "acme/t", "--ttl-s", "9" * 20),
        ("key", "retire", "k 1"),
        ("approval", "deny", "ap_1", "--reason", "x" * 257),
        ("calls", "settle", "c", "--as", "completed", "--reason", ""),
    ],
    ids=lambda arguments: " ".join(arguments)[:50],
)
def test_what_no_request_can_hold_is_2_and_one_line(
    stockade_cli: Cli, daemon: Running, service: FakeService, arguments: tuple[str, ...]
) -> None:
    said = stockade_cli(*arguments)
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    # A lease's operations have a result here too, with its status.
    status = "invalid: " if arguments[0] == "lease" else ""
    assert said.err.startswith(f"stockade: {status}invalid_argument: ")
    assert service.seen == []


def test_an_empty_capability_is_not_none(
    stockade_cli: Cli, daemon: Running, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCKADE_CAPABILITY", "")
    for arguments, status in (
        (("call", "bash_execute", "{}", "--lease", LEASE), 2),
        (("run", "--", "true"), 125),
        (("lease", "create", "--tenant", "a", "--trajectory", "t"), 2),
        (("capability", "attenuate", "--tool", "file_view"), 2),
    ):
        said = stockade_cli(*arguments)
        assert (said.status, said.out) == (status, "")
        assert "STOCKADE_CAPABILITY is empty" in said.err
    assert service.seen == []


def test_a_capability_is_narrowed_and_read_offline(stockade_cli: Cli) -> None:
    from stockade.decide.blocks import root_block
    from stockade.decide.tokens import KeyRing, mint, verify
    from stockade.host.policy_files import load_policy

    ring = KeyRing({"k1": b"k" * 32})
    grant = load_policy().grant("agent")
    token = mint(ring, "k1", root_block(grant, "acme", "t", "k1", 0, 2**40))
    said = stockade_cli(
        "capability", "attenuate", "--capability", token, "--tool", "file_view",
        "--read", "/workspace/a", "--drop", "write", "--drop", "execute", "--pids", "5",
        "--ttl-s", "60",
    )  # fmt: skip
    assert said.status == 0
    permit = verify(said.out.strip(), ring, 1000.0)
    assert permit.grant.tools == ("file_view",)
    assert permit.grant.scope.read == ("/workspace/a",)
    assert permit.grant.scope.write == permit.grant.scope.execute == ()
    assert permit.grant.per_lease.pids == 5
    shown = json.loads(stockade_cli("capability", "inspect", said.out.strip()).out)
    assert [block.get("tenant") for block in shown["blocks"]] == ["acme", None]
    wider = stockade_cli("capability", "attenuate", "--capability", said.out.strip(), "--pids", "6")
    assert (wider.status, wider.out) == (3, "")
    assert "per_lease.pids" in wider.err
    for options, named in (
        (("--read", "/workspace/a"), "scope.write: /tmp is granted for writing"),
        (("--read", "/workspace/../etc"), "scope.read: "),
        (("--calls", "9" * 20), "calls: "),
        (("--depth", "17"), "depth: "),
    ):
        wrong = stockade_cli("capability", "attenuate", "--capability", token, *options)
        assert (wrong.status, wrong.out) == (2, "")
        assert wrong.err.startswith(f"stockade: invalid_argument: {named}")
    assert stockade_cli("capability", "inspect", "nonsense").status == 3
    assert stockade_cli("capability", "inspect").status == 2


def commands(group: click.Group, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [above] if above else [()]
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += commands(command, (*above, name))
        else:
            found.append((*above, name))
    return found


@pytest.mark.parametrize("command", commands(cli), ids=" ".join)
def test_every_command_has_help(stockade_cli: Cli, command: tuple[str, ...]) -> None:
    said = stockade_cli(*command, "--help")
    assert said.status == 0
    assert said.out.startswith("Usage: stockade")
    assert said.err == ""


@pytest.mark.parametrize("command", commands(cli), ids=" ".join)
def test_an_unknown_option_is_one_line_everywhere(
    stockade_cli: Cli, command: tuple[str, ...]
) -> None:
    said = stockade_cli(*command, "--no-such-option")
    assert said.status == (125 if command == ("run",) else 2)
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_group_without_a_command_is_2_and_one_line(stockade_cli: Cli) -> None:
    for arguments in ((), ("lease",), ("capability",)):
        said = stockade_cli(*arguments)
        assert (said.status, said.err.count("\n")) == (2, 1)


def test_a_closed_pipe_of_ours_is_no_traceback() -> None:
    source = str(Path(__file__).parents[2] / "src")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from stockade.edge.cli.main import main; sys.exit(main(None, ['tools', 'list', '--json']))"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, source],
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(write_end)
    assert done.returncode == 1
    assert done.stderr == b""


@pytest.mark.parametrize("result", list(Verdict))
def test_selftest_exits_with_1_unless_everything_is_held(
    stockade_cli: Cli, composition: Composition, result: Verdict
) -> None:
    row = Row(
        name="climb", group="g", attack="a", defence="d", control="c", result=result, evidence="why"
    )
    composition.attempts = (row.model_copy(update={"result": Verdict.HELD, "name": "ok"}), row)
    said = stockade_cli("selftest", "--only", "c*")
    assert composition.chosen == ["c*"]
    assert said.status == (0 if result is Verdict.HELD else 1)
    assert ("climb" in said.err) is (result is not Verdict.HELD)
    assert "2 attempts: " in said.out
    as_json = stockade_cli("selftest", "--json")
    assert as_json.status == said.status
    assert SelftestReport.model_validate_json(as_json.out).attempts == composition.attempts


def test_a_selftest_without_attempts_is_no_success(stockade_cli: Cli) -> None:
    assert stockade_cli("selftest").status == 1

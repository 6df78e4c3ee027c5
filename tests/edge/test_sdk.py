"""The client: every verb over both transports, and what a failing transport means."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from stockade.edge.client.connection import Message
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result, StockadeError, ToolError
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import Reply, Sink
from stockade.edge.service import Context
from stockade.edge.wire import LeaseCreate, LeaseReply, RunRequest
from stockade.terms.fault import Code, Status, failure
from stockade.terms.ports import Tee
from stockade.terms.result import Exit, ExportData, ToolResult
from tests.edge.conftest import FakeService, ResultOf, Running, Start

LEASE = "ls_0123456789abcdef"
TOKEN = "st1.token.of-the-lease"
GATE_S = 20


@pytest.fixture(params=["http", "in process"])
def client(request: pytest.FixtureRequest) -> Stockade:
    made = request.getfixturevalue("stockade" if request.param == "http" else "local")
    assert isinstance(made, Stockade)
    return made


@pytest.fixture
def lease(client: Stockade) -> Lease:
    return client.lease(tenant="acme", trajectory="t1")


def code_of(result: Result) -> Code | None:
    return None if result.error is None else result.error.code


def test_a_lease_is_made_used_and_released(client: Stockade, service: FakeService) -> None:
    with client.lease("some/dir", tenant="acme", trajectory="t1", env={"A": "b"}) as lease:
        assert (lease.id, lease.token, lease.generation) == (LEASE, TOKEN, 1)
        assert lease.bash("echo hi").check().status == "succeeded"
    created = service.seen[0][1]
    assert created.source == os.path.abspath("some/dir")
    assert created.env == {"A": "b"}
    assert created.grant is None
    assert service.verbs() == ["create", "call", "release"]
    assert [context.token for context in service.contexts] == [None, TOKEN, TOKEN]


@pytest.mark.parametrize(
    ("use", "tool", "arguments"),
    [
        (lambda x: x.bash("ls"), "bash_execute", {"command": "ls"}),
        (
            lambda x: x.bash_execute("ls", timeout_ms=5000),
            "bash_execute",
            {"command": "ls", "timeout_ms": 5000},
        ),
        (lambda x: x.view("a", 2, 3), "file_view", {"path": "a", "offset": 2, "limit": 3}),
        (lambda x: x.file_view("a"), "file_view", {"path": "a"}),
        (
            lambda x: x.edit("a", "b", "", allow_multiple=False),
            "file_edit",
            {"path": "a", "old_str": "b", "new_str": "", "allow_multiple": False},
        ),
        (
            lambda x: x.file_edit("a", "b", "c", expected_version="v"),
            "file_edit",
            {"path": "a", "old_str": "b", "new_str": "c", "expected_version": "v"},
        ),
        (lambda x: x.grep("p"), "grep_search", {"pattern": "p", "path": "/workspace"}),
        (
            lambda x: x.grep_search("p", "d", "*.py"),
            "grep_search",
            {"pattern": "p", "path": "d", "glob": "*.py"},
        ),
    ],
)
def test_tools_send_what_was_given_and_nothing_else(
    lease: Lease,
    service: FakeService,
    use: Callable[[Lease], Result],
    tool: str,
    arguments: dict[str, object],
) -> None:
    result = use(lease)
    verb, sent = service.seen[-1]
    assert (verb, sent.tool, sent.arguments, sent.lease) == ("call", tool, arguments, LEASE)
    assert result.call.tool == tool


def test_check_raises_unless_succeeded_or_partial(
    lease: Lease, service: FakeService, result_of: ResultOf
) -> None:
    for status in Status:
        code = None if status in ("succeeded", "partial") else Code.NONZERO_EXIT
        service.on_call = lambda context, _, s=status, c=code: result_of(context.request_id, s, c)
        result = lease.bash("x")
        assert result.status is status
        if code is None:
            assert result.check() is result
        else:
            with pytest.raises(ToolError) as raised:
                result.check()
            assert raised.value.result is result
        assert str(status) in result.for_model() or status is Status.SUCCEEDED


def test_run_streams_passes_stdin_and_gives_the_result(
    lease: Lease, service: FakeService, result_of: ResultOf
) -> None:
    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        assert stdin is not None
        with open(stdin, "rb", closefd=False) as pipe:
            tee(1, memoryview(pipe.read()))
        tee(2, memoryview(b"oops"))
        return result_of(
            context.request_id,
            Status.FAILED,
            Code.NONZERO_EXIT,
            exit_=Exit(kind="exited", code=3, signal=None),
        )

    service.on_run = run
    read_end, write_end = os.pipe()
    os.write(write_end, b"typed")
    os.close(write_end)
    out: list[bytes] = []
    err: list[bytes] = []
    try:
        result = lease.run(["cat"], stdin=read_end, stdout=out.append, stderr=err.append)
    finally:
        os.close(read_end)
    assert (b"".join(out), b"".join(err)) == (b"typed", b"oops")
    assert result.exit is not None
    assert result.exit.code == 3


def test_stdin_that_never_ends_does_not_hold_a_run(
    lease: Lease, service: FakeService, result_of: ResultOf
) -> None:
    service.on_run = lambda context, request, tee, stdin: result_of(context.request_id)
    read_end, write_end = os.pipe()
    try:
        assert lease.run(["true"], stdin=read_end).status == "succeeded"
    finally:
        os.close(read_end)
        os.close(write_end)


def test_stdin_that_nobody_reads_does_not_hold_a_run(
    lease: Lease, service: FakeService, result_of: ResultOf, tmp_path: Path
) -> None:
    service.on_run = lambda context, request, tee, stdin: result_of(context.request_id)
    large = tmp_path / "large"
    large.write_bytes(b"x" * 30_000_000)
    with large.open("rb") as file:
        assert lease.run(["true"], stdin=file.fileno()).status == "succeeded"


def test_no_descriptor_and_no_thread_is_left_after_runs_with_stdin(
    lease: Lease, service: FakeService, result_of: ResultOf, tmp_path: Path
) -> None:
    service.on_run = lambda context, request, tee, stdin: result_of(context.request_id)
    large = tmp_path / "large"
    large.write_bytes(b"x" * 300_000)

    def once() -> None:
        with large.open("rb") as file:
            assert lease.run(["true"], stdin=file.fileno()).status == "succeeded"

    once()
    assert lease.bash("x").status == "succeeded"  # leaves one idle connection, as below
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        once()
    # The server closes its end a moment after the client has.
    deadline = time.monotonic() + GATE_S
    while len(os.listdir("/proc/self/fd")) > descriptors:
        assert time.monotonic() < deadline
        assert lease.bash("x").status == "succeeded"
    assert threading.active_count() <= threads + 1


def test_what_a_sink_raises_comes_out_unchanged(lease: Lease) -> None:
    def sink(data: bytes) -> None:
        raise BrokenPipeError("mine")

    with pytest.raises(BrokenPipeError, match="mine"):
        lease.run(["true"], stdout=sink)
    assert lease.bash("x").status == "succeeded"


def test_files_patch_and_artifact(lease: Lease, service: FakeService, tmp_path: Path) -> None:
    content = os.urandom(2_000_000)
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(content)
    assert lease.upload(source, "/workspace/ü/x") == "ab" * 16
    lease.download("/workspace/ü/x", target)
    assert target.read_bytes() == content
    assert lease.export_patch() == b"".join(service.patch_parts)
    assert lease.artifact("ar_0123456789abcdef", 10, 5) == service.artifact[10:15]
    with pytest.raises(StockadeError) as raised:
        lease.download("/workspace/none", target)
    assert raised.value.error.code is Code.NOT_FOUND
    assert target.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_the_lease_itself(
    lease: Lease, service: FakeService, client: Stockade, tmp_path: Path
) -> None:
    assert lease.show().lease_id == LEASE
    assert lease.renew(60).status == "succeeded"
    assert lease.reset().status == "succeeded"
    changed = lease.changes().data
    assert isinstance(changed, ExportData)
    assert changed.modified == 2
    assert lease.export_to(tmp_path).status == "succeeded"
    assert service.seen[-1][1][1].to == str(tmp_path)
    assert lease.cancel("c1", turn=2) == 1
    assert [view.lease_id for view in client.leases()] == [LEASE]
    assert client.mint("acme", "t", "agent", 60) == TOKEN
    assert client.health().status == "ok"
    assert client.doctor().ok
    attached = client.attach("acme/t1/sub", TOKEN)
    assert attached.show().tenant == "acme"
    assert service.seen[-1] == ("lease", "acme/t1/sub")


def test_a_refused_lease_is_a_tool_error_with_the_whole_result(
    client: Stockade, service: FakeService
) -> None:
    def create(request: LeaseCreate) -> LeaseReply:
        raise failure(Code.CEILING_EXCEEDED, "too much", rule="per_lease.pids")

    service.on_create = create
    with pytest.raises(ToolError) as raised:
        client.lease(tenant="acme")
    assert raised.value.error.rule == "per_lease.pids"
    assert raised.value.result.status is Status.DENIED
    result, lease = client.create_lease(LeaseCreate(tenant="acme", trajectory="t"))
    assert (result.status, lease) == (Status.DENIED, None)


def test_a_token_with_a_newline_ends_no_header(client: Stockade, service: FakeService) -> None:
    client.attach(LEASE, "a\r\nStockade-Client: evil").bash("x")
    context = service.contexts[-1]
    assert context.token == r"'a\r\nStockade-Client: evil'"
    assert context.client is None


CAN_NOT_BE_SENT: dict[str, tuple[Callable[[Lease], Result], str]] = {
    "an id": (lambda lease: lease.call("run", {}, call_id="a b"), "call_id"),
    "a turn": (lambda lease: lease.run(["a"], turn=-1, call_id="a"), "turn"),
    "no program": (lambda lease: lease.run([]), "argv"),
    "no time": (lambda lease: lease.run(["a"], timeout_ms=0), "timeout_ms"),
    "a text for arguments": (
        lambda lease: lease.call("bash_execute", cast(Any, "ls")),
        "arguments",
    ),
    "no arguments": (lambda lease: lease.call("bash_execute", cast(Any, None)), "arguments"),
    "a name that is a number": (
        lambda lease: lease.call("bash_execute", cast(Any, {1: 2}), call_id="c"),
        "arguments",
    ),
    "a text for an argument vector": (lambda lease: lease.run("ls"), "argv"),
    "no argument vector": (lambda lease: lease.run(cast(Any, None)), "argv"),
    "no time to live": (lambda lease: lease.renew(0), "ttl_s"),
    "a directory that is no text": (lambda lease: lease.export_to("/tmp/\udcff"), "to"),
}


@pytest.mark.parametrize("what", CAN_NOT_BE_SENT)
def test_what_no_request_can_hold_is_a_result(
    what: str, lease: Lease, service: FakeService
) -> None:
    call, field = CAN_NOT_BE_SENT[what]
    result = call(lease)
    assert (result.status, code_of(result)) == ("invalid", "invalid_argument")
    assert result.error is not None
    assert result.error.details == {"field": field}
    assert result.to_json()
    assert service.verbs() == ["create"]


NOBODY_CAN_ASK: dict[str, tuple[Callable[[Stockade], object], str]] = {
    "a name of a trajectory": (lambda client: client.lease(trajectory="a b"), "trajectory"),
    "257 variables": (
        lambda client: client.lease(env=dict.fromkeys(map(str, range(257)), "")),
        "env",
    ),
    "a capability of no time": (lambda client: client.mint("acme", "t", "agent", 0), "ttl_s"),
    "a long reason": (lambda client: client.revoke(block="ab" * 16, reason="r" * 257), "reason"),
    "a name of a secret": (
        lambda client: client.attach(LEASE).add_secret("N" * 65, "correct-horse"),
        "name",
    ),
    "too much of an artifact": (
        lambda client: client.attach(LEASE).artifact("ar_0123456789abcdef", 0, 2**53),
        "length",
    ),
}


@pytest.mark.parametrize("what", NOBODY_CAN_ASK)
def test_what_no_request_can_hold_is_refused_as_the_daemon_would(
    what: str, client: Stockade, service: FakeService
) -> None:
    ask, field = NOBODY_CAN_ASK[what]
    with pytest.raises(StockadeError) as raised:
        ask(client)
    assert raised.value.error.code == "invalid_argument"
    assert raised.value.error.details == {"field": field}
    assert "correct-horse" not in str(raised.value)
    assert service.seen == []


def test_a_time_limit_beyond_all_numbers_is_the_daemons_to_refuse(
    client: Stockade, service: FakeService
) -> None:
    result = client.attach(LEASE).call("bash_execute", {"command": "", "timeout_ms": 10**400})
    assert (result.status, code_of(result)) == ("invalid", "malformed_json")
    assert service.seen == []


# Transport.


def test_no_daemon_is_unavailable_and_may_be_repeated(socket_dir: Path) -> None:
    with Stockade.connect(socket_dir / "none") as client:
        lease = client.attach(LEASE, TOKEN)
        result = lease.bash("x")
        assert (result.status, code_of(result)) == ("unavailable", "daemon_unreachable")
        assert result.retry_safe
        assert result.call.lease_id == LEASE
        assert code_of(lease.run(["x"])) == "daemon_unreachable"
        assert code_of(lease.release()) == "daemon_unreachable"
        with pytest.raises(StockadeError) as raised:
            client.leases()
        assert raised.value.error.code is Code.DAEMON_UNREACHABLE
        with pytest.raises(ToolError) as refused:
            client.lease()
        assert refused.value.result.status is Status.UNAVAILABLE


class Proxy:
    """Forwards each request to the daemon, then drops the reply; or drops what it is told to."""

    def __init__(self, path: str, upstream: str, replies: Iterator[bool]) -> None:
        self._upstream = upstream
        self._replies = replies
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self.requests = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client:
                head = client.recv(1 << 20)
                if not head:
                    return
                assert b"\r\n\r\n" in head
                self.requests += 1
                with socket.socket(socket.AF_UNIX) as upstream:
                    upstream.connect(self._upstream)
                    upstream.sendall(head)
                    reply = upstream.recv(1 << 20)
                if next(self._replies, True):
                    client.sendall(reply)

    def close(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(path)
        self._thread.join()
        self._listener.close()


class Dropping(Protocol):
    """A client through a proxy that passes on, or drops, the replies in this order."""

    def __call__(self, *replies: bool) -> tuple[Stockade, Proxy]: ...


@pytest.fixture
def dropping(server: Running, socket_dir: Path) -> Iterator[Dropping]:
    made: list[tuple[Stockade, Proxy]] = []
    path = str(socket_dir / "proxy")

    def make(*replies: bool) -> tuple[Stockade, Proxy]:
        proxy = Proxy(path, server.path, iter(replies))
        made.append((Stockade.connect(path), proxy))
        return made[0]

    yield make
    for client, proxy in made:
        client.close()
        proxy.close(path)


def test_b84_a_lost_reply_is_unknown_and_the_command_ran_once(
    dropping: Dropping, service: FakeService
) -> None:
    client, _ = dropping(False, False, False)
    result = client.attach(LEASE).bash("echo x >> n")
    assert (result.status, code_of(result)) == ("unknown", "connection_lost")
    assert result.retry_safe is False
    assert service.verbs() == ["call"]


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.edit("a", "b", "c"),
        lambda x: x.run(["touch", "a"]),
        lambda x: x.reset(),
        lambda x: x.release(),
    ],
)
def test_b84_no_effect_is_sent_twice(
    dropping: Dropping, service: FakeService, use: Callable[[Lease], Result]
) -> None:
    client, proxy = dropping(False, False, False)
    assert use(client.attach(LEASE)).status == "unknown"
    assert len(service.seen) == proxy.requests == 1


def test_b84_a_lost_lease_create_is_unknown(dropping: Dropping, service: FakeService) -> None:
    client, _ = dropping(False, False)
    result, lease = client.create_lease(LeaseCreate(tenant="acme", trajectory="t"))
    assert (result.status, lease) == (Status.UNKNOWN, None)
    assert service.verbs() == ["create"]


def test_b84_a_read_is_asked_for_once_more(dropping: Dropping, service: FakeService) -> None:
    client, _ = dropping(False, True)
    assert client.attach(LEASE).view("a").status == "succeeded"
    assert service.verbs() == ["call", "call"]


def test_a_daemon_that_restarted_between_calls_is_found_again(
    start: Start, service: FakeService
) -> None:
    first = start()
    with Stockade.connect(first.path) as client:
        lease = client.attach(LEASE)
        assert lease.bash("1").status == "succeeded"
        first.stop()
        assert code_of(lease.bash("2")) == "daemon_unreachable"
        start()
        assert lease.bash("3").status == "succeeded"
    assert [request.arguments["command"] for _, request in service.seen] == ["1", "3"]


def test_b14_silence_within_the_calls_own_limit_is_no_transport_failure() -> None:
    from stockade.edge.client.link import GRACE_S

    sent: list[float | None] = []

    class Recorder:
        def send(self, message: Message) -> Reply:
            sent.append(message.silence_s)
            raise AssertionError

        def stream(self, message: Message, sink: Sink, stdin: int | None = None) -> Reply:
            sent.append(message.silence_s)
            raise AssertionError

        def close(self) -> None: ...

    lease = Stockade(Recorder()).attach(LEASE)
    uses: tuple[Callable[[], Result], ...] = (
        lambda: lease.bash("sleep 75", timeout_ms=120_000),
        lambda: lease.bash("sleep 5"),
        lambda: lease.run(["sleep", "75"]),
        lambda: lease.call("run", {"argv": ["sleep", "3000"]}),
    )
    for use in uses:
        with pytest.raises(AssertionError):
            use()
    assert sent[0] is not None
    assert sent[0] >= 120 + GRACE_S
    assert sent[1] is not None
    assert sent[1] >= 30 + GRACE_S
    assert sent[2:] == [None, None]


def test_an_oversized_call_is_a_result_over_http(stockade: Stockade, service: FakeService) -> None:
    result = stockade.attach(LEASE).bash("x" * 9_000_000)
    assert (result.status, code_of(result)) == ("invalid", "body_too_large")
    assert service.seen == []


def test_many_threads_share_one_client(stockade: Stockade, service: FakeService) -> None:
    lease = stockade.attach(LEASE)
    results: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            results.append(lease.call("bash_execute", {"command": f"{number}-{turn}"}).status)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["succeeded"] * 160
    assert len({request.arguments["command"] for _, request in service.seen}) == 160

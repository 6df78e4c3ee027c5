"""The server: lanes, clients that go away, streams both ways, its socket, its end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stockade.edge.exchange import FrameReader, FrameType, Write, frame
from stockade.edge.server import messages
from stockade.edge.server.listening import ListenError, answers, listen
from stockade.edge.service import Context
from stockade.edge.wire import CallRequest, RunRequest
from stockade.terms.fault import Code, failure
from stockade.terms.ports import Tee
from stockade.terms.result import ToolResult
from tests.edge.conftest import FakeService, ResultOf, Running, Start
from tests.raw import UnixConnection

LEASE = "ls_0123456789abcdef"
CALL = json.dumps({"tool": "bash_execute", "arguments": {"command": ":"}, "lease": LEASE})
GATE_S = 20


class Gate:
    """Calls wait until the gate is opened; `running` counts those that began."""

    def __init__(self, result_of: ResultOf) -> None:
        self._result_of = result_of
        self.open = threading.Event()
        self.running = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)

    def call(self, context: Context, request: CallRequest) -> ToolResult:
        self.running.release()
        assert self.open.wait(GATE_S)
        self.ended.release()
        return self._result_of(context.request_id)


@pytest.fixture
def gate(service: FakeService, result_of: ResultOf) -> Iterator[Gate]:
    made = Gate(result_of)
    service.on_call = made.call
    yield made
    made.open.set()


def test_b85_control_answers_while_every_call_thread_is_taken(server: Running, gate: Gate) -> None:
    with ThreadPoolExecutor(64) as clients:
        calls = [clients.submit(server.ask, "POST", "/v1/calls", CALL) for _ in range(64)]
        for _ in range(64):
            assert gate.running.acquire(timeout=GATE_S)
        started = time.monotonic()
        assert server.ask("GET", "/v1/health")[1]["status"] == "ok"
        assert time.monotonic() - started < GATE_S / 2
        cancel = json.dumps({"lease": LEASE, "call_id": "a"})
        assert server.ask("POST", "/v1/calls/cancel", cancel)[1] == {"cancelled": 1}
        assert server.ask("POST", f"/v1/leases/{LEASE}/release")[1]["status"] == "succeeded"
        asked = '{"tenant": "acme", "trajectory": "t"}'
        assert server.ask("POST", "/v1/leases", asked)[1]["lease"]["lease_id"] == LEASE
        gate.open.set()
        assert {call.result()[1]["status"] for call in calls} == {"succeeded"}


def test_b05_a_client_that_goes_away_does_not_end_its_call(
    server: Running, gate: Gate, service: FakeService
) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.path)
        head = f"POST /v1/calls HTTP/1.1\r\nHost: x\r\nContent-Length: {len(CALL)}\r\n\r\n"
        raw.sendall(head.encode() + CALL.encode())
        assert gate.running.acquire(timeout=GATE_S)
    assert server.ask("GET", "/v1/health")[0] == 200
    assert not gate.ended.acquire(blocking=False)
    gate.open.set()
    assert gate.ended.acquire(timeout=GATE_S)
    assert service.verbs() == ["call"]


def test_half_a_request_runs_nothing(server: Running, service: FakeService) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.path)
        head = f"POST /v1/calls HTTP/1.1\r\nHost: x\r\nContent-Length: {len(CALL)}\r\n\r\n"
        raw.sendall(head.encode() + CALL.encode()[:-1])
    assert server.ask("GET", "/v1/health")[0] == 200
    assert service.seen == []


def test_half_an_upload_is_never_a_file(server: Running, service: FakeService) -> None:
    ended = threading.Event()
    failed: list[Exception] = []

    def write_file(path: str, content: Iterator[bytes]) -> str:
        try:
            service.files[path] = b"".join(content)
        except Exception as error:
            failed.append(error)
            raise
        finally:
            ended.set()
        return "00"

    service.on_write_file = write_file
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.path)
        head = f"PUT /v1/leases/{LEASE}/files/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        raw.sendall(head.encode() + b"half")
    assert ended.wait(GATE_S)
    assert service.files == {}
    assert len(failed) == 1


def frames(raw: bytes) -> list[tuple[FrameType, bytes]]:
    found = list(FrameReader().feed(raw))
    assert sum(len(frame(kind, payload)) for kind, payload in found) == len(raw)
    return found


RUN = json.dumps({"lease": LEASE, "argv": ["true"]})


def test_run_streams_frames_and_ends_with_the_result(server: Running) -> None:
    status, raw = server.ask("POST", "/v1/run", RUN)
    assert status == 200
    *output, (last, result) = frames(raw)
    assert output == [(FrameType.STDOUT, b"out\n"), (FrameType.STDERR, b"err\n")]
    assert last is FrameType.RESULT
    assert json.loads(result)["status"] == "succeeded"


def test_run_output_arrives_before_the_program_ends(
    server: Running, service: FakeService, result_of: ResultOf
) -> None:
    seen = threading.Event()

    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        tee(1, memoryview(b"first"))
        assert seen.wait(GATE_S)
        return result_of(context.request_id)

    service.on_run = run
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(GATE_S)
        raw.connect(server.path)
        head = f"POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: {len(RUN)}\r\n\r\n"
        raw.sendall(head.encode() + RUN.encode())
        got = b""
        while b"first" not in got:
            got += raw.recv(65536)
        seen.set()
        while b"0\r\n\r\n" not in got:
            got += raw.recv(65536)
    assert b"succeeded" in got


def test_a_refused_run_is_one_result_frame(server: Running, service: FakeService) -> None:
    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        raise failure(Code.BUSY, "no")

    service.on_run = run
    [(kind, result)] = frames(server.ask("POST", "/v1/run", RUN)[1])
    assert (kind, json.loads(result)["status"]) == (FrameType.RESULT, "unavailable")
    [(kind, result)] = frames(server.ask("POST", "/v1/run", "{")[1])
    assert (kind, json.loads(result)["status"]) == (FrameType.RESULT, "invalid")


def test_a_runs_client_that_goes_away_does_not_end_it(
    server: Running, service: FakeService, result_of: ResultOf
) -> None:
    gone = threading.Event()
    ended = threading.Event()

    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        tee(1, memoryview(b"x"))
        assert gone.wait(GATE_S)
        for _ in range(200):  # far more than a socket's buffer holds
            tee(1, memoryview(b"y" * 65536))
        ended.set()
        return result_of(context.request_id)

    service.on_run = run
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.path)
        head = f"POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: {len(RUN)}\r\n\r\n"
        raw.sendall(head.encode() + RUN.encode())
        raw.recv(65536)
    gone.set()
    assert ended.wait(GATE_S)


def test_a_program_waits_while_its_reader_is_slow(
    server: Running, service: FakeService, result_of: ResultOf
) -> None:
    written = [0]
    stalled = threading.Event()

    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        for _ in range(400):
            tee(1, memoryview(b"y" * 65536))
            written[0] += 65536
        return result_of(context.request_id)

    service.on_run = run
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(GATE_S)
        raw.connect(server.path)
        head = f"POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: {len(RUN)}\r\n\r\n"
        raw.sendall(head.encode() + RUN.encode())
        before = -1
        while before != written[0] or written[0] == 0:
            before = written[0]
            stalled.wait(0.2)
        assert written[0] < 4 * 1024 * 1024
        total = 0
        while chunk := raw.recv(1 << 20):
            total += len(chunk)
            if chunk.endswith(b"0\r\n\r\n"):
                break
    assert total > 400 * 65536


def test_stdin_follows_the_request_in_the_same_body(
    server: Running, service: FakeService, result_of: ResultOf
) -> None:
    def run(context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        assert stdin is not None
        with open(stdin, "rb", closefd=False) as pipe:
            data = pipe.read()
        tee(1, memoryview(str(len(data)).encode()))
        return result_of(context.request_id)

    service.on_run = run
    body = struct.pack(">I", len(RUN)) + RUN.encode() + b"z" * 1_000_000
    status, raw = server.ask("POST", "/v1/run?stdin=stream", iter([body]))
    assert status == 200
    assert frames(raw)[0] == (FrameType.STDOUT, b"1000000")


@pytest.mark.parametrize(
    "head", [b"", b"\x00", struct.pack(">I", 50) + b"{}", b"\xff\xff\xff\xff{}"]
)
def test_a_bad_head_before_stdin_is_invalid(
    server: Running, service: FakeService, head: bytes
) -> None:
    # Such a run is refused without waiting for the end of a stdin that may have none: the reply
    # may come, and the connection end, before the rest of the request was sent.
    with contextlib.closing(UnixConnection(server.path)) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", "/v1/run?stdin=stream", iter([head]))
        [(_, result)] = frames(connection.getresponse().read())
    assert json.loads(result)["status"] == "invalid"
    assert service.seen == []


def test_files_and_patches_travel_whole(server: Running, service: FakeService) -> None:
    content = os.urandom(3 * 1024 * 1024 + 17)
    name = "dir%20with/%C3%A9%2Fx%5Cxff"
    assert server.ask("PUT", f"/v1/leases/{LEASE}/files/{name}", content)[0] == 200
    assert list(service.files) == ["dir with/é/x\\xff"]
    assert server.ask("GET", f"/v1/leases/{LEASE}/files/{name}") == (200, content)
    assert server.ask("GET", f"/v1/leases/{LEASE}/patch")[1] == b"".join(service.patch_parts)


def test_a_missing_file_is_404_and_an_unknown_lease_403(server: Running) -> None:
    status, reply = server.ask("GET", f"/v1/leases/{LEASE}/files/nope")
    assert (status, reply["error"]["code"]) == (404, "not_found")
    status, reply = server.ask("GET", "/v1/leases/acme%2Funknown")
    assert (status, reply["error"]["code"]) == (403, "lease_not_granted")


def test_a_patch_that_is_refused_before_its_first_byte_is_an_error(
    server: Running, service: FakeService
) -> None:
    def patch(write: Write) -> None:
        raise failure(Code.WORKSPACE_UNAVAILABLE, "not mounted")

    service.on_patch = patch
    status, reply = server.ask("GET", f"/v1/leases/{LEASE}/patch")
    assert (status, reply["error"]["code"]) == (503, "workspace_unavailable")


def test_a_patch_that_breaks_off_never_looks_whole(server: Running, service: FakeService) -> None:
    def patch(write: Write) -> None:
        write(b"half")
        raise failure(Code.WORKSPACE_UNAVAILABLE, "gone")

    service.on_patch = patch
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(GATE_S)
        raw.connect(server.path)
        raw.sendall(f"GET /v1/leases/{LEASE}/patch HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        got = b""
        while True:
            try:
                chunk = raw.recv(65536)
            except ConnectionResetError:
                break
            if not chunk:
                break
            got += chunk
    assert not got.endswith(b"0\r\n\r\n")


def test_an_exception_of_ours_is_in_doubt_and_its_text_stays_inside(
    server: Running, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: Context, request: CallRequest) -> ToolResult:
        raise RuntimeError("s3cret of the caller")

    service.on_call = broken
    with caplog.at_level(logging.INFO, "stockade"):
        _, reply = server.ask("POST", "/v1/calls", CALL)
    assert (reply["status"], reply["error"]["code"]) == ("unknown", "in_doubt")
    assert reply["retry_safe"] is False
    assert "s3cret" not in json.dumps(reply)
    assert "s3cret" not in caplog.text
    assert "RuntimeError" in caplog.text
    assert reply["request_id"] in caplog.text


def test_one_log_line_per_call_with_ids_and_never_arguments(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    sent = json.dumps(
        {"tool": "x\ny", "arguments": {"command": "s3cret"}, "lease": LEASE, "call_id": "c1"}
    )
    with caplog.at_level(logging.INFO, "stockade"):
        server.ask("POST", "/v1/calls", sent)
        server.stop()  # the line is written after the reply, and before the end
    [line] = [record.getMessage() for record in caplog.records if "status=" in record.getMessage()]
    assert f"lease={LEASE}" in line
    assert "status=succeeded" in line
    assert "s3cret" not in line
    assert "\n" not in line


class Gated(logging.Handler):
    """Holds whoever logs until it is let go on, then fails, so that nothing is swallowed."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.came = threading.Event()
        self.go_on = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.came.set()
        assert self.go_on.wait(GATE_S)
        raise RuntimeError("the disk of the log is full")


@pytest.fixture
def gated() -> Iterator[Gated]:
    handler = Gated()
    logger = logging.getLogger("stockade.edge")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    handler.go_on.set()
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("target", ["/v1/calls", f"/v1/leases/{LEASE}/renew"])
def test_a_log_that_hangs_or_fails_keeps_no_reply(
    server: Running, gated: Gated, target: str
) -> None:
    sent = CALL if target == "/v1/calls" else '{"ttl_s": 60}'
    assert server.ask("POST", target, sent)[1]["status"] == "succeeded"
    assert gated.came.wait(GATE_S)


def test_a_calls_line_is_written_before_its_connections_next_request(
    server: Running, gated: Gated
) -> None:
    with contextlib.closing(UnixConnection(server.path)) as connection:
        connection.request("POST", "/v1/calls", CALL)
        assert connection.getresponse().read()
        assert gated.came.wait(GATE_S)
        connection.request("GET", "/v1/health")
        raw = connection.sock
        assert raw is not None
        raw.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.getresponse()


def test_a_call_without_a_reader_has_its_line(
    server: Running, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "stockade"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(server.path)
            head = f"POST /v1/calls HTTP/1.1\r\nHost: x\r\nContent-Length: {len(CALL)}\r\n\r\n"
            raw.sendall(head.encode() + CALL.encode())
            assert gate.running.acquire(timeout=GATE_S)
        gate.open.set()
        server.stop()
    assert [line for line in caplog.messages if "status=succeeded" in line]


@pytest.mark.parametrize("kept", [30, -1])
def test_a_client_that_stops_in_a_request_is_given_up(
    server: Running, service: FakeService, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(messages, "PATIENCE_S", 1)
    head = f"POST /v1/calls HTTP/1.1\r\nHost: x\r\nContent-Length: {len(CALL)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.path)
        raw.sendall((head + CALL).encode()[:kept])
        raw.settimeout(GATE_S)
        assert raw.recv(1) == b""
    assert service.seen == []


# The socket and the end.


def test_the_socket_has_its_mode_and_is_removed_at_the_end(start: Start, socket_dir: Path) -> None:
    server = start()
    assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o600
    assert os.listdir(socket_dir) == ["s"]
    assert server.stop()
    assert os.listdir(socket_dir) == []


def test_a_stale_socket_is_replaced_and_a_living_one_is_not(start: Start, socket_dir: Path) -> None:
    path = str(socket_dir / "s")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()
    assert not answers(path)
    server = start()
    assert server.ask("GET", "/v1/health")[0] == 200
    with pytest.raises(ListenError, match="another daemon answers"):
        listen(path, 0o600)
    assert server.ask("GET", "/v1/health")[0] == 200


def test_a_file_in_the_sockets_place_is_left_alone(socket_dir: Path) -> None:
    path = socket_dir / "s"
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"):
        listen(str(path), 0o600)
    assert path.read_text() == "precious"


def test_stopping_lets_calls_end_and_refuses_new_ones(start: Start, gate: Gate) -> None:
    server = start()
    with ThreadPoolExecutor(3) as clients:
        running = clients.submit(server.ask, "POST", "/v1/calls", CALL)
        assert gate.running.acquire(timeout=GATE_S)
        stopping = clients.submit(server.stop, GATE_S)
        while server.ask("GET", "/v1/health")[1]["status"] != "stopping":
            assert not stopping.done()
        _, refused = server.ask("POST", "/v1/calls", CALL)
        assert (refused["status"], refused["error"]["code"]) == ("unavailable", "shutting_down")
        gate.open.set()
        assert running.result()[1]["status"] == "succeeded"
        assert stopping.result(GATE_S) is True


def test_stopping_says_when_calls_were_left_running(start: Start, gate: Gate) -> None:
    server = start()
    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(server.ask, "POST", "/v1/calls", CALL)
        assert gate.running.acquire(timeout=GATE_S)
        assert server.stop(grace_s=0.05) is False
        # In a process that goes on the reply still comes; one that ends takes it along.
        gate.open.set()
        assert running.result()[1]["status"] == "succeeded"


def test_what_is_denied_is_told_to_the_audit(server: Running, service: FakeService) -> None:
    def refuse(context: Context, request: CallRequest) -> ToolResult:
        raise failure(Code.LEASE_NOT_GRANTED, "no")

    service.on_call = refuse
    body = json.dumps({"tool": "run", "arguments": {}, "lease": "ls_0011223344556677"})
    server.ask("POST", "/v1/calls", body)
    server.ask("GET", "/v1/leases/acme%2Funknown")
    server.ask("POST", "/v1/calls", "{")  # malformed, and no decision
    uid = f"uid {os.geteuid()}"
    assert service.audit.denied == [
        (uid, "POST /v1/calls", Code.LEASE_NOT_GRANTED),
        (uid, "GET /v1/leases/acme%2Funknown", Code.LEASE_NOT_GRANTED),
    ]


def test_a_peer_that_is_not_known_is_told_to_the_audit(start: Start, service: FakeService) -> None:
    assert start(peers={}).ask("GET", "/v1/leases")[0] == 403
    assert service.audit.denied == [(None, "GET /v1/leases", Code.PEER_NOT_ALLOWED)]

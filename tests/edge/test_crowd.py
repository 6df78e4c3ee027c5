"""More connections than there is room for: whose ends, and that the server goes on."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from stockade.edge.exchange import MAX_BODY_BYTES, Peer, Role
from stockade.edge.routing import Lane
from stockade.edge.server.crowd import Crowd
from stockade.edge.server.lanes import TRANSFER_PLACES
from tests.daemons import as_user, until
from tests.edge.conftest import GATE_S, FakeService, ResultOf, Running, Start
from tests.edge.test_http import CALL, LEASE, Gate
from tests.raw import UnixConnection

ACME, BETA, STRANGER = 4242, 4343, 9999
HALF = b"POST /v1/calls HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"


def _crowded(start: Start, at_most: int, socket_dir: Path) -> Running:
    known = {os.geteuid(): Peer(os.geteuid(), None, Role.OPERATOR, own=True)}
    tenants = {ACME: "acme", BETA: "beta"}
    known |= {uid: Peer(uid, name, Role.TENANT, own=False) for uid, name in tenants.items()}
    running = start(peers=known)
    running.server._crowd = Crowd(at_most)
    socket_dir.chmod(0o711)
    Path(running.path).chmod(0o666)
    return running


def _connect(server: Running, stack: ExitStack, said: bytes = b"") -> socket.socket:
    made = stack.enter_context(socket.socket(socket.AF_UNIX))
    made.settimeout(GATE_S)
    made.connect(server.path)
    if said:
        with suppress(BrokenPipeError):  # it may be given up at once
            made.sendall(said)
    return made


def _is_open(one: socket.socket) -> bool:
    poller = select.poll()
    poller.register(one, select.POLLIN)
    if not poller.poll(0):
        return True
    try:
        return one.recv(1, socket.MSG_PEEK) != b""
    except ConnectionResetError:
        return False


def _members(server: Running) -> int:
    return len(server.server._crowd.members())


@pytest.mark.parametrize("said", [b"", b"POST /v1/ca", HALF], ids=["nothing", "head", "body"])
@pytest.mark.parametrize("user", [ACME, STRANGER])
def test_a_crowd_of_one_user_keeps_nobody_else_out(
    start: Start, socket_dir: Path, user: int, said: bytes
) -> None:
    server = _crowded(start, 8, socket_dir)
    with ExitStack() as stack:
        with as_user(BETA):
            kept = _connect(server, stack)
        until(lambda: _members(server) == 1, "the first is taken")
        with as_user(user):
            for _ in range(40):
                _connect(server, stack, said)
        for _ in range(5):
            assert server.ask("GET", "/v1/health")[0] == 200
        assert _is_open(kept)
        until(lambda: _members(server) <= 8, "the crowd is held to what there is")


def test_what_has_begun_is_not_given_up(
    start: Start, socket_dir: Path, service: FakeService, result_of: ResultOf
) -> None:
    gate = Gate(result_of)
    service.on_call = gate.call
    server = _crowded(start, 2, socket_dir)
    answers = []
    calls = [
        threading.Thread(target=lambda: answers.append(server.ask("POST", "/v1/calls", CALL)))
        for _ in range(2)
    ]
    for call in calls:
        call.start()
        assert gate.running.acquire(timeout=GATE_S)
    with ExitStack() as stack:
        assert _connect(server, stack).recv(1) == b""  # there is no other to give up
    gate.open.set()
    for call in calls:
        call.join(GATE_S)
    assert [answer[1]["status"] for answer in answers] == ["succeeded"] * 2


def test_nothing_is_kept_of_what_a_stranger_sends(start: Start, socket_dir: Path) -> None:
    """Its reply comes before its body: 1,024 of them would hold 4 GiB."""
    server = _crowded(start, 8, socket_dir)
    with as_user(STRANGER), ExitStack() as stack:
        one = UnixConnection(server.path)
        stack.callback(one.close)
        one.putrequest("POST", "/v1/calls")
        one.putheader("Content-Length", str(MAX_BODY_BYTES))
        one.endheaders(b"x")
        assert json.loads(one.getresponse().read())["error"]["code"] == "peer_not_allowed"


@contextmanager
def _no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = os.dup(0)
    os.close(taken)  # the lowest that is free: nothing can be opened any more
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_host_without_descriptors_is_asked_again(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        first, *waiting = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
        with _no_more_files():
            first.connect(server.path)  # the kernel had its number before the limit
            for one in waiting:
                one.settimeout(GATE_S)
                one.connect(server.path)
            until(lambda: "could not be taken" in caplog.text, "it has tried")
        for one in waiting:
            one.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert one.recv(12) == b"HTTP/1.1 200"
    assert caplog.text.count("could not be taken") == 1


def test_a_host_without_threads_is_asked_again(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def refused(self: threading.Thread) -> None:
        tried.set()
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as during, ExitStack() as stack:
        during.setattr(threading.Thread, "start", refused)
        assert _connect(server, stack).recv(1) == b""
        assert tried.is_set()
    assert server.ask("GET", "/v1/health")[0] == 200
    assert _members(server) <= 1


def test_uploads_that_never_end_leave_places_for_others(start: Start, socket_dir: Path) -> None:
    server = _crowded(start, 64, socket_dir)
    put = f"PUT /v1/leases/{LEASE}/files/%s HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"
    with ExitStack() as stack:
        with as_user(ACME):
            for number in range(TRANSFER_PLACES + 4):
                _connect(server, stack, (put % number).encode())
        lanes = server.server._lanes
        until(lambda: lanes._waiting[Lane.TRANSFER] == 6, "14 hold a place and 6 wait")
        with as_user(BETA):
            assert server.ask("PUT", f"/v1/leases/{LEASE}/files/b", b"whole")[0] == 200

"""Messages out of bytes in any pieces, and sending within a time."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.edge.client.connection import Connection, Message, ReplyLost
from stockade.edge.client.transport import HttpTransport
from stockade.edge.http1 import BadMessage, Collector
from stockade.edge.sending import send_all
from tests.edge.conftest import GATE_S

REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
BIG = b"x" * (8 << 20)


@pytest.mark.parametrize(("raw", "status"), [(REPLY, 200), (CHUNKED, 503)])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_pieces_make_the_same_messages(raw: bytes, status: int, step: int) -> None:
    collector = Collector(replies=True)
    twice = raw * 2
    for start in range(0, len(twice), step):
        collector.feed(twice[start : start + step])
    found = [(m.status, m.take(), m.complete, m.keep_alive) for m in collector.messages]
    assert found == [(status, b"hello", True, True)] * 2


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na b: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (256 * 1024) + b"\r\n\r\n",
        b"HTTP/1.1 200 " + b"x" * (256 * 1024 + 1) + b"\r\n\r\n",
    ],
)
def test_what_is_no_reply_is_refused(raw: bytes) -> None:
    with pytest.raises(BadMessage):
        Collector(replies=True).feed(raw)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(GATE_S)
        yield ours, theirs


def test_a_slow_reader_gets_all_of_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    sender = threading.Thread(target=send_all, args=(ours, BIG, float(GATE_S)))
    sender.start()
    size = 0
    while size < len(BIG):
        size += len(theirs.recv(1 << 20))
    sender.join(GATE_S)
    assert (size, sender.is_alive(), os.get_blocking(ours.fileno())) == (len(BIG), False, True)


def test_who_does_not_read_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        send_all(pair[0], BIG, 0.05)


def test_the_time_is_of_the_whole_and_not_of_each_piece(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A reader that takes a little again and again does not get more time by it."""
    ours, theirs = pair
    failed: list[BaseException] = []

    def send() -> None:
        try:
            send_all(ours, BIG * 8, 0.3)
        except TimeoutError as error:
            failed.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    poll = select.poll()
    poll.register(theirs, select.POLLIN)
    while sender.is_alive():
        poll.poll(50)
        theirs.recv(1, socket.MSG_DONTWAIT)
        sender.join(0.02)
    assert failed


def test_who_is_gone_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    with pytest.raises(OSError, match="Broken pipe"):
        send_all(pair[0], b"x", 1.0)


class Answering:
    """A daemon that answers each request on its listener with these bytes, and keeps open."""

    def __init__(self, path: str, answer: bytes, *, close: bool) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self.connections = 0
        self._answer, self._close = answer, close
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            while client.recv(1 << 16):
                client.sendall(self._answer)
                if self._close:
                    return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize(
    "cut", [b"", b"HTTP/1.1 200 OK\r\n", REPLY[:-1], CHUNKED[:-5], b"nonsense\r\n\r\n"]
)
def test_a_reply_that_is_not_whole_is_lost(socket_dir: Path, cut: bytes) -> None:
    path = f"{socket_dir}/s"
    daemon = Answering(path, cut, close=True)
    transport = HttpTransport(path)
    with pytest.raises(ReplyLost):
        transport.send(Message("GET", "/"))
    with pytest.raises(ReplyLost):
        transport.stream(Message("GET", "/"), lambda data: None)
    daemon.close()


def test_a_silent_daemon_is_given_up(socket_dir: Path) -> None:
    path = f"{socket_dir}/s"
    daemon = Answering(path, REPLY[:-1], close=False)
    with pytest.raises(ReplyLost, match="timed out"):
        HttpTransport(path).send(Message("GET", "/", silence_s=0.1))
    daemon.close()


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (REPLY, 1),
        (CHUNKED, 1),
        (REPLY.replace(b"Content-Type: a/b", b"Connection: close"), 3),
        (REPLY + b"HTTP/1.1 200 OK\r\n", 3),  # what is left over must not answer the next request
    ],
)
def test_a_connection_is_kept_only_when_nothing_is_left_on_it(
    socket_dir: Path, answer: bytes, connections: int
) -> None:
    path = f"{socket_dir}/s"
    daemon = Answering(path, answer, close=False)
    transport = HttpTransport(path)
    for _ in range(3):
        assert transport.send(Message("GET", "/")).body == b"hello"
    assert daemon.connections == connections
    transport.close()
    daemon.close()


def test_the_longest_silence_is_no_error(socket_dir: Path) -> None:
    path = f"{socket_dir}/s"
    daemon = Answering(path, REPLY, close=False)
    transport = HttpTransport(path)
    assert transport.send(Message("GET", "/", silence_s=2.0**53)).body == b"hello"
    transport.close()
    daemon.close()


def test_a_connection_above_the_1024th_descriptor_works(socket_dir: Path) -> None:
    """select(2) takes none of those."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    path = f"{socket_dir}/s"
    daemon = Answering(path, REPLY, close=False)
    held: list[int] = []
    try:
        while not held or held[-1] < 1024:
            held.append(os.dup(0 if not held else held[0]))
        connection = Connection(path)
        assert connection.socket.fileno() > 1023
        assert connection.usable()
        connection.close()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    daemon.close()


def test_a_client_waits_for_a_daemon_whose_backlog_is_full(socket_dir: Path) -> None:
    path = f"{socket_dir}/s"
    opened: list[Connection] = []
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        second = threading.Thread(target=lambda: opened.append(Connection(path)))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        accepted = [listener.accept()[0]]
        second.join(GATE_S)
        accepted.append(listener.accept()[0])
        assert opened[0].usable()
        opened[0].close()
        for one in accepted:
            one.close()

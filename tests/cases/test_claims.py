"""Cases of repeated calls: a client that goes away, a proxy that loses replies, a broken sandbox."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pydantic import JsonValue

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import Stockade
from stockade.terms.result import ViewData
from tests.cases.asking import cli, error_code, out, send
from tests.cases.conftest import LeaseFactory
from tests.daemons import WAIT_S, Daemon, wait_until

ADD = {"command": "echo x >> n"}


class Dropping:
    """A proxy before the daemon that loses the replies to the first `lost` requests with a body
    that holds `mark`: it forwards the request, waits for the reply, and closes."""

    def __init__(self, path: str, target: str, mark: bytes, lost: int) -> None:
        self.path = path
        self._target = target
        self._mark = mark
        self.lost = lost
        self.forwarded = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(8)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(self._target)
            while request := _message(client):
                self.forwarded += self._mark in request
                upstream.sendall(request)
                reply = _message(upstream)
                if self._mark in request and self.lost:
                    self.lost -= 1
                    return
                client.sendall(reply)


def _message(peer: socket.socket) -> bytes:
    """One HTTP message with a content length; empty at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = peer.recv(65536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n")
         if line.lower().startswith(b"content-length:")), 0,
    )  # fmt: skip
    while len(body) < length:
        part = peer.recv(65536)
        data += part
        body += part
    return data


@contextmanager
def dropping(daemon: Daemon, tmp_path: Path, mark: str, lost: int) -> Iterator[Dropping]:
    made = Dropping(str(tmp_path / "p"), daemon.socket, mark.encode(), lost)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("call_id", ["c1", None])
def test_b84_a_reply_that_is_lost_adds_no_second_effect(
    daemon: Daemon, fresh_lease: LeaseFactory, tmp_path: Path, call_id: str | None
) -> None:
    lease = fresh_lease()
    with dropping(daemon, tmp_path, "echo x", 1) as proxy, Stockade.connect(proxy.path) as far:
        result = far.attach(lease.id, lease.token).call("bash_execute", ADD, call_id=call_id)
    if call_id is None:
        assert (result.status.value, proxy.forwarded) == ("unknown", 1)
    else:
        assert (result.status.value, result.replayed, proxy.forwarded) == ("succeeded", True, 2)
    assert out(lease.bash("cat n")) == "x\n"


def test_b84_the_same_for_an_edit(
    daemon: Daemon, fresh_lease: LeaseFactory, tmp_path: Path
) -> None:
    lease = fresh_lease()
    lease.bash("printf 'a\\n' > f").check()
    edit = {"path": "f", "old_str": "a\n", "new_str": "a\na2\n"}
    with dropping(daemon, tmp_path, "a2", 1) as proxy, Stockade.connect(proxy.path) as far:
        held = far.attach(lease.id, lease.token)
        assert held.call("file_edit", edit, call_id="e").check().replayed
        assert held.call("file_edit", edit, call_id="e").check().replayed
        assert proxy.forwarded == 3
    assert out(lease.bash("cat f")) == "a\na2\n"


def test_b84_concurrent_duplicates_run_once(daemon: Daemon, fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    slow = {"command": "echo x >> n; sleep 0.3; cat n"}
    with ThreadPoolExecutor(16) as pool:
        every = [pool.submit(lease.call, "bash_execute", slow, call_id="c") for _ in range(16)]
        results = [one.result(WAIT_S) for one in every]
    assert {out(result) for result in results} == {"x\n"}
    assert sorted(result.replayed for result in results) == [False] + [True] * 15
    assert out(lease.bash("cat n")) == "x\n"


def test_b05_a_repeat_after_a_closed_socket_joins_and_then_replays(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    arguments: dict[str, JsonValue] = {
        "command": "echo x >> n; until [ -e go ]; do sleep 0.05; done; echo whole",
        "timeout_ms": 60_000,
    }
    sent = send(daemon.socket, lease, "bash_execute", arguments, call_id="c")
    assert wait_until(lambda: lease.view("n").error is None)
    sent.close()
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(lease.call, "bash_execute", arguments, call_id="c")
        lease.bash("touch go").check()
        result = joined.result(WAIT_S)
    assert (out(result), result.replayed) == ("whole\n", True)
    again = lease.call("bash_execute", arguments, call_id="c")
    assert (out(again), again.replayed) == ("whole\n", True)
    assert again.model_copy(update={"request_id": result.request_id}) == result
    assert out(lease.bash("cat n")) == "x\n"


def test_b81_what_an_expiring_lease_ended_is_recorded(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease(ttl_s=2)
    result = lease.call("bash_execute", {"command": "echo begun; sleep 60"}, call_id="c")
    assert error_code(result) == "lease_expired_in_call"
    assert wait_until(lambda: error_code(lease.bash(":")) == "lease_expired")
    [made] = [call for call in daemon.stockade.calls(lease=lease.id) if call.call.call_id == "c"]
    record = daemon.stockade.call_record(made.id)
    assert record.state.value == "completed"
    assert record.result is not None
    assert Result.model_validate(record.result.model_dump(by_alias=True)) == result


BREAKS = (
    "kill -9 -1",
    "rm -rf /bin/* /lib/* /usr/bin/* 2>/dev/null",
    "chmod 000 /usr/bin/bash /bin/bash",
    "rm -rf /workspace 2>/dev/null; true",
    "dd if=/dev/zero of=/workspace/big bs=1M 2>/dev/null; true",
)


@pytest.mark.parametrize("command", BREAKS)
def test_b75_a_broken_sandbox_does_not_look_like_commands_that_fail(
    daemon: Daemon, fresh_lease: LeaseFactory, command: str
) -> None:
    """File and search tools go on; a shell that is gone is named; a reset mends it all."""
    lease = fresh_lease()
    lease.bash("echo kept > kept").check()
    lease.bash(command, 120_000)
    for _ in range(8):
        view, found = lease.view("kept"), lease.grep("kept", ".")
        if view.error is None:
            assert isinstance(view.data, ViewData)
            assert view.data.content == "     1\tkept\n"
        else:
            assert error_code(view) == "not_found"  # the command has removed it
        assert found.status.value in ("succeeded", "rejected"), found
        shell = lease.bash("echo alive")
        if shell.status.value != "succeeded":
            assert error_code(shell) in ("shell_not_found", "disk_full", "sandbox_unavailable")
    denied = lease.bash("echo 'Permission denied' >&2; exit 126")
    if denied.exit is not None:
        assert error_code(denied) == "nonzero_exit"
    if "/bin/*" in command:
        # Shells that waited need no file. A program that is not found tells, and then it is said.
        lease.bash("ls")
        assert {error_code(lease.bash("ls")) for _ in range(8)} == {"shell_not_found"}
    [told] = [view for view in daemon.stockade.leases() if view.lease_id == lease.id]
    assert told.broken == lease.show().broken == ("/bin/*" in command)
    lease.reset().check()
    assert not lease.show().broken
    assert out(lease.bash("echo alive")) == "alive\n"
    assert not lease.show().broken


def is_there(lease: Lease, path: str) -> bool:
    return lease.view(path).error is None


def test_b73_groups_are_given_back(daemon: Daemon, fresh_lease: LeaseFactory) -> None:
    """As many as before, after cycles of making, killing in mid-call, and releasing twice."""
    before = len(list(daemon.lease_group("none").parent.glob("*")))
    for _ in range(20):
        lease = fresh_lease()
        with ThreadPoolExecutor(3) as pool:
            running = pool.submit(lease.bash, "sleep 60 & touch here; sleep 60")
            assert wait_until(partial(is_there, lease, "here"))
            both = [pool.submit(lease.release) for _ in range(2)]
            for one in both:
                assert one.result(WAIT_S).status.value in ("succeeded", "unavailable")
            assert running.result(WAIT_S).status.value == "cancelled"
        assert lease.release().status.value == "succeeded"
    assert wait_until(lambda: len(list(daemon.lease_group("none").parent.glob("*"))) <= before)


def test_the_command_line_says_what_is_not_deduplicated(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    call = ("call", "bash_execute", json.dumps(ADD), "--lease", lease.id)
    plain = cli(daemon, *call)
    assert plain.returncode == 0
    assert plain.stderr.startswith(b"stockade: without --call-id a repetition runs again")
    assert json.loads(plain.stdout)["call"]["call_id"].encode() in plain.stderr
    for replayed in (False, True):
        named = cli(daemon, *call, "--turn", "2", "--call-id", "c")
        assert (named.returncode, named.stderr) == (0, b"")
        assert json.loads(named.stdout)["replayed"] is replayed
    read = cli(daemon, "call", "file_view", '{"path": "n"}', "--lease", lease.id)
    assert (read.returncode, read.stderr) == (0, b"")
    assert out(lease.bash("cat n")) == "x\nx\n"


def test_the_command_line_shows_calls(daemon: Daemon, fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    lease.call("bash_execute", ADD, turn=4, call_id="c").check()
    listed = json.loads(cli(daemon, "calls", "list", "--lease", lease.id, "--json").stdout)
    [mine] = [call for call in listed if call["call"]["call_id"] == "c"]
    assert (mine["state"], mine["call"]["turn"]) == ("completed", 4)
    assert mine["id"] in cli(daemon, "calls", "list", "--lease", lease.id).stdout.decode()
    shown = json.loads(cli(daemon, "calls", "show", mine["id"]).stdout)
    assert (shown["arguments"], shown["result"]["status"]) == (ADD, "succeeded")
    assert (
        cli(daemon, "calls", "list", "--lease", lease.id, "--in-doubt", "--json").stdout == b"[]\n"
    )
    settled = cli(daemon, "calls", "settle", mine["id"], "--as", "completed", "--reason", "x")
    assert (settled.returncode, b"key_reused" in settled.stderr) == (1, True)
    assert cli(daemon, "calls", "show", "cl_0").returncode == 1

"""Budgets and approvals against a real daemon: real sandboxes, real processor time, a real crash."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.command import Native
from stockade.edge.cli.main import main
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result, StockadeError
from stockade.edge.client.sdk import Stockade
from stockade.terms.approval import ApprovalState
from stockade.terms.fault import Code, Status
from stockade.terms.grant import ApprovalRule
from tests.daemons import WAIT_S, Daemon, InCall, as_user, daemon, error, peers, text, until

UID = 61_234
# Both processors as long as they get them, from several processes.
BUSY = "for i in 1 2 3; do (while :; do :; done) & done; echo begun; while :; do :; done"

# What root of a sandbox can put in the place of its shell: it waits for its command as a held shell
# does, carries it out and says that it ran nothing. Otherwise it is the shell.
LIAR = """#!/usr/bin/python3
import os, socket, struct, subprocess, sys
if len(sys.argv[-1]) != 8192:
    os.execv("/workspace/shell", ["bash", *sys.argv[1:]])
sock = socket.socket(fileno=3)
def say(kind, ident=0, value=0):
    sock.send(struct.pack("=IIQiIQQQ", 0x53544B44, kind, ident, value, 0, 0, 0, 0))
say(10)
while True:
    words = sock.recv(65536)
    kind, ident = struct.unpack_from("=IQ", words, 4)
    if kind == 16:
        say(17, ident, -(1 << 31))
        continue
    open("/workspace/lied", "w").close()
    subprocess.run(["/workspace/shell", "-c", words[24:]])
    subprocess.Popen(["/workspace/shell", "-c", "while :; do :; done"], start_new_session=True)
    say(15)
    os._exit(125)
"""
REPLACE = f"""cp /bin/bash shell; rm /usr/bin/bash; cat > /usr/bin/bash <<'END'
{LIAR}END
chmod 755 /usr/bin/bash
for name in $(grep -l guest-shell /proc/[0-9]*/comm); do echo "${{name//[^0-9]}}"; done | xargs -r kill -9
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with daemon(peers(acme=UID)) as made:
        yield made


@pytest.fixture(scope="module")
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


@pytest.fixture
def lease(stockade: Stockade, request: pytest.FixtureRequest) -> Iterator[Lease]:
    trajectory = request.node.originalname[:60]
    with stockade.lease(None, tenant="acme", trajectory=trajectory) as made:
        made.bash("true").check()
        yield made


def at_once(*calls: Callable[[], Result]) -> list[Result]:
    results: list[Result] = []
    threads = [threading.Thread(target=lambda c=call: results.append(c())) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(results) == len(calls)
    return results


def spent(stockade: Stockade, held: Lease) -> dict[str, int]:
    """Of the first block that has budgets."""
    found = stockade.spend(token=held.token)
    return {budget.component: budget.spent for budget in found.blocks[0].budgets}


def _is_busy(pid: int) -> bool:
    try:
        return b"while" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_over(result: Result, rule: str = "total.cpu_ms") -> bool:
    return (
        result.status is Status.LIMITED
        and error(result).code is Code.BUDGET_EXCEEDED
        and error(result).rule == rule
    )


def test_a_busy_command_is_ended_before_its_budget_is(
    server: Daemon, stockade: Stockade, lease: Lease
) -> None:
    child = lease.narrowed(limits={"cpu_ms": 700})
    result = child.bash(BUSY)
    assert is_over(result)
    assert result.stdout is not None
    assert result.stdout.text == "begun\n"
    assert result.usage is not None
    assert result.usage.cpu_ms is not None
    assert 300 < result.usage.cpu_ms <= 700
    assert spent(stockade, child) == {"cpu_ms": result.usage.cpu_ms}
    assert not [pid for pid in server.inside() if _is_busy(pid)]  # confirmed: no waiting here
    call = InCall(lease, "while :; do :; done")
    assert [pid for pid in server.inside() if _is_busy(pid)]  # it would have been seen
    assert lease.cancel(call.call_id) == 1
    assert call.result().status is Status.CANCELLED
    refused = child.bash("true")
    while refused.error is None:  # what is left may do for a short one
        refused = child.bash("true")
    assert error(refused).code is Code.BUDGET_EXHAUSTED
    assert lease.bash("true").status is Status.SUCCEEDED


def test_two_children_at_once_stay_within_their_parent(stockade: Stockade, lease: Lease) -> None:
    parent = lease.narrowed(limits={"cpu_ms": 1500})
    one = parent.narrowed(limits={"cpu_ms": 1400})
    two = parent.narrowed(tools=["bash_execute"])
    results = at_once(lambda: one.bash(BUSY), lambda: two.bash(BUSY), lambda: one.bash(BUSY))
    assert all(is_over(result) for result in results)
    used = [result.usage.cpu_ms or 0 for result in results if result.usage]
    assert sum(used) <= 1500
    assert spent(stockade, parent)["cpu_ms"] == sum(used)
    report = stockade.spend(token=one.token)
    assert report.left.cpu_ms is not None
    assert 0 <= report.left.cpu_ms < 300
    assert report.left.calls is None
    assert all(b.spent <= b.total for block in report.blocks for b in block.budgets)


def test_a_reader_that_stops_holds_no_budget_open(stockade: Stockade, lease: Lease) -> None:
    """Untruncated output waits for its reader; the time of what prints it does not."""
    child = lease.narrowed(limits={"cpu_ms": 600})
    go_on = threading.Event()

    def read(data: bytes) -> None:
        go_on.wait(2)

    result = child.run(["bash", "-c", "yes & while :; do :; done"], stdout=read)
    assert is_over(result)
    assert result.usage is not None
    assert (result.usage.cpu_ms or 0) <= 600


def test_nothing_outlives_a_call_with_a_budget(stockade: Stockade, lease: Lease) -> None:
    child = lease.narrowed(limits={"cpu_ms": 5000})
    result = child.bash("(while :; do :; done) >/dev/null 2>&1 & echo left")
    assert text(result) == "left\n"
    assert [warning.code for warning in result.warnings] == []
    first = spent(stockade, child)
    assert result.usage is not None
    assert first == {"cpu_ms": result.usage.cpu_ms}
    assert lease.bash("pgrep -c bash || true").check()
    assert spent(stockade, child) == first


def test_a_shell_that_denies_what_it_ran_costs_what_it_used(
    server: Daemon, stockade: Stockade, lease: Lease
) -> None:
    """Its word ends the try and nothing else: the call is made once, by a process that can't lie."""
    lease.bash(REPLACE).check()
    child = lease.narrowed(limits={"calls": 1000, "cpu_ms": 100_000})
    made = used = 0

    def has_lied() -> bool:
        nonlocal made, used
        result = child.bash("echo $EPOCHREALTIME > ran; test ! -e lied || echo lied")
        made += 1
        assert result.usage is not None
        used += result.usage.cpu_ms or 0
        assert spent(stockade, child) == {"calls": made, "cpu_ms": used}
        return text(result) == "lied\n"

    until(has_lied, "the shell that lies is given a command")
    assert not [pid for pid in server.inside() if _is_busy(pid)]


def test_calls_are_counted_through_every_kind_of_call(stockade: Stockade, lease: Lease) -> None:
    child = lease.narrowed(limits={"calls": 7})
    child.bash("echo hello > a").check()
    child.view("a").check()
    child.edit("a", "hello", "there").check()
    child.grep("there").check()
    assert child.run(["true"]).status is Status.SUCCEEDED
    assert child.call("bash_execute", {"nonsense": 1}).status is Status.INVALID
    assert spent(stockade, child) == {"calls": 5}


def test_a_program_that_could_not_start_uses_nothing_up(stockade: Stockade, lease: Lease) -> None:
    child = lease.narrowed(limits={"calls": 1, "cpu_ms": 60_000}, approve=["run"])
    for argv in (["./absent"], ["/etc/passwd"]):
        details = error(child.run(argv)).details
        assert details is not None
        approval = str(details["approval"])
        stockade.decide_approval(approval, granted=True)
        assert error(child.run(argv)).code is Code.COMMAND_NOT_FOUND
        assert stockade.approval(approval).state is ApprovalState.GRANTED
    assert spent(stockade, child) == {"calls": 0, "cpu_ms": 0}
    lease.bash("printf '#!/bin/sh\\necho ran\\n' > absent; chmod +x absent").check()
    assert text(child.run(["./absent"])) == "ran\n"
    assert spent(stockade, child)["calls"] == 1


def test_a_killed_daemon_has_counted_what_was_drawn() -> None:
    with daemon() as made:
        with made.connect() as stockade:
            held = stockade.lease(None, tenant="acme", trajectory="crash")
            child = held.narrowed(limits={"cpu_ms": 100_000, "calls": 10})
            child.bash("true").check()
            before = spent(stockade, child)
            call = InCall(child, "sleep 3600")
            drawn = spent(stockade, child)
            assert drawn["calls"] == 2
            assert drawn["cpu_ms"] >= before["cpu_ms"] + 200
            made.kill()
            assert error(call.result()).code is Code.CONNECTION_LOST
        made.start()
        with made.connect() as stockade:
            assert spent(stockade, child) == drawn
            again = stockade.attach(held.id, child.token)
            again.bash("true").check()
            assert spent(stockade, child)["calls"] == 3
            held = stockade.attach(held.id, held.token)
            held.release()


def test_a_command_that_outlives_its_daemon_has_its_budget_still() -> None:
    with daemon() as made:
        with made.connect() as stockade:
            held = stockade.lease(None, tenant="acme", trajectory="crash")
            child = held.narrowed(limits={"cpu_ms": 4000})
            script = "(while :; do :; done) & while :; do :; done"
            call = InCall(child, script)
            made.kill()
            assert error(call.result()).code is Code.CONNECTION_LOST
        made.start()
        with made.connect() as stockade:
            again = stockade.attach(held.id, child.token)
            argv = ["bash", "-c", f"echo started; {script}"]
            result = again.run(argv, call_id=call.call_id)
            assert result.replayed
            assert is_over(result)
            assert result.usage is not None
            assert result.usage.cpu_ms is not None
            # Nobody looked while no daemon was there, which may take long on a busy host.
            assert result.usage.cpu_ms > 3500
            assert spent(stockade, again) == {"cpu_ms": min(result.usage.cpu_ms, 4000)}
            assert not [pid for pid in made.inside() if _is_busy(pid)]
            stockade.attach(held.id, held.token).release()


def stk(server: Daemon, *arguments: str) -> int:
    return main(Native(), [*arguments, "--socket", server.socket])


def test_spend_on_the_command_line(
    server: Daemon, lease: Lease, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    child = lease.narrowed(limits={"calls": 4})
    child.bash("true").check()
    assert child.token is not None
    assert stk(server, "capability", "spend", child.token, "--json") == 0
    said = json.loads(capsysbinary.readouterr().out)
    assert said["left"] == {"calls": 3, "cost_micro": None, "cpu_ms": None, "egress_bytes": None}
    assert said["blocks"][0]["budgets"] == [{"component": "calls", "total": 4, "spent": 1}]
    assert stk(server, "capability", "spend", lease.id) == 0
    assert b"no budget" in capsysbinary.readouterr().out
    assert stk(server, "capability", "spend", "nonsense") == 3


def test_approvals_on_the_command_line(
    server: Daemon, lease: Lease, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    rule = ApprovalRule(tool="bash_execute", argument="command", pattern="touch .*")
    child = lease.narrowed(approve=[rule])
    result = child.bash("touch made")
    assert result.status is Status.APPROVAL_REQUIRED
    details = error(result).details
    assert details is not None
    approval = str(details["approval"])

    def json_of(*arguments: str) -> object:
        assert stk(server, "approval", *arguments, "--json") == 0
        return json.loads(capsysbinary.readouterr().out)

    listed = json_of("list")
    assert isinstance(listed, list)
    assert [entry["id"] for entry in listed if entry["lease_id"] == lease.id] == [approval]
    shown = json_of("show", approval)
    assert isinstance(shown, dict)
    assert shown["arguments"]["command"] == "touch made"
    assert shown["state"] == "asked"
    denied = json_of("deny", approval, "--reason", "not now")
    assert isinstance(denied, dict)
    assert (denied["state"], denied["decided_by"]) == ("denied", "uid 0")
    assert error(child.bash("touch made")).code is Code.APPROVAL_DENIED
    json_of("grant", approval)
    assert child.bash("touch made").status is Status.SUCCEEDED
    assert child.bash("touch made").status is Status.APPROVAL_REQUIRED
    assert stk(server, "approval", "list") == 0
    assert approval.encode() in capsysbinary.readouterr().out
    assert stk(server, "approval", "show", "ap_none") == 1


def test_only_operators_decide(server: Daemon, stockade: Stockade, lease: Lease) -> None:
    """The one who asks is not the one who answers."""
    child = lease.narrowed(approve=[ApprovalRule(tool="run", argument=None, pattern=None)])
    details = error(child.run(["true"])).details
    assert details is not None
    approval = str(details["approval"])
    with as_user(UID):
        connection = server.connect()
        assert connection.health().status == "ok"
        asks: list[Callable[[], object]] = [
            connection.approvals,
            lambda: connection.approval(approval),
            lambda: connection.decide_approval(approval, granted=True),
            lambda: connection.decide_approval(approval, granted=False),
        ]
        for ask in asks:
            with pytest.raises(StockadeError) as refused:
                ask()
            assert refused.value.error.code is Code.PEER_NOT_ALLOWED
        connection.close()
    assert stockade.approval(approval).state is ApprovalState.ASKED
    assert child.run(["true"]).status is Status.APPROVAL_REQUIRED


def test_whose_spend_a_tenant_may_see(server: Daemon, stockade: Stockade, lease: Lease) -> None:
    child = lease.narrowed(limits={"calls": 4})
    with stockade.lease(None, tenant="umbrella", trajectory="x") as other, as_user(UID):
        connection = server.connect()
        assert connection.spend(token=child.token).left.calls == 4
        assert connection.spend(lease=lease.id).blocks == []
        asks: list[Callable[[], object]] = [
            lambda: connection.spend(token=other.token),
            lambda: connection.spend(lease=other.id),
        ]
        for ask in asks:
            with pytest.raises(StockadeError) as refused:
                ask()
            assert refused.value.error.code is Code.LEASE_NOT_GRANTED
        with pytest.raises(StockadeError) as missing:
            connection.spend()
        assert missing.value.error.code is Code.TOKEN_MISSING
        connection.close()


def test_routes_refuse_what_they_do_not_know(server: Daemon) -> None:
    assert server.ask("GET", "/v1/capabilities/spend?nonsense=1")[0] == http.client.BAD_REQUEST
    assert server.ask("GET", "/v1/approvals/ap_none")[0] == http.client.NOT_FOUND
    status, body = server.ask("POST", "/v1/approvals/ap_none/grant", '{"yes": true}')
    assert (status, body["error"]["code"]) == (http.client.BAD_REQUEST, Code.UNKNOWN_FIELD)

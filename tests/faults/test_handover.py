"""A daemon dies or is replaced while commands run: they go on, and their results are there.

The daemon that dies is a process of its own, which is killed; the one that comes after it is this
process, so that what it learns of the calls can be looked at whole.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stockade import runtime as composition
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
from stockade.engines.oci import engine
from stockade.engines.oci.journal import CallJournal
from stockade.host import guest_wire
from stockade.host.cgroup import counter, populated
from stockade.host.clocks import current_boot
from stockade.ledger.claim_table import ClaimTable
from stockade.ledger.store import SqliteLedger
from stockade.runtime import Runtime
from stockade.terms.claim import ClaimRecord, ClaimState
from stockade.terms.result import ToolResult, Warn
from tests.daemons import WAIT_S, Daemon, InCall, daemon, gone, output, place, until

# A daemon without a socket: makes a lease, runs what it is given, and says when it has printed.
DYING = """
import os, sys, threading
from pathlib import Path
from stockade import runtime as composition
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role

state, before, command, timeout_ms, stop = sys.argv[1:]
def point(name):
    if name == stop:
        print("at", name, flush=True); threading.Event().wait()
runtime = composition.open_runtime(Path(state), persistent=True, fault_point=point)
here = Peer(os.getuid(), None, Role.OPERATOR, own=True)
stockade = Stockade(InProcessTransport(runtime.api, here, runtime.close))
lease = stockade.lease(None, trajectory="t")
print("lease", lease.id, flush=True)
if before:
    exec(before)
result = lease.bash(command, timeout_ms=int(timeout_ms)) if command else None
print("over", flush=True); threading.Event().wait()
"""


class Dying:
    """The process that is killed."""

    def __init__(
        self,
        state: Path,
        command: str,
        *,
        before: str = "",
        timeout_ms: int = 60_000,
        stop: str = "",
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", DYING, str(state), before, command, str(timeout_ms), stop],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        word, _, self.lease_id = self._lines.readline().strip().partition(" ")
        assert word == "lease"

    def until(self, word: str) -> None:
        assert self._lines.readline().startswith(word)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)
        self._lines.close()


class Next:
    """The daemon that comes after it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.runtime: Runtime = composition.open_runtime(state, persistent=True)
        here = Peer(os.getuid(), None, Role.OPERATOR, own=True)
        self.stockade = Stockade(InProcessTransport(self.runtime.api, here, lambda: None))
        self._ledger = SqliteLedger(str(state / "ledger.db"))
        self._book = ClaimTable(self._ledger)

    def claims(self, *states: ClaimState) -> list[ClaimRecord]:
        return list(self._book.list(None, None, states or tuple(ClaimState), 100))

    def claim(self) -> ClaimRecord:
        """The only one, when it is settled."""
        until(lambda: not self.claims(ClaimState.IN_FLIGHT), "the claim is settled")
        [record] = self.claims()
        found = self._book.get(record.id)
        assert found is not None
        return found

    def result(self) -> ToolResult:
        """Of the only call."""
        record = self.claim()
        assert record.state is ClaimState.COMPLETED, record
        assert record.result is not None
        return ToolResult.model_validate_json(record.result)

    def stored(self, claim_id: str) -> ToolResult:
        found = self._book.get(claim_id)
        assert found is not None
        assert found.result is not None
        return ToolResult.model_validate_json(found.result)

    def whole(self, lease_id: str, result: ToolResult) -> bytes:
        """Every byte of stdout, whose artifact is complete."""
        [artifact] = result.artifacts
        assert artifact.complete
        lease = self.stockade.attach(lease_id)
        data = b""
        while part := lease.artifact(artifact.id, len(data), 1 << 20):
            data += part
        return data

    def close(self) -> None:
        self.runtime.close()
        self._ledger.close()


@pytest.fixture
def state() -> Iterator[Path]:
    with place() as directory:
        directory.chmod(0o711)
        left = Daemon(directory, config=None)
        try:
            yield left.state
        finally:
            left.end_survivors()
            until(lambda: not left.inside(), "the sandboxes end")
            until(lambda: not left.loops(), f"loop devices are given back: {left.loops()}")
            assert not left.mounts()
            assert left.keepers() == []
            for group in [*sorted(left.groups(), reverse=True), *left.tops()]:
                group.rmdir()


@contextmanager
def following(state: Path) -> Iterator[Next]:
    then = Next(state)
    try:
        yield then
    finally:
        then.close()


def printed(state: Path, lease_id: str, name: str) -> bool:
    """Whether the command has made a file in its workspace, looked at on the disk's own mount."""
    keepers = Daemon(state.parent, config=None, name=state.name).keepers()
    return any(
        Path(f"/proc/{pid}/root{state}/mounts/{lease_id}/root/workspace/{name}").exists()
        for pid in keepers
    )


def printed_by(result: ToolResult) -> str:
    assert result.stdout is not None
    return result.stdout.text


def results(then: Next) -> list[str]:
    """What the calls that are over printed."""
    over = then.claims(ClaimState.COMPLETED)
    found = [then.stored(record.id).stdout for record in over]
    return [stdout.text for stdout in found if stdout is not None]


def journaled(then: Next) -> list[object]:
    """What the engine still keeps for another daemon. Looked at through a copy: the file is
    mapped by the daemon of this process."""
    until(lambda: not then.claims(ClaimState.IN_FLIGHT), "the claims are settled")
    journal = CallJournal(then.state / "calls", current_boot())
    try:
        assert journal.whole
        return list(journal.entries())
    finally:
        journal.close()


LOUD = "for ((i = 0; i < 250000; i++)); do printf '%06d\\n' $i; done; touch end; exit 7"
ALL = b"".join(b"%06d\n" % i for i in range(250_000))


@pytest.mark.parametrize(
    ("began", "moment"), [(False, 0.0), (False, 0.03), (True, 0.0), (True, 0.1), (True, 0.3)]
)
def test_1750000_bytes_are_printed_once_whenever_the_daemon_dies(
    state: Path, began: bool, moment: float
) -> None:
    dying = Dying(state, f"touch there; {LOUD}")
    if began:
        until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    select.select((), (), (), moment)
    dying.kill()
    with following(state) as then:
        if not began and (not then.claims() or then.claim().state is ClaimState.NOT_EXECUTED):
            return
        result = then.result()
        assert result.exit is not None
        assert (result.status, result.exit.code) == ("failed", 7)
        assert result.stdout is not None
        assert result.stdout.total_bytes == len(ALL)
        assert result.stdout.text.startswith(ALL[:16_000].decode())
        assert result.stdout.text.endswith(ALL[-16_000:].decode())
        assert then.whole(dying.lease_id, result) == ALL


def test_a_short_output_that_was_read_already_is_not_lost(state: Path) -> None:
    dying = Dying(state, "echo one; touch there; sleep 1; echo two; echo err >&2")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    with following(state) as then:
        result = then.result()
        assert result.stderr is not None
        assert (printed_by(result), result.stderr.text) == ("one\ntwo\n", "err\n")
        assert result.usage is not None
        assert result.usage.wall_ms is not None
        assert result.usage.wall_ms >= 1000
        assert result.usage.cpu_ms is not None


def test_the_lease_goes_on_while_its_old_command_runs(state: Path) -> None:
    dying = Dying(state, "touch there; until [ -e stop ]; do sleep 0.02; done; echo stopped")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    with following(state) as then:
        lease = then.stockade.attach(dying.lease_id)
        # The same mount, the same sandbox, the same /tmp.
        assert output(lease, "ls; pgrep -f 'e[c]ho stopped' >/dev/null; echo $?") == "there\n0\n"
        lease.bash("echo old > note").check()
        lease.edit("note", "old", "new").check()
        assert output(lease, "cat note; touch stop") == "new\n"
        until(lambda: not then.claims(ClaimState.IN_FLIGHT), "it is settled")
        assert "stopped\n" in results(then)
        lease.release().check()


def test_memory_backed_places_and_background_commands_stay(state: Path) -> None:
    before = "lease.bash('echo a > /tmp/a; echo b > ~/b; echo c > /usr/c; sleep 600 &').check()"
    dying = Dying(state, "", before=before)
    dying.until("over")
    dying.kill()
    with following(state) as then:
        lease = then.stockade.attach(dying.lease_id)
        said = output(lease, "cat /tmp/a ~/b /usr/c; pgrep sleep >/dev/null && echo runs")
        assert said == "a\nb\nc\nruns\n"
        lease.release().check()


@pytest.mark.parametrize(
    ("stop", "states"), [("sandbox", []), ("starting", [ClaimState.NOT_EXECUTED])]
)
def test_what_was_never_given_to_a_sandbox_did_not_run(
    state: Path, stop: str, states: list[ClaimState]
) -> None:
    dying = Dying(state, "touch ran", stop=stop)
    dying.until("at")
    dying.kill()
    with following(state) as then:
        until(lambda: not then.claims(ClaimState.IN_FLIGHT), "the claim is settled")
        assert [claim.state for claim in then.claims()] == states
        assert output(then.stockade.attach(dying.lease_id), "ls") == ""


def waiting(state: Path) -> list[Path]:
    """The groups of processes that wait for a call, or have one."""
    groups = Daemon(state.parent, config=None, name=state.name).groups()
    return [path for path in groups if path.name.startswith("call-") and populated(path)]


def test_an_exit_that_was_read_and_not_acknowledged_is_there_and_then_forgotten(
    state: Path,
) -> None:
    dying = Dying(state, "echo done >> log; echo done; exit 3", stop="ran")
    dying.until("at")
    # By then it has tidied up after calls that are over, of which this is none.
    until(lambda: len(waiting(state)) >= 3, "others wait")
    dying.kill()
    journal = CallJournal(state / "calls", current_boot())
    [(_, entry)] = journal.entries()
    journal.close()
    groups = Daemon(state.parent, config=None, name=state.name).groups()
    [group] = [path for path in groups if path.name == f"call-{entry.number:x}"]
    with following(state) as then:
        result = then.result()
        assert result.exit is not None
        assert (result.exit.code, printed_by(result)) == (3, "done\n")
        assert journaled(then) == []
        lease = then.stockade.attach(dying.lease_id)
        until(lambda: lease.bash(":").check() and not group.exists(), "its group is removed")
    with following(state) as then:
        assert output(then.stockade.attach(dying.lease_id), "cat log") == "done\n"


def test_what_was_settled_and_not_forgotten_is_left_alone(state: Path) -> None:
    dying = Dying(state, "echo done >> log", stop="settled")
    dying.until("at")
    dying.kill()
    with following(state) as then:
        then.runtime.adoption.wait()
        assert then.claim().state is ClaimState.COMPLETED
        assert journaled(then) == []
        assert output(then.stockade.attach(dying.lease_id), "cat log") == "done\n"


def test_what_was_settled_is_forgotten(state: Path) -> None:
    dying = Dying(state, "echo done")
    dying.until("over")
    dying.kill()
    with following(state) as then:
        assert journaled(then) == []


def test_a_command_that_could_not_be_started_is_known(state: Path) -> None:
    dying = Dying(state, "", before="lease.run(['/no/such'])", stop="ran")
    dying.until("at")
    dying.kill()
    with following(state) as then:
        result = then.result()
        assert (result.status, result.error and result.error.code) == (
            "rejected",
            "command_not_found",
        )


def test_a_deadline_that_passed_meanwhile_ends_the_call_at_once(state: Path) -> None:
    dying = Dying(state, "touch there; echo out; sleep 600 & sleep 600", timeout_ms=1000)
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    select.select((), (), (), 1.2)  # the deadline of the call, which nobody enforces
    with following(state) as then:
        result = then.result()
        assert result.status == "timed_out"
        assert printed_by(result) == "out\n"
        left = Daemon(state.parent, config=None, name=state.name)
        assert not left.named("sleep")


SEARCH = """
lease.bash("head -c 3M /dev/urandom | base64 -w 100 > a; for n in $(seq 64); do cat a; done > b").check()
print("searches", flush=True)
lease.grep(r"(needle|[a-z0-9]{20,60}[aeiou]{8}|(?i:[a-z0-9+/]{30}qqqq[a-z]*z))")
"""


def test_a_search_that_nobody_can_be_answered_is_ended(state: Path) -> None:
    """Whatever bounds its processor time went with its daemon."""
    dying = Dying(state, "", before=SEARCH)
    dying.until("searches")
    journal = CallJournal(state / "calls", current_boot())
    until(journal.entries, "it searches")
    [(_, entry)] = journal.entries()
    groups = Daemon(state.parent, config=None, name=state.name).groups()
    [group] = [path for path in groups if path.name == f"call-{entry.number:x}"]
    (group / "cgroup.freeze").write_text("1")  # so that it does not end by itself
    until(lambda: "frozen 1" in (group / "cgroup.events").read_text(), "it is frozen")
    assert populated(group)
    dying.kill()
    [(slot, entry)] = journal.entries()
    journal.drop(slot, entry.number)
    # Nor by its time limit.
    slot = journal.begin(replace(entry, deadline_ns=entry.deadline_ns + 10**12), lambda: None)
    journal.sent(slot)
    journal.close()
    with following(state) as then:
        until(lambda: not populated(group), "it is ended")
        then.runtime.adoption.wait()
        assert journaled(then) == []
        assert then.stockade.attach(dying.lease_id).grep("needle").check()


# A call waits, without forks of its own, where threads of an earlier one are as many as processes
# may be; shells are forked ahead for the calls after it.
CROWDED = """
for _ in range(12):
    lease.bash(":").check()
lease.bash('''mkfifo gate; cat > fill.py <<END
import threading
threading.stack_size(1 << 16)
stay = threading.Event()
try:
    while True:
        threading.Thread(target=stay.wait).start()
except RuntimeError:
    print("full", flush=True)
END
exec 9< <(python3 fill.py); read -u 9''').check()
wait = "exec 9<>gate; > there; until [ -e stop ]; do read -t 0.05 -u 9; done; echo stopped"
threading.Thread(target=lease.bash, args=(wait,), daemon=True).start()
lease.bash("until [ -e there ]; do :; done").check()
print("crowded", flush=True)
for _ in range(60):
    lease.bash(":").check()
"""


def refused(state: Path) -> int:
    """Forks that a limit has refused in the sandboxes of a state directory."""
    groups = Daemon(state.parent, config=None, name=state.name).groups()
    events = [path / "pids.events" for path in groups if (path / "pids.events").exists()]
    return max(counter(path.read_text(), "max") for path in events)


def test_what_was_refused_to_shells_made_ahead_is_not_on_the_old_commands_account(
    state: Path,
) -> None:
    dying = Dying(state, "", before=CROWDED)
    dying.until("crowded")
    before = refused(state)
    dying.until("over")
    select.select((), (), (), 0.5)  # until the last ones are made
    dying.kill()
    assert refused(state) > before + 1
    with following(state) as then:
        [running] = then.claims(ClaimState.IN_FLIGHT)
        then.stockade.attach(dying.lease_id).bash("> stop").check()
        until(lambda: not then.claims(ClaimState.IN_FLIGHT), "it is settled")
        result = then.stored(running.id)
        assert printed_by(result) == "stopped\n"
        assert Warn.NEAR_LIMIT not in [warning.code for warning in result.warnings]


def test_daemons_that_die_one_after_the_other(state: Path) -> None:
    loud = LOUD.replace("touch end", "until [ -e stop ]; do sleep 0.02; done")
    dying = Dying(state, f"touch there; {loud}")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    for _ in range(3):
        again = Dying(state, "")  # a create of the same lease gives the lease
        again.until("over")
        select.select((), (), (), 0.1)
        again.kill()
    with following(state) as then:
        [running] = then.claims(ClaimState.IN_FLIGHT)
        then.stockade.attach(dying.lease_id).bash("touch stop").check()
        until(lambda: not then.claims(ClaimState.IN_FLIGHT), "it is settled")
        result = then.stored(running.id)
        assert result.exit is not None
        assert result.exit.code == 7
        assert then.whole(dying.lease_id, result) == ALL


def end_sandbox(state: Path) -> None:
    """Kill the guest of the only one that a dead daemon left."""
    left = Daemon(state.parent, config=None, name=state.name)
    [guest] = left.guests()
    os.kill(guest, signal.SIGKILL)
    until(lambda: not left.guests(), "the guest is gone")


def test_a_sandbox_that_died_as_well_leaves_its_call_in_doubt(state: Path) -> None:
    dying = Dying(state, "touch there; sleep 600")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    end_sandbox(state)
    with following(state) as then:
        assert then.claim().state is ClaimState.IN_DOUBT
        lease = then.stockade.attach(dying.lease_id)
        assert output(lease, "ls") == "there\n"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's call."""
    made = subprocess.Popen(["sleep", "600"])
    yield made
    assert made.poll() is None, "it was ended"
    made.kill()
    made.wait()


def reuse_pid(state: Path, pid: int, *, sent: bool = True) -> int:
    """Have the journal say that the only call's process is `pid`; gives the call's number."""
    journal = CallJournal(state / "calls", current_boot())
    try:
        [(slot, entry)] = journal.entries()
        journal.drop(slot, entry.number)
        slot = journal.begin(replace(entry, pid=pid), lambda: None)
        if sent:
            journal.sent(slot)
        return entry.number
    finally:
        journal.close()


@pytest.mark.parametrize("moment", ["it runs", "it has ended"])
def test_a_reused_pid_is_neither_waited_for_nor_believed(
    state: Path, stranger: subprocess.Popen[bytes], moment: str
) -> None:
    """The call is its socket, whose guest says how it ended, and its control group."""
    wait = "until [ -e stop ]; do sleep 0.02; done"
    dying = Dying(state, f"touch there; {wait}; echo done; touch end; exit 3")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    left = Daemon(state.parent, config=None, name=state.name)
    if moment == "it has ended":
        [keeper] = left.keepers()
        workspace = f"{state}/mounts/{dying.lease_id}/root/workspace"
        Path(f"/proc/{keeper}/root{workspace}/stop").touch()
        until(lambda: printed(state, dying.lease_id, "end"), "it ends")
        group = f"call-{reuse_pid(state, stranger.pid):x}"
        [procs] = [g / "cgroup.procs" for g in left.groups() if g.name == group]
        until(lambda: not procs.read_text(), "it has ended")
    else:
        reuse_pid(state, stranger.pid)
    with following(state) as then:
        if moment == "it runs":
            then.stockade.attach(dying.lease_id).bash("touch stop").check()
        until(lambda: not then.claims(ClaimState.IN_FLIGHT), "it is settled")
        assert "done\n" in results(then)


@pytest.mark.parametrize("end", ["deadline", "release"])
def test_a_reused_pid_is_not_killed_with_the_call(
    state: Path, stranger: subprocess.Popen[bytes], end: str
) -> None:
    limit_ms = 1000 if end == "deadline" else 60_000
    dying = Dying(state, "touch there; sleep 600 & sleep 600", timeout_ms=limit_ms)
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    reuse_pid(state, stranger.pid)
    with following(state) as then:
        if end == "release":
            then.stockade.attach(dying.lease_id).release().check()
        assert then.result().status == ("timed_out" if end == "deadline" else "cancelled")
        left = Daemon(state.parent, config=None, name=state.name)
        assert not left.named("sleep")


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "given"])
def test_a_reused_pid_is_no_evidence_without_the_sandbox(
    state: Path, stranger: subprocess.Popen[bytes], sent: bool
) -> None:
    """The process of that pid lives, and the call is in doubt all the same."""
    dying = Dying(state, "touch there; sleep 600")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    end_sandbox(state)
    reuse_pid(state, stranger.pid, sent=sent)
    with following(state) as then:
        assert then.claim().state is ClaimState.IN_DOUBT
        assert then.stockade.attach(dying.lease_id).bash("ls").check()


def test_releasing_the_lease_cancels_its_old_command(state: Path) -> None:
    dying = Dying(state, "touch there; sleep 600")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    with following(state) as then:
        then.stockade.attach(dying.lease_id).release().check()
        assert then.result().status == "cancelled"


def test_a_sandbox_of_another_version_takes_no_new_call(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "touch there; until [ -e stop ]; do sleep 0.02; done; cat /tmp/a"
    dying = Dying(state, command, before="lease.bash('echo old > /tmp/a; echo o > ~/h').check()")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    left = Daemon(state.parent, config=None, name=state.name)
    [old] = left.guests()
    monkeypatch.setattr(engine, "VERSION", "9.9.9")
    with following(state) as then:
        lease = then.stockade.attach(dying.lease_id)
        # Another sandbox: its own HOME, the lease's /tmp.
        assert output(lease, "cat /tmp/a; ls ~; touch stop") == "old\n"
        assert len(left.guests()) == 2
        until(lambda: not then.claims(ClaimState.IN_FLIGHT), "it is settled")
        assert "old\n" in results(then)
        # It ends when the lease needs another one.
        assert lease.grep("old").check()
        assert old not in left.guests()


@pytest.mark.parametrize("other", ["protocol", "layout of the journal"])
def test_a_guest_of_another_protocol_or_with_other_records_is_ended(
    state: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    dying = Dying(state, "touch there; sleep 600")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    left = Daemon(state.parent, config=None, name=state.name)
    [old] = left.guests()
    with monkeypatch.context() as patch:
        if other == "protocol":
            patch.setattr(guest_wire, "WIRE_VERSION", guest_wire.WIRE_VERSION + 1)
        else:
            begun = f"stockade calls 1 {current_boot()}".encode()
            with (state / "calls").open("r+b") as journal:
                journal.write(begun.ljust(320, b"\0"))
        then = Next(state)
    assert then.claim().state is ClaimState.IN_DOUBT
    assert old not in left.guests()
    assert output(then.stockade.attach(dying.lease_id), "ls") == "there\n"
    then.close()


def test_many_leases_are_taken_back_in_time(state: Path) -> None:
    """benchmarks/figures/handover.py has the figure for a hundred."""
    more = "[stockade.lease(None, trajectory=f't{n}').bash(':').check() for n in range(24)]"
    dying = Dying(state, "", before=more)
    dying.until("over")
    dying.kill()
    began = time.monotonic()
    with following(state) as then:
        took = time.monotonic() - began
        assert len(then.runtime.left) == 24
        assert took < 3
        for view in then.stockade.leases():
            then.stockade.attach(view.lease_id).release().check()


def test_without_its_keeper_nothing_is_taken_back(state: Path) -> None:
    """Two overlays over one upper directory would be undefined: the sandbox has to end."""
    dying = Dying(state, "touch there; sleep 600")
    until(lambda: printed(state, dying.lease_id, "there"), "it has begun")
    dying.kill()
    left = Daemon(state.parent, config=None, name=state.name)
    [old], [keeper] = left.guests(), left.keepers()
    os.kill(keeper, signal.SIGKILL)
    gone(keeper)
    with following(state) as then:
        assert then.claim().state is ClaimState.IN_DOUBT
        assert old not in left.guests()
        assert output(then.stockade.attach(dying.lease_id), "ls") == "there\n"


# The real daemon.


def test_an_upgrade_keeps_sandboxes_and_background_commands() -> None:
    with daemon() as server, server.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        lease.bash("cd /tmp; echo kept > kept; sleep 600 &").check()
        guests = server.guests()
        assert server.end() == 0
        assert server.guests() == guests
        assert len(server.keepers()) == 1
        assert not server.mounts()
        server.start()
        assert server.guests() == guests
        assert output(lease, "cat /tmp/kept; pgrep -c sleep") == "kept\n1\n"
        lease.release().check()
        server.nothing_runs()
        assert server.end() == 0
        assert not server.tops()


def test_a_command_of_a_killed_daemon_is_logged_and_its_sandbox_goes_on() -> None:
    with daemon() as server, server.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        call = InCall(lease, "sleep 0.5; echo more > more")
        guests = server.guests()
        server.kill()
        request_id = call.result().request_id
        assert request_id
        server.start()
        assert server.log.wait(" completed: found after the daemon was cut off")
        assert server.guests() == guests
        assert output(lease, "cat more") == "more\n"
        lease.release().check()
        server.nothing_runs()


def test_a_daemon_that_can_not_start_leaves_running_commands_alone() -> None:
    with daemon() as server, server.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        lease.bash("sleep 600 &").check()
        guests = server.guests()
        server.kill()
        os.unlink(server.socket)
        Path(server.socket).write_text("mine\n")
        log = server.launch()
        assert server.process is not None
        assert server.process.wait(WAIT_S) == 1
        log.close()
        assert server.guests() == guests
        os.unlink(server.socket)
        server.start()
        assert server.guests() == guests
        assert output(lease, "pgrep -c sleep") == "1\n"


@pytest.mark.parametrize(
    "broken",
    [
        # The runtime, before anything of the last daemon is looked at.
        "stockade.native.find_runtime = broken",
        "stockade.engines.oci.engine.OciEngine.recover = broken",
        "stockade.host.workspaces.LocalWorkspaces.__init__ = broken",
        "stockade.flow.settlement.Settlement.recover = broken",
    ],
)
@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_wherever_a_start_fails_the_next_one_finds_everything(
    broken: str, ended_by: signal.Signals
) -> None:
    script = f"""
import stockade.native, stockade.engines.oci.engine, stockade.host.workspaces, stockade.flow.settlement
from stockade.command import main
def broken(*args, **named): raise OSError("broken by the test")
{broken}
main()
"""
    with daemon() as server, server.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        lease.bash("echo kept > /tmp/kept; sleep 600 &").check()
        guests, keepers, usual = server.guests(), server.keepers(), server.program
        server.end(ended_by)
        server.program = (sys.executable, "-c", script)
        log = server.launch()
        assert server.process is not None
        assert server.process.wait(WAIT_S) == 1
        log.close()
        assert (server.guests(), server.keepers()) == (guests, keepers)
        server.program = usual
        server.start()
        assert server.guests() == guests
        assert output(lease, "cat /tmp/kept; pgrep -c sleep") == "kept\n1\n"


def test_what_a_call_left_running_can_not_wait_on_its_pipe() -> None:
    """Nobody reads a finished call's pipe: a write fails, also while the guest could keep it."""
    with daemon() as server, server.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        writer = "trap '' PIPE; while echo more; do :; done 2>/dev/null; echo ended > ended"
        result = lease.bash(f"({writer}) & sleep 0.1").check()
        assert "left_running" in [warning.code for warning in result.warnings]
        until(lambda: output(lease, "cat ended 2>/dev/null; true") == "ended\n", "it has ended")
        lease.release().check()

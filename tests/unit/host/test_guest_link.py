"""The host's side against peers that lie: who said it counts, and every wait has an end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import cast

import pytest

from stockade.host import guest_wire as wire
from stockade.host.cancel import EventfdCancel
from stockade.host.guest_link import GuestLink
from stockade.host.spare import ExecFailed, Exited, Spare, Where
from stockade.terms.fault import Code, Failure
from stockade.terms.outcome import End
from stockade.terms.patience import Patience

MAGIC = 0x53544B44
CALL = 7
LONG_S = 20.0

# Sends each line of stdin, hex, as one record on the descriptor, and says so.
SPEAKER = """
import socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
for line in sys.stdin:
    sock.send(bytes.fromhex(line)); print(flush=True)
"""


def words(
    kind: int, *, ident: int = CALL, value: int = 0, where: int = 0, magic: int = MAGIC
) -> bytes:
    return struct.pack("=IIQiIQQQ", magic, kind, ident, value, where, 11, 22, 33)


class Speaker:
    """A process of its own, hence with credentials of its own, that says what it is told."""

    def __init__(self, sock: socket.socket) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", SPEAKER, str(sock.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(sock.fileno(),),
            text=True,
        )
        self.pid = self._process.pid

    def say(self, *records: bytes) -> None:
        assert self._process.stdin
        assert self._process.stdout
        for record in records:
            self._process.stdin.write(record.hex() + "\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "\n"

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(LONG_S)


class Scene:
    """A spare whose guest and program are two speakers, and a third that is neither."""

    def __init__(self, stack: ExitStack) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.theirs = theirs
        speakers = [Speaker(theirs) for _ in range(3)]
        for speaker in speakers:
            stack.callback(speaker.close)
        self.guest, self.program, self.stranger = speakers
        self.spare = Spare(self.ours, CALL, self.program.pid, self.guest.pid)
        stack.callback(self.spare.close)
        stack.callback(theirs.close)

    def start(self) -> None:
        with open("/dev/null", "r+b") as null:
            fds = (null.fileno(),) * 3
            self.spare.start(paths=(b"/bin/x",), argv=(b"x",), env=(), cwd=b"/", fds=fds)
        assert self.theirs.recv(100)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack)


def test_exit_is_believed_from_the_guest_only(scene: Scene) -> None:
    scene.start()
    scene.program.say(words(wire.EXIT, value=0))
    scene.stranger.say(words(wire.EXIT, value=0))
    scene.theirs.send(words(wire.EXIT, value=0))
    assert scene.spare.receive(0.05) is None
    scene.guest.say(words(wire.EXIT, value=3 << 8))
    assert scene.spare.receive(LONG_S) == Exited(3, None, 11, 22, 33)


def test_exec_failure_is_believed_from_the_spare_only(scene: Scene) -> None:
    scene.start()
    failed = words(wire.EXECFAIL, value=errno.ENOENT, where=Where.EXEC)
    scene.guest.say(failed)
    scene.stranger.say(failed)
    assert scene.spare.receive(0.05) is None
    scene.program.say(failed)
    assert scene.spare.receive(LONG_S) == ExecFailed(errno.ENOENT, Where.EXEC)


def test_a_shell_that_was_given_its_command_has_not_failed_to_execute(scene: Scene) -> None:
    """It is the image's program by then, and may have run the command."""
    scene.spare.release(b"true")
    scene.program.say(
        words(wire.EXECFAIL, value=errno.ENOENT, where=Where.EXEC),
        words(wire.EXECFAIL, value=errno.EBADMSG, where=Where.REQUEST),
    )
    assert scene.spare.receive(0.05) is None
    scene.guest.say(words(wire.EXIT, value=3 << 8))
    assert scene.spare.receive(LONG_S) == Exited(3, None, 11, 22, 33)


@pytest.mark.parametrize("value", [-(1 << 31), -4096, -errno.EAGAIN, 0, 1])
def test_whatever_a_shell_answers_to_a_fork_is_a_refusal_or_a_number(
    scene: Scene, value: int
) -> None:
    scene.program.say(words(wire.FORKED, ident=9, value=value))
    with open("/dev/null", "rb") as null, pytest.raises(Failure) as raised:
        scene.spare.fork(9, (null.fileno(),) * 3, time.monotonic() + LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    assert scene.spare.forks_refused == (value == -errno.EAGAIN)


def test_a_fork_is_believed_from_the_shell_only(scene: Scene) -> None:
    scene.stranger.say(words(wire.FORKED, ident=9, value=77))
    scene.guest.say(words(wire.FORKED, ident=9, value=78))
    scene.program.say(
        words(wire.FORKED, ident=8, value=79), b"noise", words(wire.FORKED, ident=9, value=42)
    )
    with open("/dev/null", "rb") as null:
        assert scene.spare.fork(9, (null.fileno(),) * 3, time.monotonic() + LONG_S) == 42


@pytest.mark.parametrize(
    "record",
    [
        words(wire.EXIT, value=1 << 8)[:-1],
        words(wire.EXIT, value=1 << 8) + b"\0",
        words(wire.EXIT, value=1 << 8) * 50,
        words(wire.EXIT, value=1 << 8, magic=1),
        words(wire.EXIT, value=1 << 8, ident=CALL + 1),
        words(wire.EXIT, value=0x137F),  # stopped, not ended
        words(wire.EXIT, value=0xFFFF),  # continued
        words(wire.EXIT, value=-1),
        words(wire.READY),
        words(99),
        b"\0",
    ],
)
def test_what_is_no_report_is_dropped(scene: Scene, record: bytes) -> None:
    scene.start()
    scene.guest.say(record)
    assert scene.spare.receive(0.05) is None
    scene.guest.say(words(wire.EXIT, value=signal.SIGKILL))
    assert scene.spare.receive(LONG_S) == Exited(None, signal.SIGKILL, 11, 22, 33)


@pytest.mark.parametrize("where", [0, 5, 0xFFFFFFFF])
def test_exec_failure_without_a_place_is_dropped(scene: Scene, where: int) -> None:
    scene.start()
    scene.program.say(words(wire.EXECFAIL, value=errno.ENOENT, where=where))
    assert scene.spare.receive(0.05) is None


@pytest.mark.parametrize("record", [b"noise", words(wire.READY)])
def test_noise_without_end_ends_the_call(scene: Scene, record: bytes) -> None:
    scene.start()
    scene.guest.say(*[record] * 20)
    with pytest.raises(Failure) as raised:
        scene.spare.receive(LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_LOST


def test_descriptors_are_never_taken(scene: Scene) -> None:
    scene.start()
    before = set(os.listdir("/proc/self/fd"))
    with open("/dev/null", "rb") as null:
        socket.send_fds(scene.theirs, [words(wire.EXIT)], [null.fileno()] * 5)
        scene.theirs.send(words(wire.READY))
        assert scene.spare.receive() is None
    assert set(os.listdir("/proc/self/fd")) == before


def test_end_before_start_is_unavailable_and_after_it_lost(scene: Scene) -> None:
    scene.guest.say(words(wire.EXIT, value=9))
    with pytest.raises(Failure) as raised:
        scene.spare.receive(LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    scene.start()
    for speaker in (scene.guest, scene.program, scene.stranger):
        speaker.close()
    scene.theirs.close()
    with pytest.raises(Failure) as raised:
        scene.spare.receive(LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_LOST


def test_what_a_guest_said_before_it_went_is_heard(scene: Scene) -> None:
    """It went with something of ours unread, which the kernel reports first."""
    with open("/dev/null", "r+b") as null:
        fds = (null.fileno(),) * 3
        scene.spare.start(paths=(b"/bin/x",), argv=(b"x",), env=(), cwd=b"/", fds=fds)
    scene.guest.say(words(wire.EXIT, value=3 << 8))
    for speaker in (scene.guest, scene.program, scene.stranger):
        speaker.close()
    scene.theirs.close()
    assert scene.spare.receive(LONG_S) == Exited(3, None, 11, 22, 33)


@pytest.mark.parametrize("who", ["unread", "refused"])
def test_evidence_that_nothing_ran(scene: Scene, who: str) -> None:
    scene.start()
    if who == "unread":
        scene.guest.say(words(wire.EXIT, value=9, where=wire.UNREAD))
    else:
        scene.program.say(words(wire.EXECFAIL, value=errno.EBADMSG, where=Where.REQUEST))
    with pytest.raises(Failure) as raised:
        scene.spare.receive(LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE


def test_start_on_a_closed_socket_is_unavailable(scene: Scene) -> None:
    for speaker in (scene.guest, scene.program, scene.stranger):
        speaker.close()
    scene.theirs.close()
    with pytest.raises(Failure) as raised:
        scene.spare.start(paths=(b"/x",), argv=(b"x",), env=(), cwd=b"/", fds=(0, 1, 2))
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE


@pytest.mark.parametrize(
    ("paths", "argv", "env", "cwd", "code"),
    [
        ((), (b"x",), (), b"/", Code.INVALID_ARGUMENT),
        ((b"",), (b"x",), (), b"/", Code.INVALID_ARGUMENT),
        ((b"/x",) * 65, (b"x",), (), b"/", Code.INVALID_ARGUMENT),
        ((b"/x",), (), (), b"/", Code.INVALID_ARGUMENT),
        ((b"/x",), (b"x",), (), b"relative", Code.INVALID_ARGUMENT),
        ((b"/x",), (b"x",), (), b"", Code.INVALID_ARGUMENT),
        ((b"/x",), (b"x\0y",), (), b"/", Code.INVALID_ARGUMENT),
        ((b"/x",), (b"x",), ((b"A", b"\0"),), b"/", Code.INVALID_ARGUMENT),
        ((b"/x",), (b"x",), ((b"", b"a"),), b"/", Code.INVALID_ARGUMENT),
        ((b"/x",), (b"x",), ((b"A=B", b"a"),), b"/", Code.INVALID_ARGUMENT),
        ((b"/x",), (b"x", b"a" * 131_072), (), b"/", Code.ARGUMENT_TOO_LARGE),
        ((b"/x",), (b"x",), ((b"A", b"a" * 131_070),), b"/", Code.ARGUMENT_TOO_LARGE),
        ((b"/x",), (b"x", *(b"a" * 100_000,) * 32), (), b"/", Code.ARGUMENT_TOO_LARGE),
        ((b"/x",), (b"x",) * 65_537, (), b"/", Code.ARGUMENT_TOO_LARGE),
    ],
)
def test_what_cannot_be_a_command_is_refused_before_it_is_sent(
    scene: Scene,
    paths: tuple[bytes, ...],
    argv: tuple[bytes, ...],
    env: tuple[tuple[bytes, bytes], ...],
    cwd: bytes,
    code: Code,
) -> None:
    with pytest.raises(Failure) as raised:
        scene.spare.start(paths=paths, argv=argv, env=env, cwd=cwd, fds=(0, 1, 2))
    assert raised.value.fault.code is code
    scene.theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        scene.theirs.recv(1)


@pytest.fixture
def control() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with ours, theirs:
        yield ours, theirs


def refused(ours: socket.socket, timeout_s: float = LONG_S) -> str:
    with pytest.raises(Failure) as raised:
        GuestLink.greeted(ours, timeout_s)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    return raised.value.fault.message


def test_greeting(control: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = control
    guest = Speaker(theirs)
    hello = words(wire.HELLO, ident=0, value=1, where=wire.WIRE_VERSION)
    try:
        guest.say(words(wire.HELLO, where=wire.WIRE_VERSION + 1))
        assert f"version {wire.WIRE_VERSION + 1}" in refused(ours)
        guest.say(words(wire.READY, where=wire.WIRE_VERSION))
        assert "no guest" in refused(ours)
        theirs.send(hello)  # from this process itself
        assert "no guest" in refused(ours)
        guest.say(words(wire.HELLO, where=wire.WIRE_VERSION, magic=0))
        assert "does not greet" in refused(ours, 0.05)
        guest.say(hello)
        assert GuestLink.greeted(ours, LONG_S).pid == guest.pid
    finally:
        guest.close()


def test_a_greeting_is_awaited_until_the_call_is_cancelled(
    control: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = control
    cancel = EventfdCancel()
    patience = Patience(cancel, LONG_S, time.monotonic)
    timer = threading.Timer(0.05, cancel.set, [End.CANCELLED])
    timer.start()
    began = time.monotonic()
    with pytest.raises(Failure) as raised:
        GuestLink.greeted(ours, LONG_S, patience)
    assert raised.value.fault.code is Code.CANCELLED
    assert time.monotonic() - began < LONG_S / 2
    timer.join()
    # One that has greeted is there, whatever else has happened meanwhile.
    guest = Speaker(theirs)
    try:
        guest.say(words(wire.HELLO, ident=0, value=1, where=wire.WIRE_VERSION))
        assert GuestLink.greeted(ours, LONG_S, patience).pid == guest.pid
    finally:
        guest.close()
        cancel.close()


@pytest.mark.parametrize(
    ("calls", "good"),
    [
        (((1, 0), (2, 511)), True),
        (((1, 0), (1, 1)), False),
        (((1, 3), (2, 3)), False),
        (((1, 512),), False),
    ],
)
def test_a_guest_hands_over_each_entry_of_its_table_once(
    control: tuple[socket.socket, socket.socket],
    calls: tuple[tuple[int, int], ...],
    good: bool,
) -> None:
    """Without an end a guest that lies would hold up the start of the daemon, and take all of its
    descriptors."""
    ours, theirs = control
    before = set(os.listdir("/proc/self/fd"))
    link = GuestLink(ours, 4242)
    for ident, where in calls:
        record = words(wire.CALL, ident=ident, where=where)
        socket.send_fds(theirs, [record], [theirs.fileno()])
    theirs.send(words(wire.CALL, ident=0, where=512))
    if good:
        found = link.kept(LONG_S)
        assert [each.id for each in found] == [ident for ident, _ in calls]
        for each in found:
            each.close()
    else:
        with pytest.raises(Failure) as raised:
            link.kept(LONG_S)
        assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_is_no_answer_to_take_leaves_no_descriptor(
    control: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = control
    before = set(os.listdir("/proc/self/fd"))
    link = GuestLink(ours, 4242)
    for record in (b"noise", words(wire.CALL, magic=0), words(wire.CALL) + b"\0"):
        socket.send_fds(theirs, [record], [theirs.fileno()] * 5)
        with pytest.raises(Failure) as raised:
            link.kept(LONG_S)
        assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
        assert set(os.listdir("/proc/self/fd")) == before


def test_silence_and_end_are_unavailable(control: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = control
    assert "does not greet" in refused(ours, 0.05)
    theirs.close()
    assert "gone" in refused(ours)


def test_connect_to_nothing_is_unavailable(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path / "absent", tmp_path / "no" / "directory", tmp_path / ("n" * 200)):
        with pytest.raises(Failure) as raised:
            GuestLink.connect(str(path), 0.2)
        assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("patient", [False, True])
def test_a_listener_that_never_greets_ends_at_the_deadline(tmp_path: Path, patient: bool) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        closing(EventfdCancel()) as cancel,
    ):
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        before = os.listdir("/proc/self/fd")
        patience = Patience(cancel, LONG_S, time.monotonic) if patient else None
        with pytest.raises(Failure) as raised:
            GuestLink.connect(str(tmp_path / "s"), 0.05, patience)
        assert os.listdir("/proc/self/fd") == before
    assert "does not greet" in raised.value.fault.message


def test_prefork_in_silence_ends_at_the_deadline(
    control: tuple[socket.socket, socket.socket],
) -> None:
    ours, _ = control
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Failure) as raised:
        GuestLink(ours, 1).prefork(CALL, 0.05)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    assert set(os.listdir("/proc/self/fd")) == before


def test_prefork_gives_the_reason_of_the_guest(
    control: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = control
    theirs.send(words(wire.ERROR, ident=CALL + 1, value=errno.EBADMSG))  # of another prefork
    theirs.send(words(wire.ERROR, value=errno.EAGAIN))
    with pytest.raises(Failure) as raised:
        GuestLink(ours, 1).prefork(CALL, LONG_S)
    assert os.strerror(errno.EAGAIN) in raised.value.fault.message


def test_prefork_of_a_guest_that_is_gone(control: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = control
    theirs.close()
    with pytest.raises(Failure) as raised:
        GuestLink(ours, 1).prefork(CALL, LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE


@pytest.mark.parametrize("kind", [wire.READY, wire.EXIT])
def test_what_greets_as_this_process_or_the_guest_is_no_spare(
    control: tuple[socket.socket, socket.socket], kind: int
) -> None:
    """The reader takes the descriptor out of PREFORK and answers on it under its own pid."""
    ours, theirs = control
    failures: list[str] = []

    def ask() -> None:
        with pytest.raises(Failure) as raised:
            GuestLink(ours, 1).prefork(CALL, LONG_S)
        failures.append(raised.value.fault.message)

    asker = threading.Thread(target=ask)
    asker.start()
    _, (fd,), _, _ = socket.recv_fds(theirs, 100, 1)
    with socket.socket(fileno=fd) as call:
        call.send(words(kind))
        asker.join(LONG_S)
    assert failures == ["what greets is no spare"]


def test_of_what_a_shell_has_forked_one_greets(
    control: tuple[socket.socket, socket.socket],
) -> None:
    """A command inside may have been handed the socket, and greet as well."""
    ours, theirs = control

    class Shell:
        def fork(self, *asked: object) -> int:
            return 42

    failures: list[str] = []

    def ask() -> None:
        with pytest.raises(Failure) as raised:
            GuestLink(ours, 1).fork(cast("Spare", Shell()), (0, 0), CALL, LONG_S)
        failures.append(raised.value.fault.message)

    asker = threading.Thread(target=ask)
    asker.start()
    _, (fd,), _, _ = socket.recv_fds(theirs, 100, 1)
    with socket.socket(fileno=fd) as call, ExitStack() as stack:
        for _ in range(2):
            speaker = Speaker(call)
            stack.callback(speaker.close)
            speaker.say(words(wire.READY))
        asker.join(LONG_S)
    assert failures == ["what greets is no spare"]


def test_close_is_idempotent(control: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = control
    link = GuestLink(ours, 1)
    link.close()
    link.close()
    assert theirs.recv(1) == b""
    with pytest.raises(Failure) as raised:
        link.prefork(CALL, 0.05)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE

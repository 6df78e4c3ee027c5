"""The real guest: what it starts, how it reports, what it refuses, what it leaves behind."""

from __future__ import annotations

import array
import errno
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stockade.host import guest_wire as wire
from stockade.host.guest_link import GuestLink
from stockade.host.spare import ExecFailed, Exited, Where
from stockade.terms.fault import Code, Failure

if TYPE_CHECKING:
    from tests.unit.sandbox.conftest import Running, Start

LONG_S = 20.0
MAGIC = 0x53544B44


def died(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(LONG_S * 1000))


def code(event: object) -> int | None:
    assert isinstance(event, Exited)
    assert event.signal is None
    return event.code


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def settle(guest: Running, wanted: int) -> None:
    """Until the guest has that many children; each round trip lets it reap.

    The count is read before the trip: a guest that has just reaped a child still holds that
    child's socket, and closes it before it answers.
    """
    for _ in range(20_000):
        found = len(guest.children())
        guest.answers()
        if found == wanted:
            return
    assert len(guest.children()) == wanted


@pytest.mark.parametrize("status", [0, 1, 3, 124, 125, 126, 127, 137, 255])
def test_exit_code(guest: Running, status: int) -> None:
    event, _ = guest.shell(f"exit {status}")
    assert code(event) == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE])
def test_signal(guest: Running, number: signal.Signals) -> None:
    event, _ = guest.shell(f"kill -{number.value} $$")
    assert isinstance(event, Exited)
    assert (event.code, event.signal) == (None, number)


def test_usage_is_that_of_the_command(guest: Running) -> None:
    idle, _ = guest.run(b"/bin/true")
    busy, _ = guest.shell("for ((i = 0; i < 200000; i++)); do :; done")
    assert isinstance(idle, Exited)
    assert isinstance(busy, Exited)
    assert busy.utime_us + busy.stime_us > idle.utime_us + idle.stime_us + 50_000
    assert idle.maxrss_kb > 0


def test_arguments_environment_and_cwd_arrive_exactly(guest: Running, tmp_path: Path) -> None:
    script = b'printf "%s|" "$0" "$@"; printf "\\0"; env -0; pwd'
    awkward = (b"", b"a b\n", b"\xff\xfe", b"'\"$x", b"-n")
    argv = (b"zero", b"-c", script, b"name", *awkward)
    env = ((b"PATH", b"/usr/bin"), (b"EMPTY", b""), (b"EQ", b"a=b"), (b"BYTES", b"\xff\n"))
    cwd = os.fsencode(tmp_path)
    event, output = guest.run(*argv, paths=(b"/bin/sh",), env=env, cwd=cwd)
    assert code(event) == 0
    words, *variables, where = output.split(b"\0")
    assert words == b"name|" + b"|".join(awkward) + b"|"
    assert set(variables) - {b"PWD=" + cwd} == {b"%b=%b" % pair for pair in env}
    assert where == cwd + b"\n"


def test_stdio_is_what_was_sent(guest: Running) -> None:
    with open(os.memfd_create("in"), "w+b") as given, open(os.memfd_create("out"), "w+b") as out:
        err = os.memfd_create("err")
        given.write(b"from stdin")
        given.seek(0)
        spare = guest.spare()
        spare.start(
            paths=(b"/bin/sh",),
            argv=(b"sh", b"-c", b"cat; echo problem >&2"),
            env=(),
            cwd=b"/",
            fds=(given.fileno(), out.fileno(), err),
        )
        assert code(spare.receive(LONG_S)) == 0
        assert os.pread(out.fileno(), 100, 0) == b"from stdin"
        assert os.pread(err, 100, 0) == b"problem\n"
        spare.close()
        os.close(err)


def test_first_executable_path_is_taken(guest: Running, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not executable")
    missing = (b"/no/such", b"/etc/passwd/x", os.fsencode(plain))
    event, output = guest.run(
        b"sh", b"-c", b"echo ran", paths=(*missing, b"/bin/sh", b"/bin/false")
    )
    assert (code(event), output) == (0, b"ran\n")


@pytest.mark.parametrize(
    ("paths", "number"),
    [
        ((b"/no/such",), errno.ENOENT),
        ((b"/etc/passwd/x",), errno.ENOENT),
        ((b"/etc/passwd", b"/no/such"), errno.EACCES),
        ((b"/no/such", b"/etc"), errno.EACCES),
    ],
)
def test_no_executable_path(guest: Running, paths: tuple[bytes, ...], number: int) -> None:
    with open("/dev/null", "r+b") as null:
        spare = guest.begin((b"x",), paths=paths, out=null.fileno())
    assert spare.receive(LONG_S) == ExecFailed(number, Where.EXEC)
    assert code(spare.receive(LONG_S)) == 127


def test_cwd_must_exist_and_be_inside(guest: Running, tmp_path: Path) -> None:
    event, _ = guest.run(b"/bin/true", cwd=os.fsencode(tmp_path / "absent"))
    assert event == ExecFailed(errno.ENOENT, Where.CWD)
    event, _ = guest.run(b"/bin/true", cwd=b"/etc/passwd")
    assert event == ExecFailed(errno.ENOTDIR, Where.CWD)


def test_cwd_through_a_leaked_directory_is_refused(guest: Running, tmp_path: Path) -> None:
    """CVE-2024-21626: stdin is a directory of a mount that the sandbox doesn't have."""
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
    try:
        (tmp_path / "inside").mkdir()
        leak = os.open(tmp_path / "inside", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    spare = guest.spare()
    spare.start(
        paths=(b"/bin/true",), argv=(b"x",), env=(), cwd=b"/proc/self/fd/0", fds=(leak,) * 3
    )
    os.close(leak)
    assert spare.receive(LONG_S) == ExecFailed(errno.ENOENT, Where.CWD)


@pytest.mark.parametrize("size", [60_000, 65_536, 131_071])
def test_b22_long_argument_and_variable_arrive(guest: Running, size: int) -> None:
    text = b"echo ${#1} $(printenv V | wc -c)"
    variable = b"v" * (size - 2)  # "V=" counts
    event, output = guest.run(
        b"/bin/sh", b"-c", text, b"sh", b"a" * size, env=((b"PATH", b"/usr/bin:/bin"),)
    )
    assert (code(event), output) == (0, b"%d 0\n" % size)
    event, output = guest.run(b"/usr/bin/printenv", b"V", env=((b"V", variable),))
    assert (code(event), len(output)) == (0, size - 1)


@pytest.mark.parametrize("size", [131_072, 200_000, 3 * 1024 * 1024])
def test_b22_too_long_is_refused_before_start(guest: Running, size: int) -> None:
    for argv, env in (((b"/bin/true", b"a" * size), ()), ((b"/bin/true",), ((b"V", b"a" * size),))):
        with pytest.raises(Failure) as raised:
            guest.run(*argv, env=env)
        assert raised.value.fault.code is Code.ARGUMENT_TOO_LARGE


def test_many_arguments_go_by_memory_file(guest: Running) -> None:
    many = tuple(b"%d" % i for i in range(50_000))
    event, output = guest.run(b"/bin/sh", b"-c", b"echo $# ${50000}", b"sh", *many)
    assert (code(event), output) == (0, b"50000 49999\n")


def test_more_than_the_kernel_takes_is_an_exec_failure(guest: Running) -> None:
    event, _ = guest.run(b"/bin/true", *(b"a" * 100_000,) * 30)
    assert event == ExecFailed(errno.E2BIG, Where.EXEC)


def test_b10_masks_and_ignored_signals_are_empty(start: Start) -> None:
    before = ("env", "--ignore-signal=CHLD,HUP,INT,PIPE,QUIT", "--block-signal=USR1,TERM,CHLD")
    guest = start(before=before)
    event, output = guest.run(b"/bin/cat", b"/proc/self/status")
    assert code(event) == 0
    lines = dict(line.split(":\t", 1) for line in output.decode().splitlines() if ":\t" in line)
    for mask in ("SigIgn", "SigBlk", "SigPnd", "ShdPnd", "SigCgt"):
        assert int(lines[mask], 16) == 0, mask
    event, output = guest.shell("yes | head -n1; echo ${PIPESTATUS[0]}")
    assert (code(event), output) == (0, b"y\n141\n")


def test_command_leads_a_session_of_its_own_with_a_plain_umask(guest: Running) -> None:
    event, output = guest.run(b"/bin/sh", b"-c", b"umask; cat /proc/$$/stat")
    umask, stat = output.decode().split("\n")[:2]
    pid, _, _, parent, group, session, terminal = stat.split()[:7]
    assert code(event) == 0
    assert (umask, parent, terminal) == ("0022", "1", "0")
    assert pid == group == session


def test_descriptors_of_guest_spare_and_command(guest: Running) -> None:
    others = [guest.spare() for _ in range(3)]
    _, output = guest.run(b"/bin/sh", b"-c", b"ls -l /proc/self/fd; ls /proc/$$/fd")
    listed = output.decode()
    assert listed.endswith("\n0\n1\n2\n")
    assert "socket:" not in listed
    for spare in others:
        fds = Path(f"/proc/{spare.pid}/fd")
        assert {p.name for p in fds.iterdir()} == {"0", "1", "2", "3"}
        assert os.readlink(fds / "3").startswith("socket:")
    assert _descriptors(guest) == sorted(
        ["/dev/null"] * 3 + ["anon_inode:[signalfd]"] + ["socket:"] * (1 + len(others))
    )


def _descriptors(guest: Running) -> list[str]:
    """What the guest has open. Its log isn't: the launcher's file must not stay open."""
    links = [os.readlink(p) for p in Path(f"/proc/{guest.link.pid}/fd").iterdir()]
    return sorted("socket:" if link.startswith("socket:") else link for link in links)


def test_b28_orphans_leave_no_zombie(guest: Running) -> None:
    event, _ = guest.shell("for i in {1..500}; do (sleep 0.05 &) ; done")
    assert code(event) == 0
    settle(guest, 0)


def test_500_calls_leave_nothing(guest: Running) -> None:
    before = _descriptors(guest)
    for _ in range(500):
        assert code(guest.run(b"/bin/true")[0]) == 0
    settle(guest, 0)
    assert _descriptors(guest) == before


def raw_spare(guest: Running, call_id: int) -> tuple[socket.socket, int]:
    """A spare by hand: our end, after its READY, and its pid."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(LONG_S)
    with theirs:
        wire.send_command(guest.link._sock, wire.PREFORK, call_id, theirs.fileno())
    data, parts, _, _ = ours.recvmsg(48, socket.CMSG_SPACE(12))
    assert struct.unpack_from("=IIQ", data) == (MAGIC, wire.READY, call_id)
    return ours, struct.unpack("=iII", parts[0][2])[0]


def report(sock: socket.socket) -> tuple[int, int, int]:
    """type, value, where of the next one."""
    _, kind, _, value, where, *_ = struct.unpack("=IIQiIQQQ", sock.recv(49))
    return kind, value, where


def test_unused_spare_exits_125_and_never_executes(guest: Running) -> None:
    ours, _ = raw_spare(guest, 7)
    with ours:
        ours.shutdown(socket.SHUT_WR)
        assert report(ours) == (wire.UNUSED, 0, 0)
        assert report(ours) == (wire.EXIT, 125 << 8, 0)
    settle(guest, 0)


def _exec(marker: bytes, **changes: int) -> bytes:
    """An EXEC that would make `marker`, with words of its header changed."""
    block = b"/\0/usr/bin/touch\0touch\0" + marker + b"\0A=b\0"
    words = {"magic": MAGIC, "type": wire.EXEC, "id": 7, "pathc": 1, "argc": 2, "envc": 1}
    words |= {"flags": 0, "length": len(block)} | changes
    return struct.pack("=IIQIIIIQ", *words.values()) + block


GARBAGE: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "short": (lambda m: _exec(m)[:8], 3),
    "header only": (lambda m: _exec(m)[:40], 3),
    "cut": (lambda m: _exec(m)[:-1], 3),
    "cut, agreed length": (lambda m: _exec(m, length=len(_exec(m)) - 41)[:-1], 3),
    "one byte more": (lambda m: _exec(m) + b"\0", 3),
    "magic": (lambda m: _exec(m, magic=1), 3),
    "type": (lambda m: _exec(m, type=wire.PREFORK), 3),
    "another id": (lambda m: _exec(m, id=8), 3),
    "unknown flag": (lambda m: _exec(m, flags=4), 3),
    "memory flag": (lambda m: _exec(m, flags=1), 4),
    "no path": (lambda m: _exec(m, pathc=0), 3),
    "too many arguments": (lambda m: _exec(m, argc=3), 3),
    "huge counts": (lambda m: _exec(m, argc=0xFFFFFFFF, envc=0xFFFFFFFF), 3),
    "no descriptor": (_exec, 0),
    "two descriptors": (_exec, 2),
    "four descriptors": (_exec, 4),
    "nine descriptors": (_exec, 9),
    "cut descriptors": (_exec, 100),
    "longer than the buffer": (lambda m: _exec(m) + bytes(70_000), 3),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_instead_of_a_request_executes_nothing(
    guest: Running, tmp_path: Path, name: str
) -> None:
    marker = tmp_path / "marker"
    make, count = GARBAGE[name]
    ours, _ = raw_spare(guest, 7)
    with ours, open("/dev/null", "r+b") as null:
        fds = array.array("i", [null.fileno()] * count)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if count else []
        ours.sendmsg([make(os.fsencode(marker))], rights)
        assert report(ours) == (wire.EXECFAIL, errno.EBADMSG, Where.REQUEST)
        assert report(ours) == (wire.EXIT, 125 << 8, 0)
    assert not marker.exists()


def test_the_same_request_without_a_fault_executes(guest: Running, tmp_path: Path) -> None:
    """The positive control of the one above."""
    marker = tmp_path / "marker"
    ours, _ = raw_spare(guest, 7)
    with ours, open("/dev/null", "r+b") as null:
        fds = array.array("i", [null.fileno()] * 3)
        ours.sendmsg([_exec(os.fsencode(marker))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        assert report(ours) == (wire.EXIT, 0, 0)
    assert marker.exists()


def test_memory_file_must_be_what_the_header_says(guest: Running, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    whole = _exec(os.fsencode(marker), flags=1)
    reader, writer = os.pipe()
    memory = os.memfd_create("exec")
    os.write(memory, whole[40:-1])  # a byte short
    for call_id, fourth in ((8, memory), (9, reader)):
        ours, _ = raw_spare(guest, call_id)
        with ours, open("/dev/null", "r+b") as null:
            fds = array.array("i", [*[null.fileno()] * 3, fourth])
            header = _exec(os.fsencode(marker), flags=1, id=call_id)[:40]
            ours.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            assert report(ours) == (wire.EXECFAIL, errno.EBADMSG, Where.REQUEST)
    for fd in (reader, writer, memory):
        os.close(fd)
    assert not marker.exists()


def test_garbage_on_the_control_socket_is_refused_and_leaks_nothing(guest: Running) -> None:
    control: socket.socket = guest.link._sock
    before = _descriptors(guest)
    good = struct.pack("=IIQ", MAGIC, wire.PREFORK, 5)
    done = struct.pack("=IIQ", MAGIC, wire.DONE, 5)
    cases = [
        (good[:-1], 1),
        (good + b"\0", 1),
        (good * 9000, 1),
        (struct.pack("=IIQ", 1, wire.PREFORK, 5), 1),
        (struct.pack("=IIQ", MAGIC, 77, 5), 0),
        (good, 0),
        (good, 8),
        (good, 9),
        (good, 100),
        (done, 1),
        (b"\0", 3),
    ]
    control.settimeout(LONG_S)
    with open("/dev/null", "r+b") as null:
        for data, count in cases:
            fds = array.array("i", [null.fileno()] * count)
            control.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if count else [])
            assert report(control) == (wire.ERROR, errno.EBADMSG, 0), (data[:20], count)
    control.settimeout(None)
    guest.answers()
    assert _descriptors(guest) == before
    assert guest.children() == set()
    assert code(guest.run(b"/bin/true")[0]) == 0


def test_full_table_refuses_and_recovers(guest: Running) -> None:
    spares = [guest.spare() for _ in range(512)]
    with pytest.raises(Failure) as raised:
        guest.spare()
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    assert os.strerror(errno.EAGAIN) in raised.value.fault.message
    for spare in spares:
        spare.close()
    settle(guest, 0)
    assert code(guest.run(b"/bin/true")[0]) == 0


def test_end_of_the_control_connection_ends_everything(guest: Running) -> None:
    with open("/dev/null", "r+b") as null:
        running = guest.begin((b"/bin/sh", b"-c", b"(sleep 600 &); sleep 600"), out=null.fileno())
    watched = [os.pidfd_open(pid) for pid in (running.pid, guest.spare().pid, guest.link.pid)]
    guest.link.close()
    assert all(died(pidfd) for pidfd in watched)
    for pidfd in watched:
        os.close(pidfd)
    assert guest.process.wait(LONG_S) == 0
    with pytest.raises(Failure) as raised:
        running.receive(LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_LOST


def test_only_one_peer_without_persist(guest: Running) -> None:
    with pytest.raises(Failure):
        GuestLink.connect(str(guest.path), 0.2)
    guest.answers()


def test_persist_takes_the_next_peer_and_commands_go_on(start: Start) -> None:
    guest = start("--persist")
    source, sink = os.pipe()
    given, giver = os.pipe()
    running = guest.spare()
    script = (b"sh", b"-c", b"read x; echo got $x; exit 7")
    running.start(paths=(b"/bin/sh",), argv=script, env=(), cwd=b"/", fds=(given, sink, sink))
    unused = guest.spare()
    watched = os.pidfd_open(unused.pid)
    guest.link.close()
    unused.close()
    again = GuestLink.connect(str(guest.path), LONG_S)
    assert again.pid == guest.link.pid
    assert died(watched)
    os.write(giver, b"word\n")
    assert code(running.receive(LONG_S)) == 7
    assert os.read(source, 100) == b"got word\n"
    again.prefork(99, LONG_S).close()
    again.close()
    for fd in (source, sink, given, giver, watched):
        os.close(fd)


def test_spare_that_was_killed_refuses_a_command(guest: Running) -> None:
    spare = guest.spare()
    os.kill(spare.pid, signal.SIGKILL)
    settle(guest, 0)
    with pytest.raises(Failure) as raised, open("/dev/null", "r+b") as null:
        spare.start(paths=(b"/bin/true",), argv=(b"x",), env=(), cwd=b"/", fds=(null.fileno(),) * 3)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    with pytest.raises(Failure) as raised:
        spare.receive(LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE


def test_request_that_was_never_read_is_known_to_have_run_nothing(guest: Running) -> None:
    """A spare that another command of the sandbox stops and kills: no doubt is left."""
    spare = guest.spare()
    for pid in (guest.link.pid, spare.pid):  # the guest first: it would let the spare go on
        os.kill(pid, signal.SIGSTOP)
        while state(pid) != "T":
            pass
    with open("/dev/null", "r+b") as null:
        spare.start(paths=(b"/bin/true",), argv=(b"x",), env=(), cwd=b"/", fds=(null.fileno(),) * 3)
    assert spare.receive(0.05) is None
    os.kill(spare.pid, signal.SIGKILL)
    os.kill(guest.link.pid, signal.SIGCONT)
    with pytest.raises(Failure) as raised:
        spare.receive(LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE


def test_spare_that_was_stopped_goes_on(guest: Running) -> None:
    spare = guest.spare()
    os.kill(spare.pid, signal.SIGSTOP)
    with open("/dev/null", "r+b") as null:
        spare.start(paths=(b"/bin/true",), argv=(b"x",), env=(), cwd=b"/", fds=(null.fileno(),) * 3)
    assert code(spare.receive(LONG_S)) == 0


def test_signals_sent_to_a_waiting_spare_do_not_reach_its_command(guest: Running) -> None:
    spare = guest.spare()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN):
        os.kill(spare.pid, number)
    with open("/dev/null", "r+b") as null:
        spare.start(paths=(b"/bin/true",), argv=(b"x",), env=(), cwd=b"/", fds=(null.fileno(),) * 3)
    assert code(spare.receive(LONG_S)) == 0


def test_prefork_runs_nothing(guest: Running) -> None:
    spare = guest.spare()
    assert os.readlink(f"/proc/{spare.pid}/exe") == os.readlink(f"/proc/{guest.link.pid}/exe")
    assert spare.receive(0.05) is None


@pytest.mark.parametrize("arguments", [(), ("3",), ("x",), ("-1",), ("3", "--other"), ("3x",)])
def test_wrong_use_is_refused(programs: Path, arguments: tuple[str, ...]) -> None:
    """Also as anything but pid 1: its end would leave behind what it started."""
    unshare = ("unshare", "--pid", "--fork", "--kill-child") if arguments != ("3",) else ()
    done = subprocess.run([*unshare, programs / "guest", *arguments], capture_output=True)
    assert done.returncode == 2
    assert done.stderr


def test_guest_is_static_and_unreadable(programs: Path) -> None:
    guest = programs / "guest"
    assert guest.stat().st_mode & 0o7777 == 0o711
    headers = subprocess.run(["readelf", "-lW", guest], capture_output=True, text=True, check=True)
    assert "INTERP" not in headers.stdout

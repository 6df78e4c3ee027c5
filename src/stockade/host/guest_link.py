"""The host's side of a sandbox's guest: spares ahead of time, one message per call.

`GuestLink` is the control connection to pid 1 of a sandbox, `Spare` one forked child of it that
waits for its command. `prefork` hands the guest one end of a fresh socket pair; the spare greets on
it, and its credentials, made by the kernel, carry its pid as the host sees it: no word of the
sandbox says which process is meant. The caller places that process in its cgroup and, when a call
comes, `start` sends the command with three descriptors in one message. Everything else that
concerns the call comes back on the same socket, which poll(2) can wait for: EXECFAIL is believed
only from the spare, EXIT only from the guest. Whatever is not exactly such a report is dropped, and
after a bounded number of them the peer counts as gone.

What is known after a failure: until `start` returns, and when a report says that the request was
never read or was refused, nothing ran (`sandbox_unavailable`). A socket that ends after `start`
without a report leaves the call in doubt (`sandbox_lost`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from stockade.host import guest_wire as wire
from stockade.host.guest_wire import Gone, Report, read, wait
from stockade.terms.fault import Code, Failure, failure


class Where(IntEnum):
    """What of a start failed. Nothing of the command ran."""

    REQUEST = 1
    DESCRIPTORS = 2
    CWD = 3
    EXEC = 4


@dataclass(frozen=True, slots=True)
class Exited:
    """The command's process is dead and reaped. Times and memory are those of it and of the
    children it waited for, from wait4(2): others are not in them."""

    code: int | None
    signal: int | None
    utime_us: int
    stime_us: int
    maxrss_kb: int


@dataclass(frozen=True, slots=True)
class ExecFailed:
    """The command was not started: `errno` of chdir(2) (`where` CWD), of the best attempt of
    execve(2) (EXEC: ENOENT, EACCES, E2BIG, ...), or of arranging descriptors."""

    errno: int
    where: Where


_WHERES: Final = frozenset(Where)
# Keeps the place of a held shell's command. What runs if the shell can't be held.
_PLACE: Final = b"exit 125 #"


def _unavailable(message: str) -> Failure:
    return failure(Code.SANDBOX_UNAVAILABLE, message)


class Spare:
    """A process of the sandbox that has run nothing yet and becomes the command of one call: by
    `start`, or by `hold` ahead of time and `release`.

    `pid` is its pid as this process sees it. `fileno` is readable when `receive` has something.
    Owned by one thread at a time.
    """

    def __init__(self, sock: socket.socket, call_id: int, pid: int, guest_pid: int) -> None:
        self.id: Final = call_id
        self.pid: Final = pid
        self._sock = sock
        self._guest_pid = guest_pid
        self._started = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def start(
        self,
        *,
        paths: Sequence[bytes],
        argv: Sequence[bytes],
        env: Sequence[tuple[bytes, bytes]],
        cwd: bytes,
        fds: tuple[int, int, int],
    ) -> None:
        """Make it the first of `paths` that can be executed, with `fds` as 0, 1 and 2.

        One message, never a wait. Raises Failure(sandbox_unavailable, invalid_argument,
        argument_too_large), and then nothing runs; the descriptors stay the caller's.
        """
        block = wire.pack_strings(paths, argv, env, cwd)
        counts = (len(paths), len(argv), len(env))
        try:
            wire.send_exec(self._sock, self.id, counts, block, fds)
        except OSError as error:
            raise _unavailable(f"the spare can't take a command: {error}") from error
        self._started = True

    def hold(
        self,
        *,
        paths: Sequence[bytes],
        argv: Sequence[bytes],
        env: Sequence[tuple[bytes, bytes]],
        cwd: bytes,
        fds: tuple[int, int, int],
        library: bytes,
        timeout_s: float,
    ) -> None:
        """Start a shell ahead of its command: `argv` lacks the last argument, which `release`
        gives. `library` is the path of hold.so inside; sandbox/hold.c says how it waits.

        Raises Failure(sandbox_unavailable) if it does not wait within `timeout_s` seconds (no
        such program, or one that can't be held); then the spare is of no use and has run nothing.
        """
        place = _PLACE.ljust(wire.HOLD_MAX)
        block = wire.pack_strings(paths, (*argv, place), (*env, (b"LD_PRELOAD", library)), cwd)
        counts = (len(paths), len(argv) + 1, len(env) + 1)
        deadline = time.monotonic() + timeout_s
        try:
            wire.send_exec(self._sock, self.id, counts, block, fds, wire.HOLD)
            for _ in range(wire.NOISE_MAX):
                if not wait(deadline, self._sock):
                    break
                report = read(self._sock)
                if report is not None and (report.type, report.sender) == (wire.HELD, self.pid):
                    return
                if report is not None and report.type in (wire.EXECFAIL, wire.EXIT):
                    break
        except (OSError, Gone) as error:
            raise _unavailable(f"the spare can't hold a shell: {error}") from error
        raise _unavailable("the spare does not hold a shell")

    def release(self, argument: bytes) -> None:
        """Give a held shell its last argument, at most `HOLD_MAX` bytes without a NUL.

        One message, never a wait. Raises Failure(sandbox_unavailable), and then nothing runs.
        """
        try:
            wire.send_argument(self._sock, self.id, argument)
        except OSError as error:
            raise _unavailable(f"the held shell can't take a command: {error}") from error
        self._started = True

    def receive(self, timeout_s: float = 0.0) -> Exited | ExecFailed | None:
        """What became of the command; None if nothing did within `timeout_s` seconds.

        ExecFailed is followed by the Exited of the spare. Raises Failure(sandbox_unavailable) if
        nothing ran, Failure(sandbox_lost) if the sandbox ended after `start`.
        """
        deadline = time.monotonic() + timeout_s
        noise = 0
        while noise < wire.NOISE_MAX:
            try:
                report = read(self._sock)
            except Gone as gone:
                raise self._ended(f"the guest is gone: {gone}") from gone
            if report is not None:
                event = self._event(report)
                if event is not None:
                    return event
                noise += 1
            elif timeout_s <= 0 or not wait(deadline, self._sock):
                return None
        raise self._ended("the sandbox sends what is no report")

    def _ended(self, message: str) -> Failure:
        return failure(Code.SANDBOX_LOST if self._started else Code.SANDBOX_UNAVAILABLE, message)

    def _event(self, report: Report) -> Exited | ExecFailed | None:
        if report.id != self.id:
            return None
        if report.type == wire.EXIT and report.sender == self._guest_pid:
            if not self._started or report.where == wire.UNREAD:
                raise _unavailable("the spare died before it took a command")
            return self._exited(report)
        if report.type == wire.EXECFAIL and report.sender == self.pid:
            if report.where == Where.REQUEST:
                raise _unavailable(f"the spare refused the request: {os.strerror(report.value)}")
            if report.value > 0 and report.where in _WHERES:
                return ExecFailed(report.value, Where(report.where))
        return None

    @staticmethod
    def _exited(report: Report) -> Exited | None:
        status = report.value
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if code is None and signal is None:
            return None
        return Exited(code, signal, report.utime_us, report.stime_us, report.maxrss_kb)

    def close(self) -> None:
        """Unused, it ends without having run anything; a started command goes on."""
        self._sock.close()


class GuestLink:
    """The control connection to one guest. Thread-safe; `fileno` is readable when it ended.

    A guest without --persist ends, and its sandbox with it, when this is closed.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid: Final = pid
        self._sock = sock
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, path: str, timeout_s: float) -> Self:
        """Connect to the listening socket at `path`, of any length, and take the greeting.

        Raises Failure(sandbox_unavailable) if it can't be had within `timeout_s` seconds or the
        guest speaks another protocol version.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # SO_PEERCRED would name who made the listener. SO_PASSCRED must be set before the
            # guest can greet.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            sock.settimeout(timeout_s)
            # sun_path has 108 bytes: the directory goes by descriptor.
            directory, name = os.path.split(path)
            fd = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sock.connect(f"/proc/self/fd/{fd}/{name}")
            finally:
                os.close(fd)
            sock.settimeout(None)  # reads are MSG_DONTWAIT; a timeout would wait before each
            return cls.greeted(sock, timeout_s)
        except OSError as error:
            sock.close()
            raise _unavailable(f"can't connect to the guest: {error}") from error
        except Failure:
            sock.close()
            raise

    @classmethod
    def greeted(cls, sock: socket.socket, timeout_s: float) -> Self:
        """Take the greeting on a connection that had SO_PASSCRED before it was made. The socket
        is the link's from then on; on Failure(sandbox_unavailable) it is still the caller's."""
        try:
            report = read(sock) if wait(time.monotonic() + timeout_s, sock) else None
        except Gone as gone:
            raise _unavailable(f"the guest is gone: {gone}") from gone
        if report is None:
            raise _unavailable("the guest does not greet")
        if report.type != wire.HELLO or report.sender == 0 or report.sender == os.getpid():
            raise _unavailable("what greets is no guest")
        if report.where != wire.WIRE_VERSION:
            raise _unavailable(f"the guest speaks version {report.where}, not {wire.WIRE_VERSION}")
        return cls(sock, report.sender)

    def fileno(self) -> int:
        return self._sock.fileno()

    def prefork(self, call_id: int, timeout_s: float) -> Spare:
        """Have a spare made. `call_id` is 64 bits and new to this guest.

        Raises Failure(sandbox_unavailable) if it is not ready within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with self._lock:
                with theirs:
                    wire.send_command(self._sock, wire.PREFORK, call_id, theirs.fileno())
                pid = self._ready(ours, call_id, deadline)
        except OSError as error:
            ours.close()
            raise _unavailable(f"the guest can't make a spare: {error}") from error
        except Gone as gone:
            ours.close()
            raise _unavailable(f"the guest is gone: {gone}") from gone
        except Failure:
            ours.close()
            raise
        return Spare(ours, call_id, pid, self.pid)

    def _ready(self, ours: socket.socket, call_id: int, deadline: float) -> int:
        """The spare's pid, from its own greeting: the guest's words carry the guest's."""
        for _ in range(wire.NOISE_MAX):
            if not wait(deadline, ours, self._sock):
                raise _unavailable("the guest makes no spare in time")
            word = read(self._sock)
            if word is not None and (word.type, word.id) == (wire.ERROR, call_id):
                raise _unavailable(f"the guest can't make a spare: {os.strerror(word.value)}")
            report = read(ours)
            if report is None:
                continue
            strangers = (0, self.pid, os.getpid())
            if (
                report.type == wire.READY
                and report.id == call_id
                and report.sender not in strangers
            ):
                return report.sender
            raise _unavailable("what greets is no spare")
        raise _unavailable("the guest sends what is no report")

    def ping(self, timeout_s: float) -> None:
        """Raises Failure(sandbox_unavailable) unless the guest answers within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        token = time.monotonic_ns()
        try:
            with self._lock:
                wire.send_command(self._sock, wire.PING, token)
                for _ in range(wire.NOISE_MAX):
                    if not wait(deadline, self._sock):
                        raise _unavailable("the guest does not answer")
                    word = read(self._sock)
                    if word is not None and (word.type, word.id) == (wire.PONG, token):
                        return
        except (OSError, Gone) as error:
            raise _unavailable(f"the guest is gone: {error}") from error
        raise _unavailable("the guest sends what is no report")

    def close(self) -> None:
        """Hang up; also ends a `prefork` or `ping` that waits in another thread. Idempotent."""
        with suppress(OSError):  # closed already, or the guest hung up first
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sock.close()

"""One process of a sandbox that waits for its command, and what it and the guest say of it.

All words of a call are on the call's socket, which poll(2) can wait for: EXECFAIL and UNUSED are
believed only from the process itself, EXIT only from the guest, by the credentials that the kernel
makes. Whatever is not exactly such a report is dropped, and after a bounded number of them the peer
counts as gone.

What is known after a failure: until `start` or `release` returns, and when a report says that the
request was never read or was refused, nothing ran (`sandbox_unavailable`). A socket that ends after
that without a report leaves the call in doubt (`sandbox_lost`).

Where the guest keeps this end of the socket for the next daemon, a verdict is looked at and left
unread: whoever comes after a crash finds it.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from stockade.host import guest_wire as wire
from stockade.host.guest_wire import Gone, Report, read, wait
from stockade.terms.fault import Code, Failure, failure


def _unavailable(message: str) -> Failure:
    return failure(Code.SANDBOX_UNAVAILABLE, message)


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
# No error of the kernel is above, and strerror(3) takes no negated -2**31, which a shell may say.
_MAX_ERRNO: Final = 4095
# Keeps the place of a held shell's command. What runs if the shell can't be held.
_PLACE: Final = b"exit 125 #"
_VERDICTS: Final = frozenset((wire.EXIT, wire.EXECFAIL, wire.UNUSED))


class Spare:
    """A process of the sandbox that has run nothing yet and becomes the command of one call: by
    `start`, or by `hold` ahead of time and `release`.

    `pid` is its pid as this process sees it, and `inside` as the sandbox does where another spare
    made it, else 0. `fileno` is readable when `receive` has something.
    Owned by one thread at a time. `kept` says that the guest keeps this end of the socket as well.
    """

    def __init__(
        self,
        sock: socket.socket,
        call_id: int,
        pid: int,
        guest_pid: int,
        *,
        inside: int = 0,
        kept: bool = False,
    ) -> None:
        self.id: Final = call_id
        self.pid: Final = pid
        self.inside: Final = inside
        self._sock = sock
        self._guest_pid = guest_pid
        self._started = False
        # From `release` on it is a program of the image that speaks, which was executed long ago.
        self._released = False
        self._owes_fork = False
        # Forks of it that a limit on processes refused, which the kernel has counted.
        self.forks_refused = 0
        # Before it held its shell, by somebody else: that says nothing of the shell.
        self.killed = False
        self._last = _VERDICTS if kept else frozenset[int]()

    @classmethod
    def taken_over(
        cls, sock: socket.socket, call_id: int, pid: int, guest_pid: int, *, released: bool = False
    ) -> Self:
        """A process that an earlier daemon meant to start. If its request was never sent it ends
        now, and says that it ran nothing. `released` is a held shell that was sent its command."""
        spare = cls(sock, call_id, pid, guest_pid, kept=True)
        spare._released = released
        spare._started = True
        with suppress(OSError):  # the guest has ended already
            sock.shutdown(socket.SHUT_WR)
        return spare

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def given(self) -> bool:
        """Whether its command was sent."""
        return self._started

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
        such program, or one that can't be held, or it was `killed`); then the spare is of no use
        and has run nothing.
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
                    self.killed = self._is_kill(report)
                    break
        except (OSError, Gone) as error:
            self.killed = isinstance(error, ConnectionError | Gone)  # before it took the shell
            raise _unavailable(f"the spare can't hold a shell: {error}") from error
        raise _unavailable("the spare does not hold a shell")

    def _is_kill(self, report: Report) -> bool:
        if (report.type, report.sender) != (wire.EXIT, self._guest_pid):
            return False
        return os.WIFSIGNALED(report.value) and os.WTERMSIG(report.value) == signal.SIGKILL

    def fork(self, call_id: int, fds: tuple[int, int, int], deadline: float) -> int:
        """Have a held shell make another one, which has the call's socket, stdout and stderr that
        are in `fds`. Gives its pid as the sandbox counts.

        Raises Failure(sandbox_unavailable) if it can't, or does not answer until `deadline`
        (monotonic), OSError, Gone."""
        self._owes_fork = True
        wire.send_command(self._sock, wire.FORK, call_id, *fds)
        for _ in range(wire.NOISE_MAX):
            if not wait(deadline, self._sock):
                break
            report = read(self._sock)
            if report is None or report.sender != self.pid:
                if report is not None and report.type == wire.EXIT:
                    break
            elif (report.type, report.id) == (wire.FORKED, call_id):
                self._owes_fork = False
                if report.value > 1:
                    return report.value
                self.forks_refused += report.value == -errno.EAGAIN
                why = os.strerror(min(abs(report.value), _MAX_ERRNO))
                raise _unavailable(f"the held shell can't fork: {why}")
            elif report.type == wire.UNUSED:
                break
        raise _unavailable("the held shell can't be forked")

    def release(self, argument: bytes) -> None:
        """Give a held shell its last argument, at most `HOLD_MAX` bytes without a NUL.

        One message, never a wait. Raises Failure(sandbox_unavailable), and then nothing runs.
        """
        try:
            wire.send_argument(self._sock, self.id, argument)
        except OSError as error:
            raise _unavailable(f"the held shell can't take a command: {error}") from error
        self._started = self._released = True

    def receive(self, timeout_s: float = 0.0) -> Exited | ExecFailed | None:
        """What became of the command; None if nothing did within `timeout_s` seconds.

        ExecFailed is followed by the Exited of the spare. Raises Failure(sandbox_unavailable) if
        nothing ran, Failure(sandbox_lost) if the sandbox ended after `start`.
        """
        deadline = time.monotonic() + timeout_s
        noise = 0
        while noise < wire.NOISE_MAX:
            try:
                report = read(self._sock, last=self._last)
            except Gone as gone:
                raise self._ended(f"the guest is gone: {gone}") from gone
            if report is not None:
                event = self._event(report)
                if event is not None:
                    return event
                if report.type in self._last:
                    read(self._sock)  # a verdict of somebody who may give none
                noise += 1
            elif timeout_s <= 0 or not wait(deadline, self._sock):
                return None
        raise self._ended("the sandbox sends what is no report")

    def _ended(self, message: str) -> Failure:
        return failure(Code.SANDBOX_LOST if self._started else Code.SANDBOX_UNAVAILABLE, message)

    def _event(self, report: Report) -> Exited | ExecFailed | None:
        if report.type == wire.UNUSED and report.sender == self.pid:
            raise _unavailable("the spare ended without a command")
        if report.id != self.id:
            return None
        if report.type == wire.EXIT and report.sender == self._guest_pid:
            if not self._started or report.where == wire.UNREAD:
                raise _unavailable("the spare died before it took a command")
            return self._exited(report)
        if report.type == wire.EXECFAIL and report.sender == self.pid and not self._released:
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

    def waits(self) -> bool:
        """Whether it still waits for its command, as far as is known here. Not one that has left a
        `fork` unanswered: it is stopped, say."""
        try:
            return not self._owes_fork and self.receive() is None
        except Failure:
            return False

    def close(self) -> None:
        """Unused, it ends without having run anything; a started command goes on."""
        self._sock.close()

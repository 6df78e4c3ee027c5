"""The host's side of a sandbox's guest: spares ahead of time, and taking over after a crash.

`GuestLink` is the control connection to pid 1 of a sandbox. `prefork` hands the guest one end of a
fresh socket pair; the forked child greets on it, and its credentials, made by the kernel, carry its
pid as the host sees it: no word of the sandbox says which process is meant. The caller places that
process in its cgroup, and all that concerns its call goes over that socket (stockade.host.spare).

A guest with --persist keeps the other end of that socket, and what else `prefork` is given, until
`done`. After a crash the next daemon connects and takes these with `kept`.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from stockade.host import guest_wire as wire
from stockade.host.guest_wire import Gone, read, read_call, wait
from stockade.host.reasons import reason
from stockade.host.spare import Spare
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.patience import Patience

# proc_pid_status(5) is under 2 KiB. Read in one piece: of a process that ends there is no second one.
_STATUS_BYTES: Final = 8192


def _unavailable(message: str) -> Failure:
    return failure(Code.SANDBOX_UNAVAILABLE, message)


@dataclass(frozen=True, slots=True)
class Kept:
    """What the guest kept of one call for the next daemon: the host's end of its socket, and the
    other descriptors of its `prefork`. The receiver's from now on."""

    id: int
    sock: socket.socket
    fds: tuple[int, ...]

    def close(self) -> None:
        self.sock.close()
        for fd in self.fds:
            os.close(fd)


class GuestLink:
    """The control connection to one guest. Thread-safe; `fileno` is readable when it ended.

    A guest without --persist ends, and its sandbox with it, when this is closed.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid: Final = pid
        self._sock = sock
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, path: str, timeout_s: float, patience: Patience | None = None) -> Self:
        """Connect to the listening socket at `path`, of any length, and take the greeting.

        Raises Failure(sandbox_unavailable) if it can't be had within `timeout_s` seconds or the
        guest speaks another protocol version, and what `patience` ends with when it is cancelled.
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
            return cls.greeted(sock, timeout_s, patience)
        except OSError as error:
            sock.close()
            raise _unavailable(f"can't connect to the guest: {reason(error)}") from error
        except Failure:
            sock.close()
            raise

    @classmethod
    def greeted(
        cls, sock: socket.socket, timeout_s: float, patience: Patience | None = None
    ) -> Self:
        """Take the greeting on a connection that had SO_PASSCRED before it was made. The socket
        is the link's from then on; on a Failure it is still the caller's."""
        awaited = (sock,) if patience is None else (sock, patience.cancel)
        try:
            report = read(sock) if wait(time.monotonic() + timeout_s, *awaited) else None
        except Gone as gone:
            raise _unavailable(f"the guest is gone: {gone}") from gone
        if report is None:
            if patience is not None and patience.cancel.reason() is not None:
                raise patience.over("the guest greeted")
            raise _unavailable("the guest does not greet")
        if report.type != wire.HELLO or report.sender == 0 or report.sender == os.getpid():
            raise _unavailable("what greets is no guest")
        if report.where != wire.WIRE_VERSION:
            raise _unavailable(f"the guest speaks version {report.where}, not {wire.WIRE_VERSION}")
        return cls(sock, report.sender)

    def fileno(self) -> int:
        return self._sock.fileno()

    def prefork(self, call_id: int, timeout_s: float, keep: Sequence[int] = ()) -> Spare:
        """Have a spare made. `call_id` is 64 bits and new to this guest. With descriptors to
        `keep`, at most `KEEP_MAX` - 1, the guest keeps them and this end of the call's socket
        until `done`; the caller's stay its own.

        Raises Failure(sandbox_unavailable) if it is not ready within `timeout_s` seconds.
        """

        return self._made(call_id, timeout_s, keep, None)

    def fork(
        self,
        shell: Spare,
        writes: tuple[int, int],
        call_id: int,
        timeout_s: float,
        keep: Sequence[int] = (),
    ) -> Spare:
        """As `prefork`, by a held shell: what is made is held as well, in that one's v1 cgroups,
        with `writes` as stdout and stderr. Raises also where `shell` may make no more processes:
        then that one still waits."""

        def fork(theirs: int, deadline: float) -> int:
            return shell.fork(call_id, (theirs, *writes), deadline)

        return self._made(call_id, timeout_s, keep, fork)

    def _made(
        self,
        call_id: int,
        timeout_s: float,
        keep: Sequence[int],
        fork: Callable[[int, float], int] | None,
    ) -> Spare:
        """By the guest, or by `fork`, which is given the other end of the call's socket and gives
        a pid as the sandbox counts. That waits for a process that commands can stop, hence without
        the lock."""
        deadline = time.monotonic() + timeout_s
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            kept = (ours.fileno(), *keep) if keep else ()
            with theirs:
                inside = 0 if fork is None else fork(theirs.fileno(), deadline)
                kind = wire.ADOPT if inside else wire.PREFORK
                with self._lock:
                    wire.send_command(self._sock, kind, call_id, theirs.fileno(), *kept, pid=inside)
                    theirs.close()
                    pid = self._ready(ours, call_id, deadline, adopted=not inside)
        except (OSError, Gone, Failure) as error:
            ours.close()
            if keep:  # it may be there all the same, or have ended before it greeted
                self.done(call_id)
            if isinstance(error, Failure):
                raise
            why = "the guest is gone" if isinstance(error, Gone) else "the guest can't make a spare"
            raise _unavailable(f"{why}: {error}") from error
        return Spare(ours, call_id, pid, self.pid, inside=inside, kept=bool(keep))

    def process(self, spare: Spare) -> int:
        """A pidfd of it, the caller's to close. A greeting is as old as what was waited for since,
        which a command can put off by stopping a shell that forks: who greeted may have been killed,
        and its number be another process's, of anybody. The guest's child has it that the guest has
        not reaped. Raises Failure(sandbox_unavailable), OSError."""
        process = os.pidfd_open(spare.pid)
        if _is_child(spare.pid, spare.inside, self.pid):
            return process
        os.close(process)
        raise _unavailable("what greeted is gone")

    def done(self, call_id: int) -> None:
        """The guest need not keep anything of this call: nobody will ask for it. Never waits. Not
        to a guest that is gone, or so busy that its socket is full: then the next daemon says it
        again, since it does not know the call."""
        with suppress(OSError):
            wire.send_command(self._sock, wire.DONE, call_id)

    def kept(self, timeout_s: float) -> list[Kept]:
        """What the guest keeps, before the first `prefork` of this link. It goes on keeping it.

        Raises Failure(sandbox_unavailable) if not all of it came within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        found: list[Kept] = []
        number = 0
        try:
            while True:
                wire.send_command(self._sock, wire.TAKE, number)
                if not wait(deadline, self._sock):
                    raise _unavailable("the guest does not hand over its calls")
                report, fds = read_call(self._sock)
                if report.type == wire.CALL and not fds:
                    return found
                found.append(_kept(report.id, fds))
                known = any(each.id == report.id for each in found[:-1])
                if report.type != wire.CALL or not number <= report.where < wire.CALLS_MAX or known:
                    raise _unavailable("the guest sends what is no call")
                number = report.where + 1
        except (OSError, Gone) as error:
            for kept in found:
                kept.close()
            raise _unavailable(f"the guest is gone: {error}") from error
        except Failure:
            for kept in found:
                kept.close()
            raise

    def _ready(self, ours: socket.socket, call_id: int, deadline: float, *, adopted: bool) -> int:
        """The spare's pid, from its own greeting: the guest's words carry the guest's. One that
        the guest did not make has to be `adopted` as well."""
        strangers = (0, self.pid, os.getpid())
        pid = 0
        for _ in range(wire.NOISE_MAX):
            if not wait(deadline, ours, self._sock):
                raise _unavailable("the guest makes no spare in time")
            word = read(self._sock)
            if word is not None and (word.type, word.id) == (wire.ERROR, call_id):
                raise _unavailable(f"the guest can't make a spare: {os.strerror(word.value)}")
            report = read(ours)
            if report is None:
                continue
            kind = report.type if report.id == call_id else None
            if kind == wire.READY and not pid and report.sender not in strangers:
                pid = report.sender
            elif kind == wire.ADOPTED and not adopted and report.sender == self.pid:
                adopted = True
            else:
                raise _unavailable("what greets is no spare")
            if pid and adopted:
                return pid
        raise _unavailable("the guest sends what is no report")

    def close(self) -> None:
        """Hang up; also ends a `prefork` that waits in another thread. Idempotent."""
        with suppress(OSError):  # closed already, or the guest hung up first
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sock.close()


def _is_child(pid: int, inside: int, guest: int) -> bool:
    """Whether `pid` is a child of the guest, and the one that is `inside` there unless that is 0."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            status = file.read(_STATUS_BYTES)
    except OSError:
        return False
    if b"\nPPid:\t%d\n" % guest not in status:
        return False
    # The name comes before these, and the kernel escapes a line's end in it.
    numbers = status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return not inside or numbers[-1:] == [b"%d" % inside]


def _kept(call_id: int, fds: list[int]) -> Kept:
    """Raises Failure(sandbox_unavailable)."""
    try:
        kinds = [stat.S_IFMT(os.fstat(fd).st_mode) for fd in fds]
        if kinds[:1] != [stat.S_IFSOCK]:
            raise _unavailable("the guest hands over what is no call")
        return Kept(call_id, socket.socket(fileno=fds[0]), tuple(fds[1:]))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise

"""The messages between host and guest, as bytes; sandbox/wire.h describes them.

Both ends run on one kernel, so integers are native. Reading is strict: a report has exactly its
size, its magic, and the credentials that the kernel made; whatever else comes is dropped, and after
a bounded number of such messages the peer counts as gone. Descriptors are accepted in one place
only, in the guest's answer to TAKE.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from collections.abc import Sequence, Set
from mmap import PAGESIZE
from typing import Final, NamedTuple, Protocol

from stockade.terms.fault import Code, failure

WIRE_VERSION: Final = 4
INLINE_MAX: Final = 64 * 1024  # bytes of strings in the message itself; more go into a memfd
BLOCK_MAX: Final = 3 * 1024 * 1024
HOLD_MAX: Final = 8 * 1024  # bytes of the argument that a held shell is given later
STRING_MAX: Final = 32 * PAGESIZE - 1  # MAX_ARG_STRLEN of execve(2), without its NUL
PATHS_MAX: Final = 64
KEEP_MAX: Final = 6  # descriptors of a PREFORK beside the call's socket
STRINGS_MAX: Final = 65_536  # of arguments and of variables, each
CALLS_MAX: Final = 512  # entries of a guest's table
NOISE_MAX: Final = 16  # messages in a row that are no report, or not ours

HELLO, PREFORK, READY, EXEC, EXIT, EXECFAIL, ERROR = range(1, 8)
HELD, ARGUMENT, DONE, TAKE, CALL, UNUSED, FORK, FORKED, ADOPT, ADOPTED = range(10, 20)
UNREAD: Final = 1  # `where` of EXIT: the spare never read its request
IN_MEMFD, HOLD = 1, 2  # `flags` of EXEC

_MAGIC: Final = 0x53544B44
_COMMAND: Final = struct.Struct("=IIQiI")
_EXEC: Final = struct.Struct("=IIQIIIIQ")
_REPORT: Final = struct.Struct("=IIQiIQQQ")
_UCRED: Final = struct.Struct("=iII")
# Room for credentials and for nothing else: descriptors that somebody sends are never installed.
_CONTROL_SPACE: Final = socket.CMSG_SPACE(_UCRED.size)
# Numbers, not members: an operation on members is Python code, several microseconds of each message.
_SEND: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE: Final = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_LOOK: Final = int(_RECEIVE | socket.MSG_PEEK)
_CUT: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_WORDS: Final = (int(socket.SOL_SOCKET), int(socket.SCM_CREDENTIALS))


class Report(NamedTuple):
    """`sender` is the pid from the kernel's credentials, 0 if it has none on the host."""

    type: int
    id: int
    value: int
    where: int
    utime_us: int
    stime_us: int
    maxrss_kb: int
    sender: int


class Gone(Exception):
    """The peer closed, or talks nonsense. Never leaves the guest's modules."""


def _parse(data: bytes, parts: list[tuple[int, int, bytes]], flags: int) -> Report | None:
    if len(data) != _REPORT.size or flags & _CUT:
        return None
    if len(parts) != 1 or parts[0][:2] != _WORDS:
        return None
    magic, kind, ident, value, where, utime_us, stime_us, maxrss_kb = _REPORT.unpack(data)
    if magic != _MAGIC:
        return None
    sender = _UCRED.unpack(parts[0][2])[0]
    return Report(kind, ident, value, where, utime_us, stime_us, maxrss_kb, sender)


def read(sock: socket.socket, *, last: Set[int] = frozenset()) -> Report | None:
    """The next report, None when none is waiting. One of the types in `last` stays unread, for
    whoever takes this over; everything before it is taken. Raises Gone."""
    for _ in range(NOISE_MAX):
        try:
            if last:
                data, parts, flags, _address = sock.recvmsg(_REPORT.size + 1, _CONTROL_SPACE, _LOOK)
                report = _parse(data, parts, flags)
                if report is not None and report.type in last:
                    return report
            data, parts, flags, _address = sock.recvmsg(_REPORT.size + 1, _CONTROL_SPACE, _RECEIVE)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The peer went with something of ours unread. The error is reported once, ahead of
            # what the peer had said: read on.
            continue
        except OSError as error:
            raise Gone(str(error)) from error
        if not data:
            raise Gone("the connection ended")
        report = _parse(data, parts, flags)
        if report is not None:
            return report
    raise Gone("the peer sends what is no report")


def read_call(sock: socket.socket) -> tuple[Report, list[int]]:
    """A report that is waiting, and the descriptors that came with it. Raises Gone."""
    space = _CONTROL_SPACE + socket.CMSG_SPACE(array.array("i").itemsize * KEEP_MAX)
    fds = array.array("i")
    try:
        data, parts, flags, _address = sock.recvmsg(_REPORT.size + 1, space, _RECEIVE)
    except OSError as error:
        raise Gone(str(error)) from error
    for level, kind, content in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    words = [part for part in parts if part[1] != socket.SCM_RIGHTS]
    report = _parse(data, words, flags)
    if report is None:
        for fd in fds:
            os.close(fd)
        raise Gone("the peer sends what is no report")
    return report, list(fds)


class Waitable(Protocol):
    """A socket, or a cancellation."""

    def fileno(self) -> int: ...


def wait(deadline: float, *socks: Waitable) -> bool:
    """True when one of them is readable or ended, False when `deadline` (monotonic) has passed."""
    poller = select.poll()
    for sock in socks:
        poller.register(sock, select.POLLIN)
    left_ms = max(0.0, deadline - time.monotonic()) * 1000
    return bool(poller.poll(left_ms))


def pack_strings(
    paths: Sequence[bytes],
    argv: Sequence[bytes],
    env: Sequence[tuple[bytes, bytes]],
    cwd: bytes,
) -> bytes:
    """The string block. Raises Failure(invalid_argument, argument_too_large)."""
    if not 1 <= len(paths) <= PATHS_MAX or not all(paths) or not argv or cwd[:1] != b"/":
        raise failure(Code.INVALID_ARGUMENT, "a command needs an absolute cwd, a path and argv[0]")
    if any(not name or b"=" in name for name, _ in env):
        raise failure(Code.INVALID_ARGUMENT, "a variable's name is empty or holds '='")
    strings = [cwd, *paths, *argv, *(b"%b=%b" % pair for pair in env)]
    block = b"\0".join((*strings, b""))
    if block.count(0) != len(strings):
        raise failure(Code.INVALID_ARGUMENT, "an argument or a variable holds a NUL byte")
    if len(block) > STRING_MAX:
        longest = max(map(len, strings))
        if longest > STRING_MAX:
            raise failure(
                Code.ARGUMENT_TOO_LARGE,
                f"one argument or variable may have {STRING_MAX} bytes",
                bytes=longest,
                limit_bytes=STRING_MAX,
            )
    if len(block) > BLOCK_MAX or len(argv) > STRINGS_MAX or len(env) > STRINGS_MAX:
        raise failure(
            Code.ARGUMENT_TOO_LARGE,
            f"arguments and variables together may have {BLOCK_MAX} bytes",
            bytes=len(block),
            limit_bytes=BLOCK_MAX,
        )
    return block


def send_command(sock: socket.socket, kind: int, ident: int, *fds: int, pid: int = 0) -> None:
    """PREFORK, ADOPT (of `pid`) or FORK with their descriptors, DONE or TAKE. Raises OSError;
    never waits."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg((_COMMAND.pack(_MAGIC, kind, ident, pid, 0),), rights, _SEND)


def send_exec(
    sock: socket.socket,
    ident: int,
    counts: tuple[int, int, int],
    block: bytes,
    fds: Sequence[int],
    flags: int = 0,
) -> None:
    """EXEC with `counts` of paths, arguments and variables. Raises OSError; never waits."""
    if len(block) > INLINE_MAX:
        with open(os.memfd_create("exec", os.MFD_CLOEXEC), "wb", buffering=0) as memory:
            memory.write(block)
            words = (ident, *counts, flags | IN_MEMFD, len(block))
            _send_exec(sock, words, b"", (*fds, memory.fileno()))
    else:
        _send_exec(sock, (ident, *counts, flags, len(block)), block, fds)


def send_argument(sock: socket.socket, ident: int, text: bytes) -> None:
    """ARGUMENT. Raises OSError; never waits."""
    sock.sendmsg((_COMMAND.pack(_MAGIC, ARGUMENT, ident, 0, 0), text), (), _SEND)


def _send_exec(
    sock: socket.socket, words: tuple[int, ...], block: bytes, fds: Sequence[int]
) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    sock.sendmsg((_EXEC.pack(_MAGIC, EXEC, *words), block), rights, _SEND)

"""Shells that are started before their command is known, and the pipes of a command.

Half of the time of a short command is its shell: exec, dynamic loader, libraries (0.55 of 1.05 ms
measured, and up to 1 ms of 1.8 when the processor was idle before). A spare can do that ahead of its
call, because all that differs between the shells of a sandbox is the last argument: hold.so, which
is preloaded, waits for it before the shell's main() begins (sandbox/hold.c). Nothing of a command
runs before its call. That a held shell has died unused is believed until it was sent its command
(attempts.py).

Which shell to hold is learned from the last call of the sandbox (`ExecOperation.late`). Where it can't
be held (a static shell, another C library) the sandbox goes on with plain spares.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from stockade.engines.oci.toolbox import INSIDE
from stockade.host.guest_wire import HOLD_MAX
from stockade.host.spare import Spare
from stockade.host.spool import Spool
from stockade.terms.call import ExecOperation

LIBRARY: Final = f"{INSIDE}/hold.so".encode()
_LOADER_PREFIX: Final = b"LD_"


@dataclass(frozen=True, slots=True)
class Template:
    """A command but for its last argument. `making` tells shells from those before them that are
    no longer to be used (Spares.distrust)."""

    paths: tuple[bytes, ...]
    argv: tuple[bytes, ...]
    env: tuple[tuple[bytes, bytes], ...]
    cwd: bytes
    making: int = 0


class Streams:
    """The pipes of one command's stdout and stderr. `reads` are the host's ends, which `take`
    hands over; `writes` the command's, to be closed as soon as it has them. `spools`, where there
    are any, are those of the two streams."""

    def __init__(self, owner: int, *, spooled: bool) -> None:
        """`owner` is the host id, of user and group, of the user inside. Raises OSError."""
        self.reads: tuple[int, ...] = ()
        self.writes: tuple[int, ...] = ()
        self.spools: tuple[Spool, ...] = ()
        try:
            for _ in range(2):
                read, write = os.pipe2(os.O_CLOEXEC)
                self.reads, self.writes = (*self.reads, read), (*self.writes, write)
                # /dev/stdout and /dev/stderr open the pipe anew, by its owner and mode 0600.
                os.fchown(write, owner, owner)
                if spooled:
                    self.spools = (*self.spools, Spool.make())
        except BaseException:
            self.close()
            raise

    @property
    def kept(self) -> tuple[int, ...]:
        """What the guest is to keep; nothing for streams that end with this process."""
        return (*self.reads, *(spool.fd for spool in self.spools)) if self.spools else ()

    @classmethod
    def found(cls, fds: Sequence[int]) -> Self:
        """Those of an earlier process, from what the guest kept; on an exception the descriptors
        stay the caller's. Raises ValueError, OSError."""
        kinds = [stat.S_IFMT(os.fstat(fd).st_mode) for fd in fds]
        if kinds != [stat.S_IFIFO, stat.S_IFIFO, stat.S_IFREG, stat.S_IFREG]:
            raise ValueError("these are no streams")
        streams = cls.__new__(cls)
        streams.reads, streams.writes = (fds[0], fds[1]), ()
        streams.spools = (Spool.found(fds[2]), Spool.found(fds[3]))
        return streams

    def take(self) -> tuple[int, int]:
        """The read ends; the caller's from now on."""
        out, err = self.reads
        self.reads = ()
        return out, err

    def close_writes(self) -> None:
        writes, self.writes = self.writes, ()
        for fd in writes:
            os.close(fd)

    def close(self) -> None:
        """Idempotent."""
        self.close_writes()
        reads, self.reads = self.reads, ()
        spools, self.spools = self.spools, ()
        for fd in (*reads, *(spool.fd for spool in spools)):
            os.close(fd)


def template_of(
    operation: ExecOperation, env: tuple[tuple[bytes, bytes], ...], *, own_stdin: bool
) -> Template | None:
    """The shell that could have been started ahead for this command, or None: one with a stdin of
    its own, a longer argument, or an environment that speaks to the loader is started when its
    call comes."""
    if not operation.late or own_stdin or len(operation.argv[-1]) > HOLD_MAX:
        return None
    if any(name.startswith(_LOADER_PREFIX) for name, _ in env):
        return None
    return Template(operation.paths, operation.argv[:-1], env, operation.cwd)


def hold(
    spare: Spare, template: Template, streams: Streams, *, stdin: int, timeout_s: float
) -> None:
    """Make `spare` a held shell, with the writing ends of `streams`. Raises
    Failure(sandbox_unavailable), OSError; then the spare has run nothing and is of no use."""
    out, err = streams.writes
    spare.hold(
        paths=template.paths,
        argv=template.argv,
        env=template.env,
        cwd=template.cwd,
        fds=(stdin, out, err),
        library=LIBRARY,
        timeout_s=timeout_s,
    )
    streams.close_writes()

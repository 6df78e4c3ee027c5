"""Shells that are started before their command is known, and the pipes of a command.

Half of the time of a short command is its shell: exec, dynamic loader, libraries (0.55 of 1.05 ms
measured, and up to 1 ms of 1.8 when the processor was idle before). A spare can do that ahead of its
call, because all that differs between the shells of a sandbox is the last argument: hold.so, which
is preloaded, waits for it before the shell's main() begins (sandbox/hold.c). What is held also has
its pipes already. Nothing of a command runs before its call, and a held shell that dies unused is
evidence for that as any spare is.

Which shell to hold is learned from the calls of the sandbox (`ExecOperation.late`). Where it can't
be held (a static shell, another C library) the sandbox goes on with plain spares.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from stockade.engines.oci.toolbox import INSIDE
from stockade.host.guest_link import Spare
from stockade.host.guest_wire import HOLD_MAX
from stockade.terms.call import ExecOperation

LIBRARY: Final = f"{INSIDE}/hold.so".encode()
_LOADER_PREFIX: Final = b"LD_"


@dataclass(frozen=True, slots=True)
class Template:
    """A command but for its last argument."""

    paths: tuple[bytes, ...]
    argv: tuple[bytes, ...]
    env: tuple[tuple[bytes, bytes], ...]
    cwd: bytes


class Streams:
    """The pipes of one command's stdout and stderr. `reads` are the host's ends, which `take`
    hands over; `writes` the command's, to be closed as soon as it has them."""

    def __init__(self, owner: int) -> None:
        """`owner` is the host id, of user and group, of the user inside. Raises OSError."""
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        self.reads: tuple[int, ...] = (out_read,)
        self.writes: tuple[int, ...] = (out_write,)
        try:
            err_read, err_write = os.pipe2(os.O_CLOEXEC)
            self.reads, self.writes = (out_read, err_read), (out_write, err_write)
            for end in self.writes:
                # /dev/stdout and /dev/stderr open the pipe anew, by its owner and mode 0600.
                os.fchown(end, owner, owner)
        except BaseException:
            self.close()
            raise

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
        for fd in reads:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Held:
    """What a held shell is, and its pipes."""

    template: Template
    streams: Streams


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


def hold(spare: Spare, template: Template, *, owner: int, stdin: int, timeout_s: float) -> Held:
    """Make `spare` a held shell. Raises Failure(sandbox_unavailable), OSError; then the spare has
    run nothing and is of no use."""
    streams = Streams(owner)
    out, err = streams.writes
    try:
        spare.hold(
            paths=template.paths,
            argv=template.argv,
            env=template.env,
            cwd=template.cwd,
            fds=(stdin, out, err),
            library=LIBRARY,
            timeout_s=timeout_s,
        )
    except BaseException:
        streams.close()
        raise
    streams.close_writes()
    return Held(template, streams)

"""A program as a sealed copy in memory, which nothing can change from then on.

A container's init runs the runtime's own program until it executes the guest, and could reach it
through /proc/self/exe (CVE-2019-5736). So the runtime copies itself and executes the copy, for each
container: one more exec and one more dynamic linking, 3 ms. It does not where it runs from a fully
sealed memfd. Made once it also stays what was looked at, whatever is installed meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

_ELF: Final = b"\x7fELF"
# Exactly these: the runtime compares them all.
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MFD_EXEC: Final = 0x10  # Linux 6.3; where vm.memfd_noexec is 1 it has to be said


def sealed_copy(path: str, lowest: int) -> int | None:
    """A descriptor of the copy, not below `lowest`. None for a program that has to be run by its
    path: a script, or any where the host forbids them in memory (vm.memfd_noexec is 2).
    Raises OSError."""
    with open(path, "rb") as source:
        program = source.read()
    if not program.startswith(_ELF):
        return None
    try:
        memory = _memory(os.path.basename(path))
    except PermissionError:
        return None
    with open(memory, "wb", buffering=0) as copy:
        while program:
            program = program[copy.write(program) :]
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        return fcntl.fcntl(copy, fcntl.F_DUPFD_CLOEXEC, lowest)


def _memory(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)

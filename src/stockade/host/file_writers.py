"""Whether a program has a file open for writing, asked of the kernel.

A name can be given to another file in one step, but a program that opened the old file before that
step writes to it afterwards, and what it writes is lost: a loop of appends beside twenty edits lost
four lines of ten. A read lease (fcntl(2), F_SETLEASE) closes the gap. It is refused while anybody
has the file open for writing, and as long as it is held every such open waits and breaks the lease,
which its holder can see. So an edit takes the lease, puts the new file in place, and looks: if a
writer came meanwhile it waits for the old file, and the edit puts that one back and begins again.

The lease ends with its descriptor. A writer waits for microseconds; readers never do.
"""

from __future__ import annotations

import errno
import fcntl
import signal
import time
from typing import Final

# How long an attempt waits for a writer to close the file; an append takes some 30 us.
PATIENCE_S: Final = 0.02
_PAUSE_S: Final = 0.001
_NO_LEASES: Final = (errno.EINVAL, errno.EOPNOTSUPP)


class Writers:
    """The programs that write, or want to write, to the file of `fd`, which is open for reading
    only and stays the caller's to close. Raises OSError."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._leased = False

    def shut_out(self) -> bool:
        """Take the lease. False when a program still has the file open for writing after
        `PATIENCE_S`. True without a lease where the file system knows none."""
        # The signal of a broken lease, SIGIO, would end the process; SIGURG is ignored by default.
        fcntl.fcntl(self._fd, fcntl.F_SETSIG, signal.SIGURG)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE_S)
            except OSError as error:
                if error.errno not in _NO_LEASES:
                    raise
                return True
            else:
                self._leased = True
                return True

    def waiting(self) -> bool:
        """Whether one has come since, and waits for `fd` to be closed."""
        return self._leased and fcntl.fcntl(self._fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK

"""How the daemon's one interpreter shares a machine.

Only one thread at a time runs Python, and it hands the interpreter on whenever it calls the kernel.
Where the next one waits on another processor, that is a wake-up across processors and a cold cache,
many times in a call: a quarter of the daemon's processor time went into it, and 50 trajectories got
190 to 280 calls a second. On one processor they get 330 to 400. So threads that carry calls out, and
those that make processes for them, stay on one. What they start does not: programs are started by
the thread of the mounts, which is older (host/mounts.py).
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

# A call's thread that comes back from the kernel waits at most so long for the interpreter while
# another one makes spares: with Python's 5 ms calls in a row took a tenth longer.
_SWITCH_S: Final = 0.0001


def switch_quickly() -> None:
    sys.setswitchinterval(_SWITCH_S)


def stay() -> None:
    """Keep this thread, and those it makes, on one processor of those that it may use: the same one
    for all threads of this process, another one for the next process. See sched_setaffinity(2)."""
    allowed = sorted(os.sched_getaffinity(os.getpid()))
    os.sched_setaffinity(0, {allowed[os.getpid() % len(allowed)]})


def settle() -> None:
    """Begin to serve: what is there now stays. Looking through it for garbage stopped all calls for
    25 ms."""
    gc.freeze()
    stay()

"""How the daemon's one interpreter shares a machine.

Only one thread at a time runs Python, and it hands the interpreter on whenever it calls the kernel.
Where the next one waits on another processor, that is a wake-up across processors and a cold cache,
many times in a call: a quarter of the daemon's processor time went into it, and 50 trajectories got
190 to 280 calls a second. On one processor they get 330 to 400. So threads that carry calls out, and
those that make processes for them, stay on one. What they start does not: programs are started by
the thread of the mounts, which is older (host/mounts.py).

After a pause most of a call is waiting for memory that other work has pushed out of the caches, the
tables of where pages are first of all. So what there is when calls begin is put into large pages:
4.9 and not 5.1 ms, 100 ms after the last call, means of four runs in turn.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

# A call's thread that comes back from the kernel waits at most so long for the interpreter while
# another one makes spares: with Python's 5 ms calls in a row took a tenth longer.
_SWITCH_S: Final = 0.0001
# Those of the process, from before any of its threads is bound.
ALLOWED: Final = frozenset(os.sched_getaffinity(0))
_MADV_COLLAPSE: Final = 25
_LARGE: Final = 2 << 20
_LIBC: Final = ctypes.CDLL(None)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def switch_quickly() -> None:
    sys.setswitchinterval(_SWITCH_S)


def stay() -> None:
    """Keep this thread, and those it makes, on the last processor of those that it may use: the
    first one has most of what a kernel does for everybody. See sched_setaffinity(2)."""
    os.sched_setaffinity(0, {max(ALLOWED)})


def settle() -> None:
    """Begin to serve: what is there now stays. Looking through it for garbage stopped all calls for
    25 ms."""
    gc.freeze()
    with suppress(OSError):  # a kernel that shows no pagemap
        _collapse()
    stay()


def _collapse() -> None:
    """Put the heap into large pages where the kernel can (madvise(2): MADV_COLLAPSE, Linux 6.1):
    some 15 of 2 MiB, in as many ms. Where it can't, nothing is different."""
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        # Bytes: names of files need not be text.
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            place, rights, *rest = line.split()
            if rights != b"rw-p" or rest[3:] not in ([], [b"[heap]"]):
                continue
            first, end = (int(address, 16) for address in place.split(b"-"))
            for page in range(-(-first // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE):
                if _filled(pagemap.fileno(), page):
                    _LIBC.madvise(page, _LARGE, _MADV_COLLAPSE)


def _filled(pagemap: int, page: int) -> bool:
    """Whether most of a large page is there (proc_pid_pagemap(5)); of a thread's stack it is not."""
    small = _LARGE // PAGESIZE
    entries = os.pread(pagemap, 8 * small, page // PAGESIZE * 8)
    return 2 * sum(present >> 7 for present in entries[7::8]) > small

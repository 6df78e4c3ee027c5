"""Which calls were given to which sandbox, for whoever comes after this process.

A file of fixed slots that is mapped into memory: writing a record is a store and no system call, and
the kernel keeps a page that a killed process has written to. Nothing is synced, because a sandbox
does not outlive its kernel. A record is complete before its first byte says so, and that byte says
which of two moments was reached: GIVEN before the command is sent, SENT after it.

So a call without a record was never sent to a sandbox, and that is evidence, as long as it is this
boot's file: a power cut loses what was never synced, and every sandbox.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stockade.terms.call import Capture
from stockade.terms.fault import Code, failure

_SLOTS: Final = 4096
_SLOT: Final = 320
_FREE, _GIVEN, _SENT = range(3)
# state, whether held; spare; pid, head, tail, oom kills, refused forks; started, deadline, artifact
# bytes; names
_RECORD: Final = struct.Struct("=B?6xQiIIIIQQQ24s24s24s24s")
# The layout names itself: a record of another one would be read as something else than it says.
_MAGIC: Final = f"stockade calls {_RECORD.format} ".encode()
_COUNT_MAX: Final = (1 << 32) - 1
_REFUSED: Final = struct.Struct("=I")
_REFUSED_AT: Final = struct.calcsize("=B7xQiIII")


@dataclass(frozen=True, slots=True)
class Entry:
    """`number` and `pid` are the spare's; times are CLOCK_BOOTTIME nanoseconds, which a daemon's
    end and a change of the clock leave alone. `artifacts` are the ids of stdout's and stderr's, ""
    where there is none. The counters are the sandbox's before the call. `held` says that its process
    was a held shell."""

    lease_id: str
    sandbox: str
    number: int
    pid: int
    started_ns: int
    deadline_ns: int
    capture: Capture
    artifacts: tuple[str, str]
    oom_kills: int
    pids_refused: int
    held: bool = False
    sent: bool = False


class CallJournal:
    """Thread-safe."""

    def __init__(self, path: Path, boot: str) -> None:
        """`boot` names this boot. Raises OSError. `whole` says that the file is this boot's and of
        this layout; any other is emptied."""
        magic = (_MAGIC + boot.encode()).ljust(_SLOT, b"\0")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self.whole = os.pread(fd, _SLOT, 0) == magic
            if not self.whole:
                os.ftruncate(fd, 0)
                os.ftruncate(fd, _SLOT * (_SLOTS + 1))
                os.pwrite(fd, magic, 0)
            self._map = mmap.mmap(fd, _SLOT * (_SLOTS + 1))
        finally:
            os.close(fd)
        self._lock = threading.Lock()
        self._free = [n for n in range(_SLOTS, 0, -1) if self._map[n * _SLOT] == _FREE]
        self._known: dict[int, tuple[int, Callable[[], None]]] = {}

    def entries(self) -> list[tuple[int, Entry]]:
        """What is there, with the number of its slot."""
        taken = (n for n in range(1, _SLOTS + 1) if self._map[n * _SLOT] != _FREE)
        return [(number, self._read(number)) for number in taken]

    def by_sandbox(self) -> dict[str, frozenset[int]]:
        """The spares that were given a call, by the name of their sandbox."""
        found: dict[str, set[int]] = {}
        for _, entry in self.entries():
            found.setdefault(entry.sandbox, set()).add(entry.number)
        return {name: frozenset(numbers) for name, numbers in found.items()}

    def begin(self, entry: Entry, done: Callable[[], None]) -> int:
        """Record a call that is about to be sent. `done` is called when it is forgotten.
        Raises Failure(busy)."""
        record = _RECORD.pack(
            _FREE,
            entry.held,
            entry.number,
            entry.pid,
            entry.capture.head_bytes,
            entry.capture.tail_bytes,
            # Refused forks are as many as a loop that forks has time for.
            min(entry.oom_kills, _COUNT_MAX),
            min(entry.pids_refused, _COUNT_MAX),
            entry.started_ns,
            entry.deadline_ns,
            entry.capture.artifact_bytes,
            entry.lease_id.encode(),
            entry.sandbox.encode(),
            *(name.encode() for name in entry.artifacts),
        )
        with self._lock:
            if not self._free:
                raise failure(Code.BUSY, "too many calls are not settled yet", retry_after_ms=1000)
            number = self._free.pop()
        at = number * _SLOT
        self._map[at : at + len(record)] = record
        self._map[at] = _GIVEN
        self.know(number, entry.number, done)
        return number

    def know(self, slot: int, number: int, done: Callable[[], None]) -> None:
        """The slot is that of the spare `number`, which `forget` may name."""
        with self._lock:
            self._known[number] = slot, done

    def sent(self, slot: int) -> None:
        self._map[slot * _SLOT] = _SENT

    def refused(self, sandbox: str) -> None:
        """A limit has refused a fork that no call of `sandbox` wanted: the next process, which goes
        on from the counter before a call, is not to take it for the call's."""
        with self._lock:  # a slot that is known is complete, and is not freed meanwhile
            for slot, _ in self._known.values():
                entry = self._read(slot)
                if entry.sandbox == sandbox:
                    at = slot * _SLOT + _REFUSED_AT
                    _REFUSED.pack_into(self._map, at, min(entry.pids_refused + 1, _COUNT_MAX))

    def drop(self, slot: int, number: int) -> None:
        """Free a slot; the caller has done what is to be done."""
        self._map[slot * _SLOT] = _FREE
        with self._lock:
            self._known.pop(number, None)
            self._free.append(slot)

    def forget(self, call: str) -> None:
        """`call` is a spare's number. An unknown one is fine. The record goes first: without it
        nobody asks for the call."""
        number = int(call)
        with self._lock:
            slot, done = self._known.get(number, (0, None))
        if done is not None:
            self.drop(slot, number)
            done()

    def close(self) -> None:
        self._map.close()

    def _read(self, number: int) -> Entry:
        state, held, *fields = _RECORD.unpack_from(self._map, number * _SLOT)
        names = [field.rstrip(b"\0").decode("ascii", "replace") for field in fields[9:]]
        return Entry(
            lease_id=names[0],
            sandbox=names[1],
            number=fields[0],
            pid=fields[1],
            started_ns=fields[6],
            deadline_ns=fields[7],
            capture=Capture(fields[2], fields[3], fields[8]),
            artifacts=(names[2], names[3]),
            oom_kills=fields[4],
            pids_refused=fields[5],
            held=held,
            sent=state == _SENT,
        )

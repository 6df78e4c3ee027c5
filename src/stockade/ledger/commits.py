"""Writes that share a commit.

A write is queued and then its thread takes the writer's lock. Whoever has it does all writes that
are queued by then in one transaction, each in a savepoint of its own where there are several, and
commits once; the others find theirs done. So a thread that is alone waits for nobody and hands
nothing over, and of many at once most wait for one fsync that they share.

A commit is power-safe (`synchronous = FULL`) when one of its writes asks for that, and otherwise
outlives the process only. Writes that nobody waits for (`later`) go along with the next ones, a few
at a time; when too many wait, the thread that adds one writes them first. They have been promised
all the same, so those of a transaction that could not be committed wait for the next one.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

T = TypeVar("T")
Write = Callable[[sqlite3.Connection], T]

_GO_ALONG: Final = 16
_MOST_WAITING: Final = 100

_log: Final = logging.getLogger("stockade.ledger")


@dataclass(frozen=True, slots=True)
class Follower:
    """Whoever keeps in memory what transactions write. `mark` gives what `back` takes it back to
    when a write of a transaction failed and the others go on; `ended` says whether a transaction
    was committed, before another one begins."""

    mark: Callable[[], object]
    back: Callable[[object], None]
    ended: Callable[[bool], None]


NOBODY: Final = Follower(lambda: None, lambda mark: None, lambda committed: None)


class _Job(Generic[T]):
    def __init__(self, write: Write[T], *, durable: bool) -> None:
        self.write = write
        self.durable = durable
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None

    def run(self, connection: sqlite3.Connection, follower: Follower) -> None:
        """Its failure is its own: the transaction goes on."""
        connection.execute("SAVEPOINT one")
        mark = follower.mark()
        try:
            self.value = self.write(connection)
        except BaseException as error:
            self.error = error
            connection.execute("ROLLBACK TO one")
            follower.back(mark)
        connection.execute("RELEASE one")


class Commits:
    """Thread-safe. `lock` is held by everybody who uses `connection`, which has
    `synchronous = FULL`."""

    def __init__(
        self, connection: sqlite3.Connection, lock: AbstractContextManager[object]
    ) -> None:
        self._connection = connection
        self._lock = lock
        self._jobs: deque[_Job[object]] = deque()
        self._later: deque[Write[object]] = deque()
        self._full = True
        self.follower = NOBODY

    def run(self, write: Write[T], *, durable: bool = True) -> T:
        """What `write` gives, once it is committed. Raises what it raises, and sqlite3.Error."""
        job = _Job(write, durable=durable)
        self._jobs.append(cast("_Job[object]", job))
        with self._lock:
            if not job.done:
                self._commit()
        if job.error is not None:
            raise job.error
        return cast(T, job.value)

    def later(self, write: Write[object]) -> None:
        """With the next commit that succeeds. Raises sqlite3.Error when many wait and can't be
        written: this one is not kept then."""
        if len(self._later) >= _MOST_WAITING:
            self.flush()
        self._later.append(write)

    def flush(self) -> None:
        """Write what waits. Raises sqlite3.Error, and what could not be written waits on."""
        while self._later:
            self.run(lambda connection: None, durable=False)

    def _commit(self) -> None:
        jobs = [self._jobs.popleft() for _ in range(len(self._jobs))]
        waiting = min(len(self._later), _GO_ALONG)
        along = [_Job(self._later.popleft(), durable=False) for _ in range(waiting)]
        jobs += along
        connection = self._connection
        committed = False
        try:
            self._synchronous(full=any(job.durable for job in jobs))
            connection.execute("BEGIN IMMEDIATE")
            if len(jobs) == 1:
                # Each statement gives the interpreter up to other threads: two less are 0.01 ms.
                jobs[0].value = jobs[0].write(connection)
            else:
                for job in jobs:
                    job.run(connection, self.follower)
            connection.execute("COMMIT")
            committed = True
        except BaseException as error:
            self._later.extendleft(job.write for job in reversed(along) if job.error is None)
            for job in jobs:
                job.error = job.error or error
            # A full disk can end the transaction by itself; there is none to roll back then.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        finally:
            self.follower.ended(committed)
            if committed:
                for job in along:
                    if job.error is not None:
                        _log.error("a write that nobody waits for failed: %s", job.error)
            for job in jobs:
                job.done = True
            self._synchronous(full=True)

    def _synchronous(self, *, full: bool) -> None:
        """Everybody else commits power-safe."""
        if full is not self._full:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full

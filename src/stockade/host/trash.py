"""What is being thrown away: moved aside in one step, removed later.

Removing a tree takes as long as it is large, and unmounting a disk as long as it is dirty; neither
may hold up a reset. `take` renames into the trash directory, which is atomic and as good as gone
for everybody else; one thread does the rest, in order. What it can't remove stays in the trash and
is tried again with the next sweep, also by the next daemon.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from stockade.host.reasons import reason
from stockade.host.trees import names, remove_tree
from stockade.terms.fault import Code, failure
from stockade.terms.pathname import to_text


class Trash:
    """`directory` must be on the file system of what is thrown away. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trash")
        self._lock = threading.Lock()
        self._count = 0

    def take(self, path: str) -> None:
        """Move `path` into the trash. Raises Failure(storage_unavailable) where it can't."""
        with self._lock:
            taken = set(names(self._fd))
            while (name := f"{self._count:08x}".encode()) in taken:
                self._count += 1
            try:
                os.rename(path, name, dst_dir_fd=self._fd)
            except OSError as error:
                raise failure(
                    Code.STORAGE_UNAVAILABLE, f"a workspace could not be set aside: {reason(error)}"
                ) from error
            self._count += 1

    def later(self, first: Callable[[], None] | None = None) -> Future[tuple[str, ...]]:
        """Have the thread run `first`, then remove everything. Gives a line for what could not be
        removed; it is tried again by every later run."""

        def job() -> tuple[str, ...]:
            if first is not None:
                first()
            return self._empty()

        return self._worker.submit(job)

    def _empty(self) -> tuple[str, ...]:
        left: list[str] = []
        for name in names(self._fd):
            try:
                remove_tree(self._fd, name)
            except OSError as error:
                left.append(f"trash/{to_text(name)}: {error.strerror}")
        return tuple(left)

    def close(self) -> None:
        """Wait for the thread to finish what it was given. Idempotent."""
        if self._fd >= 0:
            self._worker.shutdown(wait=True)
            os.close(self._fd)
            self._fd = -1

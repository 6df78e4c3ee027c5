"""The mount namespace that all leases' mounts live in.

One thread of the daemon leaves the host's mount namespace for a private copy of it and executes
what is submitted to it, one function at a time. A mount namespace belongs to a task, not to a
process, so every other thread still sees the host as it is, and the host's mount table never grows:
each `unshare` anywhere on the host copies that table, 1 ms for a thousand mounts. When the thread
ends, or the process dies in whatever way, the kernel takes all mounts down that no sandbox holds;
unless there is a keeper (stockade.host.keeper), which hands the namespace to the next holder.

A descriptor opened in this namespace works in every thread. A child started by `spawn` begins
inside it, because fork copies the namespaces of the calling thread. Mount events of the host still
arrive (slave), so that an unmount there is not blocked by our copy; nothing propagates back.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Final, TypeVar

from stockade.host import syscalls
from stockade.host.keeper import Keeper
from stockade.terms.fault import Code, failure

T = TypeVar("T")
_Job = Callable[[], None]

# Mount points and nothing else are made here.
_HOLDER_OPTIONS: Final = {"size": "16m", "nr_inodes": "262144", "mode": "0755"}


class MountHolder:
    """Starts the thread; `directory` must be an absolute path and is made if it is absent.

    `path` is that directory: on the host it stays empty, in the namespace it is a small tmpfs.
    Raises Failure(engine_unavailable) where mount namespaces can't be made. A program that asks
    for PR_SET_PDEATHSIG after `spawn` is tied to the thread, which lives until `close`.
    `inherited` says that the namespace is an earlier process's, with the mounts in it.
    """

    def __init__(self, directory: Path, keeper: Keeper | None = None) -> None:
        self.path: Final = str(directory)
        self.inherited = False
        self._keeper = keeper
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(started,), name="mounts", daemon=True
        )
        self._thread.start()
        try:
            self.namespace_fd: Final = started.result()
        except OSError as error:
            raise failure(
                Code.ENGINE_UNAVAILABLE, f"a private mount namespace could not be made: {error}"
            ) from error

        if keeper is not None and not self.inherited:
            keeper.start(lambda argv: self.spawn(argv, stdout=subprocess.PIPE))

    def run(self, function: Callable[[], T]) -> T:
        """Execute in the namespace and give the result; exceptions travel back.

        Not to be called from a function that runs there: it would wait for itself.
        """
        result: Future[T] = Future()

        def job() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        if not self._thread.is_alive():
            raise failure(Code.SHUTTING_DOWN, "the mount namespace is closed")
        self._jobs.put(job)
        return result.result()

    def spawn(
        self,
        argv: Sequence[str | bytes],
        *,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a program whose first mount namespace is this one. `env` None is empty."""
        return self.run(
            lambda: subprocess.Popen(
                list(argv),
                pass_fds=tuple(pass_fds),
                env=dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd="/",
            )
        )

    def attach(self, mount_fd: int, target: str) -> None:
        """Put a detached mount at `target`. To be called inside (from a submitted function)."""
        syscalls.move_mount(
            mount_fd,
            b"",
            syscalls.AT_FDCWD,
            os.fsencode(target),
            syscalls.MOVE_MOUNT_F_EMPTY_PATH,
        )

    def close(self, *, keep: bool = False) -> None:
        """End the thread, and the keeper unless it is to `keep` what is mounted. The mounts go with
        the namespace's last user. Idempotent."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
            os.close(self.namespace_fd)
            if self._keeper is not None and not keep:
                self._keeper.end()

    def _serve(self, started: Future[int]) -> None:
        try:
            started.set_result(self._enter())
        except BaseException as error:
            started.set_exception(error)
            return
        while (job := self._jobs.get()) is not None:
            job()

    def _enter(self) -> int:
        kept = self._keeper.namespace() if self._keeper is not None else None
        if kept is not None and self._join(kept):
            self.inherited = True
            return kept
        if self._keeper is not None:
            self._keeper.end()
        # CLONE_NEWNS unshares this thread's root and working directory too (CLONE_FS).
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.set_propagation(b"/", syscalls.MS_REC | syscalls.MS_SLAVE)
        os.chdir("/")
        mount = syscalls.new_mount(
            "tmpfs",
            _HOLDER_OPTIONS,
            attributes=syscalls.MOUNT_ATTR_NOSUID
            | syscalls.MOUNT_ATTR_NODEV
            | syscalls.MOUNT_ATTR_NOEXEC,
        )
        try:
            self.attach(mount, self.path)
        finally:
            os.close(mount)
        return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def _join(self, namespace: int) -> bool:
        """Enter the namespace of an earlier holder. False if it is none: then nothing changed."""
        mine = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.unshare(syscalls.CLONE_FS)
            syscalls.setns(namespace, syscalls.CLONE_NEWNS)
            if os.stat(self.path).st_dev != os.stat(os.path.dirname(self.path)).st_dev:
                return True
            syscalls.setns(mine, syscalls.CLONE_NEWNS)
        finally:
            os.close(mine)
        os.close(namespace)
        return False

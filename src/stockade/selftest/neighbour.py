"""The other lease: its own user ids, its own sandbox, and a program in it that holds secrets."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stockade.selftest import bait
from stockade.selftest.stage import Stage, execute
from stockade.terms.fault import Code, failure

_READY_S: Final = 30.0
_LONG_MS: Final = 600_000


@contextmanager
def living(stage: Stage) -> Iterator[dict[str, str]]:
    """Run `attack bait neighbour` in the sandbox of `stage`, to the end of the context. It serves
    its mark on loopback ports and in objects of its ipc namespace."""
    mark, key = stage.facts["neighbour_mark"], bait.ipc_key()
    ready = threading.Event()
    said = bytearray()

    def tee(stream: int, data: memoryview) -> None:
        said.extend(data)
        if b"\n" in said:
            ready.set()

    stdin, keep = os.pipe2(os.O_CLOEXEC)
    words = ("bait", "neighbour", mark, key)
    run = threading.Thread(
        target=execute,
        args=(stage.sandbox, stage.scene, stage.tree, stage.artifacts, words, _LONG_MS),
        kwargs={"stdin": stdin, "tee": tee},
        name="neighbour",
    )
    run.start()
    try:
        if not ready.wait(_READY_S) or not said.startswith(b"ready"):
            raise failure(
                Code.SANDBOX_UNAVAILABLE,
                f"the neighbour does not answer: {said.decode('utf-8', 'replace')[:200]}",
            )
        yield {
            "neighbour_pid": _pid(mark),
            "neighbour_key": key,
            **bait.ports("neighbour", said.decode().split()),
        }
    finally:
        os.close(keep)
        run.join()
        os.close(stdin)


def _pid(mark: str) -> str:
    """As the host sees it. The mark is a random word, so no other process is meant."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if words[1:4] == [b"bait", b"neighbour", mark.encode()]:
                return entry.name
    raise failure(Code.SANDBOX_UNAVAILABLE, "the neighbour's process is not there")

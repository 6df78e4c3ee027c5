"""An entered scene: a running sandbox, and what a host does with and around it.

The attack program lies in the workspace. Its words about an attempt are believed, because nothing
else has ever run in this sandbox.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from stockade.host.cancel import EventfdCancel
from stockade.selftest.scene import Facts, Scene, Tried, cannot
from stockade.terms.call import Capture, ExecOperation
from stockade.terms.outcome import ExecOutcome
from stockade.terms.plan import Kind
from stockade.terms.ports import ArtifactStore, ExecContext, Files, LeaseTree, Sandbox

PROGRAM: Final = "/workspace/bin/attack"
PROBE_MS: Final = 10_000
# Each attempt has its own deadline inside; this one only ends a batch that hangs as a whole.
BATCH_MS: Final = 120_000
_OUTCOMES: Final[dict[str, Literal["won", "held", "cannot"]]] = {
    "won": "won",
    "held": "held",
    "cannot": "cannot",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """`again` makes another sandbox over the same tree, for a scene that differs."""

    scene: Scene
    facts: Facts
    tree: LeaseTree
    files: Files
    sandbox: Sandbox
    artifacts: ArtifactStore
    again: Callable[[Scene], Sandbox]

    def probe(self, *words: str) -> Tried:
        return self.batch([words])[0]

    def batch(self, attempts: Sequence[Sequence[str]]) -> list[Tried]:
        """Every attempt in turn. One that has no line in the answer could not be tried."""
        if not attempts:
            return []
        argv = ["run", str(PROBE_MS)]
        for words in attempts:
            argv += [*(word.format_map(self.facts) for word in words), ","]
        outcome = self.execute(argv[:-1], BATCH_MS)
        return parse(outcome, len(attempts))

    def execute(self, words: Sequence[str], timeout_ms: int) -> ExecOutcome:
        return execute(self.sandbox, self.scene, self.tree, self.artifacts, words, timeout_ms)

    def host(self, path: str) -> str:
        """The path of a file of the lease for a host that goes by names and follows links."""
        return f"/proc/self/fd/{self.tree.root_fd}{path}"


def execute(
    sandbox: Sandbox,
    scene: Scene,
    tree: LeaseTree,
    artifacts: ArtifactStore,
    words: Sequence[str],
    timeout_ms: int,
    stdin: int | None = None,
    tee: Callable[[int, memoryview], None] | None = None,
) -> ExecOutcome:
    """Run the attack program with `words`."""
    operation = ExecOperation(
        kind=Kind.COMMAND,
        paths=(PROGRAM.encode(),),
        argv=(b"attack", *(word.encode() for word in words)),
        env=(),
        cwd=b"/workspace",
        timeout_ms=timeout_ms,
        capture=Capture(scene.keep_bytes, scene.keep_bytes, 0),
    )
    cancel = EventfdCancel()
    try:
        with _descriptor(scene) as handed:
            return sandbox.execute(
                operation,
                ExecContext(
                    lease_id=tree.lease_id,
                    cancel=cancel,
                    artifacts=artifacts,
                    tee=tee,
                    stdin=handed if stdin is None else stdin,
                ),
            )
    finally:
        cancel.close()


@contextmanager
def _descriptor(scene: Scene) -> Iterator[int | None]:
    """What the scene hands in as descriptor 0."""
    if scene.stdin == "directory":
        fd = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
    elif scene.stdin == "socket":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            yield theirs.fileno()
    else:
        yield None


def parse(outcome: ExecOutcome, count: int) -> list[Tried]:
    """The program's lines: position, outcome, evidence."""
    missing = f"the program said nothing of it (it {outcome.end.value})"
    found = {}
    for line in (outcome.stdout.head + outcome.stdout.tail).decode("utf-8", "replace").splitlines():
        position, _, rest = line.partition("\t")
        word, _, evidence = rest.partition("\t")
        if position.isdigit() and word in _OUTCOMES:
            found[int(position)] = Tried(_OUTCOMES[word], evidence.strip())
    return [found.get(position, cannot(missing)) for position in range(count)]

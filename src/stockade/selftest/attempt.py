"""What an attempt is: one named attack, tried twice with the same code.

In `scene` it has to be held. In `control`, a scene that lacks the one defence, it has to win: that
shows that the attack works and that the defence is what holds it. A probe is a line of words for
`sandbox/attack.c`, run in a batch with the others of its scene; `{name}` stands for a fact of the
run, and what follows "shell" is one word. A drive is a function of the host, for what needs the
host's side: its tools, a deadline, a second sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from stockade.selftest.scene import Scene, Tried
from stockade.selftest.stage import Stage

Drive: TypeAlias = Callable[[Stage], Tried]


@dataclass(frozen=True, slots=True)
class Attempt:
    """`attack` and `defence` are a row's words. `machine` names the only architecture that has
    what is attacked (uname -m), where not every one has."""

    name: str
    group: str
    attack: str
    defence: str
    scene: Scene
    control: Scene
    action: str | Drive
    machine: str | None = None

    def words(self) -> tuple[str, ...] | None:
        """The words of a probe; None for a drive."""
        if not isinstance(self.action, str):
            return None
        return tuple(self.action.split(" ", 1 if self.action.startswith("shell ") else -1))

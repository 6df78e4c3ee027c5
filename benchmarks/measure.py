"""Interleaved measuring: A, B, C, A, B, C … in one run, so that all meet the same machine.

A contender's `act` is timed; what surrounds it is not. With `block` above 1 a contender's samples
come in blocks of that many, `gap_s` apart: a call that follows another contender's slow one is not
"back to back", and one that follows after everybody else's turn is not 100 ms later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

_ERRORS_KEPT: Final = 3


def _nothing() -> None:
    """Most contenders need no preparation."""


@dataclass(frozen=True, slots=True)
class Contender:
    """`prepare` and `verify` are not timed; what `verify` raises is a failure. A slow contender
    takes part in every `every`th round only."""

    name: str
    act: Callable[[], object]
    prepare: Callable[[], object] = _nothing
    verify: Callable[[], object] = _nothing
    every: int = 1


@dataclass(slots=True)
class Samples:
    """Times in milliseconds in the order in which they were taken (or whatever unit the figure
    states), and how many tries failed with the first few reasons."""

    values: list[float] = field(default_factory=list)
    failures: int = 0
    errors: list[str] = field(default_factory=list)

    def fail(self, error: BaseException | str) -> None:
        self.failures += 1
        if len(self.errors) < _ERRORS_KEPT:
            text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self.errors.append(text[:300])


def timed_ms(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000


def interleave(
    contenders: Sequence[Contender],
    rounds: int,
    *,
    block: int = 1,
    gap_s: float = 0.0,
    warm_up: int = 3,
) -> dict[str, Samples]:
    """`rounds` samples of each contender (fewer of those with `every`), after `warm_up` untimed
    ones. A try that raises is counted, never left out silently."""
    found = {contender.name: Samples() for contender in contenders}
    for contender in contenders:
        for _ in range(warm_up):
            _once(contender, Samples())
    for first in range(0, rounds, block):
        for contender in contenders:
            for number in range(first, min(first + block, rounds)):
                if number % contender.every == 0:
                    if gap_s:
                        time.sleep(gap_s)
                    _once(contender, found[contender.name])
    return found


def _once(contender: Contender, samples: Samples) -> None:
    try:
        contender.prepare()
        took = timed_ms(contender.act)
        contender.verify()
    except Exception as error:
        samples.fail(error)
    else:
        samples.values.append(took)

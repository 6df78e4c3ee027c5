"""Runs attempts and judges them.

Every scene is entered once, defended ones and controls alike, and all attempts that are for it run
there, probes in one batch and then the drives. A scene that can't be made leaves its attempts untried
or without control: neither is ever taken for a success.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stockade.edge.selftest import Row, SelftestReport, Verdict
from stockade.selftest.attempt import Attempt
from stockade.selftest.catalogue import chosen
from stockade.selftest.house import House, opened
from stockade.selftest.scene import Scene, Tried, cannot
from stockade.terms.fault import Code, Failure, failure


def selftest(only: str | None = None) -> SelftestReport:
    """Try everything, or the attempts whose names match the pattern `only`. Raises
    Failure(invalid_argument) when none does, Failure(engine_unavailable)."""
    attempts = chosen(only)
    if not attempts:
        raise failure(Code.INVALID_ARGUMENT, "no attempt has such a name", argument="only")
    return SelftestReport(attempts=tuple(judged(attempts)))


def judged(attempts: Sequence[Attempt]) -> Iterable[Row]:
    """A row for each. Raises Failure(engine_unavailable)."""
    with opened() as house:
        seen: dict[str, dict[str, Tried]] = {}
        for scene in _scenes(attempts):
            mine = [item for item in attempts if scene.name in (item.scene.name, item.control.name)]
            seen[scene.name] = _enter(house, scene, mine)
    return [
        _row(item, seen[item.scene.name][item.name], seen[item.control.name][item.name])
        for item in attempts
    ]


def _scenes(attempts: Sequence[Attempt]) -> list[Scene]:
    scenes = {scene.name: scene for item in attempts for scene in (item.scene, item.control)}
    return list(scenes.values())


def _enter(house: House, scene: Scene, attempts: Sequence[Attempt]) -> dict[str, Tried]:
    """What each attempt came to in the scene."""
    seen: dict[str, Tried] = {}
    try:
        with house.enter(scene) as stage:
            probes = {item.name: words for item in attempts if (words := item.words())}
            seen |= dict(zip(probes, stage.batch(list(probes.values())), strict=True))
            for item in attempts:
                if not isinstance(item.action, str):
                    seen[item.name] = item.action(stage)
    except Failure as fault:
        why = f"{fault.fault.code.value}: {fault.fault.message}"
    except (OSError, KeyError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
    else:
        return seen
    return {item.name: seen.get(item.name, cannot(why)) for item in attempts}


def _row(attempt: Attempt, defended: Tried, control: Tried) -> Row:
    return Row(
        name=attempt.name,
        group=attempt.group,
        attack=attempt.attack,
        defence=attempt.defence,
        control=f"without {attempt.control.taken}",
        result=verdict(defended, control),
        evidence=f"{defended.outcome}: {defended.evidence}; "
        f"control {control.outcome}: {control.evidence}",
    )


def verdict(defended: Tried, control: Tried) -> Verdict:
    """What both runs together show."""
    if defended.outcome == "won":
        return Verdict.BROKEN
    if defended.outcome == "cannot":
        return Verdict.COULD_NOT_TRY
    return Verdict.HELD if control.outcome == "won" else Verdict.NO_CONTROL

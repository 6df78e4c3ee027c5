"""Figures that are looked at when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stockade.flow.leases import Leases
from stockade.flow.places import Places
from stockade.flow.sandboxes import Sandboxes
from stockade.terms.books import ClaimBook
from stockade.terms.claim import ClaimState
from stockade.terms.lease import LeaseState

MOST_IN_DOUBT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Gauge:
    """`read` gives the figure for each value of `label`, which has a closed set of them; without a
    label, for the empty text. It may raise Failure: the figure is left out then."""

    name: str
    what: str
    read: Callable[[], Mapping[str, float]]
    label: str | None = None


def runtime_gauges(
    places: Places, sandboxes: Sandboxes, leases: Leases, claims: ClaimBook
) -> Sequence[Gauge]:
    def in_doubt() -> Mapping[str, float]:
        return {"": len(claims.list(None, None, (ClaimState.IN_DOUBT,), MOST_IN_DOUBT))}

    def by_state() -> Mapping[str, float]:
        found = Counter(record.state for record in leases.list(None))
        return {
            state.value: found[state] for state in LeaseState if state is not LeaseState.RELEASED
        }

    return (
        Gauge(
            "stockade_calls_running", "Calls that hold a place.", lambda: {"": places.count()[0]}
        ),
        Gauge("stockade_calls_waiting", "Calls in the queue.", lambda: {"": places.count()[1]}),
        Gauge("stockade_calls_in_doubt", "Calls that a person has to settle.", in_doubt),
        Gauge("stockade_sandboxes", "Sandboxes there are.", lambda: {"": sandboxes.count()}),
        Gauge("stockade_leases", "Leases that are not released.", by_state, "state"),
    )

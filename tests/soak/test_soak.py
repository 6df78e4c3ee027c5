"""Random tokens and calls against the brute-force reference: the short form of `make soak`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stockade.decide import authorize, checks, plain, tokens, tokentext
from stockade.decide.links import Admitted
from stockade.decide.memory import Memory
from tests.soak.__main__ import LEAST_ACCEPTED, run
from tests.soak.judge import Broken

# Any seed will do; a fixed one makes a failure of `make test` one that can be repeated.
SEED = 20_260
COUNT = 2_000
PLANTED = 4_000


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_accepted_that_the_reference_refuses(part: int) -> None:
    tally = run(SEED, part * COUNT // 4, COUNT // 4)
    assert tally.accepted * 1000 > COUNT // 4 * LEAST_ACCEPTED
    assert tally.kinds["genuine"] < tally.accepted, "no hostile chain is as good as a genuine one"
    assert len(tally.codes) > 10, tally.codes


def _by_last(memory: Any, key: Any) -> Any:
    """A memory of grants that looks at the last part of their text only."""
    return next((value for known, value in memory._young.items() if known[-1] == key[-1]), None)


def _always(_answer: Any) -> Callable[..., Any]:
    return lambda *_: _answer


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        (tokens, "wider_link", _always(None)),
        (tokens, "_check_signature", lambda text, key: tuple("0" * 32 for _ in text.blocks)),
        (tokens, "_in_time", lambda chain, *_: chain.permit),
        (tokentext, "is_plain", _always(True)),
        (plain, "_is_normal", _always(True)),
        (plain, "_within", _always(True)),
        (authorize, "covers_path", lambda prefix, path: path.startswith(prefix)),
        (authorize, "checks_of", _always(())),
        (authorize, "descends", _always(True)),
        (checks, "_fits", _always(False)),
        (Memory, "get", _by_last),
        (Admitted, "__contains__", _always(True)),
        (tokens, "wider_own", _always(None)),
    ],
    ids=lambda value: value if isinstance(value, str) else "in",
)
def test_a_planted_fault_is_found(
    module: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, fault)
    with pytest.raises(Broken, match="seed"):
        run(SEED, 0, PLANTED)

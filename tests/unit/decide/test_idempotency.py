"""Names and keys of calls: the vectors, and what may be given a stored result."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stockade.decide.idempotency import (
    Place,
    call_name,
    canonical_arguments,
    drawn_id,
    idempotency_key,
    is_drawn,
)
from stockade.terms.fault import Code, Failure

VECTORS = Path(__file__).parents[2] / "vectors"
ROWS = json.loads((VECTORS / "claims.json").read_text("ascii"))


def place(row: dict[str, Any]) -> Place:
    return Place(row["tenant"], row["trajectory"], row["turn"], row["call_id"])


@pytest.mark.parametrize("row", ROWS)
def test_the_vectors(row: dict[str, Any]) -> None:
    arguments = canonical_arguments(row["arguments"])
    assert arguments.decode() == row["canonical"]
    assert call_name(place(row)) == row["name"]
    assert idempotency_key(place(row), row["tool"], arguments) == row["key"]


def test_the_vectors_are_what_their_maker_says() -> None:
    made = runpy.run_path(str(VECTORS / "make_claim_vectors.py"))["document"]()
    assert (VECTORS / "claims.json").read_text("ascii") == made


def test_the_order_of_members_makes_no_difference_and_their_values_do() -> None:
    assert ROWS[5]["key"] == ROWS[6]["key"]
    assert len({row["key"] for row in ROWS}) == len(ROWS) - 1
    assert len({row["name"] for row in ROWS}) == len(ROWS) - 1


def test_a_drawn_id_is_no_callers() -> None:
    drawn = drawn_id("rq_1")
    assert is_drawn(drawn)
    assert not is_drawn("rq_1")
    one = Place("acme", "t", 1, "rq_1")
    assert call_name(one) != call_name(replace(one, call_id=drawn))


@pytest.mark.parametrize("value", ["\ud800", float("nan"), {"a": "\udfff"}])
def test_what_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(Failure) as caught:
        canonical_arguments({"x": value})
    assert caught.value.fault.code is Code.MALFORMED_JSON

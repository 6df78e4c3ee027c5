"""Replays tests/vectors/tokens.json, which is made without the package."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from stockade.decide.tokens import KeyRing, Verifier, verify
from stockade.terms.fault import Failure

VECTORS = Path(__file__).parents[2] / "vectors"
DOCUMENT = json.loads((VECTORS / "tokens.json").read_text("ascii"))
RING = KeyRing({kid: bytes.fromhex(secret) for kid, secret in DOCUMENT["keys"].items()})
ROWS = DOCUMENT["vectors"]


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_each_token_gets_its_verdict(row: dict[str, Any]) -> None:
    if row["verdict"] == "invalid":
        with pytest.raises(Failure) as caught:
            verify(row["token"], RING, DOCUMENT["now_s"])
        assert caught.value.fault.code == row["code"]
        if row["rule"] is not None:
            assert caught.value.fault.rule == row["rule"]
        return
    permit = verify(row["token"], RING, DOCUMENT["now_s"])
    expected = row["permit"]
    lease = expected["lease"] or {"id": None, "generation": None}
    assert permit.tenant == expected["tenant"]
    assert permit.trajectory == expected["trajectory"]
    assert list(permit.chain) == expected["chain"]
    assert (permit.lease_id, permit.generation) == (lease["id"], lease["generation"])
    assert permit.not_after_s == expected["not_after_s"]
    assert list(permit.grant.tools) == expected["tools"]
    assert list(permit.grant.scope.read) == expected["read"]
    assert [check.model_dump(mode="json") for check in permit.grant.checks] == expected["checks"]
    assert [rule.model_dump(mode="json") for rule in permit.grant.approve] == expected["approve"]
    assert [total.model_dump() for total in permit.totals] == expected["totals"]


def test_a_verifier_that_remembers_gives_the_same_verdicts() -> None:
    verifier = Verifier(RING)

    def verdict(row: dict[str, Any]) -> tuple[str | None, list[str] | None]:
        try:
            return None, list(verifier.verify(row["token"], DOCUMENT["now_s"]).chain)
        except Failure as failure:
            return str(failure.fault.code), None

    for row in ROWS * 2:
        chain = row["permit"]["chain"] if row["permit"] else None
        assert verdict(row) == (row["code"], chain)


def test_the_set_is_large_names_are_unique_and_every_code_of_tokens_occurs() -> None:
    assert len({row["name"] for row in ROWS}) == len(ROWS) >= 30
    assert {row["code"] for row in ROWS} == {
        None,
        "token_too_long",
        "token_malformed",
        "token_not_canonical",
        "token_unknown_key",
        "bad_signature",
        "token_unsupported",
        "wider_block",
        "token_not_yet_valid",
        "token_expired",
    }


def test_the_file_is_what_the_script_makes() -> None:
    made = runpy.run_path(str(VECTORS / "make_vectors.py"))["document"]()
    assert (VECTORS / "tokens.json").read_text("ascii") == made

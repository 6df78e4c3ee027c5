"""Laws of the audit's chain: whatever is done to the records is found, at the first one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from stockade.decide import signatures
from stockade.decide.chain import (
    GENESIS,
    body_of,
    checkpoint_body,
    hash_of,
    line_of,
    make_checkpoint,
)
from stockade.decide.chain_verifier import Flaw, Verifier
from stockade.terms.audit import AuditEvent, AuditKind, Link

SEED = bytes(range(32))
KEY = signatures.public_key(SEED)
LENGTH = 12
CHECKPOINTS = (5, 12)


def _chain(tenant: str = "acme") -> list[Link]:
    links: list[Link] = []
    prev = GENESIS
    for seq in range(1, LENGTH + 1):
        if seq in CHECKPOINTS:
            sealed = make_checkpoint(
                seq - 1, prev, seq, KEY, lambda data: signatures.sign(SEED, data)
            )
            body = checkpoint_body(sealed)
        else:
            body = body_of(AuditEvent(AuditKind.CALL_OUTCOME, seq, tenant=tenant), seq)
        links.append(Link(seq, prev, hash_of(prev, body), body))
        prev = links[-1].hash
    return links


CHAIN = _chain()
FOREIGN = _chain("other")
LINES = [line_of(link) for link in CHAIN]
PLACES = st.integers(min_value=0, max_value=LENGTH - 1)
KNOWN = {LENGTH - 1: CHAIN[LENGTH - 2].hash.hex()}


def _flaw(lines: Sequence[bytes], known: dict[int, str] | None = None) -> Flaw | None:
    verifier = Verifier(keys=frozenset({KEY.hex()}), known=known, whole=True)
    for line in lines:
        found = verifier.add_line(line)
        if found is not None:
            return found
    return verifier.end()


def _said(line: bytes | bytearray) -> object:
    """The number that a changed record still has."""
    try:
        return json.loads(line)["record"]["seq"]
    except (ValueError, LookupError):
        return None


def test_the_chain_itself_is_fine() -> None:
    assert _flaw(LINES, KNOWN) is None


@given(PLACES, st.data())
def test_one_changed_byte_is_found_where_it_is(place: int, data: st.DataObject) -> None:
    line = bytearray(LINES[place])
    at = data.draw(st.integers(min_value=0, max_value=len(line) - 1))
    line[at] ^= data.draw(st.integers(min_value=1, max_value=255))
    found = _flaw([*LINES[:place], bytes(line), *LINES[place + 1 :]])
    assert found is not None
    # Of the very first record nothing but itself says which number it has.
    assert found.seq == place + 1 or (place == 0 and found.seq == _said(line))


@given(PLACES)
def test_a_removed_record_is_the_first_flaw(place: int) -> None:
    found = _flaw([*LINES[:place], *LINES[place + 1 :]], KNOWN)
    if place == LENGTH - 1:  # the last checkpoint's own record: what it signs is all there
        assert found is None
    else:
        assert found is not None
        assert found.seq == place + 1 or (place == 0 and found.seq == 2)


@given(PLACES, PLACES)
def test_an_inserted_record_is_found_where_it_is(place: int, which: int) -> None:
    found = _flaw([*LINES[:place], line_of(FOREIGN[which]), *LINES[place:]])
    assert found is not None
    # At the very beginning nothing says yet which of two chains it is.
    assert found.seq == place + 1 if place else found.seq in {which + 1, which + 2}


@given(PLACES, PLACES)
def test_two_exchanged_records_are_found_at_the_first(one: int, other: int) -> None:
    first, second = sorted((one, other))
    lines = list(LINES)
    lines[first], lines[second] = lines[second], lines[first]
    found = _flaw(lines)
    if first == second:
        assert found is None
    else:
        assert found is not None
        assert found.seq == first + 1 if first else found.seq in {second + 1, second + 2}


@given(st.integers(min_value=0, max_value=LENGTH - 2))
def test_an_end_that_was_cut_off_is_found_by_a_checkpoint_that_was_kept(left: int) -> None:
    assert _flaw(LINES[:left], KNOWN) == Flaw(
        left + 1, f"is missing: a checkpoint signs records up to {LENGTH - 1}"
    )


@given(st.integers(min_value=1, max_value=LENGTH - 1))
def test_a_tail_of_another_chain_is_found_where_it_begins(place: int) -> None:
    found = _flaw([*LINES[:place], *(line_of(link) for link in FOREIGN[place:])])
    assert found is not None
    assert found.seq == place + 1

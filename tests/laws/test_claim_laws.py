"""Laws of names and keys, and of settling edits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from stockade.decide.canonical import canonical
from stockade.decide.idempotency import Place, canonical_arguments, preimage
from stockade.terms.outcome import EditOutcome
from stockade.tools.settle import Found, settle_edit

FIELDS = st.lists(st.binary(max_size=12), min_size=4, max_size=6).map(tuple)
TEXT = st.text(max_size=8)
PLACES = st.builds(Place, TEXT, TEXT, st.none() | st.integers(0, 2**53 - 1), TEXT)
VALUES: st.SearchStrategy[JsonValue] = (
    st.text() | st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1)
) | st.lists(st.text(), max_size=4).map(list)


@given(FIELDS, FIELDS)
def test_different_fields_never_give_one_text(
    one: tuple[bytes, ...], other: tuple[bytes, ...]
) -> None:
    assert (preimage(one) == preimage(other)) == (one == other)


@given(PLACES, PLACES)
def test_different_places_have_different_fields(one: Place, other: Place) -> None:
    assert (one.fields() == other.fields()) == (one == other)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=5))
def test_arguments_are_written_as_the_reference_writes_them(
    arguments: dict[str, JsonValue],
) -> None:
    assert canonical_arguments(arguments) == canonical(arguments)


def edit(old: int, new: int) -> EditOutcome:
    return EditOutcome("/workspace/f", 1, str(old), str(new), "", False)


@given(st.integers(0, 6), st.integers(0, 6))
def test_a_crash_in_a_row_of_edits_is_settled(edits: int, happened: int) -> None:
    """Edit n makes version n + 1 of version n, one after the other, and each has written its claim.
    Of those whose claims are there the first `happened` have been made; at most the last was not,
    because each begins after the one before it was made."""
    happened = min(happened, edits)
    began: set[str] = set()
    for number in reversed(range(happened, edits)):
        if number == happened:  # only one can have claimed and not been made
            found = settle_edit(edit(number, number + 1), str(happened), began)
            assert found is Found.NOT_EXECUTED
    for number in reversed(range(happened)):
        assert settle_edit(edit(number, number + 1), str(happened), began) is Found.EXECUTED
        began.add(str(number))


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_what_is_said_of_an_edit_is_true(old: int, new: int, now: int, gone: bool) -> None:
    found = settle_edit(edit(old, new), None if gone else str(now))
    if gone or now not in (old, new):
        assert found is Found.UNKNOWN
    else:
        assert found is (Found.EXECUTED if now == new else Found.NOT_EXECUTED)

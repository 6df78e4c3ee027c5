"""Registered secrets of leases: bounds, environment, whose results hide what, and their end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import JsonValue

from stockade.flow.secrets import Secrets
from stockade.ledger.secret_rows import Seal
from stockade.ledger.secret_table import SecretTable
from stockade.terms.fault import Code
from stockade.terms.lease import LeaseRecord
from stockade.terms.secret import MAX_ALL_BYTES, MAX_SECRET_BYTES, MAX_SECRETS
from stockade.testing.house import House, code_of, open_house
from stockade.tools.redact import Findings, Tokens

VALUE = b"value-of-a-secret"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = open_house(str(tmp_path))
    yield made
    made.close()


def lease_of(house: House, trajectory: str = "run-1", **changes: object) -> LeaseRecord:
    return house.leases.create(house.request(trajectory, **changes)).record


def hides(house: House, record: LeaseRecord | None, value: bytes = VALUE) -> bool:
    return value not in house.secrets.redactor(record).hide(b"<" + value + b">", Findings())


@pytest.mark.parametrize(
    ("name", "value", "used", "code"),
    [
        ("", VALUE, True, Code.INVALID_ARGUMENT),
        ("1A", VALUE, True, Code.INVALID_ARGUMENT),
        ("A=B", VALUE, True, Code.INVALID_ARGUMENT),
        ("A\n", VALUE, True, Code.INVALID_ARGUMENT),
        ("A" * 65, VALUE, True, Code.INVALID_ARGUMENT),
        ("PATH", VALUE, True, Code.INVALID_ARGUMENT),
        ("LD_PRELOAD", VALUE, True, Code.INVALID_ARGUMENT),
        ("PATH", VALUE, False, None),
        ("A", b"1234567", True, Code.INVALID_ARGUMENT),
        ("A", b"  1234567 \n", True, Code.INVALID_ARGUMENT),
        ("A", b"12345678", True, None),
        ("A", b"1234\x005678", True, Code.INVALID_ARGUMENT),
        ("A", b"1234\x005678", False, None),
        ("A_SECRET", b"A_SECRET", True, Code.INVALID_ARGUMENT),
        ("A", b"redacted:", True, Code.INVALID_ARGUMENT),
        ("A", b"x" * MAX_SECRET_BYTES, True, None),
        ("A", b"x" * (MAX_SECRET_BYTES + 1), True, Code.ARGUMENT_TOO_LARGE),
    ],
)
def test_bounds(house: House, name: str, value: bytes, used: bool, code: Code | None) -> None:
    record = lease_of(house)
    assert code_of(lambda: house.secrets.add(record, name, value, in_environment=used)) is code
    assert len(house.secrets.of(record)) == (code is None)


def test_number_and_size_in_all_are_bounded_and_replacing_counts_once(house: House) -> None:
    record = lease_of(house)
    for number in range(MAX_SECRETS):
        house.secrets.add(record, f"S{number}", VALUE, in_environment=True)
    more = code_of(lambda: house.secrets.add(record, "MORE", VALUE, in_environment=True))
    assert more is Code.INVALID_ARGUMENT
    house.secrets.add(record, "S0", VALUE + b"2", in_environment=True)
    assert len(house.secrets.of(record)) == MAX_SECRETS
    large = b"y" * (MAX_ALL_BYTES // 2)
    house.secrets.add(record, "S1", large, in_environment=True)
    too_large = code_of(lambda: house.secrets.add(record, "S2", large, in_environment=True))
    assert too_large is Code.ARGUMENT_TOO_LARGE


def test_environment_is_the_leases_own_and_only_of_what_is_used(house: House) -> None:
    record, other = lease_of(house), lease_of(house, "run-2")
    house.secrets.add(record, "B", b"bbbbbbbbb", in_environment=True)
    house.secrets.add(record, "A", b"aaaaaaaaa", in_environment=True)
    house.secrets.add(record, "C", b"ccccccccc", in_environment=False)
    assert house.secrets.environment(record) == ((b"A", b"aaaaaaaaa"), (b"B", b"bbbbbbbbb"))
    assert house.secrets.environment(other) == ()


def test_a_family_hides_together_and_nobody_else(house: House) -> None:
    above = lease_of(house)
    token = house.leases.show(None, above.id).token
    shared = lease_of(house, "run-1/a", share=above.id, capability=token)
    other = lease_of(house, "run-2")
    house.secrets.add(shared, "A", VALUE, in_environment=True)
    assert hides(house, shared)
    assert hides(house, above)
    assert not hides(house, other)
    assert not hides(house, None)
    fork = lease_of(house, "run-1/b", fork=above.id, capability=token)
    assert hides(house, fork)  # its files are copies of theirs
    deeper = lease_of(
        house, "run-1/b/c", share=fork.id, capability=house.leases.show(None, fork.id).token
    )
    assert hides(house, deeper)
    token = house.leases.show(None, shared.id).token
    copy = lease_of(house, "run-1/a/d", fork=shared.id, capability=token)
    assert hides(house, copy)
    house.secrets.remove(shared, "A")
    assert not hides(house, above)
    assert not hides(house, deeper)
    assert code_of(lambda: house.secrets.remove(shared, "A")) is Code.NOT_FOUND


def test_they_end_with_their_lease_also_in_memory(house: House) -> None:
    record = lease_of(house)
    house.secrets.add(record, "A", VALUE, in_environment=True)
    assert house.secrets.hide_all(VALUE.decode()) == "[redacted:A]"
    house.leases.release(None, record.id)
    assert house.secrets.of(record) == ()
    assert house.secrets.hide_all(VALUE.decode()) == VALUE.decode()
    late = code_of(lambda: house.secrets.add(record, "A", VALUE, in_environment=True))
    assert late is Code.LEASE_EXPIRED
    assert house.secrets.of(record) == ()


def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    house = open_house(str(tmp_path))
    record = lease_of(house)
    house.secrets.add(record, "A", VALUE, in_environment=True)
    house.close()
    again = open_house(str(tmp_path))
    assert again.secrets.environment(record) == ((b"A", VALUE),)
    assert hides(again, record)
    again.close()


def test_a_lost_key_stops_the_start(house: House) -> None:
    house.secrets.add(lease_of(house), "A", VALUE, in_environment=True)
    book = SecretTable(house.ledger, Seal(b"\1" * 32, lambda count: "00" * count))

    def start() -> Secrets:
        return Secrets(book, house.ledger, Tokens(()), house.clock)

    assert code_of(start) is Code.STORAGE_UNAVAILABLE


def test_what_is_recorded_keeps_the_names_of_arguments_and_no_other(house: House) -> None:
    record = lease_of(house)
    house.secrets.add(record, "ODD", b"expected_version", in_environment=False)
    given: dict[str, JsonValue] = {"expected_version": "v", "expected_version2": "v"}
    cleaned, hidden = house.secrets.recorded(record.id, given)
    assert (list(cleaned), hidden) == (["expected_version", "[redacted:ODD]2"], 1)

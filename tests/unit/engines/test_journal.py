"""The record of running calls, as the next process finds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stockade.engines.oci.journal import CallJournal, Entry
from stockade.terms.call import Capture
from stockade.terms.fault import Code, Failure


def entry(sandbox: str, number: int) -> Entry:
    return Entry(
        lease_id="ls_1",
        sandbox=sandbox,
        number=number,
        pid=42,
        started_ns=3,
        deadline_ns=4,
        capture=Capture(5, 6, 7),
        artifacts=("ar_1", ""),
        oom_kills=8,
        pids_refused=9,
    )


def test_what_a_limit_refused_and_no_call_wanted_is_not_theirs_for_the_next_process(
    tmp_path: Path,
) -> None:
    journal = CallJournal(tmp_path / "calls", "boot")
    begun = [entry("sb_1", 1), entry("sb_1", 2), entry("sb_2", 3)]
    for each in begun:
        journal.begin(each, lambda: None)
    journal.forget("2")
    journal.refused("sb_1")
    journal.refused("sb_1")
    journal.begin(entry("sb_1", 4), lambda: None)
    journal.close()
    found = {each.number: each for _, each in CallJournal(tmp_path / "calls", "boot").entries()}
    assert {number: each.pids_refused for number, each in found.items()} == {1: 11, 3: 9, 4: 9}
    assert found[3] == begun[2]


def test_a_call_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = CallJournal(tmp_path / "calls", "boot")
    held = replace(entry("sb_1", 1), held=True)
    journal.begin(entry("sb_1", 2), lambda: None)
    journal.sent(journal.begin(held, lambda: None))
    journal.close()
    found = [each for _, each in CallJournal(tmp_path / "calls", "boot").entries()]
    assert found == [entry("sb_1", 2), replace(held, sent=True)]


@pytest.mark.parametrize("header", ["stockade calls 1 boot", "stockade calls =B7xQiIIII boot"])
def test_records_of_another_layout_are_not_read(tmp_path: Path, header: str) -> None:
    path = tmp_path / "calls"
    journal = CallJournal(path, "boot")
    journal.begin(entry("sb_1", 1), lambda: None)
    journal.close()
    with path.open("r+b") as file:
        file.write(header.encode().ljust(320, b"\0"))
    older = CallJournal(path, "boot")
    assert not older.whole
    assert older.entries() == []
    older.close()
    assert CallJournal(path, "boot").whole


def test_records_of_another_boot_are_not_read(tmp_path: Path) -> None:
    journal = CallJournal(tmp_path / "calls", "boot")
    journal.begin(entry("sb_1", 1), lambda: None)
    journal.close()
    next_one = CallJournal(tmp_path / "calls", "another boot")
    assert not next_one.whole
    assert next_one.entries() == []


def test_counters_beyond_their_fields_end_no_call(tmp_path: Path) -> None:
    """The kernel counts each fork that a limit refuses, and a loop has hours for them."""
    journal = CallJournal(tmp_path / "calls", "boot")
    most = (1 << 32) - 1
    journal.begin(replace(entry("sb_1", 1), oom_kills=1 << 33, pids_refused=1 << 33), lambda: None)
    journal.refused("sb_1")
    ((_, found),) = journal.entries()
    assert (found.oom_kills, found.pids_refused) == (most, most)
    journal.close()


def test_forgetting_a_call_that_nobody_knows_changes_nothing(tmp_path: Path) -> None:
    """The next process would take a file that is not whole for another boot's."""
    journal = CallJournal(tmp_path / "calls", "boot")
    journal.begin(entry("sb_1", 1), lambda: None)
    journal.forget("2")
    journal.close()
    again = CallJournal(tmp_path / "calls", "boot")
    assert again.whole
    assert [each for _, each in again.entries()] == [entry("sb_1", 1)]
    again.close()


def test_a_call_that_has_no_room_is_refused_and_those_before_it_stay(tmp_path: Path) -> None:
    journal = CallJournal(tmp_path / "calls", "boot")

    def fill() -> None:
        for number in range(10_000):
            journal.begin(entry("sb_1", number), lambda: None)

    with pytest.raises(Failure) as raised:
        fill()
    assert raised.value.fault.code is Code.BUSY
    found = sorted(each.number for _, each in journal.entries())
    assert found
    assert found == list(range(len(found)))
    journal.forget("0")
    journal.begin(entry("sb_1", 10_000), lambda: None)
    journal.close()

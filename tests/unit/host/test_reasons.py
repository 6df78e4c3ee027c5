from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.host.disks import Disks
from stockade.host.reasons import reason, without_place
from stockade.host.trash import Trash
from stockade.terms.fault import Failure


def test_the_path_of_an_error_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert reason(OSError(28, "No space left on device", "/state/x")) == "No space left on device"
    assert "/state/x" in caplog.text
    assert reason(OSError(111, "Connection refused")) == "[Errno 111] Connection refused"
    assert reason(ValueError("other")) == "other"


def test_what_a_program_says_loses_the_place_by_any_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = tmp_path / "link"
    (tmp_path / "state").mkdir()
    link.symlink_to("state")
    said = f"open `{link}/a`: gone; mount `{tmp_path}/state/b`: gone"
    shown = "open `(state directory)/a`: gone; mount `(state directory)/b`: gone"
    assert without_place(said, link) == shown
    assert said in caplog.text
    caplog.clear()
    assert without_place("no such program", link) == "no such program"
    assert caplog.records == []


def test_images_and_trash_tell_no_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    trash = Trash(tmp_path / "trash")
    works: tuple[Callable[[], None], ...] = (
        lambda: Disks(tmp_path / "disks").create(f"{tmp_path}/none/i", 1 << 24, 128, common=False),
        lambda: trash.take(f"{tmp_path}/none"),
    )
    for work in works:
        with pytest.raises(Failure) as caught:
            work()
        assert str(tmp_path) not in caught.value.fault.message
        assert "No such file or directory" in caught.value.fault.message
    trash.close()
    assert f"{tmp_path}/none/i" in caplog.text

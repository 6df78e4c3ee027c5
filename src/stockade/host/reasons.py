"""Why something of the host failed, in words for whoever asked: they name none of the host's files.
What is left out of them is in the log, for the operator."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)


def reason(error: Exception) -> str:
    """The error without the path that an OSError names."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    _log.warning("%s", error)
    return error.strerror or type(error).__name__


def without_place(text: str, place: Path) -> str:
    """What a program said, without the names of `place` and what is below it."""
    shown = unplaced(text, place)
    if shown != text:
        _log.warning("%s", text)
    return shown


def unplaced(text: str, place: Path) -> str:
    """`without_place` of what needs no line in the log."""
    for name in (str(place), os.path.realpath(place)):
        text = text.replace(name, "(state directory)")
    return text

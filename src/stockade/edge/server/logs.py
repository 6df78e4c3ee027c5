"""Log lines on stderr, UTC, one per event, as text or as JSON.

Every line that is written by the thread of a call carries the call's ids. An exception is its type
and where it was raised, on the same line: its message may hold what a caller or a program wrote.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal

from stockade.edge import log_context

Format = Literal["text", "json"]
# The attribute of a record whose fields its message says as well.
FIELDS: Final = "stockade_fields"
_FRAMES: Final = 6


def configure(form: Format) -> None:
    """Send Stockade's log to stderr. Lines of other packages come only as warnings."""
    # No line names a thread, a process or the place of its log call, and to find them out takes as
    # long as to write the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine() if form == "json" else TextLine())
    logging.getLogger().addHandler(handler)
    logging.getLogger("stockade").setLevel(logging.INFO)


def pass_through(change: Callable[[str], str]) -> None:
    """Let every line that is logged from now on pass through `change`, tracebacks too."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Passed(handler.formatter or logging.Formatter(), change))


class _Passed(logging.Formatter):
    """Another formatter's lines, changed."""

    def __init__(self, inner: logging.Formatter, change: Callable[[str], str]) -> None:
        super().__init__()
        self._inner = inner
        self._change = change

    def format(self, record: logging.LogRecord) -> str:
        return self._change(self._inner.format(record))


class TextLine(logging.Formatter):
    """Time, level, logger, the call's ids, message."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if not _fields(record):
            ids = " ".join(f"{name}={value}" for name, value in log_context.current().items())
            message = f"{ids} {message}" if ids else message
        place = _place(record)
        if place is not None:
            message = f"{message} [{place}]"
        # One event is one line, whatever a message quotes.
        message = message.replace("\r", "\\r").replace("\n", "\\n")
        return f"{_time(record)} {record.levelname} {record.name} {message}"


class JsonLine(logging.Formatter):
    """An object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = _fields(record)
        line |= {**log_context.current(), **fields}
        if not fields:
            line["message"] = record.getMessage()
        place = _place(record)
        if place is not None:
            line["place"] = place
        return json.dumps(line, ensure_ascii=True)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    found = getattr(record, FIELDS, None)
    return found if isinstance(found, dict) else {}


def _place(record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[1] is None:
        return None
    return place_of(record.exc_info[1])


def place_of(error: BaseException) -> str:
    """The type of an exception and where it came from, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{f.filename}:{f.lineno}" for f in reversed(frames[-_FRAMES:]))
    return f"{type(error).__name__} at {places}"


def _time(record: logging.LogRecord) -> str:
    return f"{_seconds(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(maxsize=1)  # a function of its argument alone, and calls come many a second
def _seconds(since_epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since_epoch))

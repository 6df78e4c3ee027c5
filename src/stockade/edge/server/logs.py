"""Log lines on stderr, UTC, one per event."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable


def configure(level: int = logging.INFO) -> None:
    """Send Stockade's log to stderr. Lines of other packages come only as warnings."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.getLogger().addHandler(handler)
    logging.getLogger("stockade").setLevel(level)


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

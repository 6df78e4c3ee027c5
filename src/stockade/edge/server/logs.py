"""Log lines on stderr, UTC, one per event."""

from __future__ import annotations

import logging
import sys
import time


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

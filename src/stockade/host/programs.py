"""Programs of the host that the daemon runs: looked for where a system keeps its own, never along a
caller's PATH. Whoever looks for one asks here, so `doctor` finds what the daemon will.
"""

from __future__ import annotations

import shutil
from typing import Final

SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(name: str) -> str | None:
    """Its path, or None where it is not installed."""
    return shutil.which(name, path=SEARCH_PATH)

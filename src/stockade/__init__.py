"""Stockade runs an agent's tools inside containers whose walls are computed from a capability.

Names are loaded when they are first used: `import stockade` alone takes a few milliseconds, the
SDK a quarter of a second, most of it for the result's models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from stockade.terms.version import VERSION as __version__

if TYPE_CHECKING:
    from stockade.edge.client.lease import Lease
    from stockade.edge.client.narrowing import attenuate
    from stockade.edge.client.results import Result, StockadeError, ToolError
    from stockade.local import Stockade
    from stockade.terms.result import ToolResult

__all__ = [
    "Lease",
    "Result",
    "Stockade",
    "StockadeError",
    "ToolError",
    "ToolResult",
    "__version__",
    "attenuate",
]

_HOMES: Final = {
    "Lease": "stockade.edge.client.lease",
    "Result": "stockade.edge.client.results",
    "Stockade": "stockade.local",
    "StockadeError": "stockade.edge.client.results",
    "ToolError": "stockade.edge.client.results",
    "ToolResult": "stockade.terms.result",
    "attenuate": "stockade.edge.client.narrowing",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stockade' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__

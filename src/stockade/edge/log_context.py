"""Which call a thread works for, so that every line it writes to the log can say so."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, Protocol

NONE: Final[Mapping[str, str]] = MappingProxyType({})
_CURRENT: Final[ContextVar[Mapping[str, str]]] = ContextVar("stockade_call", default=NONE)


def current() -> Mapping[str, str]:
    """Ids by their names in the log; empty outside of calls."""
    return _CURRENT.get()


class Named(Protocol):
    """What a line says of a call (`terms.ids.CallRef`, `guard.Asked`)."""

    @property
    def lease_id(self) -> str | None: ...
    @property
    def call_id(self) -> str | None: ...


class within:
    """While it is entered, this thread works for that call."""

    def __init__(self, request_id: str, call: Named) -> None:
        lease, call_id = call.lease_id or "-", call.call_id or "-"
        self._ids = {"request_id": request_id, "lease": lease, "call_id": call_id}

    def __enter__(self) -> None:
        self._token = _CURRENT.set(self._ids)

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)

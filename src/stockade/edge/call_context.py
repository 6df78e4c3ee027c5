"""Which call a thread works for, so that every line it writes to the log can say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from stockade.terms.ids import CallRef

NONE: Final[Mapping[str, str]] = MappingProxyType({})
_CURRENT: Final[ContextVar[Mapping[str, str]]] = ContextVar("stockade_call", default=NONE)


def current() -> Mapping[str, str]:
    """Ids by their names in the log; empty outside of calls."""
    return _CURRENT.get()


@contextmanager
def within(request_id: str, call: CallRef) -> Iterator[None]:
    ids = {"request_id": request_id, "lease": call.lease_id or "-", "call_id": call.call_id or "-"}
    token = _CURRENT.set(ids)
    try:
        yield
    finally:
        _CURRENT.reset(token)

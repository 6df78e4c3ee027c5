"""The stages of a call, as clocks and traces name them, and the one thing that a stage says."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Stage(StrEnum):
    """In the order of docs/design.md. `queue` is the wait for a place on a full host."""

    RECEIVE = "receive"
    SCHEMA = "schema"
    AUTHORIZE = "authorize"
    QUEUE = "queue"
    COMPILE = "compile"
    CLAIM = "claim"
    SANDBOX = "sandbox"
    RUN = "run"
    SHAPE = "shape"
    SETTLE = "settle"
    REPLY = "reply"


# A call goes on to this stage now; the one before it is over. Never raises.
Mark = Callable[[Stage], None]


def unmarked(stage: Stage) -> None:
    """For calls that nobody observes."""

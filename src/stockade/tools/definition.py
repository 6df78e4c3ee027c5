"""What a tool is: a closed argument model and pure steps around it.

A `Tool` holds everything that is published about it and everything that the pipeline asks of it.
The pipeline calls, in this order: `rights` (what the call needs, checked by `decide`), `operation`
(what an engine or the file port carries out) and `shape` (what came back, as a verdict). None of
them reads a clock, a file or a socket, so each can be tested to exhaustion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import JsonValue

from stockade.terms.base import Model
from stockade.terms.call import Operation, Right
from stockade.terms.fault import Fault, Status
from stockade.terms.outcome import EditOutcome, ExecOutcome, ViewOutcome
from stockade.terms.result import Artifact, Data, Exit, Items, Stream, Warn, Warning
from stockade.tools.settle import Probe

Level = Literal["A0", "A1", "A2", "A3"]

MAX_ARTIFACT_BYTES: Final = 64 * 1024 * 1024

A = TypeVar("A", bound=Model)
O = TypeVar("O", ExecOutcome, ViewOutcome, EditOutcome)  # noqa: E741 - outcome


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What the permit and the lease say about one call.

    `wall_limit_ms` and `artifact_bytes` come from the grant's `per_call`; `search_path` are the
    directories of the sandbox's PATH, absolute, in order.
    """

    wall_limit_ms: int
    artifact_bytes: int
    search_path: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tool's verdict on an outcome. `fault` decides the status; without one the call is partial
    when items failed and succeeded otherwise. `asked_timeout_ms` is the limit that the arguments ask
    for, to be compared with the applied one."""

    fault: Fault | None = None
    exit: Exit | None = None
    stdout: Stream | None = None
    stderr: Stream | None = None
    data: Data | None = None
    artifacts: tuple[Artifact, ...] = ()
    warnings: tuple[Warning, ...] = ()
    items: Items | None = None
    asked_timeout_ms: int | None = None

    @property
    def status(self) -> Status:
        if self.fault is not None:
            return self.fault.status
        return Status.PARTIAL if self.items is not None and self.items.failed else Status.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Description:
    """The four parts of what a model reads about a tool."""

    what: str
    when: str
    first: str
    returns: str

    @property
    def text(self) -> str:
        return "\n".join((self.what, self.when, self.first, self.returns))


@dataclass(frozen=True, slots=True)
class Policy:
    """How a tool behaves, in one sentence each, published with it."""

    selection: str
    concurrency: str
    idempotency: str
    result: str
    approval: str
    observability: str


@dataclass(frozen=True, slots=True)
class Target:
    """One row of a tool's target table: the right that a call needs, and on which object."""

    right: str
    object: str


@dataclass(frozen=True, slots=True)
class Tool(Generic[A, O]):
    """A tool's definition. `effect` is its authority level under a capability without `connect`,
    `effect_with_connect` under one with it. `data` names the model of `data` in its results.
    `probe` is how an interrupted call is settled. `offered` says whether models are told about
    it."""

    name: str
    description: Description
    policy: Policy
    targets: tuple[Target, ...]
    effect: Level
    effect_with_connect: Level
    arguments: type[A]
    data: type[Model] | None
    rights: Callable[[A], Sequence[Right]]
    operation: Callable[[A, CallLimits], Operation]
    shape: Callable[[A, O], Shaped]
    probe: Probe = Probe.NONE
    offered: bool = True

    def level(self, *, connect: bool) -> Level:
        return self.effect_with_connect if connect else self.effect

    @property
    def input_schema(self) -> dict[str, JsonValue]:
        """JSON Schema (draft 2020-12) of the arguments."""
        return _bare(self.arguments.model_json_schema())

    @property
    def output_schema(self) -> dict[str, JsonValue] | None:
        """JSON Schema of the result's `data`; None when the tool answers with streams only."""
        if self.data is None:
            return None
        return _bare(self.data.model_json_schema(mode="serialization"))


# The catalog holds tools of different arguments and outcomes; each is consistent in itself.
AnyTool = Tool[Any, Any]


def _bare(schema: dict[str, Any]) -> dict[str, JsonValue]:
    """Without the titles that pydantic derives from names: they cost a model tokens."""
    out: dict[str, JsonValue] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if isinstance(value, dict):
            out[key] = _bare(value)
        elif isinstance(value, list):
            out[key] = [_bare(item) if isinstance(item, dict) else item for item in value]
        else:
            out[key] = value
    return out


def warning(code: Warn, message: str, count: int = 1) -> Warning:
    return Warning(code=code, message=message, count=count)

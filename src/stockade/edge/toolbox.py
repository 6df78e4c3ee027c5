"""The tools' definitions as published: for `GET /v1/tools` and the command line."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import JsonValue

from stockade.terms.base import Model
from stockade.tools import catalog
from stockade.tools.definition import AnyTool
from stockade.tools.model_text import as_model


class TargetView(Model):
    """The right that a call needs, and on which object."""

    right: str
    object: str


class ToolView(Model):
    """Everything that is published about a tool. `effect` is its level under a capability without
    `connect`, `effect_with_connect` under one with it."""

    name: str
    what: str
    when: str
    first: str
    returns: str
    offered: bool
    targets: list[TargetView]
    effect: str
    effect_with_connect: str
    policy: dict[str, str]
    input_schema: dict[str, JsonValue]
    output_schema: dict[str, JsonValue] | None


class ToolList(Model):
    tools: list[ToolView]


def tool_list() -> ToolList:
    return ToolList(tools=[_view(tool) for tool in catalog.TOOLS.values()])


def told_to_model(name: str) -> str:
    """Exactly what a model is told about a tool. Raises Failure(unknown_tool)."""
    return as_model(catalog.get(name))


def find_tool(name: str) -> ToolView:
    """Raises Failure(unknown_tool)."""
    return _view(catalog.get(name))


def _view(tool: AnyTool) -> ToolView:
    return ToolView(
        name=tool.name,
        **asdict(tool.description),
        offered=tool.offered,
        targets=[TargetView(right=row.right, object=row.object) for row in tool.targets],
        effect=tool.effect,
        effect_with_connect=tool.effect_with_connect,
        policy=asdict(tool.policy),
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
    )

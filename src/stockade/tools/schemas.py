"""The published schemas as JSON documents (draft 2020-12), by file name below docs/schema.

Deterministic: the same code gives the same bytes, so a test can tell when a file is stale. A tool's
document is the schema of its arguments; what else is published about it is the annotation
`x-stockade`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from pydantic import JsonValue

from stockade.terms.base import Model
from stockade.terms.fault import REGISTRY
from stockade.terms.result import RESULT_SCHEMA, ToolResult
from stockade.tools import catalog
from stockade.tools.definition import AnyTool

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
Document = dict[str, JsonValue]


def documents() -> dict[str, Document]:
    """File name to document."""
    out = {"result.json": result_document(), "codes.json": codes_document()}
    for tool in catalog.TOOLS.values():
        out[f"tool.{tool.name}.json"] = tool_document(tool)
    return out


def result_document() -> Document:
    schema: Document = ToolResult.model_json_schema(mode="serialization", by_alias=True)
    return {"$schema": _DIALECT, "$id": RESULT_SCHEMA, **schema}


def request_document(model: type[Model], name: str) -> Document:
    """The schema of a body that a client sends."""
    return {"$schema": _DIALECT, "$id": f"stockade.{name}/1", **model.model_json_schema()}


def tool_document(tool: AnyTool) -> Document:
    about: Document = {
        "description": asdict(tool.description),
        "offered": tool.offered,
        "targets": [{"right": row.right, "object": row.object} for row in tool.targets],
        "effect": tool.effect,
        "effect_with_connect": tool.effect_with_connect,
        "policy": asdict(tool.policy),
        "output_schema": tool.output_schema,
    }
    return {
        "$schema": _DIALECT,
        "$id": f"stockade.tool.{tool.name}/1",
        "title": tool.name,
        "description": tool.description.what,
        **tool.input_schema,
        "x-stockade": about,
    }


def codes_document() -> Document:
    """The fault registry: a schema of `error.code`, each code with what it means."""
    return {
        "$schema": _DIALECT,
        "$id": "stockade.codes/1",
        "title": "error.code",
        "enum": [code.value for code in REGISTRY],
        "x-stockade": {
            code.value: {
                "status": entry.status.value,
                "fault": entry.blame.value,
                "retry": entry.retry.value,
                "hint": entry.hint,
            }
            for code, entry in REGISTRY.items()
        },
    }


def render(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

"""Every tool by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from stockade.terms.fault import Code, failure
from stockade.tools.definition import AnyTool
from stockade.tools.edit import FILE_EDIT
from stockade.tools.grep import GREP_SEARCH
from stockade.tools.parse import parse_arguments
from stockade.tools.program import RUN
from stockade.tools.shell import BASH_EXECUTE
from stockade.tools.terminal import visible
from stockade.tools.view import FILE_VIEW

__all__ = ["TOOLS", "get", "parse_arguments", "unknown_name"]

_ALL: Final[tuple[AnyTool, ...]] = (BASH_EXECUTE, FILE_VIEW, FILE_EDIT, GREP_SEARCH, RUN)
TOOLS: Final[Mapping[str, AnyTool]] = MappingProxyType({tool.name: tool for tool in _ALL})
_MAX_NAME_CHARS: Final = 63


def get(name: str) -> AnyTool:
    """Raises Failure(unknown_tool), which lists the valid names."""
    tool = TOOLS.get(name)
    if tool is None:
        raise failure(
            Code.UNKNOWN_TOOL,
            f"there is no tool {visible(name[:_MAX_NAME_CHARS])!r}; tools are {', '.join(TOOLS)}",
            valid=tuple(TOOLS),
        )
    return tool


def unknown_name(tool: str, argument: str | None) -> str | None:
    """What is wrong with names that a grant's conditions have; None if they are those of a tool and
    of an argument of it. A condition with a misspelled tool is one for no call."""
    found = TOOLS.get(tool)
    if found is None:
        return f"there is no tool {tool}; tools are {', '.join(TOOLS)}"
    valid = tuple(found.arguments.model_fields)
    if argument is None or argument in valid:
        return None
    return f"{tool} has no argument {argument}; it has {', '.join(valid)}"

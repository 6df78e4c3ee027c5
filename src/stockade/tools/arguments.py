r"""The kinds of argument that several tools share, each bounded and published with its bound.

Two errors have codes of their own: a value that is too large for this way in (`argument_too_large`,
whose hint names another way), and an edit that changes nothing. Everything else that a validator
refuses is an `invalid_argument`, with the ValueError's text as the reason.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from stockade.decide.objects import normalize_call_path
from stockade.terms import pathname
from stockade.terms.fault import Code, Failure, failure

TOO_LARGE: Final = "argument_too_large"
NO_CHANGE: Final = "no_change"

MAX_COMMAND_CHARS: Final = 8192
MAX_EDIT_BYTES: Final = 1024 * 1024
# A byte that is not text takes four characters (\xNN).
_MAX_PATH_CHARS: Final = 4 * pathname.MAX_PATH_BYTES
_TREES: Final = (pathname.WORKSPACE.encode(), pathname.TMP.encode())


def too_large(message: str) -> PydanticCustomError:
    return PydanticCustomError(TOO_LARGE, "{reason}", {"reason": message})


def _path(value: str) -> str:
    normalize_call_path(value)
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    return value


def _command(value: str) -> str:
    if len(value) > MAX_COMMAND_CHARS:
        raise too_large(
            f"has {len(value)} characters; at most {MAX_COMMAND_CHARS} are possible. "
            "Write a longer script to a file and run the file"
        )
    return _no_nul(value)


def _edit(value: str) -> str:
    size = len(value.encode())
    if size > MAX_EDIT_BYTES:
        raise too_large(
            f"has {size} bytes; at most {MAX_EDIT_BYTES} are possible. "
            "Make smaller edits, or upload the whole file"
        )
    return value


PathArgument = Annotated[
    str,
    AfterValidator(_path),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": _MAX_PATH_CHARS,
            "description": "Container path below /workspace or /tmp; relative means below "
            "/workspace. At most 4,096 bytes; a byte that is not UTF-8 is written \\xNN, "
            "a backslash \\x5c.",
        }
    ),
]
Command = Annotated[
    str,
    Field(min_length=1),
    AfterValidator(_command),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_COMMAND_CHARS,
            "description": "Shell command or script.",
        }
    ),
]
EditText = Annotated[
    str, AfterValidator(_edit), WithJsonSchema({"type": "string", "maxLength": MAX_EDIT_BYTES})
]
NoNul = Annotated[str, AfterValidator(_no_nul)]


def object_of(path: str) -> str:
    """A checked path argument as the object of a right: absolute, in its one spelling. Raises
    Failure(outside_workspace) by name alone; a path with `..` is left to the resolver."""
    raw = normalize_call_path(path)
    if b".." not in raw.split(b"/") and tree_of(raw) is None:
        raise outside(raw)
    return pathname.to_text(raw)


def tree_of(path: bytes) -> bytes | None:
    """Which of the two trees a normalized path lies in, dots taken by name."""
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part:
            parts.append(part)
    first = b"/" + parts[0] if parts else b"/"
    return first if first in _TREES else None


def outside(path: bytes) -> Failure:
    return failure(
        Code.OUTSIDE_WORKSPACE, f"{pathname.to_text(path)} is outside of /workspace and /tmp"
    )

"""What a caller gives for a call, as far as a request can hold it.

Mostly it is what a model wrote: a text or a list where an object belongs is one more call that is
`invalid`, and ends no agent's loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from stockade.terms.fault import Code, Failure, failure


def given_arguments(arguments: object) -> dict[str, JsonValue]:
    """Those that are not None. Raises Failure(invalid_argument) for what is no object with names;
    what the values are is looked at later."""
    if not (isinstance(arguments, Mapping) and all(isinstance(name, str) for name in arguments)):
        raise _wrong("arguments", "one JSON object")
    return {name: value for name, value in arguments.items() if value is not None}


def given_argv(argv: object) -> list[str]:
    """Raises Failure(invalid_argument) for what is no sequence of texts. A single text would be a
    sequence of its characters."""
    if not (isinstance(argv, list | tuple) and all(isinstance(part, str) for part in argv)):
        raise _wrong("argv", "a list of texts, the program's name first")
    return [*argv]


def _wrong(name: str, what: str) -> Failure:
    return failure(Code.INVALID_ARGUMENT, f"{name}: must be {what}", field=name)

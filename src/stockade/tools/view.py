"""`file_view`: lines of a text file, numbered, with what is needed to go on and to edit.

A line is shown with its own ending, so that what was seen can be used as `old_str`: only the number
and the tab before it are ours. A byte-order mark at the start isn't shown, `bom` names it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final, Literal, cast

from pydantic import Field

from stockade.terms.base import MAX_INTEGER, Model
from stockade.terms.call import Right, ViewOperation
from stockade.terms.outcome import ViewOutcome
from stockade.terms.result import ViewData
from stockade.tools.arguments import PathArgument, object_of
from stockade.tools.definition import CallLimits, Description, Policy, Shaped, Target, Tool
from stockade.tools.text import decode, without_cut_end

MAX_VIEW_BYTES: Final = 64 * 1024
MAX_LINE_CHARS: Final = 2000
_BOM: Final = b"\xef\xbb\xbf"


class ViewArguments(Model):
    path: PathArgument
    offset: Annotated[
        int, Field(ge=1, le=MAX_INTEGER, description="First line to show, counted from 1.")
    ] = 1
    limit: Annotated[int, Field(ge=1, le=500, description="How many lines at most.")] = 200


def _rights(arguments: ViewArguments) -> tuple[Right, ...]:
    return (Right("read", object_of(arguments.path)),)


def _operation(arguments: ViewArguments, _: CallLimits) -> ViewOperation:
    return ViewOperation(
        path=object_of(arguments.path),
        offset=arguments.offset,
        limit=arguments.limit,
        max_bytes=MAX_VIEW_BYTES,
        max_line_chars=MAX_LINE_CHARS,
    )


def _shape(_: ViewArguments, outcome: ViewOutcome) -> Shaped:
    last = outcome.first_line + len(outcome.lines) - 1
    content, lossy = _content(outcome)
    data = ViewData(
        kind="file_view",
        path=outcome.path,
        first_line=outcome.first_line,
        last_line=last,
        total_lines=outcome.total_lines,
        next_offset=last + 1 if last < outcome.total_lines else None,
        version=outcome.version,
        bytes=outcome.bytes,
        line_endings=cast(Literal["lf", "crlf", "mixed", "none"], outcome.line_endings),
        final_newline=outcome.final_newline,
        bom=outcome.bom,
        content=content,
        lossy=lossy,
        cut_lines=list(outcome.cut),
        total_lines_at_least=outcome.total_lines_at_least,
    )
    return Shaped(data=data)


def _content(outcome: ViewOutcome) -> tuple[str, bool]:
    """The numbered lines, and whether a byte of them had to be replaced by U+FFFD."""
    texts, lossy = _texts(outcome)
    # As `:>6`, in half of its time.
    numbered = [
        f"{str(number).rjust(6)}\t{text}" for number, text in enumerate(texts, outcome.first_line)
    ]
    return "".join(numbered), lossy


def _texts(outcome: ViewOutcome) -> tuple[list[str], bool]:
    if not outcome.cut and not outcome.bom:
        # Mostly lines are UTF-8 and whole: 200 of them one by one take 100 us more.
        with suppress(UnicodeDecodeError):
            return [line.decode() for line in outcome.lines], False
    texts = [
        _text(number, line, outcome)
        for number, line in enumerate(outcome.lines, outcome.first_line)
    ]
    return [text for text, _ in texts], any(lossy for _, lossy in texts)


def _text(number: int, line: bytes, outcome: ViewOutcome) -> tuple[str, bool]:
    if number == 1 and outcome.bom:
        line = line.removeprefix(_BOM)
    body = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
    ending = line[len(body) :].decode()
    marker = ""
    if number in outcome.cut:
        body = without_cut_end(body)
        marker = f" [line cut at {MAX_LINE_CHARS} characters]"
        ending = ending or "\n"
    text, lossy = decode(body)
    return f"{text}{marker}{ending}", lossy


FILE_VIEW: Final = Tool(
    name="file_view",
    description=Description(
        what="Show lines of a text file with their numbers, and the file's version.",
        when="Use it to read a file before you edit it. To find where something is use "
        "grep_search; for directories and binary files use bash_execute (ls, file, xxd).",
        first="You need the path: relative means below /workspace. Of a long file ask for the part "
        "you need with offset and limit.",
        returns="Each line as number, tab and the line itself; the number of lines in all, "
        "next_offset to go on, and a version that file_edit takes as expected_version. At most "
        "500 lines, 64 KiB and 2,000 characters of a line.",
    ),
    policy=Policy(
        selection="Preferred over cat, head and sed in bash_execute.",
        concurrency="Parallel with everything; sees a file as it was at one moment.",
        idempotency="Repeating is free.",
        result="data of kind file_view.",
        approval="Where an approve rule of the capability fits the call.",
        observability="Status, times and byte counts; never path or content.",
    ),
    targets=(Target("read", "path, as resolved"),),
    effect="A0",
    effect_with_connect="A0",
    arguments=ViewArguments,
    data=ViewData,
    rights=_rights,
    operation=_operation,
    shape=_shape,
)

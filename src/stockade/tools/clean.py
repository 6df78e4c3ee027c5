"""The last pure step of every result: secrets hidden, what can't be seen made visible, both stated.

It is done twice. What came back is cleaned as bytes before a tool shapes it, because a secret need
not be text, and a line number or a cut mark would stand in the middle of one. Then every string of
the result is gone through, whatever tool or fault it comes from. Control characters of a program
stay in the result, which is JSON and escapes them; a text for a model renders them
(`tools.terminal`). Here they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from stockade.decide.canonical import JsonLike
from stockade.terms.base import Model
from stockade.terms.invisible import has_invisible, show_invisible, show_invisible_in_path
from stockade.terms.outcome import Captured, EditOutcome, ExecOutcome, ViewOutcome
from stockade.terms.result import (
    Data,
    EditData,
    Error,
    GrepData,
    Items,
    Stream,
    ToolResult,
    ViewData,
    Warn,
    Warning,
)
from stockade.tools.redact import Findings, Redactor

_NOT_CONTROLS: Final = bytes(set(range(256)) - (set(range(32)) - set(b"\t\n\r")) - {0x7F})
_MAX_NAMES: Final = 8
_MAX_LINES: Final = 8

Change = Callable[[str], str]
Detail = int | str | bool | list[str] | list[int]
M = TypeVar("M", bound=Model)
Outcome = ExecOutcome | ViewOutcome | EditOutcome


class Changes(NamedTuple):
    """`both` hides and makes visible, `shown` is for what has passed as bytes, `path` for names."""

    both: Change
    shown: Change
    path: Change


def clean_outcome(outcome: Outcome, redactor: Redactor, findings: Findings) -> Outcome:
    """What came back, with secrets hidden in the bytes that are shown. Not for the output of a
    search, which a tool has to read first."""
    if isinstance(outcome, ViewOutcome):
        lines = redactor.lines(outcome.lines, findings, apart=bool(outcome.cut))
        if findings.hidden:
            outcome = replace(outcome, lines=tuple(lines))
        findings.lines += _invisible_lines(outcome)
        return outcome
    if isinstance(outcome, ExecOutcome):
        out = _clean_stream(outcome.stdout, redactor, findings)
        err = _clean_stream(outcome.stderr, redactor, findings)
        if out is not outcome.stdout or err is not outcome.stderr:
            outcome = replace(outcome, stdout=out, stderr=err)
        return outcome
    return clean_edit(outcome, redactor, findings)


def clean_edit(edit: EditOutcome, redactor: Redactor, findings: Findings) -> EditOutcome:
    """An edit as it may be recorded. Its path stays, for it is looked at again."""
    diff = _diff(edit.diff, redactor, findings)
    return edit if diff == edit.diff else replace(edit, diff=diff)


def clean_result(result: ToolResult, redactor: Redactor, findings: Findings) -> ToolResult:
    """The result with every string in it clean, and a warning for what was done."""

    def hidden(text: str) -> str:
        return redactor.text(text, findings)

    def shown(text: str) -> str:
        text, count = show_invisible(text)
        findings.invisible += count
        return text

    def both(text: str) -> str:
        return shown(hidden(text))

    def path(text: str) -> str:
        text, count = show_invisible_in_path(hidden(text))
        findings.invisible += count
        return text

    stdout, stderr = _stream(result.stdout, shown), _stream(result.stderr, shown)
    data = _data(result.data, Changes(both, shown, path), redactor, findings)
    warnings = [_with(each, message=both(each.message)) for each in result.warnings]
    error = _error(result.error, both)
    items = _items(result.items, both)
    warnings += _stated(findings)
    return _with(
        result,
        stdout=stdout,
        stderr=stderr,
        data=data,
        warnings=warnings,
        error=error,
        items=items,
    )


def clean_arguments(
    arguments: Mapping[str, JsonLike], redactor: Redactor, findings: Findings
) -> dict[str, JsonLike]:
    """The arguments of a call as they may be recorded: names stay, every text in the values is
    clean."""
    return {name: _clean_value(value, redactor, findings) for name, value in arguments.items()}


def _clean_value(value: JsonLike, redactor: Redactor, findings: Findings) -> JsonLike:
    if isinstance(value, str):
        return redactor.text(value, findings)
    if isinstance(value, Mapping):
        return {
            redactor.text(name, findings): _clean_value(each, redactor, findings)
            for name, each in value.items()
        }
    if isinstance(value, Sequence):
        return [_clean_value(each, redactor, findings) for each in value]
    return value


def _clean_stream(captured: Captured, redactor: Redactor, findings: Findings) -> Captured:
    head, tail = captured.head, captured.tail
    if captured.whole:
        raw = head + tail
        text = redactor.hide(raw, findings)
        shown = None if text is raw else (text, b"")
    else:
        before, after = captured.before_tail, captured.after_head
        first = redactor.hide(head + after, findings, open_end=True, shown=(0, len(head)))
        window = (len(before), len(before) + len(tail))
        last = redactor.hide(before + tail, findings, open_start=True, shown=window)
        shown = None if (first, last) == (head, tail) else (first, last)
    findings.controls += _controls(head) + _controls(tail)
    return captured if shown is None else replace(captured, shown=shown)


def _controls(data: bytes) -> int:
    """Control characters that a text does not need: not tab, newline and CRLF."""
    found = len(data.translate(None, _NOT_CONTROLS))
    returns = data.count(b"\r")
    return found + (returns - data.count(b"\r\n") if returns else 0)


def _invisible_lines(outcome: ViewOutcome) -> list[int]:
    return [
        number
        for number, line in enumerate(outcome.lines, outcome.first_line)
        if not line.isascii() and has_invisible("x" + line.decode("utf-8", "replace"))
    ]


def _with(model: M, **update: object) -> M:
    """The model with other values: itself where they are equal, for a copy costs several us."""
    if all(getattr(model, name) == value for name, value in update.items()):
        return model
    return model.model_copy(update=update)


def _stream(stream: Stream | None, shown: Change) -> Stream | None:
    return None if stream is None else _with(stream, text=shown(stream.text))


def _data(
    data: Data | None, change: Changes, redactor: Redactor, findings: Findings
) -> Data | None:
    if isinstance(data, ViewData):
        return _with(data, path=change.path(data.path), content=change.shown(data.content))
    if isinstance(data, EditData):
        diff = change.shown(_diff(data.diff, redactor, findings))
        return _with(data, changed_file=change.path(data.changed_file), diff=diff)
    if isinstance(data, GrepData):
        # One search for all of them: there may be hundreds, and mostly there is nothing.
        texts = [text for match in data.matches for text in (match.path, match.text)]
        text = change.shown if redactor.passes("\n".join(texts)) else change.both
        paths = {name: change.path(name) for name in {match.path for match in data.matches}}
        matches = [
            _with(match, path=paths[match.path], text=text(match.text)) for match in data.matches
        ]
        return _with(data, matches=matches)
    return data


def _diff(diff: str, redactor: Redactor, findings: Findings) -> str:
    """What goes over several lines has a sign in each, and is found without."""
    lines = [line + b"\n" for line in diff.encode("utf-8", "surrogatepass").split(b"\n")]
    clean = redactor.lines([line[1:] for line in lines], findings, apart=True)
    signed = [line[:1] + rest for line, rest in zip(lines, clean, strict=True)]
    return b"".join(signed)[:-1].decode("utf-8", "surrogatepass")


def _error(error: Error | None, both: Change) -> Error | None:
    if error is None:
        return None
    details = error.details
    if details is not None:
        details = {name: _detail(value, both) for name, value in details.items()}
    return _with(error, message=both(error.message), details=details)


def _detail(value: Detail, both: Change) -> Detail:
    if isinstance(value, str):
        return both(value)
    if isinstance(value, list):
        texts = [both(item) for item in value if isinstance(item, str)]
        return texts or value
    return value


def _items(items: Items | None, both: Change) -> Items | None:
    if items is None:
        return None
    errors = [
        _with(each, item=both(each.item), message=both(each.message)) for each in items.errors
    ]
    return _with(items, errors=errors)


def _stated(findings: Findings) -> list[Warning]:
    out: list[Warning] = []
    if findings.hidden:
        out.append(
            Warning(
                code=Warn.REDACTED,
                message=f"hidden from this result: {_some(sorted(findings.hidden), _MAX_NAMES)}",
                count=findings.hidden.total(),
            )
        )
    said = []
    if findings.invisible:
        where = ""
        if findings.lines:
            plural = "s" if len(findings.lines) > 1 else ""
            where = f" (line{plural} {_some([str(n) for n in findings.lines], _MAX_LINES)})"
        said.append(
            f"invisible or bidirectional characters are shown as <U+NNNN>{where}, "
            "which is not what is there"
        )
    if findings.controls:
        said.append("control characters are in the output, and shown to a model as their effect")
    if said:
        count = findings.invisible + findings.controls
        out.append(Warning(code=Warn.MADE_VISIBLE, message="; ".join(said), count=count))
    return out


def _some(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""A result as the text that a model reads: short, honest, what matters first, never over budget.

First line: the verdict. Then what to do about it, then the data or the streams (of a failed program
stderr first), then warnings. What a sandbox wrote stands between two lines that carry the end of the
request's id: a program does not know it while it runs, so it can't forge the closing line. Streams
are rendered as a terminal would show them (`tools.terminal`) before they are cut to what fits,
head and tail.
"""

from __future__ import annotations

import json
from typing import Final

from pydantic import JsonValue

from stockade.terms.fault import Status
from stockade.terms.result import EditData, GrepData, Stream, ToolResult, ViewData
from stockade.tools.definition import AnyTool
from stockade.tools.execution import signal_name
from stockade.tools.terminal import rendered, visible

DEFAULT_BUDGET: Final = 8000
_TAG_CHARS: Final = 8
_MAX_NOTE_CHARS: Final = 400
_MAX_NOTES: Final = 6
_MAX_DETAIL_CHARS: Final = 300


def for_model(result: ToolResult, budget: int = DEFAULT_BUDGET) -> str:
    """At most `budget` characters. Raises ValueError when `budget` is negative."""
    if budget < 0:
        raise ValueError("a budget can't be negative")
    head = "\n".join([_verdict(result), *_advice(result)])
    notes, bodies = _notes(result), _bodies(result)
    tag = result.request_id[-_TAG_CHARS:]
    empty = [_fenced(label, "", tag) for label, _ in bodies]
    room = budget - len("\n".join([head, *empty, *notes]))
    texts = _fit([text for _, text in bodies], room)
    fenced = [
        _fenced(label, text, tag) for (label, _), text in zip(bodies, texts, strict=True) if text
    ]
    return cut("\n".join([head, *fenced, *notes]), budget)


def as_model(tool: AnyTool) -> str:
    """Exactly what a model is told about a tool, as JSON."""
    told: dict[str, JsonValue] = {
        "name": tool.name,
        "description": tool.description.text,
        "input_schema": tool.input_schema,
    }
    return json.dumps(told, indent=2, ensure_ascii=False)


def cut(text: str, room: int) -> str:
    """Head and tail of a text with a marker between them; at most `room` characters."""
    if len(text) <= room:
        return text
    if room <= 0:
        return ""
    mark = f"\n[... {len(text)} characters, cut here ...]\n"
    left = room - len(mark)
    if left < 2:
        return text[:room]
    tail = left // 2
    return text[: left - tail] + mark + text[len(text) - tail :]


def _verdict(result: ToolResult) -> str:
    words = [result.status.value]
    if result.exit is not None and result.exit.kind == "exited":
        words.append(f"exit status {result.exit.code}")
    elif result.exit is not None and result.exit.signal is not None:
        words.append(f"ended by {signal_name(result.exit.signal)}")
    if result.error is not None and result.status is not Status.FAILED:
        words.append(f"{result.error.code.value}: {visible(result.error.message)}")
    if result.replayed:
        words.append("(stored result of the same call)")
    return f"{words[0]}: {', '.join(words[1:])}" if words[1:] else words[0]


def _advice(result: ToolResult) -> list[str]:
    error = result.error
    if error is None or result.status is Status.FAILED:
        return []
    lines = [error.hint]
    if error.retry_after_ms is not None:
        lines.append(f"Repeat after {error.retry_after_ms} ms.")
    if error.details:
        shown = ", ".join(f"{name}={value}" for name, value in error.details.items())
        lines.append(f"Details: {visible(cut(shown, _MAX_DETAIL_CHARS))}")
    return lines


def _bodies(result: ToolResult) -> list[tuple[str, str]]:
    """Label and text of what the sandbox gave, most important first."""
    data = result.data
    if isinstance(data, ViewData):
        more = f"; go on with offset={data.next_offset}" if data.next_offset else ""
        at_least = "at least " if data.total_lines_at_least else ""
        label = f"{data.path} lines {data.first_line}-{data.last_line} of {at_least}"
        label += str(data.total_lines)
        return [(f"{label}, version {data.version}{more}", visible_lines(data.content))]
    if isinstance(data, EditData):
        label = f"{data.replacements} replaced in {data.changed_file}, version {data.new_version}"
        return [(label, visible_lines(data.diff) or "(no diff)")]
    if isinstance(data, GrepData):
        return [(_grep_label(data), _grep_text(data))]
    if data is not None:
        return [(data.kind, data.model_dump_json())]
    streams = [("stdout", result.stdout), ("stderr", result.stderr)]
    if result.status is not Status.SUCCEEDED:
        streams.reverse()
    return [
        (_stream_label(name, stream), rendered(stream.text))
        for name, stream in streams
        if stream is not None and stream.total_bytes > 0
    ]


def visible_lines(text: str) -> str:
    """A file's lines: endings of CRLF files read as newlines, nothing overwritten."""
    return visible(text.replace("\r\n", "\n"))


def _stream_label(name: str, stream: Stream) -> str:
    more = ", not all of it" if stream.truncated else ""
    more += ", some bytes are no text" if stream.lossy else ""
    return f"{name}, {stream.total_bytes} bytes{more}"


def _grep_label(data: GrepData) -> str:
    at_least = "at least " if data.at_least else ""
    label = f"{at_least}{data.matches_total} matching lines in {data.files_with_matches} files"
    return f"{label}, {len(data.matches)} shown" if data.truncated else label


def _grep_text(data: GrepData) -> str:
    lines = [f"{m.path}:{m.line}:{m.column}: {visible(m.text)}" for m in data.matches]
    return "\n".join(lines)


def _notes(result: ToolResult) -> list[str]:
    notes = [f"note: {w.message} ({w.code.value}, {w.count})" for w in result.warnings]
    if result.items is not None:
        notes += [f"not done: {e.item}: {e.message}" for e in result.items.errors]
    notes += [f"artifact {a.id}: {a.name}, {a.bytes} bytes" for a in result.artifacts]
    left = len(notes) - _MAX_NOTES
    shown = [cut(visible(note), _MAX_NOTE_CHARS) for note in notes[:_MAX_NOTES]]
    return [*shown, f"note: {left} more"] if left > 0 else shown


def _fenced(label: str, text: str, tag: str) -> str:
    return f"<<< {visible(label)} (untrusted {tag})\n{text}\n>>> {tag}"


def _fit(texts: list[str], room: int) -> list[str]:
    """Cut texts so that together they have at most `room` characters: short ones stay whole."""
    out = list(texts)
    left, waiting = max(0, room), len(texts)
    for index in sorted(range(len(texts)), key=lambda i: len(texts[i])):
        out[index] = cut(texts[index], left // waiting)
        left -= len(out[index])
        waiting -= 1
    return out

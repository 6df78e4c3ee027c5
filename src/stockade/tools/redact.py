"""Finding secrets in bytes, and putting `[redacted:NAME]` in their place.

Two kinds are looked for: registered secrets in all their forms (`needles`), and credentials that
can be told by their form (`policy/redaction`), these also inside of base64.

A text may be a part of a longer one: kept output is a head and a tail, a search shows one line. An
end that is `open` was cut, and the rest of a secret may lie beyond it. So at an open end also the
beginning of a secret is hidden, and all of a text that is the inside of one, from 8 bytes on. A
credential's form can't be told by a part of it: who cuts keeps context behind the cut
(`Captured.after_head`), which is searched and not shown.

The time is linear in the text for patterns, and for each needle.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stockade.decide.patterns import byte_scanner, literal
from stockade.decide.redaction_file import TokenPattern
from stockade.terms.secret import Secret
from stockade.tools.needles import FRAGMENT_BYTES, WHITE_SPACE, needles, squeeze

# The bytes behind a cut that are searched with what is shown: the longest credential but some keys.
CONTEXT_BYTES: Final = 4096
_BASE64: Final = "[A-Za-z0-9+/_-]*"
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_MIN_LITERAL: Final = 3


class Span(NamedTuple):
    start: int
    end: int
    name: str


class Tokens:
    """The credentials that can be told by their form. Made once; thread-safe."""

    def __init__(self, patterns: Sequence[TokenPattern]) -> None:
        self._kinds = [(each.kind, byte_scanner(each.pattern)) for each in patterns]
        whole = "|".join(f"(?:{each.pattern})" for each in patterns)
        hints = {hint for each in patterns for begin in each.begins for hint in _hints(begin)}
        hint = "|".join(map(literal, sorted(hints)))
        self._any = byte_scanner(whole)
        self._hint = byte_scanner(hint)
        self._either = byte_scanner(f"{whole}|{hint}")
        self._run = byte_scanner(f"{_BASE64}(?:{hint}){_BASE64}")

    def spans(self, data: bytes) -> Iterator[Span]:
        if self._either.search(data) is not None:
            yield from self._plain(data)
            yield from self._inside(data)
        if b"\n" in data:
            # Wrapped base64: a line may end anywhere.
            wrapped = list(self._inside(data.translate(None, b"\r\n")))
            if wrapped:
                yield from _placed(wrapped, data, b"\r\n")

    def _plain(self, data: bytes) -> Iterator[Span]:
        if self._any.search(data) is None:
            return
        for kind, scanner in self._kinds:
            for found in scanner.finditer(data):
                yield Span(*found.span(), kind)

    def _inside(self, data: bytes) -> Iterator[Span]:
        """In base64 that begins at any character."""
        if self._hint.search(data) is None:
            return
        for found in self._run.finditer(data):
            start, end = found.span()
            text = data[start:end].translate(_STANDARD)
            for shift in range(4):
                part = text[shift:]
                decoded = base64.b64decode(part[: len(part) // 4 * 4] + _padded(part))
                for span in self._plain(decoded):
                    first = start + shift + span.start * 8 // 6
                    last = start + shift + -(-span.end * 8 // 6)
                    yield Span(first, min(last, end), span.name)


@dataclass(slots=True)
class Findings:
    """What was hidden in one result, and where characters were made visible."""

    hidden: Counter[str] = field(default_factory=Counter)
    invisible: int = 0
    controls: int = 0
    lines: list[int] = field(default_factory=list)


class Redactor:
    """Hides the secrets of one lease, and credentials. Immutable; thread-safe."""

    def __init__(self, tokens: Tokens, secrets: Iterable[Secret] = ()) -> None:
        self._tokens = tokens
        self._secrets = [(each.name, needles(each.value)) for each in secrets]
        forms = [form for _, found in self._secrets for form in found]
        ends = {form[:FRAGMENT_BYTES] for form in forms} | {
            form[-FRAGMENT_BYTES:] for form in forms
        }
        # One search that says of most texts that no secret begins or ends in them.
        self._ends = byte_scanner("|".join(map(literal, sorted(ends))))
        self._longest = max(map(len, forms), default=0)

    def passes(self, text: str) -> bool:
        """Whether nothing in the text, nor in any part of it, can be anything to hide."""
        if self._secrets:
            return False
        return next(self._tokens.spans(text.encode("utf-8", "surrogatepass")), None) is None

    def spans(self, data: bytes, *, open_start: bool = False, open_end: bool = False) -> list[Span]:
        """Where something is to be hidden: apart from each other, from left to right."""
        if not data:
            return []
        found = list(self._tokens.spans(data))
        if self._secrets:
            found += self._registered(data, open_start, open_end)
        return _merged(found)

    def hide(
        self,
        data: bytes,
        findings: Findings,
        *,
        open_start: bool = False,
        open_end: bool = False,
        shown: tuple[int, int] | None = None,
    ) -> bytes:
        """The part `shown` (start, end) of `data`, with what is to be hidden replaced."""
        first, last = shown or (0, len(data))
        spans = self.spans(data, open_start=open_start, open_end=open_end)
        touched = [span for span in spans if span.end > first and span.start < last]
        if not touched:
            return data[first:last] if shown is not None else data
        out, position = [], first
        for span in touched:
            out += [data[position : span.start], marker(span.name)]
            position = span.end
            findings.hidden[span.name] += 1
        out.append(data[position:last])
        return b"".join(out)

    def text(self, text: str, findings: Findings, *, part: bool = True) -> str:
        """A string likewise; `part` says that it may be cut on both sides. Half a surrogate pair
        stays."""
        raw = text.encode("utf-8", "surrogatepass")
        shown = self.hide(raw, findings, open_start=part, open_end=part)
        return text if shown is raw else shown.decode("utf-8", "surrogatepass")

    def lines(self, lines: Sequence[bytes], findings: Findings, *, apart: bool) -> list[bytes]:
        """Lines that follow each other, from somewhere in a file. What goes over several is
        replaced in the first one, and the others keep their ends. `apart` says that something may
        be missing between any two."""
        data = b"".join(lines)
        spans = self.spans(data, open_start=True, open_end=True)
        findings.hidden.update(span.name for span in spans)
        out, offset = [], 0
        for line in lines:
            out.append(_line(line, offset, spans) if spans else line)
            offset += len(line)
        if apart and self._secrets:
            out = [self.hide(line, findings, open_start=True, open_end=True) for line in out]
        return out

    def _registered(self, data: bytes, open_start: bool, open_end: bool) -> list[Span]:
        tight = squeeze(data)
        found: list[Span] = []
        if open_start and open_end and FRAGMENT_BYTES <= len(tight) < self._longest:
            for name, forms in self._secrets:
                if any(tight in form for form in forms):
                    return _placed([Span(0, len(tight), name)], data, WHITE_SPACE)
        if self._ends.search(tight) is None:
            return []
        for name, forms in self._secrets:
            for form in forms:
                found += [Span(start, end, name) for start, end in _all(tight, form)]
                if open_end:
                    start = _begun(tight, form)
                    if start < len(tight):
                        found.append(Span(start, len(tight), name))
                if open_start:
                    end = _ended(tight, form)
                    if end:
                        found.append(Span(0, end, name))
        if not found or len(tight) == len(data):
            return found
        return _placed(found, data, WHITE_SPACE)


def marker(name: str) -> bytes:
    return f"[redacted:{name}]".encode()


def _hints(begin: str) -> Iterator[bytes]:
    """How base64 begins to show `begin`, by where in a triple it begins."""
    raw = begin.encode()
    for offset in range(3):
        text = base64.b64encode(bytes(offset) + raw)
        hint = text[-(-offset * 8 // 6) : (offset + len(raw)) * 8 // 6]
        if len(hint) >= _MIN_LITERAL:
            yield hint
            yield hint.replace(b"+", b"-").replace(b"/", b"_")


def _placed(spans: list[Span], data: bytes, without: bytes) -> list[Span]:
    """Spans in `data` without some characters as spans in `data`."""
    places = [place for place, byte in enumerate(data) if byte not in without]
    return [Span(places[start], places[end - 1] + 1, name) for start, end, name in spans]


def _padded(text: bytes) -> bytes:
    """The last, unfinished group of base64 as one that can be read; of one character nothing."""
    rest = text[len(text) // 4 * 4 :]
    return rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""


def _all(data: bytes, form: bytes) -> Iterator[tuple[int, int]]:
    """Where the form is, also where two of it overlap: a secret may repeat itself."""
    start, end = 0, 0
    position = data.find(form)
    while position >= 0:
        if position > end:
            if end:
                yield start, end
            start = position
        end = position + len(form)
        position = data.find(form, position + 1)
    if end:
        yield start, end


def _begun(data: bytes, form: bytes) -> int:
    """Where the beginning of `form` begins that `data` ends with; its length if there is none."""
    head = form[:FRAGMENT_BYTES]
    position = data.find(head, max(0, len(data) - len(form) + 1))
    while position >= 0:
        if form.startswith(data[position:]):
            return position
        position = data.find(head, position + 1)
    return len(data)


def _ended(data: bytes, form: bytes) -> int:
    """Where the end of `form` ends that `data` begins with; 0 if there is none."""
    tail = form[-FRAGMENT_BYTES:]
    position = data.rfind(tail, 0, len(form) - 1)
    while position >= 0:
        end = position + FRAGMENT_BYTES
        if form.endswith(data[:end]):
            return end
        position = data.rfind(tail, 0, end - 1)
    return 0


def _merged(found: list[Span]) -> list[Span]:
    out: list[Span] = []
    for span in sorted(found):
        if out and span.start < out[-1].end:
            last = out[-1]
            out[-1] = Span(last.start, max(last.end, span.end), last.name)
        else:
            out.append(span)
    return out


def _line(line: bytes, offset: int, spans: list[Span]) -> bytes:
    body = line.rstrip(b"\r\n")
    out, position = [], 0
    for span in spans:
        start, end = span.start - offset, span.end - offset
        if end <= 0 or start >= len(body):
            continue
        out.append(body[position : max(start, position)])
        if start >= 0:
            out.append(marker(span.name))
        position = min(end, len(body))
    return b"".join(out) + body[position:] + line[len(body) :]

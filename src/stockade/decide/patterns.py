r"""Regular expressions that a capability may carry: RE2, because a holder writes them and the
daemon runs them on text that a model wrote.

RE2 has no back-references and no look-around, so the time of a match is linear in the text, and
`MAX_MEMORY_BYTES` bounds the program and the automaton built from it. What RE2 refuses, no block
can hold. A pattern must fit the whole text: `|` needs no brackets for that. `.` does not match a
newline unless the pattern says `(?s)`, and `$` is the end of the text only, never the place before
a last newline, so `a` and `a$` refuse "a\n". Text is matched as UTF-8.

The two bounds together are what one match can cost: 2,700 instructions at 5 ns for each of 131,072
bytes, 1.8 s, in the few patterns that RE2's automaton has no room for; else some 0.1 ms. The
interpreter runs other threads meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final, Protocol

import re2

MAX_MEMORY_BYTES: Final = 64 * 1024
# The longest argument that a command line can hold; of the tools' arguments, only the texts of
# an edit can be longer.
MAX_TEXT_BYTES: Final = 128 * 1024
_REMEMBERED: Final = 256


class _Compiled(Protocol):
    def fullmatch(self, text: bytes) -> object | None: ...


class Found(Protocol):
    """A match: where it is in the bytes."""

    def span(self) -> tuple[int, int]: ...


class ByteScanner(Protocol):
    """A pattern to look for anywhere in bytes; linear in their number."""

    def search(self, data: bytes) -> object | None: ...
    def finditer(self, data: bytes) -> Iterator[Found]: ...


def check_pattern(pattern: str) -> str:
    """Give `pattern` back. Raises ValueError, whose text is fit for a caller, if it is not one."""
    _compile(pattern)
    return pattern


def matches(pattern: str, text: str) -> bool | None:
    """Whether `pattern` fits the whole of `text`. None, which each caller takes for the answer
    that allows less, for text of more than `MAX_TEXT_BYTES` bytes and for text that has no UTF-8
    (half a surrogate pair). Raises ValueError for a pattern that `check_pattern` refuses."""
    compiled = _compile(pattern)
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return None
    return None if len(raw) > MAX_TEXT_BYTES else compiled.fullmatch(raw) is not None


@functools.lru_cache(maxsize=_REMEMBERED)
def _compile(pattern: str) -> _Compiled:
    options = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.never_capture = True
    # RE2 would write to the daemon's standard error, pattern included.
    options.log_errors = False
    try:
        compiled: _Compiled = re2.compile(pattern.encode(), options)
    except UnicodeEncodeError:
        raise ValueError("the pattern is not UTF-8") from None
    except re2.error as error:
        raise ValueError(f"not a pattern of RE2 syntax: {_reason(error)}") from None
    return compiled


def byte_scanner(pattern: str) -> ByteScanner:
    """A pattern of the policy data, over bytes whatever they are. Raises ValueError."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    try:
        compiled: ByteScanner = re2.compile(pattern.encode("latin-1"), options)
    except (UnicodeEncodeError, re2.error):
        raise ValueError("not a pattern of RE2 syntax") from None
    return compiled


def literal(text: bytes) -> str:
    """The pattern that fits exactly these bytes."""
    return "".join(f"\\x{byte:02x}" for byte in text)


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else b""
    text = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
    # RE2 quotes the part of the pattern that it could not read.
    return text.split(":")[0]

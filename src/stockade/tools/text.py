"""Captured bytes as text: bounded, cut on character borders, honest about what is missing.

A stream that was kept whole is decoded as one piece, so its text does not depend on how it was read.
Of one that was cut, the head loses the first bytes of a character that the cut went through, and
the tail the last bytes of one; they count as omitted, and only bytes that are no UTF-8 wherever the
cut falls become U+FFFD and set `lossy`. NUL and other control characters stay: the result is JSON,
and a program's colour codes are its own words. `tools.terminal` cleans them for a model.

All counts are of raw bytes.
"""

from __future__ import annotations

import codecs
from typing import Final

from stockade.terms.outcome import Captured
from stockade.terms.result import Stream

# A UTF-8 character has at most three bytes after its first.
_MAX_CONTINUATION: Final = 3
_DECODER: Final = codecs.getincrementaldecoder("utf-8")


def stream(captured: Captured) -> Stream:
    """The text of one stream. Total: every byte sequence has a text."""
    head, tail = captured.head, captured.tail
    first, last = captured.shown or (head, tail)
    kept = captured.artifact
    # One that holds nothing (a full disk, or the lease has all it may have) can't be read.
    artifact_id = kept.id if kept is not None and kept.bytes else None
    if captured.whole:
        text, lossy = decode(first + last)
        return Stream(
            text=text,
            total_bytes=captured.total_bytes,
            head_bytes=len(head) + len(tail),
            tail_bytes=0,
            truncated=False,
            lossy=lossy,
            artifact_id=artifact_id,
        )
    shown_head = without_cut_end(first)
    shown_tail = without_cut_start(last)
    head_bytes = len(head) - len(first) + len(shown_head)
    tail_bytes = len(tail) - len(last) + len(shown_tail)
    first_text, first_lossy = decode(shown_head)
    last_text, last_lossy = decode(shown_tail)
    omitted = captured.total_bytes - head_bytes - tail_bytes
    return Stream(
        text=first_text + marker(omitted, artifact_id) + last_text,
        total_bytes=captured.total_bytes,
        head_bytes=head_bytes,
        tail_bytes=tail_bytes,
        truncated=True,
        lossy=first_lossy or last_lossy,
        artifact_id=artifact_id,
    )


def marker(omitted: int, artifact_id: str | None) -> str:
    where = f"; artifact {artifact_id} has more" if artifact_id else ""
    return f"\n[... {omitted} bytes omitted{where} ...]\n"


def decode(raw: bytes) -> tuple[str, bool]:
    """Text, and whether a byte of it had to be replaced by U+FFFD."""
    try:
        return raw.decode("utf-8"), False
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), True


def without_cut_end(raw: bytes) -> bytes:
    """Without the bytes of a character whose end was cut off."""
    decoder = _DECODER("replace")
    decoder.decode(raw[-(_MAX_CONTINUATION + 1) :])
    pending = len(decoder.getstate()[0])
    return raw[: len(raw) - pending]


def without_cut_start(raw: bytes) -> bytes:
    """Without the bytes of a character whose start was cut off."""
    start = 0
    while start < min(len(raw), _MAX_CONTINUATION) and raw[start] & 0xC0 == 0x80:
        start += 1
    return raw[start:]

"""For any secret, output, chunking and position of the cut: no part of 8 bytes is shown.

The whole way of a stream is walked: chunks into the pump's collector, cleaning, shaping.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import pairwise
from typing import Final
from urllib.parse import quote_from_bytes

from hypothesis import given
from hypothesis import strategies as st

from stockade.host.pump import Collector
from stockade.terms.call import Capture
from stockade.terms.outcome import End, ExecOutcome
from stockade.terms.secret import Secret
from stockade.tools.clean import clean_outcome
from stockade.tools.needles import FRAGMENT_BYTES
from stockade.tools.redact import Findings, Redactor, Tokens
from stockade.tools.text import stream

NOTHING: Final = Tokens(())
# Bytes of a secret and of what is around it never meet, so that what is shown of it is a leak.
VALUES: Final = st.text(alphabet="ABCDEFGHabcdefgh01234567+/=%&é", min_size=8, max_size=60)
FILL: Final = st.integers(0, 90).map(lambda n: b"." * n)
FORMS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "plain": lambda value: value,
    "base64": base64.b64encode,
    "base64 of more": lambda value: base64.b64encode(b"\0" + value),
    "base64 in lines": lambda value: base64.encodebytes(value * 2),
    "url": base64.urlsafe_b64encode,
    "hex": lambda value: value.hex().encode(),
    "percent": lambda value: quote_from_bytes(value, safe="").encode(),
}


def shown(redactor: Redactor, capture: Capture, chunks: list[bytes]) -> str:
    collector = Collector(1, capture, None, None)
    for chunk in chunks:
        collector.add(memoryview(chunk))
    captured = collector.finish()
    outcome = ExecOutcome(End.EXITED, 0, captured, Collector(2, capture, None, None).finish(), 1)
    clean = clean_outcome(outcome, redactor, Findings())
    assert isinstance(clean, ExecOutcome)
    made = stream(clean.stdout)
    assert made.total_bytes == sum(map(len, chunks))
    whole = captured.whole
    assert made.truncated is not whole
    if whole:
        assert (made.head_bytes, made.tail_bytes) == (made.total_bytes, 0)
    return made.text


def leaks(text: str, form: bytes) -> str | None:
    plain = "".join(form.decode().split())
    parts = (plain[i : i + FRAGMENT_BYTES] for i in range(len(plain) - FRAGMENT_BYTES + 1))
    tight = "".join(text.split())
    return next((part for part in parts if part in tight), None)


@given(
    value=VALUES,
    form=st.sampled_from(sorted(FORMS)),
    before=FILL,
    after=FILL,
    again=st.booleans(),
    head=st.integers(0, 60),
    tail=st.integers(0, 60),
    context=st.integers(0, 40),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_no_part_of_a_secret_is_shown(
    value: str,
    form: str,
    before: bytes,
    after: bytes,
    again: bool,
    head: int,
    tail: int,
    context: int,
    cuts: list[int],
) -> None:
    raw = value.encode()
    encoded = FORMS[form](raw)
    data = before + encoded + after + (encoded if again else b"")
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(edges)]
    redactor = Redactor(NOTHING, [Secret("ls", "N", raw, True, 0.0)])
    text = shown(redactor, Capture(head, tail, 0, context), chunks)
    # Of base64, the characters at both ends belong to what is around it as well.
    inner = encoded if "base64" not in form and form != "url" else encoded.strip()[3:-4]
    assert leaks(text, inner) is None, text


@given(
    data=st.binary(max_size=300),
    head=st.integers(0, 80),
    tail=st.integers(0, 80),
    context=st.integers(0, 80),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_context_changes_nothing_that_is_kept(
    data: bytes, head: int, tail: int, context: int, cuts: list[int]
) -> None:
    def kept(with_context: int) -> tuple[bytes, bytes, int]:
        collector = Collector(1, Capture(head, tail, 0, with_context), None, None)
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        for a, b in pairwise(edges):
            collector.add(memoryview(data[a:b]))
        made = collector.finish()
        cut = len(made.head) + len(made.tail) < len(data)
        if cut:
            place = len(made.head)
            assert data[place:].startswith(made.after_head)
            start = len(data) - len(made.tail) - len(made.before_tail)
            assert data[start:].startswith(made.before_tail + made.tail)
            assert len(made.after_head) == min(context, len(data) - place) or not with_context
        else:
            assert made.after_head == made.before_tail == b""
        return made.head, made.tail, made.total_bytes

    assert kept(context) == kept(0)

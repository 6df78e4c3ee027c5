"""Bytes to text: borders, markers, replaced bytes."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.terms.call import Capture
from stockade.terms.outcome import CapturedArtifact
from stockade.tools.text import stream
from tests.unit.tools.support import captured

SMALL = Capture(10, 10, 0)
FULL = Capture(16 * 1024, 16 * 1024, 0)


@pytest.mark.parametrize("char", ["€", "😀", "é"])
@pytest.mark.parametrize("padding", range(4))
def test_b16_a_cut_through_a_character_replaces_nothing(char: str, padding: int) -> None:
    raw = b"a" * padding + char.encode() * 200_000
    shown = stream(captured(raw, FULL))
    assert shown.truncated
    assert not shown.lossy
    assert "\ufffd" not in shown.text
    head, _, tail = shown.text.partition("\n[... ")
    assert raw.startswith(head.encode())
    assert raw.endswith(tail.partition(" ...]\n")[2].encode())
    assert shown.head_bytes == len(head.encode())


@pytest.mark.parametrize(
    "raw", [b"\xfe\xff\x00\x80ok\n", os.urandom(4096), b"\xe2\x82", b"\xed\xa0\x80"]
)
def test_b17_bytes_that_are_no_text_are_replaced_and_named(raw: bytes) -> None:
    shown = stream(captured(raw, FULL))
    assert shown.lossy
    assert "\ufffd" in shown.text
    assert json.loads(shown.model_dump_json())["total_bytes"] == len(raw)


def test_b17_nuls_are_text_and_survive_json() -> None:
    shown = stream(captured(b"\0" * (16 << 20), FULL))
    assert not shown.lossy
    assert shown.total_bytes == 16 << 20
    assert json.loads(shown.model_dump_json())["text"].startswith("\0\0")


def test_a_replacement_character_of_the_programs_own_is_not_lossy() -> None:
    assert not stream(captured("\ufffd".encode(), FULL)).lossy


def test_b19_head_and_tail_are_kept_with_one_marker() -> None:
    raw = b"".join(b"%d\n" % n for n in range(50_000)) + b"FAILED: reason\n"
    artifact = CapturedArtifact("ar_0123456789abcdef", len(raw), True)
    shown = stream(captured(raw, FULL, artifact))
    assert shown.text.startswith("0\n1\n")
    assert shown.text.endswith("FAILED: reason\n")
    assert shown.text.count("[...") == 1
    omitted = len(raw) - shown.head_bytes - shown.tail_bytes
    assert f"[... {omitted} bytes omitted; artifact ar_0123456789abcdef has more ...]" in shown.text
    assert shown.truncated
    assert shown.artifact_id == artifact.id


def test_an_artifact_that_holds_nothing_is_not_offered() -> None:
    raw = b"x" * (FULL.head_bytes + FULL.tail_bytes + 1)
    shown = stream(captured(raw, FULL, CapturedArtifact("ar_0123456789abcdef", 0, False)))
    assert shown.truncated
    assert shown.artifact_id is None
    assert "ar_" not in shown.text


@pytest.mark.parametrize(("size", "cut"), [(19, False), (20, False), (21, True)])
def test_b19_no_marker_exactly_at_the_bound(size: int, cut: bool) -> None:
    shown = stream(captured(b"x" * size, SMALL))
    assert shown.truncated is cut
    assert ("omitted" in shown.text) is cut


@given(st.binary(max_size=40))
def test_a_stream_kept_whole_is_decoded_as_one_piece(raw: bytes) -> None:
    for head in range(len(raw) + 1):
        shown = stream(captured(raw, Capture(head, 40, 0)))
        assert shown.text == raw.decode("utf-8", "replace")
        assert not shown.truncated


@given(st.text(min_size=30, max_size=60), st.integers(4, 14), st.integers(4, 14))
def test_text_is_never_lossy_wherever_it_is_cut(text: str, head: int, tail: int) -> None:
    raw = text.encode()
    shown = stream(captured(raw, Capture(head, tail, 0)))
    assert not shown.lossy
    assert shown.total_bytes == len(raw)
    if shown.truncated:
        assert head - 3 <= shown.head_bytes <= head
        assert tail - 3 <= shown.tail_bytes <= tail
        assert shown.text.startswith(raw[: shown.head_bytes].decode())
        assert shown.text.endswith(raw[len(raw) - shown.tail_bytes :].decode())


@given(st.binary(min_size=25, max_size=80))
def test_every_byte_sequence_has_a_text(raw: bytes) -> None:
    shown = stream(captured(raw, SMALL))
    assert shown.truncated
    assert shown.head_bytes + shown.tail_bytes <= 20
    json.loads(shown.model_dump_json())

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.edge.exchange import MAX_FRAME_BYTES, FrameReader, FrameType, frame

FRAMES = st.lists(st.tuples(st.sampled_from(list(FrameType)), st.binary(max_size=200)), max_size=8)


@given(FRAMES, st.lists(st.integers(0, 2000), max_size=12))
def test_frames_come_out_as_they_went_in_wherever_the_stream_is_cut(
    sent: list[tuple[FrameType, bytes]], cuts: list[int]
) -> None:
    raw = b"".join(frame(kind, payload) for kind, payload in sent)
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    reader = FrameReader()
    got = [
        item for start, end in itertools.pairwise(places) for item in reader.feed(raw[start:end])
    ]
    assert got == sent


def test_a_frame_is_a_copy_of_its_payload() -> None:
    buffer = bytearray(b"abc")
    made = frame(FrameType.STDOUT, memoryview(buffer))
    buffer[:] = b"xyz"
    assert made == b"\x01\x00\x00\x00\x03abc"


@pytest.mark.parametrize(
    "raw", [b"\x09\x00\x00\x00\x00", struct.pack(">BI", 1, MAX_FRAME_BYTES + 1)]
)
def test_frames_that_no_daemon_sends_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        list(FrameReader().feed(raw))


def test_half_a_frame_is_not_the_end() -> None:
    reader = FrameReader()
    assert list(reader.feed(b"\x01\x00\x00\x00\x05ab")) == []
    assert list(reader.feed(b"cde")) == [(FrameType.STDOUT, b"abcde")]

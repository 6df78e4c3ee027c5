"""Artifacts hold the first and the last half of a stream, in constant memory, and never raise."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.ledger import artifacts
from stockade.ledger.artifacts import FileArtifacts
from stockade.terms.fault import Code, Failure
from stockade.terms.ports import MAX_ARTIFACT_READ

LEASE = "ls_0000000000000001"
OTHER = "ls_0000000000000002"


def stream(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.fixture
def store(tmp_path: Path) -> FileArtifacts:
    return FileArtifacts(str(tmp_path / "artifacts"), secrets.token_hex)


def files(tmp_path: Path) -> list[str]:
    return [name for _, _, names in os.walk(tmp_path) for name in names]


def read_all(store: FileArtifacts, artifact_id: str) -> tuple[bytes, list[tuple[int, int]]]:
    """Everything that was kept, and the gaps."""
    data, gaps, offset = b"", [], 0
    while True:
        try:
            part = store.read(LEASE, artifact_id, offset, MAX_ARTIFACT_READ)
        except Failure as fault:
            details = fault.fault.details
            start, end = details["gap_start"], details["gap_end"]
            assert isinstance(start, int)
            assert isinstance(end, int)
            assert start == offset
            gaps.append((start, end))
            offset = end
            continue
        if not part:
            return data, gaps
        data += part
        offset += len(part)


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_nothing_is_kept_while_the_text_holds_every_byte(
    store: FileArtifacts, tmp_path: Path, size: int
) -> None:
    sink = store.open(LEASE, "stdout", 100, 1000)
    sink.write(stream(size))
    assert sink.finish() is None
    assert files(tmp_path) == []


def test_one_byte_more_is_kept_whole(store: FileArtifacts, tmp_path: Path) -> None:
    data = stream(101)
    sink = store.open(LEASE, "stdout", 100, 1000)
    sink.write(data[:60])
    sink.write(memoryview(data)[60:])
    kept = sink.finish()
    assert kept is not None
    assert (kept.bytes, kept.complete) == (101, True)
    assert read_all(store, kept.id) == (data, [])
    assert files(tmp_path) == [kept.id]


def test_limit_zero_keeps_nothing(store: FileArtifacts, tmp_path: Path) -> None:
    sink = store.open(LEASE, "stdout", 10, 0)
    sink.write(stream(1000))
    assert sink.finish() is None
    assert files(tmp_path) == []


@settings(max_examples=150)
@given(
    limit=st.integers(1, 40),
    keep=st.integers(0, 30),
    chunks=st.lists(st.integers(0, 60), max_size=12),
)
def test_head_and_tail_are_the_streams_own_bytes(
    tmp_path_factory: pytest.TempPathFactory, limit: int, keep: int, chunks: list[int]
) -> None:
    store = FileArtifacts(str(tmp_path_factory.mktemp("a")), secrets.token_hex)
    data = stream(sum(chunks))
    sink = store.open(LEASE, "stdout", keep, limit)
    offset = 0
    for size in chunks:
        sink.write(data[offset : offset + size])
        offset += size
    kept = sink.finish()
    if len(data) <= keep:
        assert kept is None
        return
    assert kept is not None
    head, tail = limit // 2, limit - limit // 2
    if len(data) <= limit:
        assert read_all(store, kept.id) == (data, [])
        assert (kept.bytes, kept.complete) == (len(data), True)
    else:
        expected = data[:head] + data[len(data) - tail :]
        assert read_all(store, kept.id) == (expected, [(head, len(data) - tail)])
        assert (kept.bytes, kept.complete) == (limit, False)
    for at in range(len(data) + 2):
        if head <= at < len(data) - tail:
            continue
        end = len(data) if at >= head or len(data) <= limit else head
        assert store.read(LEASE, kept.id, at, 7) == data[at : min(at + 7, end)]


def test_a_read_is_bounded(store: FileArtifacts) -> None:
    data = stream(MAX_ARTIFACT_READ + 10)
    sink = store.open(LEASE, "stdout", 0, 4 * MAX_ARTIFACT_READ)
    sink.write(data)
    kept = sink.finish()
    assert kept is not None
    assert store.read(LEASE, kept.id, 5, 10 * MAX_ARTIFACT_READ) == data[5 : 5 + MAX_ARTIFACT_READ]
    assert store.read(LEASE, kept.id, len(data), 1) == b""
    with pytest.raises(Failure):
        store.read(LEASE, kept.id, -1, 1)


def test_it_survives_a_restart_and_is_gone_with_its_lease(
    store: FileArtifacts, tmp_path: Path
) -> None:
    sink = store.open(LEASE, "stdout", 0, 100)
    sink.write(b"hello")
    kept = sink.finish()
    assert kept is not None
    again = FileArtifacts(str(tmp_path / "artifacts"), secrets.token_hex)
    assert again.read(LEASE, kept.id, 0, 100) == b"hello"
    again.remove(LEASE)
    again.remove(LEASE)
    assert files(tmp_path) == []
    with pytest.raises(Failure) as caught:
        again.read(LEASE, kept.id, 0, 1)
    assert caught.value.fault.code is Code.NOT_FOUND


def test_another_leases_artifact_is_not_found(store: FileArtifacts) -> None:
    sink = store.open(LEASE, "stdout", 0, 100)
    sink.write(b"hello")
    kept = sink.finish()
    assert kept is not None
    with pytest.raises(Failure) as caught:
        store.read(OTHER, kept.id, 0, 1)
    assert caught.value.fault.code is Code.NOT_FOUND


@pytest.mark.parametrize("bad", ["", "..", "ar_0", "../x", "ar_000000000000000g", "ar_" + "0" * 17])
def test_ids_are_checked_before_the_file_system_is(store: FileArtifacts, bad: str) -> None:
    for attempt in (
        lambda: store.read(LEASE, bad, 0, 1),
        lambda: store.read(bad, "ar_0000000000000000", 0, 1),
        lambda: store.remove(bad),
        lambda: store.open(bad, "stdout", 0, 1),
    ):
        with pytest.raises(Failure) as caught:
            attempt()
        assert caught.value.fault.code is Code.INVALID_ARGUMENT


def test_an_unfinished_artifact_is_not_read(store: FileArtifacts) -> None:
    sink = store.open(LEASE, "stdout", 0, 100)
    sink.write(b"hello")
    (name,) = os.listdir(os.path.join(store.directory, LEASE))
    with pytest.raises(Failure) as caught:
        store.read(LEASE, name, 0, 1)
    assert caught.value.fault.code is Code.NOT_FOUND
    sink.finish()
    assert store.read(LEASE, name, 0, 9) == b"hello"


def test_the_sweep_removes_what_no_lease_claims(store: FileArtifacts) -> None:
    for lease in (LEASE, OTHER):
        sink = store.open(lease, "stdout", 0, 100)
        sink.write(b"hello")
        sink.finish()
    assert store.sweep(frozenset({OTHER})) == ()
    assert os.listdir(store.directory) == [OTHER]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_makes_the_artifact_incomplete_and_nothing_else(small_disk: Path) -> None:
    store = FileArtifacts(str(small_disk), secrets.token_hex)
    data = stream(3 << 20)
    sink = store.open(LEASE, "stdout", 100, 8 << 20)
    for offset in range(0, len(data), 65536):
        sink.write(data[offset : offset + 65536])
    kept = sink.finish()
    assert kept is not None
    assert not kept.complete
    content, gaps = read_all(store, kept.id)
    assert len(content) == kept.bytes > 512 * 1024
    assert data.startswith(content)
    assert gaps == [(len(content), len(data))]


def test_a_disk_that_fills_in_the_tail_keeps_head_and_what_came(small_disk: Path) -> None:
    store = FileArtifacts(str(small_disk), secrets.token_hex)
    data = stream(3 << 20)
    sink = store.open(LEASE, "stdout", 0, 1 << 20)  # head fits, the ring does not
    for offset in range(0, len(data), 65536):
        sink.write(data[offset : offset + 65536])
    kept = sink.finish()
    assert kept is not None
    assert not kept.complete
    content, gaps = read_all(store, kept.id)
    assert data.startswith(content)
    assert (1 << 20) > len(content) == kept.bytes > (1 << 19)
    assert gaps == [(len(content), len(data))]


def test_a_disk_that_was_full_before_leaves_an_empty_incomplete_artifact(small_disk: Path) -> None:
    (small_disk / "fill").write_bytes(bytes(1 << 20))
    store = FileArtifacts(str(small_disk), secrets.token_hex)
    sink = store.open(LEASE, "stdout", 10, 1000)
    sink.write(stream(500))
    kept = sink.finish()
    assert kept is not None
    assert (kept.bytes, kept.complete) == (0, False)


def test_memory_does_not_grow_with_the_stream(store: FileArtifacts) -> None:
    chunk = bytes(65536)
    sink = store.open(LEASE, "stdout", 32768, 1 << 20)
    sink.write(chunk)
    tracemalloc.start()
    for _ in range(512):
        sink.write(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = sink.finish()
    assert kept is not None
    assert peak < 65536


def test_a_lease_keeps_no_more_than_its_share_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "LEASE_BYTES", 99_000)

    def keep(store: FileArtifacts, lease: str = LEASE) -> bool:
        sink = store.open(lease, "stdout", 10, 40_000)
        sink.write(stream(30_000))
        kept = sink.finish()
        assert kept is not None
        return kept.complete

    store = FileArtifacts(str(tmp_path / "artifacts"), secrets.token_hex)
    assert [keep(store) for _ in range(4)] == [True, True, False, False]
    # Counted anew after a restart; another lease has a share of its own; what was removed is free.
    store = FileArtifacts(str(tmp_path / "artifacts"), secrets.token_hex)
    assert not keep(store)
    assert keep(store, "ls_" + "b" * 16)
    store.remove(LEASE)
    assert keep(store)


@settings(max_examples=60)
@given(
    size=st.integers(0, 3000),
    died=st.integers(0, 3000),
    back=st.integers(0, 400),
    limit=st.sampled_from([100, 1000, 1500]),
)
def test_law_another_process_goes_on(size: int, died: int, back: int, limit: int) -> None:
    """The first had read `died` bytes and put all but `back` of them where they belong."""
    keep, data = 60, stream(size)
    died = min(died, size)
    offset = max(0, died - back)
    offset = offset if offset > keep else 0
    with tempfile.TemporaryDirectory() as place:
        store = FileArtifacts(place, secrets.token_hex)
        first = store.open(LEASE, "stdout", keep, limit)
        for start in range(0, died, 90):
            first.write(data[start : min(start + 90, died)])
        store = FileArtifacts(place, secrets.token_hex)
        second = store.resume(LEASE, first.id, "stdout", keep, limit, offset)
        second.write(data[offset:])
        whole = store.open(LEASE, "stdout", keep, limit)
        whole.write(data)
        got, wanted = second.finish(), whole.finish()
        assert (got is None) == (wanted is None)
        if got is not None and wanted is not None:
            assert (got.id, got.bytes, got.complete) == (first.id, wanted.bytes, wanted.complete)
            assert read_all(store, got.id) == read_all(store, wanted.id)


def test_what_a_full_disk_cut_short_stays_short_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileArtifacts(str(tmp_path / "artifacts"), secrets.token_hex)
    first = store.open(LEASE, "stdout", 10, 1000)
    first.write(stream(300))
    with monkeypatch.context() as patch:
        full = OSError(28, "no space")
        pwrite = os.pwrite

        def refuse(fd: int, data: bytes, position: int) -> int:
            if position >= 4096:
                raise full
            return pwrite(fd, data, position)

        patch.setattr(os, "pwrite", refuse)
        first.write(b"lost")
    second = store.resume(LEASE, first.id, "stdout", 10, 1000, 304)
    second.write(b"after")
    kept = second.finish()
    assert kept is not None
    assert (kept.bytes, kept.complete) == (300, False)
    assert read_all(store, kept.id)[0] == stream(300)

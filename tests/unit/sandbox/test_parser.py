"""The C tests of the request parser, and its fuzzer, under the address and UB sanitizers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

SANDBOX = Path(__file__).parents[3] / "sandbox"


def make(target: str, build: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(SANDBOX), target, f"BUILD={build}", *settings]
    return subprocess.run(command, capture_output=True, text=True)


def test_parser_units(tmp_path: Path) -> None:
    done = make("check", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"test_wire: \d{3,} checks", done.stdout)


def test_parser_survives_20000_mutations(tmp_path: Path) -> None:
    done = make("fuzz", tmp_path, "SEED=1", "ITERATIONS=20000")
    assert done.returncode == 0, done.stderr
    assert "fuzz_wire: 20000 records" in done.stdout


def test_fuzzer_finds_a_parser_that_reads_one_byte_too_many(tmp_path: Path) -> None:
    """The positive control of the two above."""
    for name in ("Makefile", "wire.h", "wire.c", "fuzz_wire.c"):
        (tmp_path / name).write_text((SANDBOX / name).read_text())
    wire = tmp_path / "wire.c"
    broken = wire.read_text().replace(
        "memchr(string, 0, (size_t)(end - string))", "memchr(string, 0, 4096)"
    )
    assert broken != wire.read_text()
    wire.write_text(broken)
    command = ["make", "-C", str(tmp_path), "fuzz", "ITERATIONS=20000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr

"""What must be known of a sandbox to take it back after this process has died.

A file in the sandbox's directory, written when the sandbox is complete. Nothing is synced: a sandbox
does not outlive its kernel, and the kernel keeps what a killed process has written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Set
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from stockade.terms.base import Model

_NAME: Final = "record.json"


class Record(Model):
    """`version` is the program's; `system` names what the sandbox has mounted of its start;
    `mounts` are the container paths of its subtrees of the lease (host.anchors)."""

    version: str
    lease_id: str
    digest: str
    env: tuple[tuple[str, str], ...]
    uid_base: int
    system: str
    mounts: tuple[str, ...]

    def write(self, directory: Path) -> None:
        """Whole or not at all. Raises OSError."""
        part = directory / f"{_NAME}.part"
        part.write_text(self.model_dump_json())
        os.replace(part, directory / _NAME)


def read_records(directory: Path) -> dict[str, Record]:
    """By the sandbox's name; what has no record, or one of another kind, is not there."""
    found = {}
    for entry in sorted(directory.iterdir()):
        try:
            found[entry.name] = Record.model_validate_json((entry / _NAME).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            continue
    return found


def remove_systems(state_dir: Path, used: Set[str]) -> None:
    """Remove toolboxes and images of starts that no sandbox uses any more."""
    place = state_dir / "system"
    for entry in place.iterdir() if place.is_dir() else ():
        if entry.name not in used:
            shutil.rmtree(entry)

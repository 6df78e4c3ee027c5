"""A lease's root as the product lays it out: an overlay at `workspace`, a sized tmpfs at `tmp`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.terms.call import EditOperation, ViewOperation
from stockade.terms.outcome import EditOutcome, ViewOutcome
from stockade.terms.ports import PathScope

OWNER = 4_000_000
EVERYWHERE = PathScope(read=("/workspace", "/tmp"), write=("/workspace", "/tmp"), deny=())


def _mount(stack: ExitStack, kind: str, options: str, target: Path) -> None:
    subprocess.run(["mount", "-t", kind, "-o", options, kind, str(target)], check=True)
    stack.callback(subprocess.run, ["umount", "-l", str(target)], check=True)


@dataclass(frozen=True)
class LeaseTree:
    """`workspace` and `tmp` as the host sees them; `root_fd` is what the product is given."""

    root: Path
    root_fd: int
    files: LeaseFiles
    owner: int = OWNER
    everywhere: PathScope = EVERYWHERE

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def view(
        self,
        path: str,
        offset: int = 1,
        limit: int = 200,
        *,
        scope: PathScope = EVERYWHERE,
        max_bytes: int = 65536,
        max_line_chars: int = 2000,
    ) -> ViewOutcome:
        operation = ViewOperation(path, offset, limit, max_bytes, max_line_chars)
        return self.files.view(operation, scope)

    def edit(
        self,
        path: str,
        old: bytes,
        new: bytes,
        *,
        allow_multiple: bool = False,
        expected_version: str | None = None,
        scope: PathScope = EVERYWHERE,
        max_diff_bytes: int = 4096,
        before: Callable[[EditOutcome], None] = lambda outcome: None,
    ) -> EditOutcome:
        operation = EditOperation(path, old, new, allow_multiple, expected_version, max_diff_bytes)
        return self.files.edit(operation, scope, before)

    def litter(self) -> list[str]:
        """Temporary names that an edit left in the workspace or in /tmp."""
        found = [*self.workspace.rglob(".stockade*"), *self.tmp.rglob(".stockade*")]
        return [str(path) for path in found]


MakeTree = Callable[[dict[str, bytes]], LeaseTree]


@pytest.fixture
def make_tree(tmp_path: Path) -> Iterator[MakeTree]:
    """Gives a function that mounts a root whose read-only layer holds the given files."""
    with ExitStack() as stack:

        def make(base: dict[str, bytes]) -> LeaseTree:
            layers = [tmp_path / name for name in ("lower", "upper", "work", "root")]
            for layer in layers:
                layer.mkdir()
            lower, upper, work, root = layers
            for name, content in base.items():
                (lower / name).parent.mkdir(parents=True, exist_ok=True)
                (lower / name).write_bytes(content)
            for name in ("workspace", "tmp"):
                (root / name).mkdir()
            options = f"nosuid,nodev,lowerdir={lower},upperdir={upper},workdir={work}"
            _mount(stack, "overlay", options, root / "workspace")
            _mount(stack, "tmpfs", "nosuid,nodev,size=4m,mode=1777", root / "tmp")
            root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, root_fd)
            return LeaseTree(root, root_fd, LeaseFiles(root_fd, FileLocks(), OWNER))

        yield make


@pytest.fixture
def tree(make_tree: MakeTree) -> LeaseTree:
    """A root with an empty read-only layer."""
    return make_tree({})

"""System images as data: a recipe below `images/` becomes a root directory and a list of mounts.

The root directory is made once per start of the engine under the state directory: mount points,
links and small files, written by the host alone and never by a sandbox. Directories of the host
that the image shows (`/usr`) are mounted over it, always through an idmapped, read-only clone, so
that owners read as they do on the host.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from stockade.engines.oci.toolbox import INSIDE
from stockade.host.openat2 import open_below
from stockade.terms.base import Model
from stockade.terms.fault import Code, failure
from stockade.terms.ids import Name
from stockade.terms.pathname import to_bytes

ImagePath = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_.-]+)+$", max_length=255)]


class ImageMount(Model):
    """`system` mounts get the writable layer of the profile; the others are always read-only."""

    path: ImagePath
    system: bool
    reason: str


class ImageCopy(Model):
    path: ImagePath
    reason: str


class ImageLink(Model):
    path: ImagePath
    target: str


class ImageDirectory(Model):
    path: ImagePath
    mode: Annotated[str, StringConstraints(pattern=r"^[01][0-7]{3}$")]


class ImageFile(Model):
    path: ImagePath
    content: Annotated[str, StringConstraints(max_length=65536)]


class Recipe(Model):
    name: Name
    reason: str
    env: dict[str, str]
    mounts: tuple[ImageMount, ...]
    copies: tuple[ImageCopy, ...]
    links: tuple[ImageLink, ...]
    directories: tuple[ImageDirectory, ...]
    files: Annotated[tuple[ImageFile, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class SystemImage:
    """A recipe with its root directory made."""

    recipe: Recipe
    root: Path

    @property
    def mounts(self) -> tuple[ImageMount, ...]:
        return self.recipe.mounts

    def why_not(self, path: str) -> str | None:
        """Why `path` can't be a mount of its own in a sandbox of this image: it is not there, or a
        link is on the way to it, which the launcher never follows. None if it can."""
        source, below = self.root, path
        for mount in self.mounts:
            if path == mount.path or path.startswith(mount.path + "/"):
                source, below = Path(mount.path), path.removeprefix(mount.path)
        try:
            root = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.close(open_below(root, to_bytes(below.lstrip("/") or "."), os.O_PATH))
            finally:
                os.close(root)
        except OSError as error:
            return "a symlink" if error.errno == errno.ELOOP else error.strerror
        return None


def parse_recipe(data: bytes) -> Recipe:
    """Raises Failure(engine_unavailable) naming what is wrong with the file."""
    try:
        return Recipe.model_validate_json(data)
    except ValidationError as error:
        raise failure(Code.ENGINE_UNAVAILABLE, f"an image recipe is not valid: {error}") from error


def build(recipe: Recipe, directory: Path) -> SystemImage:
    """Make `<directory>/<name>`. Raises Failure(engine_unavailable)."""
    root = directory / recipe.name
    # One name: whoever has the state directory removes what a killed process left half made.
    fresh = directory / f".{recipe.name}.part"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        _fill(recipe, fresh)
        if root.exists():
            shutil.rmtree(root)
        fresh.rename(root)
    except OSError as error:
        raise failure(
            Code.ENGINE_UNAVAILABLE, f"the image {recipe.name} could not be made: {error}"
        ) from error
    return SystemImage(recipe, root)


def _fill(recipe: Recipe, root: Path) -> None:
    _searchable(root)
    for directory in recipe.directories:
        path = root / directory.path[1:]
        path.mkdir()
        path.chmod(int(directory.mode, 8))
    for mount in recipe.mounts:
        _make(root, mount.path)
    _make(root, INSIDE)
    for link in recipe.links:
        (root / link.path[1:]).symlink_to(link.target)
    for file in recipe.files:
        path = root / file.path[1:]
        path.write_text(file.content)
        path.chmod(0o644)
    for copy in recipe.copies:
        # What this host lacks the image lacks too.
        if os.path.isfile(copy.path):
            shutil.copyfile(copy.path, root / copy.path[1:])
            (root / copy.path[1:]).chmod(0o644)


def _make(root: Path, inside: str) -> None:
    """The directory `inside`, and those above it that the recipe does not name."""
    path = root
    for name in inside[1:].split("/"):
        path /= name
        if not path.exists():
            _searchable(path)


def _searchable(path: Path) -> None:
    """Whoever runs inside is neither its owner nor of its group, and mkdir(2) gives others what
    the umask of whoever started this process leaves them (027 is common advice)."""
    path.mkdir()
    path.chmod(0o755)

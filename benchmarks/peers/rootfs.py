"""The root file system of the peers: the host's own /usr below an empty skeleton.

The same programs as in our default image, so that a difference is the runtime's and not bash's.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Final

DIRECTORIES: Final = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var", "workspace")
LINKS: Final = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def make(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    for name in DIRECTORIES:
        (directory / name).mkdir(mode=0o755)
    for name, target in LINKS.items():
        (directory / name).symlink_to(target)


def archive() -> bytes:
    """The skeleton as a tar archive, for an engine that imports it as an image."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out.getvalue()

"""The directory that every sandbox sees read-only at /run/stockade: the guest, what is preloaded into
shells that wait for their command, and the search program.

Debian's ripgrep is linked against shared libraries that an image need not have, so it is copied with
them and with the dynamic loader that starts it. Copies, so that an upgrade of the host's packages
never changes a running sandbox; in a directory of their own, so that a sandbox sees nothing else.
The guest is mode 0711 and owned by the host's root: a process whose binary it may not read is never
dumpable, and no capability inside the sandbox changes that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from stockade.host import programs
from stockade.terms.fault import Code, failure

INSIDE: Final = "/run/stockade"
_LIBRARY: Final = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$")
_LOADER: Final = re.compile(r"ld-linux|ld-musl|^ld64|^ld\.so")


def build(directory: Path, guest: Path, hold: Path, regular: Path) -> Path:
    """Make `directory` with `guest`, `hold.so` and `rg/`. Raises Failure(engine_unavailable) naming what has
    to be installed."""
    program = programs.find("rg")
    if program is None:
        raise failure(Code.ENGINE_UNAVAILABLE, "ripgrep is not installed: apt-get install ripgrep")
    try:
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "rg").mkdir(parents=True)
        for each in (directory, directory / "rg"):
            each.chmod(0o755)
        _install(guest, directory / "guest", 0o711)
        _install(hold, directory / "hold.so", 0o755)
        _install(regular, directory / "rg/regular.so", 0o755)
        _install(Path(program), directory / "rg/rg", 0o755)
        for library in _libraries(program):
            name = "ld.so" if _LOADER.search(library.name) else library.name
            _install(library, directory / "rg" / name, 0o755)
    except (OSError, subprocess.SubprocessError) as error:
        raise failure(
            Code.ENGINE_UNAVAILABLE, f"the sandbox's own programs could not be set up: {error}"
        ) from error
    return directory


def _install(source: Path, target: Path, mode: int) -> None:
    shutil.copyfile(source, target)
    os.chown(target, 0, 0)
    target.chmod(mode)


def _libraries(program: str) -> list[Path]:
    """What ldd(1) lists. It may run the program's loader: only for programs of this host."""
    text = subprocess.run(
        ["/usr/bin/ldd", program], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    return [Path(found[1]) for line in text.splitlines() if (found := _LIBRARY.match(line))]

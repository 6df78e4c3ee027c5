"""Seccomp filters as the runtime compiled them, kept for the sandboxes that come after.

crun compiles `linux.seccomp` anew for each container: 5 ms for 300 rules, while everything else
waits. The program is then in its state directory; given back as `run.oci.seccomp_bpf_data` (base64)
it is loaded as it is. An entry can't be stale: its key is the whole section that it was compiled
from.

With a runtime that ignored the annotation there would be no filter. So its section does not go away
then, it becomes "kill whatever makes a system call": such a sandbox does not start, the call is
`unavailable`, and programs are never given again.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
from pathlib import Path
from typing import Final

from stockade.engines.oci.spec import Json

_ANNOTATION: Final = "run.oci.seccomp_bpf_data"
# 8 bytes an instruction, BPF_MAXINSNS of them.
_INSTRUCTION_BYTES: Final = 8
_MAX_BYTES: Final = 4096 * _INSTRUCTION_BYTES
_log: Final = logging.getLogger(__name__)


class Filters:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._usable = True

    def known(self, section: str | None) -> str | None:
        """The program for a section as `section_of` gives it."""
        with self._lock:
            return self._known.get(section) if section is not None and self._usable else None

    def keep(self, section: str, compiled: Path) -> None:
        """Note what the runtime wrote to `compiled` for `section`. Without a whole program there,
        the next sandbox's is compiled too."""
        try:
            data = compiled.read_bytes()
        except OSError as error:
            _log.info("the runtime leaves no compiled filter: %s", error.strerror)
            return
        if 0 < len(data) <= _MAX_BYTES and len(data) % _INSTRUCTION_BYTES == 0:
            with self._lock:
                self._known[section] = base64.b64encode(data).decode()

    def distrust(self) -> None:
        """A sandbox that was given a program did not start."""
        with self._lock:
            self._usable = False


def section_of(config: Json) -> str | None:
    """The text of the configuration's `linux.seccomp`, or None if it has none."""
    section = _linux(config).get("seccomp")
    return None if section is None else json.dumps(section)


def with_program(config: Json, program: str) -> Json:
    """The configuration with a compiled filter in place of the rules."""
    assert isinstance(config, dict)
    annotations = config.get("annotations", {})
    assert isinstance(annotations, dict)
    linux = _linux(config) | {"seccomp": {"defaultAction": "SCMP_ACT_KILL_PROCESS"}}
    return config | {"linux": linux, "annotations": annotations | {_ANNOTATION: program}}


def _linux(config: Json) -> dict[str, Json]:
    assert isinstance(config, dict)
    linux = config.get("linux", {})
    assert isinstance(linux, dict)
    return linux

"""The native engine's set-up on this host: what it needs, what is there, what is missing."""

from __future__ import annotations

import logging
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Final

from stockade.decide.policy import Policy
from stockade.decide.seccomp import compile_seccomp
from stockade.engines.oci import image, toolbox
from stockade.engines.oci.engine import Setup
from stockade.host import cgroup, doctor, programs
from stockade.host.data import data_directory, native_program
from stockade.host.instance import Instance
from stockade.terms.fault import Code, failure

VERSION_TIMEOUT_S: Final = 10.0
_log: Final = logging.getLogger(__name__)


def engine_setup(
    state_dir: Path,
    owned: Instance,
    policy: Policy,
    *,
    persistent: bool = False,
    system: str = "",
) -> Setup:
    """What the native engine is made of on this host. Raises Failure(engine_unavailable)."""
    place = state_dir / "system" / system
    runtime, runtime_version = find_runtime()
    recipe = image.parse_recipe((data_directory("images") / "host.json").read_bytes())
    return Setup(
        state_dir=state_dir,
        instance=owned.id,
        runtime=runtime,
        runtime_version=runtime_version,
        launcher=str(native_program("launch")),
        toolbox=toolbox.build(
            place / "toolbox",
            native_program("guest"),
            native_program("hold.so"),
            native_program("regular.so"),
        ),
        images={recipe.name: image.build(recipe, place / "images")},
        hierarchies=cgroup.of_this_host(),
        seccomp={
            ref: compile_seccomp(item, platform.machine()).to_json()
            for ref, item in policy.seccomp.items()
        },
        persistent=persistent,
        system=system,
    )


def find_runtime() -> tuple[str, str]:
    """Path and version of crun. Raises Failure(engine_unavailable) when it is missing or does not
    work."""
    path = programs.find("crun")
    if path is None:
        raise failure(Code.ENGINE_UNAVAILABLE, "crun is not installed: apt-get install crun")
    try:
        said = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise failure(
            Code.ENGINE_UNAVAILABLE, f"{path} --version does not work: {error}"
        ) from error
    found = re.match(rb"crun version ([0-9A-Za-z.+~-]{1,64})\s", said.stdout)
    if said.returncode or found is None:
        raise failure(
            Code.ENGINE_UNAVAILABLE,
            f"{path} --version gives no version (status {said.returncode})",
        )
    return path, found[1].decode()


def usable(runtime: str) -> None:
    """Raises Failure(engine_unavailable) when the program is not there any more."""
    if not os.access(runtime, os.X_OK):
        raise failure(Code.ENGINE_UNAVAILABLE, f"{runtime} is gone")


def check_host(state_dir: Path, *, durable: bool = False) -> None:
    """Raises Failure(engine_unavailable) with what to do where no sandbox could ever be made: said
    at the start, not by the first call (docs/cli.md, `doctor`, has the whole list). `state_dir`, or
    the directory that it will be in, need not exist yet. Where it is to be `durable` and is in memory
    the log says so."""
    found = doctor.impossible(str(state_dir))
    if found is not None:
        advice = "" if found.remedy is None else f": {found.remedy}"
        raise failure(Code.ENGINE_UNAVAILABLE, f"{found.name}: {found.detail}{advice}")
    if durable and not (kept := doctor.durable(str(state_dir))).ok:
        _log.warning("%s: %s", kept.detail, kept.remedy)

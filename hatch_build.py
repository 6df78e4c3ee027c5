"""Build hook of the wheel: compiles what enters the sandboxes, and ships it with the data.

The guest and the launcher are static programs of this platform, so the wheel is tagged for it. In
an editable install the programs are built in place, and the data is read where it lies.
"""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAMS = (
    Path("src/stockade/_sandbox/guest"),
    Path("src/stockade/_sandbox/launch"),
    Path("src/stockade/_sandbox/keep"),
    Path("src/stockade/_sandbox/regular.so"),
    Path("src/stockade/_sandbox/hold.so"),
    Path("src/stockade/_sandbox/attack"),
    Path("src/stockade/_sandbox/guest-control"),
)
# What the package reads at run time, below stockade/_data in the wheel.
DATA = (Path("policy"), Path("images"), Path("sandbox/etc"))


class SandboxBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        subprocess.run(["make", "-C", str(root / "sandbox"), "all"], check=True)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        if version == "editable":
            return
        include: dict[str, str] = build_data["force_include"]
        for program in PROGRAMS:
            include[str(root / program)] = f"stockade/_sandbox/{program.name}"
        for data in DATA:
            if (root / data).is_dir():
                include[str(root / data)] = f"stockade/_data/{data}"

"""The same tree as a machine of its own: its kernel, cgroup2 alone, AppArmor, in QEMU.

Emulated by default, since few hosts of tests lend their processor out: ten times slower, so limits of
time in tests may be missed there, and a failure is to be looked at. The machine has no network. What
the command prints comes out of its second serial port.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.hosts.trees import CHECKOUT

_UNIT: Final = f"""\
[Unit]
After=multi-user.target
[Service]
Type=oneshot
WorkingDirectory={CHECKOUT}
Environment=HOME=/root LANG=C.UTF-8
ExecStart=/bin/sh /srv/job.sh
ExecStopPost=/bin/systemctl poweroff --no-block
TimeoutStartSec=infinity
"""
_WANTED: Final = "etc/systemd/system/multi-user.target.wants"
_STATUS: Final = "status of the job: "


def boot(tree: Path, command: str, *, accel: str, timeout_s: float) -> int:
    """Run a shell command in the tree's checkout on a machine that is started for it. Gives its
    status, 1 when there is none. Raises subprocess.SubprocessError."""
    (tree / "etc/systemd/system/job.service").write_text(_UNIT)
    (tree / _WANTED).mkdir(parents=True, exist_ok=True)
    wanted = tree / _WANTED / "job.service"
    wanted.unlink(missing_ok=True)
    wanted.symlink_to("../job.service")
    (tree / "srv/job.sh").write_text(
        f'exec >/dev/ttyS1 2>&1\n({command})\necho "{_STATUS}$?"\nsync\n'
    )
    image, output = tree.with_suffix(".img"), tree.with_suffix(".out")
    image.unlink(missing_ok=True)
    subprocess.run(["truncate", "-s", "12G", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-d", tree, image], check=True)
    [kernel], [initrd] = (tree / "boot").glob("vmlinuz-*"), (tree / "boot").glob("initrd.img-*")
    console = tree.with_suffix(".console")
    with console.open("wb") as log:
        subprocess.run(
            [
                "qemu-system-x86_64",
                *("-accel", accel, "-cpu", "max", "-smp", "2", "-m", "6G"),
                *("-display", "none", "-monitor", "none", "-no-reboot", "-net", "none"),
                *("-kernel", kernel, "-initrd", initrd),
                *("-append", "root=/dev/vda rw console=ttyS0 quiet loglevel=3"),
                *("-drive", f"file={image},format=raw,if=virtio,cache=unsafe"),
                *("-serial", "stdio", "-serial", f"file:{output}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=timeout_s,
            check=True,
        )
    told = output.read_text(errors="replace").replace("\r\n", "\n")
    text, _, status = told.rpartition(_STATUS)
    print(text, end="")
    return int(status) if status.strip().isdigit() else 1

"""A fresh Debian as a directory: what debootstrap makes, with nothing that Stockade needs but what its
README asks for.

Beside that only a kernel and an init to start it with. Its package clients reach their registries as
the host's do: the name service's files, the certificates and the environment of pip are taken over.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build" / "hosts"
CHECKOUT: Final = "/srv/stockade"
# The README's needs; then what starts a machine.
_PACKAGES: Final = (
    *("python3", "git", "make", "ca-certificates"),
    *("linux-image-amd64", "systemd-sysv", "udev", "dbus", "kmod", "apparmor"),
)
_TAKEN: Final = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/ssl/certs/ca-certificates.crt",
)
_ENVIRONMENT: Final = ("PIP_CERT", "SSL_CERT_FILE", "http_proxy", "https_proxy")


def fresh(release: str) -> Path:
    """The tree of a Debian release, such as `trixie`, with a clone of this repository's commit. The
    tree without it is kept for the next time. Raises subprocess.CalledProcessError."""
    base, tree = BUILD / f"{release}.base", BUILD / release
    if not base.exists():
        part = BUILD / f"{release}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        included = f"--include={','.join(_PACKAGES)}"
        subprocess.run(["debootstrap", "--variant=minbase", included, release, part], check=True)
        part.rename(base)
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["cp", "-a", "--reflink=auto", base, tree], check=True)
    for name in _TAKEN:
        if Path(name).exists():
            shutil.copy(name, f"{tree}{name}")
    subprocess.run(["git", "clone", "-q", ROOT, f"{tree}{CHECKOUT}"], check=True)
    return tree


# The host's kernel, its devices and cgroups; all else is the tree's. A chroot would not do: nobody
# makes a user namespace in one.
_ENTER: Final = """
set -e
mount --bind "$1" "$1" && cd "$1" && mkdir -p old
mount -t proc proc proc && mount --rbind /sys sys && mount --rbind /dev dev
mount -t tmpfs run run
pivot_root . old && umount -l /old && cd "$2"
exec sh -c "$3"
"""


def enter(tree: Path, command: str) -> int:
    """Run a shell command in the tree's checkout, as root, on this host's kernel. Gives its status."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment |= {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "CI": "true",
    }
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "enter"]
    done = subprocess.run([*argv, tree, CHECKOUT, command], env=environment, check=False)
    return done.returncode

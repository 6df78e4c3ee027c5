from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.host import syscalls
from stockade.host.mounts import MountHolder
from stockade.terms.fault import Code, Failure


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[MountHolder]:
    holder = MountHolder(tmp_path / "mounts")
    yield holder
    holder.close()


def host_table() -> str:
    return Path("/proc/self/mounts").read_text()


def test_mounts_of_the_holder_are_not_in_the_hosts_table(
    holder: MountHolder, tmp_path: Path
) -> None:
    before = host_table()

    def make() -> int:
        os.mkdir(f"{holder.path}/m")
        fd = syscalls.new_mount("tmpfs", {"size": "64k"})
        holder.attach(fd, f"{holder.path}/m")
        os.close(fd)
        (Path(holder.path) / "m/f").write_text("inside")
        return os.open(f"{holder.path}/m", os.O_RDONLY | os.O_DIRECTORY)

    fd = holder.run(make)
    assert host_table() == before
    assert os.listdir(tmp_path / "mounts") == []
    assert f"{holder.path}/m " in holder.run(lambda: Path("/proc/thread-self/mounts").read_text())
    # A descriptor works in every thread.
    with open(os.open("f", os.O_RDONLY, dir_fd=fd), "rb") as f:
        assert f.read() == b"inside"
    os.close(fd)


def test_mounts_elsewhere_do_not_reach_the_host(holder: MountHolder, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()

    def make() -> None:
        fd = syscalls.new_mount("tmpfs", {})
        holder.attach(fd, str(tmp_path / "there"))
        os.close(fd)
        (tmp_path / "there/f").touch()

    holder.run(make)
    assert os.listdir(tmp_path / "there") == []


def test_exceptions_travel_back_and_the_thread_lives_on(holder: MountHolder) -> None:
    with pytest.raises(ZeroDivisionError):
        holder.run(lambda: 1 // 0)
    with pytest.raises(OSError, match="fsopen"):
        holder.run(lambda: syscalls.new_mount("no-such-file-system", {}))
    assert holder.run(lambda: 7) == 7


def test_a_refused_option_is_named(holder: MountHolder) -> None:
    with pytest.raises(OSError, match="nonsense"):
        holder.run(lambda: syscalls.new_mount("tmpfs", {"nonsense": "1"}))


def test_a_child_starts_inside_with_an_empty_environment(holder: MountHolder) -> None:
    holder.run(lambda: (Path(holder.path) / "f").write_text("inside"))
    read, write = os.pipe()
    process = holder.spawn(
        ["/bin/sh", "-c", f"exec >/dev/fd/{write}; cat {holder.path}/f; env; pwd"],
        pass_fds=[write],
    )
    os.close(write)
    assert process.wait(10) == 0
    with open(read, "rb") as f:
        out = f.read().decode()
    assert out.startswith("inside")
    assert out.endswith("/\n")
    assert "HOME=" not in out


def test_the_namespace_can_be_entered_by_its_descriptor(holder: MountHolder) -> None:
    holder.run(lambda: (Path(holder.path) / "f").write_text("inside"))
    done = subprocess.run(
        [
            "nsenter",
            f"--mount=/proc/{os.getpid()}/fd/{holder.namespace_fd}",
            "cat",
            f"{holder.path}/f",
        ],
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"inside"


def test_a_closed_holder_refuses(tmp_path: Path) -> None:
    holder = MountHolder(tmp_path / "mounts")
    holder.close()
    holder.close()
    with pytest.raises(Failure) as caught:
        holder.run(lambda: 1)
    assert caught.value.fault.code is Code.SHUTTING_DOWN

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from stockade.host import doctor, programs
from stockade.native import check_host
from stockade.terms.fault import Failure


def by_name(state_dir: str = "/var/lib/stockade") -> dict[str, doctor.Finding]:
    return {found.name: found for found in doctor.examine(state_dir)}


def test_every_failed_check_says_what_to_do() -> None:
    for found in by_name().values():
        assert found.detail
        assert found.ok or found.remedy


def test_what_is_missing_is_named_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "SEARCH_PATH", str(tmp_path))
    found = by_name()
    for name, package in (("crun", "crun"), ("ripgrep", "ripgrep"), ("mkfs.ext4", "e2fsprogs")):
        assert not found[name].ok
        assert found[name].required
        assert found[name].remedy == f"apt-get install {package}"
    assert found["runc"].ok


def test_it_finds_no_program_that_the_daemon_would_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "SEARCH_PATH", str(tmp_path / "system"))
    callers = tmp_path / "crun"
    callers.write_text("#!/bin/sh\necho crun version 1.8\n")
    callers.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not by_name()["crun"].ok


@pytest.mark.parametrize(("version", "ok"), [("1.1.5", False), ("1.2.7", False), ("1.2.8", True)])
def test_a_runc_without_its_fixes_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, ok: bool
) -> None:
    program = tmp_path / "runc"
    program.write_text(f"#!/bin/sh\necho runc version {version}+ds1\n")
    program.chmod(0o755)
    monkeypatch.setattr(programs, "SEARCH_PATH", str(tmp_path))
    found = by_name()["runc"]
    assert (found.ok, found.required) == (ok, False)


@pytest.mark.parametrize(
    ("listed", "disabled", "ok"),
    [
        ("kernel/fs/overlayfs/overlay.ko.xz: kernel/lib/other.ko.xz\n", "0\n", True),
        ("kernel/fs/overlayfs/overlay.ko:\n", "0\n", True),
        ("kernel/fs/overlayfs/overlay.ko.xz:\n", "1\n", False),
        ("kernel/fs/other.ko: kernel/fs/overlayfs/overlay.ko\n", "0\n", False),
        ("kernel/fs/myoverlay.ko:\nkernel/fs/overlay.kobold:\n", "0\n", False),
        (None, "0\n", False),
        ("kernel/fs/overlayfs/overlay.ko:\n", None, False),
    ],
)
def test_a_file_system_that_the_kernel_loads_when_it_is_needed_is_there(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    listed: str | None,
    disabled: str | None,
    ok: bool,
) -> None:
    """As overlayfs on a fresh Debian. `None`: there is no such file."""
    modules = tmp_path / platform.release() / "modules.dep"
    modules.parent.mkdir()
    if listed is not None:
        modules.write_text(listed)
    if disabled is not None:
        (tmp_path / "disabled").write_text(disabled)
    monkeypatch.setattr(doctor, "_MODULES", tmp_path)
    monkeypatch.setattr(doctor, "_MODULES_DISABLED", tmp_path / "disabled")
    assert doctor._loadable("overlay") is ok


def test_what_can_not_be_looked_at_is_not_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> doctor.Finding:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "_cgroups", broken)
    found = by_name()["cgroups"]
    assert not found.ok
    assert found.required
    assert "can't be checked" in found.detail


def test_a_state_directory_that_does_not_exist_yet_is_looked_at_above(tmp_path: Path) -> None:
    assert str(tmp_path) in by_name(str(tmp_path / "not" / "yet"))["disk space"].detail


def test_a_state_directory_in_memory_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """/dev/shm is a tmpfs; tests keep their state below /var/tmp, which is none."""
    found = by_name("/dev/shm/not/yet")["durable state"]
    assert (found.ok, found.required) == (False, False)
    assert found.detail.startswith("/dev/shm is on tmpfs")
    assert by_name("/var/tmp")["durable state"].ok
    check_host(Path("/var/tmp/not/yet"), durable=True)
    if not by_name("/dev/shm")["idmapped mounts"].ok:  # tmpfs has them since Linux 6.3
        with pytest.raises(Failure, match="idmapped mounts"):
            check_host(Path("/dev/shm/not/yet"), durable=True)
        return
    check_host(Path("/dev/shm/not/yet"))
    assert caplog.records == []
    check_host(Path("/dev/shm/not/yet"), durable=True)
    [line] = caplog.messages
    assert line == f"{found.detail}: {found.remedy}"


def test_a_state_directory_that_can_not_be_idmapped_is_told() -> None:
    """proc(5) is one of the file systems that the kernel has no idmapped mounts of."""
    good = by_name("/var/lib/stockade")["idmapped mounts"]
    assert (good.ok, good.required, good.remedy) == (True, True, None)
    found = by_name("/proc/none/state")["idmapped mounts"]
    assert (found.ok, found.required) == (False, True)
    assert found.detail == "the file system of /proc has none (mount_setattr: Invalid argument)"
    assert found.remedy == "put the state directory on ext4, xfs or btrfs"
    assert doctor.impossible("/proc/none/state") == found


@pytest.mark.parametrize(
    ("pattern", "ok"), [("core", True), ("|/usr/share/apport/apport -p%p", False), ("/c/%e", True)]
)
def test_a_program_that_gets_core_dumps_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pattern: str, ok: bool
) -> None:
    (tmp_path / "pattern").write_text(pattern + "\n")
    real = Path.read_text

    def read(path: Path) -> str:
        core = str(path) == "/proc/sys/kernel/core_pattern"
        return real(tmp_path / "pattern" if core else path)

    monkeypatch.setattr(Path, "read_text", read)
    found = by_name()["core dumps"]
    assert (found.ok, found.required) == (ok, False)
    if not ok:
        assert found.detail == "go to /usr/share/apport/apport"


def test_what_makes_sandboxes_impossible_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.impossible("/var/lib/stockade") is None
    monkeypatch.setattr(programs, "SEARCH_PATH", "/nowhere")
    found = doctor.impossible("/var/lib/stockade")
    assert found is not None
    assert (found.name, found.ok, found.required) == ("user namespaces", False, True)
    assert "can't be checked" in found.detail

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import stockade
from stockade.host import leasemounts, loopdev, syscalls
from stockade.host.clocks import current_boot
from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.host.mounts import MountHolder
from stockade.host.workspaces import LocalWorkspaces
from stockade.terms.fault import Code, Failure
from stockade.terms.plan import Limits
from stockade.terms.ports import Files, GivenBack, PathScope, Workspace, WorkspaceSpec

MIB: Final = 1 << 20
UID: Final = 2_000_000
LEASE: Final = "ls_00000000000000aa"
OTHER: Final = "ls_00000000000000bb"
EVERYWHERE: Final = PathScope(read=("/workspace", "/tmp"), write=("/workspace", "/tmp"), deny=())


def files(root_fd: int, owner: int) -> Files:
    return LeaseFiles(root_fd, FileLocks(), owner)


def spec(
    source: Path | None = None, lease_id: str = LEASE, *, excludes: tuple[str, ...] = ()
) -> WorkspaceSpec:
    limits = Limits(
        memory_bytes=256 * MIB, cpu_millis=1000, pids=100, disk_bytes=32 * MIB, inodes=2000
    )
    return WorkspaceSpec(
        lease_id, UID, None if source is None else str(source), excludes, limits, 4 * MIB
    )


class House:
    """A state directory and the daemon's workspaces on it; `restart` is a new daemon."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.start()

    def start(self, boot: str | None = None) -> None:
        self.holder = MountHolder(self.state / "mounts")
        self.workspaces = LocalWorkspaces(
            self.state, self.holder, files, boot=boot or current_boot(), reserve_bytes=0
        )

    def stop(self) -> None:
        self.workspaces.close()
        self.holder.close()

    def swept(self, *live: str) -> tuple[str, ...]:
        return self.workspaces.sweep(frozenset(live))


def images_in_use(state: Path) -> list[str]:
    found = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        text = entry.read_text().strip()
        if text.startswith(str(state)):
            found.append(text)
    return found


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    state = tmp_path / "state"
    state.mkdir()
    house = House(state)
    yield house
    house.stop()
    assert str(state) not in Path("/proc/self/mounts").read_text()
    assert images_in_use(state) == []


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    (source / "src/main.py").write_bytes(b"print(1)\n")
    (source / "README").write_bytes(b"read me\n")
    (source / "tool").write_bytes(b"#!/bin/sh\necho ran\n")
    (source / "tool").chmod(0o755)
    os.symlink("README", source / "link")
    return source


def place(workspace: Workspace, path: str = "workspace") -> Path:
    """A host path that leads to the lease's tree through its descriptor."""
    return Path(f"/proc/{os.getpid()}/fd/{workspace.tree.root_fd}") / path


def filled(path: Path, mebibytes: int) -> int:
    """Write until the end, which must be ENOSPC; gives the size that was reached."""
    with open(path, "wb", buffering=0) as f, pytest.raises(OSError) as caught:  # noqa: PT012
        while f.tell() < mebibytes * MIB:
            f.write(b"x" * MIB)
    assert caught.value.errno == errno.ENOSPC
    return path.stat().st_size


def made_files(directory: Path, tries: int) -> int:
    """Make empty files until the end, which must be ENOSPC; gives how many there are."""
    with pytest.raises(OSError) as caught:  # noqa: PT012 - which one fails is not known
        for index in range(tries):
            (directory / f"f{index}").touch()
    assert caught.value.errno == errno.ENOSPC
    return index


@pytest.fixture
def made(house: House, source: Path) -> Workspace:
    house.workspaces.create(spec(source))
    return house.workspaces.attach(spec(source))


def test_the_tree_is_the_source_owned_by_the_lease(made: Workspace, source: Path) -> None:
    here = place(made)
    assert (here / "src/main.py").read_bytes() == b"print(1)\n"
    assert os.readlink(here / "link") == "README"
    for path in [here, *here.rglob("*"), place(made, "tmp")]:
        assert (os.lstat(path).st_uid, os.lstat(path).st_gid) == (UID, UID), path
    assert os.stat(here).st_mtime_ns == os.stat(source).st_mtime_ns
    assert stat.S_IMODE(os.stat(place(made, "tmp")).st_mode) == 0o1777
    assert sorted(os.listdir(place(made, "."))) == ["tmp", "workspace"]


def test_everybody_inside_can_search_an_empty_workspace(house: House) -> None:
    old = os.umask(0o077)  # the daemon's own must not matter
    try:
        house.workspaces.create(spec())
        made = house.workspaces.attach(spec())
        for path, mode in (("workspace", 0o755), ("tmp", 0o1777)):
            info = place(made, path).stat()
            assert (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (mode, UID, UID)
    finally:
        os.umask(old)


def test_the_source_is_never_written(made: Workspace, source: Path) -> None:
    (place(made) / "README").write_bytes(b"changed\n")
    (place(made) / "src/main.py").unlink()
    assert (source / "README").read_bytes() == b"read me\n"
    assert (source / "src/main.py").exists()


def test_the_root_is_read_only_and_the_mounts_bring_no_privilege(made: Workspace) -> None:
    with pytest.raises(OSError) as caught:
        (place(made, "x")).mkdir()
    assert caught.value.errno == errno.EROFS
    for name in ("workspace", "tmp"):
        flags = os.statvfs(place(made, name)).f_flag
        assert flags & os.ST_NOSUID
        assert flags & os.ST_NODEV
    done = subprocess.run([place(made) / "tool"], capture_output=True, check=True)
    assert done.stdout == b"ran\n"


def test_file_tools_work_on_the_tree(made: Workspace) -> None:
    made.files.write("/workspace/new/file", iter([b"one\n"]), EVERYWHERE)
    size, content = made.files.read("/workspace/new/file", EVERYWHERE)
    assert (size, b"".join(content)) == (4, b"one\n")
    assert os.lstat(place(made) / "new/file").st_uid == UID


def test_attaching_again_gives_the_same(house: House, made: Workspace, source: Path) -> None:
    assert house.workspaces.attach(spec(source)) is made


def test_b33_the_workspace_ends_at_its_limit_of_bytes(
    house: House, made: Workspace, source: Path
) -> None:
    assert 24 * MIB < filled(place(made) / "big", 64) <= 32 * MIB
    # A full disk holds up neither the next call nor a reset.
    assert made.files.read("/workspace/README", EVERYWHERE)[0] == 8
    with pytest.raises(Failure) as refused:
        made.files.write("/workspace/README", iter([b"x" * MIB]), EVERYWHERE)
    assert refused.value.fault.code is Code.DISK_FULL
    fresh = house.workspaces.reset(spec(source))
    assert not (place(fresh) / "big").exists()


def test_b33_the_workspace_ends_at_its_limit_of_inodes(made: Workspace) -> None:
    assert 1900 < made_files(place(made), 3000) <= 2016


def test_b34_tmp_ends_at_its_size_and_gives_space_back(made: Workspace) -> None:
    for _ in range(2):
        assert filled(place(made, "tmp/big"), 8) == 4 * MIB
        place(made, "tmp/big").unlink()
    assert 900 < made_files(place(made, "tmp"), 2000) <= 1024


def test_b76_files_of_every_uid_are_reset_read_and_removed(
    house: House, made: Workspace, source: Path
) -> None:
    for offset in (0, 1, 1000, 65535):
        directory = place(made) / f"of-{offset}"
        directory.mkdir(mode=0o700)
        (directory / "f").write_bytes(b"x\n")
        (directory / "f").chmod(0o4700)
        for path in (directory / "f", directory):
            os.chown(path, UID + offset, UID + offset)
    assert len(list(made.changes())) == 4
    fresh = house.workspaces.reset(spec(source))
    assert sorted(os.listdir(place(fresh))) == ["README", "link", "src", "tool"]
    assert os.stat(place(fresh) / "src").st_uid == UID
    house.workspaces.remove(LEASE)
    assert house.swept() == ()
    assert os.listdir(house.state / "leases") == []


def test_b77_awkward_trees_are_reset_and_removed(
    house: House, made: Workspace, source: Path
) -> None:
    here = os.open(place(made), os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("closed", 0, dir_fd=here)
    fd = here
    for _ in range(1500):
        os.mkdir("d", 0o555, dir_fd=fd)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    (place(made) / "new\nline").touch()
    subprocess.run(["chattr", "+i", place(made) / "README"], check=False)
    fresh = house.workspaces.reset(spec(source))
    assert sorted(os.listdir(place(fresh))) == ["README", "link", "src", "tool"]
    (place(fresh) / "again").touch()
    house.workspaces.remove(LEASE)
    assert house.swept() == ()
    assert os.listdir(house.state / "trash") == []


def test_b77_a_removal_that_fails_is_named_and_done_by_a_later_sweep(
    house: House, source: Path
) -> None:
    house.workspaces.create(spec(source))
    fixed = house.state / "leases" / LEASE / "base/README"
    subprocess.run(["chattr", "+i", fixed], check=True)
    house.workspaces.remove(LEASE)
    left = house.swept()
    assert len(left) == 1
    assert left[0].startswith("trash/")
    with pytest.raises(Failure) as caught:  # never handed out again
        house.workspaces.attach(spec(source))
    assert caught.value.fault.code is Code.WORKSPACE_UNAVAILABLE
    for path in (house.state / "trash").rglob("README"):
        subprocess.run(["chattr", "-i", path], check=True)
    assert house.swept() == ()
    assert os.listdir(house.state / "trash") == []


def as_user(house: House, workspace: Workspace, uid: int, *argv: str) -> tuple[str, str]:
    """Run a program as a uid of the host in the workspace, which is put where every user may go;
    gives what it printed on stdout and stderr."""
    path = "/srv"

    def put() -> None:
        source = os.fsencode(f"{workspace.tree.path}/workspace")
        fd = syscalls.open_tree(syscalls.AT_FDCWD, source, syscalls.OPEN_TREE_CLONE)
        house.holder.attach(fd, path)
        os.close(fd)

    house.holder.run(put)
    script = f'cd {path} && HOME=/nonexistent exec "$@"'
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            user = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
            process = house.holder.spawn(
                ["setpriv", *user, "sh", "-c", script, "sh", *argv],
                env={"PATH": os.environ["PATH"]},
                stdout=out,
                stderr=err,
            )
            process.wait(30)
            out.seek(0)
            err.seek(0)
            return out.read().decode(), err.read().decode()
    finally:
        house.holder.run(lambda: syscalls.detach(os.fsencode(path)))


def test_b90_git_finds_a_repository_of_its_own_user(house: House, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], cwd=repository, check=True)
    os.chown(repository, 1000, 1000)
    house.workspaces.create(spec(repository))
    for get in (house.workspaces.attach, house.workspaces.reset):
        workspace = get(spec(repository))
        assert as_user(house, workspace, UID, "git", "log", "--format=%s") == ("first\n", "")
        assert as_user(house, workspace, UID, "git", "status", "--short") == ("", "")
        # The control: another user is refused.
        assert "dubious" in as_user(house, workspace, UID + 1, "git", "log")[1]


def test_changes_and_a_patch_that_git_applies(
    made: Workspace, source: Path, tmp_path: Path
) -> None:
    here = place(made)
    (here / "README").write_bytes(b"read me again\n")
    (here / "src/new name.py").write_bytes(b"x = 1\n")
    (here / "tool").unlink()
    (here / "link").unlink()
    os.symlink("src", here / "link")
    shutil.copymode(here / "README", here / "src/main.py")
    (here / "src/main.py").write_bytes(b"print(1)\n")  # copied up, and as before
    assert [(change.kind, change.path) for change in made.changes()] == [
        ("modified", b"README"),
        ("modified", b"link"),
        ("added", b"src/new name.py"),
        ("deleted", b"tool"),
    ]
    out = io.BytesIO()
    assert made.patch(out) == GivenBack(len(out.getvalue()), 0, ())
    copy = tmp_path / "copy"
    shutil.copytree(source, copy, symlinks=True)
    subprocess.run(["git", "apply", "-"], cwd=copy, input=out.getvalue(), check=True)
    assert (copy / "README").read_bytes() == b"read me again\n"
    assert os.readlink(copy / "link") == "src"
    assert not (copy / "tool").exists()
    exported = tmp_path / "exported"
    shutil.copytree(source, exported, symlinks=True)
    os.chown(exported, 1234, 1234)
    assert made.export(str(exported)) == GivenBack(4, 0, ())
    assert subprocess.run(["diff", "-r", copy, exported]).returncode == 0
    assert os.stat(exported / "src/new name.py").st_uid == os.stat(exported / "src").st_uid


def test_renamed_and_recreated_directories(made: Workspace, source: Path) -> None:
    """mv of a directory of the base is a copy, and a directory made anew hides the base's."""
    here = place(made)
    subprocess.run(["mv", here / "src", here / "lib"], check=True)
    assert [(c.kind, c.path) for c in made.changes()] == [
        ("added", b"lib/main.py"),
        ("deleted", b"src/main.py"),
    ]
    (here / "src").mkdir()
    (here / "src/other").touch()
    assert [(c.kind, c.path) for c in made.changes()] == [
        ("added", b"lib/main.py"),
        ("deleted", b"src/main.py"),
        ("added", b"src/other"),
    ]


def test_a_target_that_is_none_is_refused(made: Workspace, tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        made.export(str(tmp_path / "absent"))
    assert caught.value.fault.code is Code.SOURCE_UNUSABLE


def test_reset_drops_everything_and_may_be_repeated(
    house: House, made: Workspace, source: Path
) -> None:
    (place(made) / "README").write_bytes(b"changed")
    (place(made, "tmp") / "x").touch()
    for _ in range(2):
        fresh = house.workspaces.reset(spec(source))
        assert fresh is not made
        assert house.workspaces.attach(spec(source)) is fresh
        assert (place(fresh) / "README").read_bytes() == b"read me\n"
        assert os.listdir(place(fresh, "tmp")) == []
        assert list(fresh.changes()) == []
    assert house.swept(LEASE) == ()
    assert len(images_in_use(house.state)) == 1
    assert os.listdir(house.state / "trash") == []


def test_a_process_left_over_from_before_a_reset_can_write_nothing(
    house: House, made: Workspace, source: Path
) -> None:
    old = os.open(place(made), os.O_RDONLY | os.O_DIRECTORY)
    house.workspaces.reset(spec(source))
    house.swept(LEASE)
    with pytest.raises(OSError) as caught:
        os.mkdir("late", dir_fd=old)
    assert caught.value.errno in (errno.EIO, errno.EROFS)
    os.close(old)


@pytest.mark.parametrize("step", ["new disk half made", "old disk gone"])
def test_a_reset_that_was_interrupted_is_done_again(house: House, source: Path, step: str) -> None:
    house.workspaces.create(spec(source))
    directory = house.state / "leases" / LEASE
    (directory / "disk.new").write_bytes(b"half")
    if step == "old disk gone":
        os.rename(directory / "disk.img", house.state / "trash/old")
        with pytest.raises(Failure) as caught:
            house.workspaces.attach(spec(source))
        assert caught.value.fault.code is Code.WORKSPACE_UNAVAILABLE
    assert (place(house.workspaces.reset(spec(source))) / "README").exists()


def test_the_disk_is_the_engines_too(house: House, made: Workspace) -> None:
    sys_path = Path(made.tree.disk_path) / "sys"
    assert house.holder.run(lambda: os.listdir(sys_path)) == []
    assert made.tree.path == f"{house.holder.path}/{LEASE}/root"
    assert made.tree.limits.disk_bytes == 32 * MIB


def test_leases_are_apart(house: House, made: Workspace, source: Path) -> None:
    house.workspaces.create(spec(None, OTHER))
    other = house.workspaces.attach(spec(None, OTHER))
    assert os.listdir(place(other)) == []
    assert os.stat(place(other)).st_uid == UID
    (place(other) / "mine").touch()
    house.workspaces.remove(LEASE)
    assert (place(other) / "mine").exists()
    assert house.swept(OTHER) == ()
    assert os.listdir(house.state / "leases") == [OTHER]


def test_sweep_removes_what_no_lease_claims(house: House, made: Workspace) -> None:
    (house.state / "trash/old").mkdir()
    (house.state / "trash/old/f").touch()
    (house.state / "leases/odd name").mkdir()
    assert house.swept() == ("leases/odd name: this is not a lease id",)
    assert os.listdir(house.state / "leases") == ["odd name"]
    assert os.listdir(house.state / "trash") == []
    assert images_in_use(house.state) == []


def test_removing_an_absent_lease_is_fine(house: House) -> None:
    house.workspaces.remove(OTHER)


@pytest.mark.parametrize("lease_id", ["..", "a/b", "", "ls_00000000000000AA", LEASE + "\n"])
def test_only_lease_ids_become_paths(house: House, lease_id: str) -> None:
    for act in (house.workspaces.attach, house.workspaces.create, house.workspaces.reset):
        with pytest.raises(Failure) as caught:
            act(spec(None, lease_id))
        assert caught.value.fault.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("bad", ["absent", "file", "nul\0"])
def test_an_unusable_source_leaves_nothing(house: House, tmp_path: Path, bad: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failure) as caught:
        house.workspaces.create(spec(tmp_path / bad))
    assert caught.value.fault.code is Code.SOURCE_UNUSABLE
    assert house.swept() == ()
    assert os.listdir(house.state / "leases") == []


def test_a_lease_is_created_once(house: House, made: Workspace, source: Path) -> None:
    with pytest.raises(Failure) as caught:
        house.workspaces.create(spec(source))
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert (place(made) / "README").exists()


def test_b33_the_hosts_reserve_is_kept(house: House, source: Path) -> None:
    free = os.statvfs(house.state).f_bavail * os.statvfs(house.state).f_frsize
    strict = LocalWorkspaces(
        house.state, house.holder, files, boot=current_boot(), reserve_bytes=2 * free
    )
    with pytest.raises(Failure) as caught:
        strict.create(spec(source))
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert os.listdir(house.state / "leases") == []
    strict.close()


def test_excludes_are_not_copied(house: House, source: Path) -> None:
    report = house.workspaces.create(spec(source, excludes=("src", "*.md")))
    assert report.files == 3
    assert not (place(house.workspaces.attach(spec(source))) / "src").exists()


def test_a_source_that_holds_the_state_directory(house: House, tmp_path: Path) -> None:
    report = house.workspaces.create(spec(tmp_path))
    assert report.skipped == 1
    assert not (place(house.workspaces.attach(spec(tmp_path))) / "state").exists()


CRASH: Final = """
    import os, sys
    from pathlib import Path
    sys.path.insert(0, {kit!r})
    from test_workspaces import House, LEASE, place, spec
    house = House(Path({state!r}))
    source = Path({source!r})
    house.workspaces.create(spec(source))
    made = house.workspaces.attach(spec(source))
    (place(made) / "README").write_bytes(b"written before the crash\\n")
    (place(made) / "src/main.py").unlink()
    {more}
    os.kill(os.getpid(), 9)
"""


def crashed(state: Path, source: Path, more: str = "") -> None:
    """A daemon that makes a lease, writes to it and is killed."""
    script = textwrap.dedent(CRASH).format(
        kit=str(Path(__file__).parent), state=str(state), source=str(source), more=more
    )
    env = os.environ | {"PYTHONPATH": str(Path(stockade.__path__[0]).parent)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def survived(workspace: Workspace) -> None:
    assert (place(workspace) / "README").read_bytes() == b"written before the crash\n"
    assert [(c.kind, c.path) for c in workspace.changes()] == [
        ("modified", b"README"),
        ("deleted", b"src/main.py"),
    ]


def test_a_killed_daemons_lease_is_taken_back(house: House, source: Path) -> None:
    crashed(house.state, source)
    survived(house.workspaces.attach(spec(source)))


def test_a_disk_that_a_sandbox_of_a_killed_daemon_holds_is_mounted_again(
    house: House, source: Path
) -> None:
    """A process in the dead daemon's namespace keeps the disk: one device, one file system."""
    more = (
        "p = house.holder.spawn(['sleep', '60'], env=os.environ); "
        f"Path({str(house.state)!r}, 'pid').write_text(str(p.pid))"
    )
    crashed(house.state, source, more)
    pid = int((house.state / "pid").read_text())
    try:
        assert len(images_in_use(house.state)) == 1
        workspace = house.workspaces.attach(spec(source))
        survived(workspace)
        assert len(images_in_use(house.state)) == 1
        (place(workspace) / "later").touch()
    finally:
        os.kill(pid, signal.SIGKILL)


def test_only_a_disk_that_is_not_new_is_looked_for_on_all_devices(
    house: House, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    attached = loopdev.attached

    def counted(image: str) -> tuple[int, int] | None:
        looked.append(image)
        return attached(image)

    monkeypatch.setattr(loopdev, "attached", counted)
    house.workspaces.create(spec(source))
    house.workspaces.attach(spec(source))
    assert looked == []
    house.stop()
    house.start()
    house.workspaces.attach(spec(source))
    assert len(looked) == 1


def test_what_a_reset_has_replaced_is_not_taken_back(house: House, source: Path) -> None:
    """The daemon was killed after the new disk had its place, and before the old one was let go."""
    house.workspaces.create(spec(source))
    disk = house.state / "leases" / LEASE / "disk.img"

    def mounted() -> leasemounts.Mounted:
        return leasemounts.mount(
            house.holder,
            LEASE,
            str(disk),
            str(disk.with_name("base")),
            owner=UID,
            tmp_bytes=MIB,
            fresh=True,
        )

    def taken_back() -> dict[str, leasemounts.Mounted]:
        return leasemounts.take_back(house.holder, lambda _: str(disk))

    os.close(house.holder.run(mounted).root_fd)
    found = house.holder.run(taken_back)
    assert list(found) == [LEASE]
    os.close(found[LEASE].root_fd)
    shutil.copyfile(disk, disk.with_name("disk.new"))
    disk.with_name("disk.new").replace(disk)
    assert house.holder.run(taken_back) == {}
    assert house.holder.run(lambda: os.listdir(house.holder.path)) == []


def test_a_lease_outlives_a_daemon_that_stops_in_good_order(house: House, source: Path) -> None:
    house.workspaces.create(spec(source))
    made = house.workspaces.attach(spec(source))
    (place(made) / "README").write_bytes(b"written before the crash\n")
    (place(made) / "src/main.py").unlink()
    house.stop()
    assert images_in_use(house.state) == []
    house.start(boot="the next boot")
    survived(house.workspaces.attach(spec(source)))


@pytest.mark.parametrize("act", ["attach", "reset"])
def test_a_lease_that_was_open_when_power_was_lost_is_refused(
    house: House, source: Path, act: str
) -> None:
    crashed(house.state, source)
    house.stop()
    house.start(boot="the next boot")
    with pytest.raises(Failure) as caught:
        getattr(house.workspaces, act)(spec(source))
    assert caught.value.fault.code is Code.WORKSPACE_UNAVAILABLE
    house.workspaces.remove(LEASE)
    assert house.swept() == ()


def test_so_is_one_that_a_later_boot_had_opened_again(house: House, source: Path) -> None:
    house.workspaces.create(spec(source))
    house.workspaces.attach(spec(source))
    house.stop()
    house.start(boot="the next boot")
    house.workspaces.attach(spec(source))
    mark = house.state / "leases" / LEASE / "boot"
    open_in = mark.read_text()
    house.stop()
    mark.write_text(open_in)  # what a loss of power would have left
    house.start(boot="the one after it")
    with pytest.raises(Failure) as caught:
        house.workspaces.attach(spec(source))
    assert caught.value.fault.code is Code.WORKSPACE_UNAVAILABLE


def test_a_create_that_was_cut_short_is_never_attached(house: House, source: Path) -> None:
    house.workspaces.create(spec(source))
    directory = house.state / "leases" / LEASE
    (directory / "base").rename(directory / "base.part")
    with pytest.raises(Failure) as caught:
        house.workspaces.attach(spec(source))
    assert caught.value.fault.code is Code.WORKSPACE_UNAVAILABLE
    assert house.swept() == ()
    assert os.listdir(house.state / "leases") == []


def test_nothing_is_left_behind_by_many_leases(house: House, source: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))

    def count() -> int:
        return len(Path("/proc/thread-self/mounts").read_text().splitlines())

    mounts = house.holder.run(count)
    for index in range(5):
        one = spec(source, f"ls_{index:016x}")
        house.workspaces.create(one)
        house.workspaces.attach(one)
        house.workspaces.reset(one)
        house.workspaces.remove(one.lease_id)
    assert house.swept() == ()
    assert house.holder.run(count) == mounts
    assert house.holder.run(lambda: os.listdir(house.holder.path)) == []
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the listing's own

"""Group LIFE of the cases: whatever a tree looks like, reset and release take it away."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from stockade.edge.client.lease import Lease
from stockade.terms.grant import Profile
from tests.cases.asking import narrower_lease, out
from tests.cases.conftest import LeaseFactory
from tests.daemons import Daemon, wait_until


def parts(daemon: Daemon, lease_id: str) -> list[Path]:
    """What the daemon's host has of a lease: its directory, groups, artifacts and mounts."""
    return [
        path
        for place in ("leases", "mounts", "artifacts", "sandboxes")
        for path in (daemon.state / place).glob(f"*{lease_id}*")
    ] + [path for path in (daemon.lease_group(lease_id),) if path.exists()]


def nothing_left(daemon: Daemon, lease_id: str) -> bool:
    """Removed files go in the background."""
    trash = daemon.state / "trash"
    return wait_until(lambda: not parts(daemon, lease_id) and not os.listdir(trash))


# B76: files of every owner.

OWNERS = r"""
umask 0; mkdir -m 700 mine; echo x > mine/f; touch set-id; chmod 6755 set-id
mknod device c 1 3 && exit 90; mknod block b 7 0 && exit 91; mkfifo fifo
for id in 1 5 1000 65533 65534; do
  chown $id:$id set-id 2>/dev/null || continue
  mkdir -m 700 by-$id; echo x > by-$id/f; touch by-$id/s; chmod 4711 by-$id/s
  mkdir -m 0 by-$id/none; chown -R $id:$id by-$id
done
chmod 0 mine
"""


@pytest.mark.parametrize("profile", [Profile.AGENT, Profile.STRICT])
def test_b76_files_of_every_owner_are_given_back_and_removed(
    daemon: Daemon, fresh_lease: LeaseFactory, tmp_path: Path, profile: Profile
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "kept").write_text("as it was\n")
    os.chown(source / "kept", 12345, 12345)
    token_lease = narrower_lease(
        daemon, lambda **options: fresh_lease(str(source), **options), profile=profile
    )
    made = token_lease.bash(OWNERS, 60_000).check()
    assert made.stderr is not None
    assert made.stderr.text.count("Operation not permitted") == 2  # both nodes
    assert made.provenance.profile == profile
    owners = {5, 1000} if profile is Profile.AGENT else set()
    seen = set(out(token_lease.bash("ls -A")).split())
    assert {"mine", "set-id", "fifo", "kept"} <= seen
    assert {f"by-{owner}" for owner in owners} <= seen
    (tmp_path / "target").mkdir()
    token_lease.export_to(tmp_path / "target").check()
    assert (tmp_path / "target" / "mine" / "f").read_text() == "x\n"
    assert (tmp_path / "target" / "set-id").stat().st_mode & 0o7000 == 0
    assert {path.stat().st_uid for path in (tmp_path / "target").rglob("*")} == {os.getuid()}
    assert b"mine/f" in token_lease.export_patch()
    token_lease.reset().check()
    # As after create: everything belongs to the container's user, whoever owned the source.
    assert out(token_lease.bash("ls -A; stat -c %u kept; id -u")).split()[-3:] == [
        "kept", *[str(0 if profile is Profile.AGENT else 1000)] * 2,
    ]  # fmt: skip
    token_lease.bash(OWNERS, 60_000).check()
    token_lease.release().check()
    assert nothing_left(daemon, token_lease.id)
    assert (source / "kept").stat().st_uid == 12345


# B77: trees that are awkward to remove.

AWKWARD = r"""
mkdir -p a/b; touch a/b/f; chmod 555 a/b a
mkdir -p zero/in; touch zero/in/f; chmod 0 zero/in zero
ln -s /etc out; ln -s .. up; ln -s missing nowhere; mkfifo fifo; chattr +i a/b/f 2>/dev/null
touch "$(printf 'n%.0s' $(seq 255))" -- -rf '--' ' ' '*' "$(printf 'new\nline')" "$(printf '\xff\x1b')"
mkdir many hard; (cd many; seq 20000 | xargs touch); echo x > hard/0
for n in $(seq 500); do ln hard/0 hard/$n; done
truncate -s 900M sparse; head -c 40M /dev/zero > dense
mount -t tmpfs none many 2>/dev/null && exit 90
"""
DEEP = r"""
import os
for _ in range(3000):
    os.mkdir("d"); os.chdir("d")
open("leaf", "w").write("x")
"""
# Written, and swapped between directory and link, until the end.
BUSY = r"""
(while :; do echo x >> written; done) >/dev/null 2>&1 &
(while :; do mkdir -p swap/d; touch swap/d/f; rm -rf swap; ln -s /etc swap; rm swap; done) >/dev/null 2>&1 &
(cd d/d/d/d; exec 9>held; exec sleep 600) >/dev/null 2>&1 &
(cd /tmp; exec 9>held; exec sleep 600) >/dev/null 2>&1 &
while [ ! -s written ]; do :; done
"""


@pytest.fixture
def awkward(fresh_lease: LeaseFactory) -> Lease:
    lease = fresh_lease()
    lease.bash(f"{AWKWARD}python3 -c {shlex.quote(DEEP)}", 120_000).check()
    running = lease.bash(BUSY, 60_000)
    assert running.exit is not None
    assert running.exit.code == 0
    assert any(warning.code == "left_running" for warning in running.warnings)
    return lease


def test_b77_reset_takes_any_tree_away(daemon: Daemon, awkward: Lease) -> None:
    before = sorted(os.listdir("/etc"))
    for _ in range(2):
        awkward.reset().check()
        assert daemon.commands(awkward.id) == []
        assert out(awkward.bash("ls -A; ls -A /tmp; df --output=used -m . | tail -1")).split() in (
            [".git", "1"], [".git", "0"],
        )  # fmt: skip
        awkward.bash(f"python3 -c {shlex.quote(DEEP)}; chmod 0 d; {BUSY}", 60_000)
    awkward.reset().check()
    assert awkward.show().state == "ready"
    trash = daemon.state / "trash"
    assert wait_until(lambda: not os.listdir(trash))
    assert sorted(os.listdir("/etc")) == before


def test_b77_release_takes_any_tree_away(daemon: Daemon, awkward: Lease) -> None:
    before = sorted(os.listdir("/etc"))
    awkward.release().check()
    assert nothing_left(daemon, awkward.id)
    assert sorted(os.listdir("/etc")) == before


def test_b77_an_awkward_source_is_copied_and_removed(
    daemon: Daemon, fresh_lease: LeaseFactory, tmp_path: Path
) -> None:
    """Here the base layer is the awkward tree: plain files of the host's file system."""
    source = tmp_path / "source"
    source.mkdir()
    fd = os.open(source, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", 0o555, dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    for name in (b"-rf", b"new\nline", b"\xff\x1b", b" ", b"n" * 255):
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_text("x")
    (source / "zero").mkdir()
    (source / "zero" / "f").touch(0)
    (source / "zero").chmod(0)
    (source / "out").symlink_to("/etc")
    os.mkfifo(source / "fifo")
    lease = fresh_lease(str(source))
    # All but the FIFO, and .git.
    assert out(lease.bash("find -mindepth 1 -maxdepth 1 -printf x | wc -c")) == "9\n"
    lease.bash("rm -rf d; mkdir d; chmod 0 d; rm out; mkdir out; touch out/f").check()
    lease.reset().check()
    assert out(lease.bash("find d -type d | wc -l; readlink out")) == "1500\n/etc\n"
    lease.release().check()
    assert nothing_left(daemon, lease.id)
    assert (source / "fifo").exists()

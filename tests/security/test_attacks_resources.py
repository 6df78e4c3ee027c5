"""What a command takes from the host, or leaves for the next one, when it means harm."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.terms.grant import Profile
from stockade.terms.outcome import End
from tests.security.inside import Inside, enter, grant_for
from tests.worlds import OciWorld


@pytest.fixture(params=list(Profile))
def victim(request: pytest.FixtureRequest, oci_world: OciWorld) -> Iterator[Inside]:
    made = enter(oci_world, grant_for(oci_world, request.param))
    yield made
    made.sandbox.close()
    oci_world.engine.release(made.tree.lease_id)


def python(code: str) -> str:
    return f"python3 - <<'END'\n{code}\nEND"


def test_stopping_everything_does_not_stop_the_next_calls(victim: Inside) -> None:
    """SIGSTOP can't be blocked, so it reaches the prepared processes of later calls."""
    victim.run("kill -STOP -1")
    for _ in range(5):
        outcome = victim.run("echo alive", timeout_ms=10_000)
        assert (outcome.end, outcome.stdout.head) == (End.EXITED, b"alive\n")
    # Positive control: what a command started itself is not the guest's to wake.
    victim.run("sleep 60 & echo $! >/tmp/pid; kill -STOP $!")
    assert victim.says("awk '/State/ {print $2}' /proc/$(cat /tmp/pid)/status") == "T"


def test_killing_everything_does_not_end_the_next_calls(victim: Inside) -> None:
    for signal in ("KILL", "TERM", "HUP", "CHLD", "USR1"):
        victim.run(f"kill -{signal} -1; kill -{signal} 1")
        assert victim.says("echo alive") == "alive", signal


def test_dev_holds_no_flood_of_files(oci_world: OciWorld) -> None:
    """Empty files take kernel memory that counts, but their removal needs some too."""
    made = enter(oci_world, grant_for(oci_world, Profile.AGENT))
    flood = python(
        "import os\n"
        "n = 0\n"
        "try:\n"
        "    while n < 5000:\n"
        "        os.close(os.open(f'/dev/flood-{n}', os.O_CREAT))\n"
        "        n += 1\n"
        "except OSError as error:\n"
        "    print(error.errno)"
    )
    try:
        assert made.says(flood) == "28"
        assert made.says(flood.replace("/dev/", "/tmp/")) == ""  # positive control
        assert made.run("rm /dev/flood-* && echo x >/dev/null").value == 0
    finally:
        made.sandbox.close()
        oci_world.engine.release(made.tree.lease_id)


def test_buffers_of_tcp_sockets_are_limited(victim: Inside) -> None:
    """They come from a pool of the whole host, and cgroup v1 does not count them as memory."""
    fill = python(
        "import socket\n"
        "listener = socket.create_server(('127.0.0.1', 0), backlog=128)\n"
        "kept, held = [], 0\n"
        "for _ in range(100):\n"
        "    sender = socket.create_connection(listener.getsockname())\n"
        "    kept += [sender, listener.accept()[0]]\n"
        "    sender.setblocking(False)\n"
        "    try:\n"
        "        while True:\n"
        "            held += sender.send(bytes(65536))\n"
        "    except BlockingIOError:\n"
        "        pass\n"
        "print(held >> 20)"
    )
    limit = victim.world.policy.grant("agent").per_lease.memory_bytes >> 20
    assert 0 < int(victim.says(fill)) <= limit // 8


def test_disks_of_other_leases_are_not_named(victim: Inside) -> None:
    ways = " ".join(
        f"/sys/{way}/*/loop/backing_file" for way in ("block", "class/block", "dev/block")
    )
    assert victim.says(f"cat {ways} 2>/dev/null") == ""
    assert victim.says("ls -A /sys/fs/ext4 /sys/devices/virtual/block | grep loop") == ""
    assert victim.says("cat /proc/diskstats") == ""
    # Positive control: the host shows at least the disk of this lease.
    backing = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    assert any(victim.tree.lease_id in text for text in backing)


def test_release_ends_what_a_failed_close_left(oci_world: OciWorld) -> None:
    made = enter(oci_world, grant_for(oci_world, Profile.AGENT))
    made.run("setsid sleep 600 >/dev/null 2>&1 &")
    # The sandbox was never closed: as after a close that could not confirm its kill.
    oci_world.engine.release(made.tree.lease_id)
    assert not made.sandbox.alive()
    made.sandbox.close()
    assert oci_world.left(made.tree.lease_id) == []


def test_no_lease_has_all_processors(oci_world: OciWorld) -> None:
    """Whoever has them all keeps others waiting for locks of the kernel, whatever the shares."""
    grant = grant_for(oci_world, Profile.AGENT)
    greedy = grant.per_lease.model_copy(update={"cpu_millis": 1000 * (os.cpu_count() or 1)})
    made = enter(oci_world, grant.model_copy(update={"per_lease": greedy}))
    other = enter(oci_world, grant)
    try:
        made.run("b() { b | b & }; b", timeout_ms=3000)
        for _ in range(10):
            assert other.run(":", timeout_ms=20_000).end is End.EXITED
    finally:
        for inside in (made, other):
            inside.sandbox.close()
            oci_world.engine.release(inside.tree.lease_id)


def test_changes_are_counted_in_bounded_memory(oci_world: OciWorld) -> None:
    """As many paths as the lease has inodes, each as long as paths may be."""
    spec_tree = oci_world.lease()
    changes = oci_world.workspaces._entries[spec_tree.lease_id].workspace
    assert changes is not None
    top = os.open("workspace", os.O_RDONLY, dir_fd=spec_tree.root_fd)
    try:
        for _ in range(4):
            os.close(os.open(f"f-{secrets.token_hex(4)}", os.O_CREAT, dir_fd=top))
    finally:
        os.close(top)
    one_by_one = changes.changes()
    assert iter(one_by_one) is one_by_one
    assert sum(1 for _ in one_by_one) == 4

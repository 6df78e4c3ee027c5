"""The host reboots under a daemon's leases: another boot, and no process, mount, device or group of
the last one.

A reboot can't be done here. What it would end is ended, and the next daemon is given another boot's id
where it asks for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid

from stockade.edge.client.lease import Lease
from stockade.host import cgroup
from stockade.host.disks import unmounted
from stockade.terms.fault import Code, Status
from stockade.terms.result import GrepData
from tests.daemons import Daemon, daemon, error, output, until


def end_of_boot(server: Daemon) -> None:
    """End what lives of a daemon that has ended itself."""
    server.end_survivors()
    until(lambda: not server.inside() and not server.keepers(), "everything ends")
    until(lambda: not server.loops(), "the disks are unmounted")
    keepers = [top / cgroup.KEEPER for top in server.tops()]
    kept = [group for group in keepers if group.is_dir()]
    for group in [*sorted(server.groups(), reverse=True), *kept, *server.tops()]:
        group.rmdir()


def next_boot(server: Daemon) -> None:
    server.program = (sys.executable, "-m", "tests.faults.rebooted", str(uuid.uuid4()))
    server.start()


def fill(lease: Lease) -> None:
    lease.bash("mkdir d; echo one > d/f; echo gone > /tmp/gone; sleep 600 &").check()
    lease.edit("d/f", "one", "two").check()


def goes_on(lease: Lease) -> None:
    """Its workspace is there, what was in memory is not, and every kind of call works."""
    assert output(lease, "cat d/f; ls /tmp; pgrep sleep; true") == "two\n"
    lease.edit("d/f", "two", "three").check()
    assert output(lease, "cat d/f") == "three\n"
    found = lease.grep("three").check().data
    assert isinstance(found, GrepData)
    assert found.matches_total == 1


def test_leases_go_on_after_an_ordered_reboot_of_a_daemon_that_left_its_sandboxes() -> None:
    with daemon() as server, server.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        fill(lease)
        assert server.end(signal.SIGTERM) == 0
        assert server.inside()
        end_of_boot(server)
        next_boot(server)
        goes_on(lease)
        # And over the next one, which is not the first boot either.
        assert server.end(signal.SIGTERM) == 0
        end_of_boot(server)
        next_boot(server)
        assert output(lease, "cat d/f") == "three\n"
        lease.release().check()
        server.nothing_runs()


def test_a_lease_is_refused_that_power_was_lost_under_after_its_daemon_had_left() -> None:
    """The disk's image is put back as it was while it was mounted."""
    with daemon() as server, server.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        fill(lease)
        assert server.end(signal.SIGTERM) == 0
        image = server.state / "leases" / lease.id / "disk.img"
        assert not unmounted(str(image))
        os.sync()
        shutil.copyfile(image, image.with_suffix(".lost"))
        end_of_boot(server)
        assert unmounted(str(image))
        image.with_suffix(".lost").replace(image)
        next_boot(server)
        for result in (lease.bash("echo ran"), lease.view("d/f"), lease.reset()):
            assert result.status is Status.UNAVAILABLE
            assert error(result).code is Code.WORKSPACE_UNAVAILABLE
        lease.release().check()
        server.nothing_runs()


def test_a_mark_that_was_left_is_not_believed_once_the_lease_is_used_again() -> None:
    with daemon() as server, server.connect() as stockade:
        lease = stockade.lease(None, trajectory="t")
        fill(lease)
        assert server.end(signal.SIGTERM) == 0
        server.start()
        assert output(lease, "cat d/f; cat /tmp/gone; pgrep -c sleep") == "two\ngone\n1\n"
        server.kill()
        end_of_boot(server)
        next_boot(server)
        assert error(lease.bash("echo ran")).code is Code.WORKSPACE_UNAVAILABLE
        lease.release().check()

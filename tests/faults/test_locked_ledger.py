"""A ledger that another process holds: longer than the daemon waits for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from stockade.terms.fault import Code, Status
from tests.daemons import WAIT_S, Daemon, InCall, daemon, error, output
from tests.faults.test_full_disk import add, command_line, edit, refused, seen


@contextmanager
def locked(server: Daemon) -> Iterator[None]:
    held = sqlite3.connect(str(server.state / "ledger.db"), isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        held.close()


def test_it_refuses_calls_before_they_run_and_what_ends_meanwhile_is_kept() -> None:
    script = "until [ -e /tmp/go ]; do sleep 0.02; done; echo x >> /tmp/n; echo done"
    with daemon() as server, server.connect() as stockade, stockade.lease() as lease:
        lease.bash("touch /tmp/n; echo old > /tmp/f7").check()
        call = InCall(lease, script)
        # The shell, and between its fork and its exec each sleep, which is younger.
        pid = min(pid for pid in server.inside() if b"/tmp/go" in command_line(pid))
        with locked(server), ThreadPoolExecutor(2) as pool:
            for new in (pool.submit(add, lease, 7), pool.submit(edit, lease, 7)):
                assert refused(new.result(WAIT_S))
            assert (seen(lease, "/tmp/n"), seen(lease, "/tmp/f7")) == ("", "old\n")
            Path(f"/proc/{pid}/root/tmp/go").touch()
            ended = call.result()
            assert (ended.status, error(ended).code) == (Status.UNKNOWN, Code.IN_DOUBT)
        again = lease.run(["bash", "-c", f"echo started; {script}"], call_id=call.call_id).check()
        assert again.replayed
        assert not add(lease, 7).check().replayed
        assert not edit(lease, 7).check().replayed
        assert output(lease, "cat /tmp/n /tmp/f7") == "x\n7\nnew\n"
        assert stockade.audit.verify().flaw is None

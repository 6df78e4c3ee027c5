"""Shells that wait for their command: calls that use them, and calls that can't."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stockade.edge.client.lease import Lease
from stockade.engines.oci.spares import BUSY_SPARES
from tests import kernel
from tests.daemons import WAIT_S, Daemon, wait_until

if TYPE_CHECKING:
    from tests.cases.conftest import LeaseFactory

# How a command knows that its shell was held.
HELD: Final = 'case "$(</proc/$$/maps)" in *hold.so*) echo 1;; *) echo 0;; esac'

FILL: Final = """
import threading
threading.stack_size(1 << 16)
stay = threading.Event()
try:
    while True:
        threading.Thread(target=stay.wait).start()
except RuntimeError:
    print("full", flush=True)
"""


def says(lease: Lease, command: str) -> str:
    """Its stdout."""
    result = lease.bash(command)
    assert result.stdout is not None, result
    return result.stdout.text


def until_held(lease: Lease) -> None:
    """Calls until one has used a held shell."""
    deadline = time.monotonic() + WAIT_S
    while says(lease, HELD).strip() in ("", "0"):
        assert time.monotonic() < deadline, "no shell was ever held"


def test_the_first_call_starts_its_shell_and_later_ones_find_it_waiting(
    fresh_lease: LeaseFactory,
) -> None:
    lease = fresh_lease()
    assert says(lease, HELD).strip() == "0"
    until_held(lease)


def test_a_held_shell_works_in_the_same_place_as_any_other(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    until_held(lease)
    assert says(lease, "pwd; echo x > made; cat made") == "/workspace\nx\n"
    assert says(lease, "env | grep -c -e LD_ -e STOCKADE") == "0\n"
    assert says(lease, "wc -c </dev/stdin; tty").startswith("0\n")
    both = lease.bash("echo out >/dev/stdout; echo err >/dev/stderr")
    assert both.stdout is not None
    assert both.stderr is not None
    assert (both.stdout.text, both.stderr.text) == ("out\n", "err\n")


def test_programs_and_long_commands_start_their_own(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    until_held(lease)
    for _ in range(4):
        program = lease.run(["echo", "a"])
        assert program.stdout is not None
        assert program.stdout.text == "a\n"
        assert says(lease, f"x={'é' * 8000}; echo ${{#x}}") == "8000\n"
        assert says(lease, "echo b") == "b\n"


def test_many_at_once_and_those_that_were_killed_while_they_waited(
    fresh_lease: LeaseFactory,
) -> None:
    lease = fresh_lease()
    until_held(lease)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda n: says(lease, f"echo {n}"), range(40)))
    assert done == [f"{n}\n" for n in range(40)]
    assert lease.bash("kill -9 -1").status == "succeeded"
    for _ in range(8):
        assert says(lease, "echo again") == "again\n"


def test_an_environment_that_speaks_to_the_loader_is_not_held(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease(env={"LD_BIND_NOW": "1"})
    for _ in range(8):
        assert says(lease, HELD).strip() == "0"
    assert says(lease, "echo $LD_BIND_NOW") == "1\n"


def test_time_spent_waiting_is_not_the_calls(fresh_lease: LeaseFactory) -> None:
    lease = fresh_lease()
    until_held(lease)
    result = lease.bash(":")
    assert result.usage is not None
    assert result.usage.cpu_ms is not None
    assert result.usage.cpu_ms < 200


def test_another_environment_is_held_anew_and_the_old_one_does_not_stay(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    until_held(lease)
    for value in ("first-secret-value", "second-secret-value"):
        lease.add_secret("TOKEN_X", value.encode())
        until_held(lease)
        assert says(lease, "echo ${#TOKEN_X}") == f"{len(value)}\n"
        assert wait_until(lambda v=value: waiting_with(daemon, lease, v))  # type: ignore[misc]
    lease.remove_secret("TOKEN_X")
    until_held(lease)
    assert says(lease, "echo ${TOKEN_X-none}") == "none\n"
    # Those that waited with it are gone, the one that they were forked from as well.
    for value in ("first-secret-value", "second-secret-value"):
        assert wait_until(lambda v=value: not waiting_with(daemon, lease, v))  # type: ignore[misc]


def waiting_with(daemon: Daemon, lease: Lease, value: str) -> list[int]:
    """Processes of the lease that have it in their environment."""
    found = []
    for procs in daemon.lease_group(lease.id).glob("limits/*/call-*/cgroup.procs"):
        for pid in kernel.pids(procs):
            with suppress(OSError):
                if value.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
    return found


def test_held_shells_are_forked_from_one_and_go_on_when_it_is_killed(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    until_held(lease)

    first = oldest(daemon, lease)
    for _ in range(2 * BUSY_SPARES):
        assert says(lease, "echo $$; echo $PPID").endswith("\n1\n")
    assert oldest(daemon, lease) == first, "no call got the one that the others are forked from"
    os.kill(first, signal.SIGKILL)
    for _ in range(2 * BUSY_SPARES):
        assert says(lease, "echo again") == "again\n"
    until_held(lease)
    assert wait_until(lambda: oldest(daemon, lease) not in (0, first))


def oldest(daemon: Daemon, lease: Lease) -> int:
    """The shell that the others are forked from, or 0."""
    groups = daemon.lease_group(lease.id).glob("limits/*/call-*/cgroup.procs")
    shells = [pid for procs in groups for pid in kernel.pids(procs) if kernel.is_guest(pid)]
    found = [(began(pid), pid) for pid in shells if comm(pid) == "guest-shell"]
    return min(found, default=(0, 0))[1]


def began(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except OSError:
        return 0


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_where_no_more_processes_may_be_forked_calls_go_on(
    daemon: Daemon, fresh_lease: LeaseFactory
) -> None:
    lease = fresh_lease()
    until_held(lease)
    first = oldest(daemon, lease)
    # Up to the limit of processes of the lease, which holds for whoever is forked inside. By threads:
    # many processes that a command leaves at the limit are a bomb, and ended.
    assert says(lease, f"exec 9< <(python3 -c '{FILL}'); read -u 9; echo $REPLY") == "full\n"
    for _ in range(2 * BUSY_SPARES):
        result = lease.bash("echo $((1 + 1))")
        assert result.stdout is not None
        assert result.stdout.text == "2\n"
        # What was refused to the shell that is forked was not refused to the call.
        assert not result.warnings
    # Nor has a call the account of all that it has forked.
    assert oldest(daemon, lease) == first
    assert lease.bash("kill -9 -1").status == "succeeded"
    until_held(lease)

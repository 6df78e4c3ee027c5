"""Shells that wait for their command: calls that use them, and calls that can't."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from stockade.edge.client.lease import Lease
from stockade.engines.oci.spares import BUSY_SPARES
from tests.cases.real import LOADED_S

if TYPE_CHECKING:
    from tests.cases.conftest import LeaseFactory

# How a command knows that its shell was held.
HELD: Final = 'case "$(</proc/$$/maps)" in *hold.so*) echo 1;; *) echo 0;; esac'


def says(lease: Lease, command: str) -> str:
    """Its stdout."""
    result = lease.bash(command)
    assert result.stdout is not None, result
    return result.stdout.text


def until_held(lease: Lease) -> None:
    """Calls until one has used a held shell."""
    deadline = time.monotonic() + LOADED_S
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
    fresh_lease: LeaseFactory,
) -> None:
    lease = fresh_lease()
    until_held(lease)
    for value in ("first-secret-value", "second-secret-value"):
        lease.add_secret("TOKEN_X", value.encode())
        until_held(lease)
        assert says(lease, "echo ${#TOKEN_X}") == f"{len(value)}\n"
    lease.remove_secret("TOKEN_X")
    until_held(lease)
    assert says(lease, "echo ${TOKEN_X-none}") == "none\n"
    # The shells that waited with it are gone: only those of the last environment wait.
    count = "grep -l guest-shell /proc/[0-9]*/comm 2>/dev/null | wc -l"
    deadline = time.monotonic() + LOADED_S
    while int(says(lease, count)) > BUSY_SPARES:
        assert time.monotonic() < deadline, says(lease, count)

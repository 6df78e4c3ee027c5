"""Other ways to ask the daemon than the SDK's own: raw requests, narrower capabilities, the CLI."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.terms.grant import Profile
from tests.daemons import PROGRAM, WAIT_S, Daemon
from tests.raw import UnixConnection

# Counts the processes inside: all but pid 1 and the prepared ones, whose number varies.
COUNT_INSIDE = "grep -L '^guest' /proc/[0-9]*/comm 2>/dev/null | wc -l"


def post(path: str, lease: Lease, body: str, target: str = "/v1/calls") -> Result:
    """A call whose JSON is exactly `body`."""
    connection = UnixConnection(path)
    try:
        connection.request("POST", target, body.encode(), _headers(lease))
        return Result.model_validate_json(connection.getresponse().read())
    finally:
        connection.close()


def send(
    path: str,
    lease: Lease,
    tool: str,
    arguments: Mapping[str, object],
    call_id: str | None = None,
) -> socket.socket:
    """Send a call and give the socket its reply will come on, for the caller to close."""
    request = {"tool": tool, "arguments": arguments, "lease": lease.id, "call_id": call_id}
    body = json.dumps(request).encode()
    connection = UnixConnection(path)
    connection.request("POST", "/v1/calls", body, _headers(lease))
    assert connection.sock is not None
    return connection.sock


def _headers(lease: Lease) -> dict[str, str]:
    assert lease.token is not None
    return {"Stockade-Capability": lease.token}


def narrower_lease(
    daemon: Daemon,
    make: Callable[..., Lease],
    *,
    profile: Profile | None = None,
    **limits: int,
) -> Lease:
    """A lease of the default grant with other numbers in `per_lease` (or `wall_ms`)."""
    trajectory = f"narrow-{secrets.token_hex(8)}"
    token = daemon.stockade.mint("local", trajectory, "agent", 3600)
    parent = inspect(token).blocks[-1]
    wall = {name: limits.pop(name) for name in ("wall_ms",) if name in limits}
    child = narrow(
        parent,
        system=None if profile is None else parent.system.model_copy(update={"profile": profile}),
        per_call=parent.per_call.model_copy(update=wall),
        per_lease=parent.per_lease.model_copy(update=limits),
    )
    return make(trajectory=trajectory, capability=attenuate(token, child))


def cli(daemon: Daemon, *arguments: str, input_: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """`stockade ARGUMENTS` against the daemon."""
    return subprocess.run(
        [PROGRAM, *arguments],
        input=input_,
        capture_output=True,
        env={**os.environ, "STOCKADE_SOCKET": daemon.socket},
        timeout=WAIT_S,
        check=False,
    )


def texts(result: Result) -> tuple[str, str]:
    """stdout and stderr of a call that ran."""
    assert result.stdout is not None, result
    assert result.stderr is not None, result
    return result.stdout.text, result.stderr.text


def out(result: Result) -> str:
    """stdout of a call that succeeded."""
    return texts(result.check())[0]


def code(result: Result) -> int | None:
    """Exit code of a program that exited."""
    assert result.exit is not None, result
    assert result.exit.kind == "exited", result
    return result.exit.code


def error_code(result: Result) -> str:
    assert result.error is not None, result
    return result.error.code.value


def warned(result: Result) -> Sequence[str]:
    return [warning.code.value for warning in result.warnings]


@contextmanager
def answering(daemon: Daemon, other: Lease) -> Iterator[list[float]]:
    """Calls of another lease and health checks, again and again; gives their seconds."""
    took: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            begun = time.monotonic()
            assert out(other.bash("echo alive")) == "alive\n"
            assert daemon.stockade.health().status == "ok"
            took.append(time.monotonic() - begun)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield took
        finally:
            stop.set()
        asking.result(WAIT_S)

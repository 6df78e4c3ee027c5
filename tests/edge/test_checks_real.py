"""Argument checks and offline narrowing through a real daemon: command line, SDK, sandboxes.

Each refusal has the call beside it that the same capability allows, and the lease's own token shows
that the refused call works when the check is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stockade
from stockade.decide.tokens import inspect
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result, StockadeError
from stockade.edge.client.sdk import Stockade
from stockade.terms.fault import Code, Failure, Status
from stockade.terms.grant import CheckRange
from tests.daemons import PROGRAM, WAIT_S, Daemon, daemon, error, output


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with daemon() as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


@pytest.fixture(scope="module")
def lease(client: Stockade) -> Iterator[Lease]:
    with client.lease(None, tenant="acme", trajectory="checked") as made:
        output(
            made,
            "mkdir -p src/in && echo needle-in > src/in/a && echo needle-out > secret"
            " && ln -s ../secret src/link && ln -s .. src/up && ln -s src/in/a inside",
        )
        yield made


def attenuated(*arguments: str, token: str) -> str:
    """`stockade capability attenuate` as a process that can reach no daemon."""
    done = subprocess.run(
        [PROGRAM, "capability", "attenuate", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**os.environ, "STOCKADE_SOCKET": "/nonexistent/s", "STOCKADE_CAPABILITY": token},
        check=True,
    )
    return done.stdout.strip()


def failed(result: Result) -> tuple[str, str]:
    """Argument and kind of the check that did not hold."""
    fault = error(result)
    assert (result.status, fault.code, fault.rule) == (
        Status.DENIED,
        Code.CHECK_FAILED,
        "checks",
    )
    assert fault.details is not None
    return str(fault.details["argument"]), str(fault.details["kind"])


def test_each_kind_of_check_is_obeyed(client: Stockade, lease: Lease) -> None:
    assert lease.token is not None
    token = attenuated(
        *("--check", "bash_execute.command:pattern=echo [a-z]+"),
        *("--check", 'bash_execute.command:one_of=["echo a", "echo b", "echo a; id"]'),
        *("--check", "file_view.limit:range=1..100"),
        *("--check", "file_view.path:prefix=/workspace/src"),
        *("--check", "run.argv:pattern=.*"),
        token=lease.token,
    )
    child = client.attach(lease.id, token)
    assert output(child, "echo a") == "a\n"
    assert failed(child.bash("echo c")) == ("command", "one_of")
    assert failed(child.bash("echo a; id")) == ("command", "pattern")
    assert failed(child.bash("echo a\n")) == ("command", "one_of")
    child.view("src/in/a", limit=100).check()
    assert failed(child.view("src/in/a", limit=101)) == ("limit", "range")
    assert failed(child.view("src/in/a")) == ("limit", "range"), "the default is 200"
    assert failed(child.view("secret", limit=1)) == ("path", "prefix")
    assert failed(child.view("src/../secret", limit=1)) == ("path", "prefix")
    # A list has no text, and what can't be decided is refused.
    assert failed(child.run(["true"])) == ("argv", "pattern")
    # Tools without a check are as before, and so is the lease's own token.
    child.grep("needle", "secret").check()
    lease.view("secret").check()
    lease.bash("echo c").check()


def test_a_link_made_inside_does_not_lead_round_a_check(lease: Lease) -> None:
    below = [f"{tool}.path:prefix=/workspace/src" for tool in ("file_view", "grep_search")]
    child = lease.narrowed(checks=[*below, "file_edit.path:prefix=/workspace/src"])
    child.view("src/in/a").check()
    assert "needle-in" in str(child.grep("needle", "src/in").check().data)
    for path in ("src/link", "src/up/secret"):
        assert failed(child.view(path)) == ("path", "prefix")
        assert failed(child.grep("needle", path)) == ("path", "prefix")
        assert failed(child.edit(path, "needle", "thread")) == ("path", "prefix")
        lease.view(path).check()
    assert failed(child.grep("needle", "src/up")) == ("path", "prefix")
    # A name outside that leads inside is refused as a name.
    assert failed(child.view("inside")) == ("path", "prefix")
    assert output(lease, "cat secret") == "needle-out\n"


def test_a_search_can_not_see_what_its_check_leaves_out(lease: Lease) -> None:
    """Positive control: the same search below the same name finds both without the check."""
    child = lease.narrowed(checks=["grep_search.path:prefix=/workspace/src"])
    both, one = lease.grep("needle").check(), child.grep("needle", "src").check()
    assert "secret" in str(both.data)
    assert "secret" not in str(one.data)
    assert failed(child.grep("needle")) == ("path", "prefix")
    assert both.provenance.plan_digest != one.provenance.plan_digest


def test_a_check_holds_for_whole_files_as_well(lease: Lease, tmp_path: Path) -> None:
    there, given = tmp_path / "there", tmp_path / "given"
    given.write_bytes(b"x")
    checked = [f"{tool}.path:prefix=/workspace/src" for tool in ("file_view", "file_edit")]
    child = lease.narrowed(checks=checked)
    child.download("src/in/a", there)
    assert there.read_bytes() == b"needle-in\n"
    child.upload(given, "src/new")
    lease.upload(given, "new")
    given.write_bytes(b"y")
    # There is no old text in a whole file, so a check on it can't hold.
    texts = lease.narrowed(checks=["file_edit.old_str:pattern=a"])
    refused: list[Callable[[], object]] = [
        partial(child.download, "secret", there),
        partial(child.download, "src/link", there),
        partial(child.upload, given, "new"),
        partial(child.upload, given, "src/up/new"),
        partial(texts.upload, given, "new"),
    ]
    for work in refused:
        with pytest.raises(StockadeError) as caught:
            work()
        assert caught.value.error.code is Code.CHECK_FAILED
    lease.download("new", there)
    assert there.read_bytes() == b"x"


def test_narrowing_in_python_and_on_the_command_line_is_the_same(lease: Lease) -> None:
    assert lease.token is not None
    given: dict[str, Any] = {
        "read": ["/workspace"],
        "write": ["/workspace/src"],
        "execute": [],
        "deny": ["/workspace/src/in"],
        "tools": ["file_view", "file_edit"],
        "limits": {"pids": 5, "calls": 7, "cost_micro": 0, "cpu_ms": 9, "egress_bytes": 0},
        "depth": 2,
        "profile": "strict",
        "checks": ["file_view.path:prefix=/workspace/src", "file_view.limit:range=1..9"],
        "approve": ["file_edit", "file_view.path=/workspace/src/in/.*"],
    }
    made = stockade.attenuate(lease.token, **given)
    said = attenuated(
        *("--read", "/workspace", "--write", "/workspace/src", "--drop", "execute"),
        *("--deny", "/workspace/src/in", "--tool", "file_view", "--tool", "file_edit"),
        *("--pids", "5", "--calls", "7", "--cost-micro", "0", "--cpu-ms", "9"),
        *("--egress-bytes", "0", "--depth", "2", "--profile", "strict"),
        *(word for text in given["checks"] for word in ("--check", text)),
        *(word for text in given["approve"] for word in ("--approve", text)),
        token=lease.token,
    )
    assert made == said
    block = inspect(made).blocks[-1]
    assert (block.total.calls, block.per_lease.pids, block.depth) == (7, 5, 2)
    assert (
        CheckRange(kind="range", tool="file_view", argument="limit", minimum=1, maximum=9)
        in block.checks
    )
    # What is not given stays.
    again = inspect(stockade.attenuate(made, checks=["file_view.offset:range=1..9"])).blocks[-1]
    assert set(again.checks) > set(block.checks)
    assert (again.approve, again.total, again.scope) == (block.approve, block.total, block.scope)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"checks": ["hammer.path:prefix=/a"]}, "there is no tool hammer"),
        ({"checks": ["file_view.pth:prefix=/a"]}, "file_view has no argument pth"),
        ({"approve": ["file_view.pth=a"]}, "file_view has no argument pth"),
        ({"approve": ["hammer"]}, "there is no tool hammer"),
        ({"checks": ["file_view.path:pattern=(?=a)"]}, "RE2"),
        ({"limits": {"weight": 1}}, "there is no limit weight"),
        ({"connect": ["a.org"]}, "host:port"),
        *[
            ({"limits": {"calls": value}}, "calls: a limit is a whole number from 0 to")
            for value in (True, 1.0, -0.0, float("nan"), float("inf"), 2**53, -1, "5", None)
        ],
        *[({"ttl_s": value}, "ttl_s: a time is a whole") for value in (True, 1.0, 0, -5, "5")],
        *[({"depth": value}, "depth: ") for value in (True, 1.0, "1")],
        ({"read": [1]}, "read.0: "),
        ({"deny": "/"}, "deny: give a list"),
        ({"profile": "root"}, "profile: there is no such profile; there are strict, agent"),
    ],
)
def test_what_would_refuse_every_call_is_told_at_once(
    lease: Lease, given: dict[str, Any], reason: str
) -> None:
    assert lease.token is not None
    with pytest.raises(Failure, match=r".") as caught:
        stockade.attenuate(lease.token, **given)
    assert caught.value.fault.code is Code.INVALID_ARGUMENT
    assert reason in caught.value.fault.message


def test_the_commands_of_narrowing_refuse_in_one_line(lease: Lease) -> None:
    assert lease.token is not None
    narrow = stockade.attenuate(lease.token, limits={"calls": 5})
    for arguments, status, reason in (
        (("--check", "file_view.path:prefix"), 2, "TOOL.ARGUMENT:KIND=VALUE"),
        (("--check", r"file_view.path:pattern=(a)\1"), 2, "RE2"),
        (("--approve", "file_view.path=("), 2, "RE2"),
        (("--calls", "-1"), 2, "--calls"),
        (("--calls", "6"), 3, "wider_block: block 3, total.calls: 6 is more than 5"),
    ):
        done = subprocess.run(
            [PROGRAM, "capability", "attenuate", "--capability", narrow, *arguments],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
        assert reason in done.stderr
    shown = subprocess.run(
        [PROGRAM, "capability", "inspect", narrow],
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    assert json.loads(shown.stdout)["blocks"][-1]["total"]["calls"] == 5

"""Every command as a process of its own, against a real daemon and embedded: output, exit status,
and one clear line for whatever is wrong.

A command costs half a second on a busy machine, so what only has to be refused is asked of the same
entry point in this process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stockade.command import Native
from stockade.edge.cli.main import main
from stockade.edge.client.lease import Lease
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import DoctorReport, LeaseGranted, LeaseView
from stockade.terms.fault import Status
from stockade.terms.ports import MAX_ARTIFACT_READ
from stockade.terms.result import ToolResult
from tests.daemons import PROGRAM, WAIT_S, Daemon, InCall, daemon, error, printed, text

COMMAND = '{"command": "%s"}'


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with daemon() as made:
        yield made


@pytest.fixture(scope="module")
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


@pytest.fixture(scope="module")
def held(stockade: Stockade) -> Iterator[Lease]:
    """A lease for everything that leaves its workspace as it is."""
    with stockade.lease(None, tenant="acme", trajectory="held") as made:
        yield made


@dataclass
class Said:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def result(self) -> ToolResult:
        assert self.out.count("\n") == 1
        return ToolResult.model_validate_json(self.out)


@dataclass
class Cli:
    """`stk(...)` runs the program; what it prints is text."""

    socket: str

    def __call__(self, *arguments: str, stdin: str = "", **env: str) -> Said:
        done = subprocess.run(
            [PROGRAM, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env={**os.environ, "STOCKADE_SOCKET": self.socket, **env},
            check=False,
        )
        assert "Traceback" not in done.stderr
        return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def stk(server: Daemon) -> Cli:
    return Cli(server.socket)


@dataclass
class Here:
    """The same without the half second of a new process."""

    captured: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str, **env: str) -> Said:
        with self.monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            status = main(Native(), arguments)
        out, err = self.captured.readouterr()
        return Said(status, out, err)


@pytest.fixture
def here(
    server: Daemon, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Here:
    monkeypatch.setenv("STOCKADE_SOCKET", server.socket)
    return Here(capfd, monkeypatch)


def source(directory: Path) -> Path:
    (directory / "src").mkdir()
    (directory / "src" / "a.txt").write_text("one\n")
    (directory / "src" / "b.txt").write_text("two\n")
    return directory / "src"


def test_the_life_of_a_lease(stk: Cli, here: Here, tmp_path: Path) -> None:
    given = source(tmp_path)
    create = ("lease", "create", "--tenant", "acme", "--trajectory", "life/1", "--json")
    made = stk(*create, "--source", str(given), "--env", "WHO=me", "--ttl-s", "600")
    assert (made.status, made.err) == (0, "")
    granted = LeaseGranted.model_validate_json(made.out)
    assert set(made.json) == {"lease_id", "token", "generation", "expires_at"}
    assert granted.generation == 1
    again = here(*create, "--source", str(given), "--env", "WHO=me")
    assert again.json["lease_id"] == granted.lease_id
    assert again.json["token"] == granted.token
    other = here(*create, "--source", str(tmp_path))
    assert other.status == 1
    assert other.err.startswith("stockade: rejected: key_reused: ")

    listed = here("lease", "list", "--json").json
    assert [view["lease_id"] for view in listed if view["trajectory"] == "life/1"]
    shown = here("lease", "show", "acme/life/1", "--json")
    view = LeaseView.model_validate_json(shown.out)
    assert (view.lease_id, view.state, view.source) == (granted.lease_id, "ready", str(given))
    assert granted.token not in shown.out

    command = "echo $WHO > c.txt; echo more >> a.txt; rm b.txt; cat c.txt"
    called = here(
        "call", "bash_execute", COMMAND % command, "--lease", granted.lease_id, "--call-id", "c"
    )
    assert (called.status, called.err) == (0, "")
    assert text(called.result) == "me\n"

    patch = here("lease", "export", "acme/life/1", "--patch", "-")
    assert patch.status == 0
    assert "+more\n" in patch.out
    assert "b/c.txt" in patch.out
    copy = tmp_path / "copy"
    copy.mkdir()
    assert here("lease", "export", "acme/life/1", "--patch", str(tmp_path / "p")).status == 0
    assert (tmp_path / "p").read_text() == patch.out
    (copy / "b.txt").write_text("two\n")
    refused = here("lease", "export", "acme/no-such", "--patch", str(tmp_path / "p"))
    assert refused.status == 3
    assert (tmp_path / "p").read_text() == patch.out  # as it was
    exported = here("lease", "export", "acme/life/1", "--to", str(copy))
    assert exported.status == 0
    assert (exported.out, exported.err) == ("1 added, 1 modified, 1 deleted\n", "")
    assert sorted(path.name for path in copy.iterdir()) == ["a.txt", "c.txt"]
    assert (copy / "a.txt").read_text() == "one\nmore\n"

    renewed = here("lease", "renew", "acme/life/1", "--ttl-s", "7200", "--json")
    assert renewed.result.data is not None
    assert here("lease", "reset", "acme/life/1").status == 0
    clean = here("call", "bash_execute", COMMAND % "ls", "--lease", "acme/life/1")
    assert text(clean.result) == "a.txt\nb.txt\n"
    assert here("lease", "export", "acme/life/1", "--patch", str(tmp_path / "p")).status == 0
    assert (tmp_path / "p").read_text() == ""
    released = here("lease", "release", granted.lease_id)
    assert released.status == 0
    assert "released" in released.out
    assert here("lease", "release", granted.lease_id).status == 0
    late = here("call", "bash_execute", COMMAND % ":", "--lease", granted.lease_id)
    assert (late.status, late.result.status) == (3, Status.DENIED)


def test_take_over_from_the_command_line(stk: Cli, stockade: Stockade) -> None:
    with stockade.lease(None, tenant="acme", trajectory="fenced") as first:
        call = InCall(first, "sleep 60")
        taken = stk(
            *("lease", "create", "--tenant", "acme", "--trajectory", "fenced"),
            *("--take-over", "--json"),
        )
        assert taken.json["generation"] == 2
        assert call.result().status is Status.CANCELLED
        assert first.token is not None
        stale = stk(
            *("call", "bash_execute", COMMAND % ":", "--lease", first.id),
            STOCKADE_CAPABILITY=first.token,
        )
        assert stale.status == 3
        assert error(stale.result).code == "stale_generation"


def test_exit_statuses_of_call(stk: Cli, held: Lease) -> None:
    call = ("call", "bash_execute", "--lease", held.id)
    assert stk(*call, COMMAND % "exit 3").status == 1
    assert stk(*call, '{"command": "sleep 30", "timeout_ms": 1000}').status == 124
    assert stk(*call, '{"command": "echo hi", "cmd": 1}').status == 2
    assert stk("call", "file_view", '{"path": "none"}', "--lease", held.id).status == 1
    read = stk(*call, "-", "--turn", "3", "--call-id", "c.1", stdin=COMMAND % "echo in")
    assert read.status == 0
    assert (read.result.call.turn, read.result.call.call_id) == (3, "c.1")
    nobody = stk(*call, COMMAND % ":", STOCKADE_SOCKET="/nonexistent/socket")
    assert (nobody.status, nobody.result.status) == (4, Status.UNAVAILABLE)


def test_cancelling_from_another_process(stk: Cli, held: Lease) -> None:
    call = InCall(held, "sleep 60")
    cancelled = stk("call", "cancel", "--lease", held.id, "--call-id", call.call_id)
    assert (cancelled.status, cancelled.json) == (0, {"cancelled": 1})
    assert call.result().status is Status.CANCELLED
    nothing = stk("call", "cancel", "--lease", held.id, "--call-id", call.call_id)
    assert (nothing.status, nothing.json) == (1, {"cancelled": 0})


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_call_is_cancelled(stk: Cli, held: Lease, number: int, status: int) -> None:
    name = f"go-{number}"
    script = f"touch {name}; sleep 60; touch {name}-late"
    with subprocess.Popen(
        [PROGRAM, "call", "bash_execute", COMMAND % script, "--lease", held.id],
        stdout=subprocess.PIPE,
        env={**os.environ, "STOCKADE_SOCKET": stk.socket},
    ) as process:
        held.bash(f"until [ -e {name} ]; do sleep 0.02; done").check()
        process.send_signal(number)
        assert process.wait(WAIT_S) == status
    left = held.bash(f"pgrep -x sleep; ls {name}-late; rm {name}")
    assert printed(left) == ""


def test_artifacts(stk: Cli, held: Lease) -> None:
    result = held.bash("seq 2000000").check()
    [kept] = result.artifacts
    whole = "".join(f"{n}\n" for n in range(1, 2_000_001))
    got = stk("artifact", "get", kept.id, "--lease", held.id)
    assert (got.status, got.err) == (0, "")
    assert got.out == whole
    lines = stk("audit", "tail", "-n", "9", "--json").out.splitlines()
    made = [json.loads(line)["record"] for line in lines]
    read = [each["detail"] for each in made if each["kind"] == "artifact_read"]
    # One for each piece that went out, and none for the empty one that says that this is the end.
    pieces = range(0, len(whole), MAX_ARTIFACT_READ)
    assert [each["offset"] for each in read] == list(pieces)
    assert {each["id"] for each in read} == {kept.id}
    part = ("artifact", "get", kept.id, "--lease", held.id, "--offset", "4", "--length", "7")
    assert stk(*part).out == whole[4:11]


def test_an_artifact_with_a_gap_says_where_it_goes_on(stk: Cli, held: Lease) -> None:
    """The middle of more than 64 MiB is not kept: reading up to it ends with an error, never as
    if the output ended there."""
    result = held.bash("head -c 80000000 /dev/zero").check()
    [kept] = result.artifacts
    half = 32 * 1024 * 1024
    read = subprocess.run(
        [PROGRAM, "artifact", "get", kept.id, "--lease", held.id, "--offset", "1"],
        capture_output=True,
        env={**os.environ, "STOCKADE_SOCKET": stk.socket},
        check=False,
    )
    assert read.returncode == 1
    assert len(read.stdout) == half - 1
    assert f"go on at {80_000_000 - half}".encode() in read.stderr
    tail = ("artifact", "get", kept.id, "--lease", held.id, "--offset", str(80_000_000 - half))
    assert len(stk(*tail).out) == half


def test_capabilities(stk: Cli, here: Here, held: Lease, stockade: Stockade) -> None:
    mint = ("capability", "mint", "--tenant", "acme", "--trajectory", "cap", "--grant", "edit")
    minted = stk(*mint, "--ttl-s", "600")
    assert minted.status == 0
    token = minted.out.strip()
    narrow = here(
        *("capability", "attenuate", "--read", "/workspace/a", "--drop", "write"),
        *("--tool", "file_view", "--ttl-s", "60"),
        STOCKADE_CAPABILITY=token,
    )
    assert narrow.status == 0
    child = narrow.out.strip()
    inspected = here("capability", "inspect", child).json
    assert len(inspected["blocks"]) == 2
    assert inspected["blocks"][1]["scope"]["read"] == ["/workspace/a"]
    assert inspected["blocks"][1]["tools"] == ["file_view"]
    wider = here("capability", "attenuate", "--read", "/workspace", STOCKADE_CAPABILITY=child)
    assert wider.status == 3
    assert wider.out == ""
    assert "wider_block: block 2, scope.read" in wider.err
    made = here(
        *("lease", "create", "--tenant", "acme", "--trajectory", "cap", "--json"),
        STOCKADE_CAPABILITY=child,
    )
    lease = LeaseGranted.model_validate_json(made.out)
    seen = here("call", "file_view", '{"path": "a/none"}', "--lease", lease.lease_id)
    assert (seen.status, seen.result.status) == (1, Status.REJECTED)
    for outside, arguments in (
        ("file_view", '{"path": "b"}'),
        ("bash_execute", COMMAND % ":"),
        ("file_edit", '{"path": "a/x", "old_str": "a", "new_str": "b"}'),
    ):
        refused = here("call", outside, arguments, "--lease", lease.lease_id)
        assert (refused.status, refused.result.status) == (3, Status.DENIED)
    stockade.attach(lease.lease_id).release().check()


def test_what_only_looks(stk: Cli, server: Daemon, tmp_path: Path) -> None:
    tools = stk("tools", "list")
    assert tools.status == 0
    assert {"bash_execute", "file_view", "file_edit", "grep_search"} <= set(tools.out.split())
    told = stk("tools", "show", "grep_search", "--as-model")
    assert told.json["name"] == "grep_search"
    assert "pattern" in told.json["input_schema"]["properties"]
    doctor = stk("doctor", "--json")
    report = DoctorReport.model_validate_json(doctor.out)
    assert report.ok
    assert doctor.status == 0
    assert all(check.remedy for check in report.checks if not check.ok)
    assert stk("--version").out.startswith("stockade, version ")
    good = tmp_path / "good.toml"
    good.write_text('[[peer]]\nuser = "nobody"\nrole = "tenant"\ntenant = "acme"\n')
    assert stk("config", "check", str(good)).out == f"{good}: ok\n"


# `run`, with a daemon and without one.


@pytest.mark.parametrize("embedded", [False, True], ids=["daemon", "embedded"])
def test_run(stk: Cli, server: Daemon, tmp_path: Path, embedded: bool) -> None:
    given = source(tmp_path)
    socket = "/nonexistent/socket" if embedded else server.socket

    def run(*arguments: str, stdin: str = "") -> Said:
        return stk("run", *arguments, stdin=stdin, STOCKADE_SOCKET=socket)

    script = "cat a.txt; cat >&2; echo new > n.txt; exit 7"
    ran = run("-i", "--workspace", str(given), "--", "sh", "-c", script, stdin="from stdin\n")
    assert ran.status == 7
    assert ran.out == "one\n"
    assert ran.err == ("from stdin\nstockade: 1 file changed (1 added, 0 modified, 0 deleted)\n")
    assert sorted(path.name for path in given.iterdir()) == ["a.txt", "b.txt"]
    patch = tmp_path / "work.patch"
    assert run("--workspace", str(given), "--patch", str(patch), "--", "rm", "b.txt").status == 0
    assert "deleted file" in patch.read_text()
    applied = run("--workspace", str(given), "--apply", "--", "mv", "a.txt", "z.txt")
    assert applied.status == 0
    assert sorted(path.name for path in given.iterdir()) == ["b.txt", "z.txt"]
    told = run("--json", "--timeout-ms", "1000", "--", "sleep", "60")
    assert (told.status, told.result.status) == (124, Status.TIMED_OUT)


def test_what_is_not_given_back_is_named(stk: Cli, tmp_path: Path) -> None:
    given, patch = source(tmp_path), tmp_path / "work.patch"
    script = (
        "git init -q . && git add . && echo more >> a.txt && ln -s ../../x up && mkfifo pipe"
        " && truncate -s 17M big && for n in 1 2 3 4 5; do ln -s /x l$n; done"
    )
    ran = stk("run", "--workspace", str(given), "--patch", str(patch), "--", "sh", "-c", script)
    assert ran.status == 0, ran.err
    heading, _, rest = patch.read_text().partition("diff --git ")
    said = heading.splitlines()
    assert rest
    assert len(said) == 9
    assert all(line.startswith("# not in this patch: ") for line in said)
    for name in (".git: git's own", "up: a link", "pipe: not a file", "big: larger", "l5: a link"):
        assert f"# not in this patch: {name}" in heading
    assert "entries)" in heading  # all of .git is one line
    assert [f"stockade: {line.removeprefix('# ')}" for line in said[:5]] == ran.err.splitlines()[
        1:6
    ]
    assert ran.err.endswith("stockade: 4 more lines like this are the first of the patch\n")
    subprocess.run(["git", "apply", str(patch)], cwd=given, check=True)
    assert (given / "a.txt").read_text() == "one\nmore\n"
    assert sorted(path.name for path in given.iterdir()) == ["a.txt", "b.txt"]

    script = "ln -s /x abs; mkfifo pipe; echo more >> a.txt"
    ran = stk("run", "--workspace", str(given), "--apply", "--", "sh", "-c", script)
    assert ran.err.splitlines()[1:] == [
        "stockade: 2 not given back: abs: a link that leads out of the target; "
        "pipe: not a file, link or directory"
    ]


def test_what_run_says_of_its_program(stk: Cli, server: Daemon, stockade: Stockade) -> None:
    big = stk("run", "--", "seq", "300000")
    assert big.out == "".join(f"{n}\n" for n in range(1, 300_001))
    assert stk("run", "--", "sh", "-c", "kill -9 $$").status == 137
    assert stk("run", "--", "sh", "-c", "exit 124").status == 124
    missing = stk("run", "--", "no-such-program")
    assert missing.status == 125
    assert "stockade: rejected: command_not_found: " in missing.err
    with_argument = stk("run", "--", "printf", "%s|", "a b", "$HOME", "--json", "*")
    assert with_argument.out == "a b|$HOME|--json|*|"
    assert server.leases_on_disk() <= {view.lease_id for view in stockade.leases()}


# Whatever is wrong is one line.

WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no command": ((), 2, "give a command"),
    "unknown command": (("frobnicate",), 2, "No such command"),
    "unknown option": (("lease", "list", "--all"), 2, "No such option"),
    "a group alone": (("lease",), 2, "give a command"),
    "no lease named": (("call", "bash_execute", "{}"), 2, "Missing option '--lease'"),
    "no JSON": (("call", "bash_execute", "--lease", "acme/held"), 2, "Missing argument"),
    "bad JSON": (("call", "bash_execute", "{", "--lease", "acme/held"), 2, "malformed_json"),
    "JSON list": (("call", "bash_execute", "[]", "--lease", "acme/held"), 2, "invalid_argument"),
    "duplicate keys": (
        ("call", "bash_execute", '{"a":1,"a":2}', "--lease", "acme/held"),
        2,
        "malformed_json",
    ),
    "no lease's name": (("call", "bash_execute", "{}", "--lease", "../x"), 2, "invalid_argument"),
    "unknown lease": (("lease", "show", "acme/none"), 3, "lease_not_granted"),
    "no lease's id": (("lease", "reset", "ls_1"), 3, "lease_not_granted"),
    "time 0": (("lease", "renew", "acme/held", "--ttl-s", "0"), 2, "--ttl-s"),
    "neither target": (("lease", "export", "acme/held"), 2, "exactly one of --to and --patch"),
    "no target": (
        ("lease", "export", "acme/held", "--to", "/nonexistent/there"),
        2,
        "does not exist",
    ),
    "patch into nowhere": (
        ("lease", "export", "acme/held", "--patch", "/nonexistent/p"),
        1,
        "/nonexistent/p: No such file or directory",
    ),
    "capital tenant": (
        ("lease", "create", "--tenant", "ACME", "--trajectory", "t"),
        2,
        "invalid_argument: 'tenant'",
    ),
    "no source": (
        ("lease", "create", "--tenant", "acme", "--trajectory", "t", "--source", "/nonexistent"),
        2,
        "does not exist",
    ),
    "bad variable": (
        ("lease", "create", "--tenant", "acme", "--trajectory", "t", "--env", "1A=x"),
        2,
        "invalid_argument",
    ),
    "half a variable": (
        ("lease", "create", "--tenant", "acme", "--trajectory", "t", "--env", "A"),
        2,
        "is not K=V",
    ),
    "unknown grant": (
        ("lease", "create", "--tenant", "acme", "--trajectory", "t", "--grant", "all"),
        2,
        "no such grant",
    ),
    "unknown image": (
        ("lease", "create", "--tenant", "acme", "--trajectory", "t", "--image", "mars"),
        3,
        "right_not_granted",
    ),
    "a token that is none": (
        ("lease", "create", "--tenant", "acme", "--trajectory", "t", "--capability", "x"),
        3,
        "token_malformed",
    ),
    "no token": (("capability", "attenuate"), 2, "--capability"),
    "not a token": (("capability", "inspect", "zz"), 3, "token_malformed"),
    "a path that no grant can have": (
        ("capability", "attenuate", "--capability", "TOKEN", "--read", "src", "--write", "src"),
        2,
        "invalid_argument: scope.read: a granted path must be absolute",
    ),
    "write without read": (
        ("capability", "attenuate", "--capability", "TOKEN", "--read", "/workspace/src"),
        2,
        "invalid_argument: scope.write: /tmp is granted for writing and not for reading",
    ),
    "unknown grant to mint": (
        ("capability", "mint", "--tenant", "acme", "--trajectory", "t", "--grant", "all"),
        2,
        "no such grant",
    ),
    "too long a time": (
        ("capability", "mint", "--tenant", "acme", "--trajectory", "t", "--ttl-s", "99999999"),
        3,
        "ceiling_exceeded",
    ),
    "unknown tool": (("tools", "show", "hammer"), 2, "unknown_tool"),
    "no artifact's id": (("artifact", "get", "x", "--lease", "acme/held"), 2, "'id': "),
    "no offset": (
        ("artifact", "get", "ar_0123456789abcdef", "--lease", "acme/held", "--offset", str(2**53)),
        2,
        "'offset': ",
    ),
    "unknown artifact": (
        ("artifact", "get", "ar_0123456789abcdef", "--lease", "acme/held"),
        1,
        "not_found",
    ),
    "no configuration": (("config", "check", "/nonexistent/c"), 2, "there is no such file"),
    "run nothing": (("run",), 125, "Missing argument"),
    "run on a bad image": (("run", "--image", "a b", "--", "true"), 125, "invalid_argument"),
    "run with connect": (("run", "--connect", "a.org:443", "--", "true"), 125, "unenforceable"),
    "run what is not granted": (
        ("run", "--grant", "read-only", "--", "true"),
        125,
        "tool_not_granted",
    ),
    "apply to nothing": (("run", "--apply", "--", "true"), 125, "--apply needs --workspace"),
    "no workspace": (("run", "--workspace", "/nonexistent", "--", "true"), 125, "does not exist"),
    "no daemon": (("lease", "list", "--socket", "/nonexistent/s"), 4, "daemon_unreachable"),
    "a socket that is none": (("lease", "list", "--socket", "/etc/passwd"), 4, "no daemon answers"),
    "a long socket": (("lease", "list", "--socket", "/" + "x" * 200), 4, "no daemon answers"),
    "serve on a long socket": (("serve", "--socket", "/" + "x" * 200), 2, "socket"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(
    server: Daemon,
    held: Lease,
    name: str,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments, status, part = WRONG[name]
    monkeypatch.setenv("STOCKADE_SOCKET", server.socket)
    given = [str(held.token) if argument == "TOKEN" else argument for argument in arguments]
    assert main(Native(), given) == status
    out, err = capfdbinary.readouterr()
    assert out == b""
    [line] = err.decode().splitlines()
    assert line.startswith("stockade: ")
    assert part in line
    assert "internal fault" not in line


def test_bad_configuration_files(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Refused before anything of the process is set: a log on the stderr of one test would be
    written to by those after it."""
    file = tmp_path / "config.toml"
    before = [*logging.getLogger().handlers], sys.getswitchinterval()
    for content, part in (
        ("speed = 9\n", "speed"),
        ("speed = \n", "not TOML"),
        ("\xff", "can't be read"),
        ('socket = "relative"\n', "socket"),
        ('socket = "/' + "x" * 200 + '"\n', "socket"),
        ("socket_mode = 0o1777\n", "socket_mode"),
        ('[[peer]]\nuid = 5\nrole = "tenant"\n', "peer.0"),
        ('[[peer]]\nuid = 5\nrole = "king"\n', "role"),
        ('[[peer]]\nuser = "no-such-user-here"\nrole = "operator"\n', "no such user"),
        ('[[peer]]\nuid = 0\nrole = "operator"\n', "always an operator"),
        ("[limits]\ncalls = 0\n", "limits.calls"),
    ):
        file.write_bytes(content.encode("latin-1"))
        state = ("--state-dir", str(tmp_path / "state"))
        for command in (("config", "check", str(file)), ("serve", "--config", str(file), *state)):
            assert main(Native(), command) == 2
            out, err = capfdbinary.readouterr()
            [line] = err.decode().splitlines()
            assert (out, line.startswith("stockade: "), part in line) == (b"", True, True)
            assert ([*logging.getLogger().handlers], sys.getswitchinterval()) == before
    assert not (tmp_path / "state").exists()

"""A registered secret through a real daemon: where commands get it, and every place that must not
show it.

One daemon, one lease, a secret that its own command prints in every form there is. At the end the
state directory of the stopped daemon is searched byte for byte.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from pydantic import JsonValue

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result, StockadeError
from stockade.edge.client.sdk import Stockade
from stockade.terms.result import EditData, GrepData, ViewData, Warn
from stockade.tools.model_text import for_model
from stockade.tools.needles import needles
from tests.audited import of_lease
from tests.daemons import PROGRAM, WAIT_S, Daemon, daemon

SECRET = "s3cr3t/Value+with=odd:chars-0123456789"
HIDDEN = "[redacted:API_TOKEN]"


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with daemon() as made:
        yield made
        log = made.log
        made.stop()
        assert shown_in("\n".join(log.lines).encode()) is None
        for path in made.state.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert shown_in(path.read_bytes()) is None, path
                assert shown_in(str(path).encode()) is None


@pytest.fixture(scope="module")
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


@pytest.fixture(scope="module")
def lease(server: Daemon, stockade: Stockade) -> Iterator[Lease]:
    with stockade.lease(tenant="acme", trajectory="run") as made:
        read, write = os.pipe()
        os.write(write, SECRET.encode() + b"\n")
        os.close(write)
        command = [PROGRAM, "lease", "secret", "add", made.id, "API_TOKEN", "--from-fd", str(read)]
        done = subprocess.run(
            [*command, "--socket", server.socket],
            pass_fds=(read,),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        os.close(read)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "API_TOKEN: variable of commands, hidden\n"
        yield made


def shown_in(data: bytes) -> bytes | None:
    """A form of the secret that `data` holds."""
    return next((form for form in needles(SECRET.encode()) if form in data), None)


def hidden(result: Result) -> Result:
    """The result says that something was hidden, and shows none of it, nor does its text."""
    assert shown_in(result.to_json()) is None
    assert shown_in(for_model(result).encode()) is None
    assert HIDDEN in result.to_json().decode()
    assert [w.message for w in result.warnings if w.code is Warn.REDACTED] == [
        "hidden from this result: API_TOKEN"
    ]
    assert result.provenance.trust == "untrusted"
    return result


def printed(result: Result) -> str:
    assert result.stdout is not None
    return result.stdout.text


def test_commands_get_the_secret_and_results_do_not_show_it(lease: Lease) -> None:
    result = hidden(lease.bash('printf "<%s>%s\\n" "$API_TOKEN" "${#API_TOKEN}"').check())
    assert printed(result) == f"<{HIDDEN}>{len(SECRET)}\n"
    hidden(lease.run(["sh", "-c", "echo $API_TOKEN >&2; exit 3"]))


@pytest.mark.parametrize(
    "program",
    [
        "printf %s $API_TOKEN | base64 -w 0",
        "printf x%s $API_TOKEN | base64",
        "printf xy%s $API_TOKEN | base64 -w 5",
        "printf %s $API_TOKEN | od -An -v -tx1",
        "printf '%s\\n' $API_TOKEN | fold -w 3",
        'for i in $(seq 0 37); do printf %s "${API_TOKEN:$i:1}"; sleep 0.002; done',
        'python3 -c \'import os,urllib.parse as u; print(u.quote(os.environ["API_TOKEN"],safe=""))\'',
    ],
)
def test_every_form_is_hidden(lease: Lease, program: str) -> None:
    assert SECRET not in printed(hidden(lease.bash(program).check()))


def test_a_cut_shows_no_part_of_it(lease: Lease) -> None:
    for before in range(16 * 1024 - len(SECRET) - 1, 16 * 1024 + 2, 7):
        fill = f"head -c {before} /dev/zero | tr '\\0' .; printf %s $API_TOKEN; "
        after = f"head -c 40000 /dev/zero | tr '\\0' .; printf %s $API_TOKEN; {fill}"
        text = printed(lease.bash(fill + after).check())
        assert not any(SECRET[i : i + 8] in text for i in range(len(SECRET) - 7)), before


def test_files_searches_diffs_names_and_errors(lease: Lease) -> None:
    lease.bash(
        'printf "a\\nkey=%s\\nz\\n" "$API_TOKEN" >f; mkdir -p "d/${API_TOKEN//\\//_}"'
    ).check()
    view = hidden(lease.view("f").check())
    assert isinstance(view.data, ViewData)
    assert view.data.content.splitlines()[1] == f"     2\tkey={HIDDEN}"
    grep = hidden(lease.grep("key").check())
    assert isinstance(grep.data, GrepData)
    assert [match.text for match in grep.data.matches] == [f"key={HIDDEN}"]
    edit = hidden(lease.edit("f", "a\n", "b\n").check())
    assert isinstance(edit.data, EditData)
    assert f" key={HIDDEN}\n" in edit.data.diff
    lease.add_secret("NAME", SECRET.replace("/", "_"), redact_only=True)
    assert printed(lease.bash("ls d").check()) == "[redacted:NAME]\n"
    hidden(lease.edit("f", f"kex={SECRET}", "x"))  # no_match, whose details show the nearest line
    hidden(lease.view(f"nowhere/{SECRET}"))
    lease.remove_secret("NAME")


def test_what_is_hidden_only_reaches_no_command(lease: Lease) -> None:
    lease.add_secret("QUIET", "never-in-an-environment", redact_only=True)
    assert printed(lease.bash("env | grep -c QUIET; true").check()) == "0\n"
    assert "[redacted:QUIET]" in printed(lease.bash("echo never-in-an-environment").check())
    lease.remove_secret("QUIET")
    assert "never-in" in printed(lease.bash("echo never-in-an-environment").check())


def test_no_answer_gives_a_value_back(lease: Lease, server: Daemon) -> None:
    assert [(each.name, each.redact_only) for each in lease.secrets()] == [("API_TOKEN", False)]
    for target in ("leases", f"leases/{lease.id}", f"leases/{lease.id}/secrets"):
        status, answer = server.ask("GET", f"/v1/{target}")
        assert status == 200
        assert shown_in(json.dumps(answer).encode()) is None
    body = json.dumps({"name": "X", "value_base64": f"!{SECRET}"})
    status, answer = server.ask("POST", f"/v1/leases/{lease.id}/secrets", body)
    assert status == 400
    assert SECRET not in json.dumps(answer)


def test_refused_calls_and_paths_do_not_show_it(
    lease: Lease, stockade: Stockade, tmp_path: Path
) -> None:
    """What refuses them has not read them yet; the state directory is searched at the end."""
    calls: tuple[tuple[str, dict[str, JsonValue]], ...] = (
        ("no_such_tool", {"x": SECRET}),
        ("bash_execute", {SECRET: "true"}),
        ("file_view", {"path": SECRET, "limit": -1}),
    )
    for tool, arguments in calls:
        result = lease.call(tool, arguments, call_id="refused")
        assert result.status.value == "invalid"
        assert shown_in(result.to_json()) is None
    refused = [line.record for line in stockade.audit.show("refused")]
    assert [(each.kind.value, each.lease_id) for each in refused] == [
        ("call_refused", lease.id)
    ] * 3
    assert all(HIDDEN in (each.arguments or "") and each.redactions for each in refused)
    source = tmp_path / "source"
    source.write_text("x")
    lease.upload(source, f"d/{SECRET}")
    with pytest.raises(StockadeError, match="not_granted"):
        lease.narrowed(write=[]).upload(source, f"d/{SECRET}")
    lines: list[bytes] = []
    stockade.audit.lines(lines.append)
    assert [line for line in lines if shown_in(line)] == []
    assert sum(HIDDEN.encode() in line for line in lines) >= 5


def test_what_is_registered_and_forgotten_is_recorded_by_its_name(stockade: Stockade) -> None:
    with stockade.lease(tenant="acme", trajectory="named") as made:
        made.add_secret("MINE", "a-value-of-my-own", redact_only=True)
        made.remove_secret("MINE")
        records = of_lease(stockade, made.id)
    assert [(each.kind.value, each.detail) for each in records[1:]] == [
        ("secret_added", {"name": "MINE", "redact_only": True}),
        ("secret_removed", {"name": "MINE"}),
    ]
    assert {each.actor for each in records[1:]} == {"uid 0"}


def test_no_process_of_the_host_carries_it(lease: Lease, server: Daemon) -> None:
    """Command lines and environments: of the daemon, of its children, of all that is outside."""
    lease.bash("true").check()
    inside = server.inside()
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                held = (process / name).read_bytes()
            except OSError:
                continue  # it has ended
            if name == "cmdline" or int(process.name) not in inside:
                assert shown_in(held) is None, process


def test_plan_and_container_file_do_not_know_it(lease: Lease) -> None:
    before = lease.bash("true").check().provenance.plan_digest
    lease.add_secret("ANOTHER", "another-secret-value")
    assert printed(lease.bash("echo ${#ANOTHER}").check()) == "20\n"
    assert lease.bash("true").check().provenance.plan_digest == before
    lease.remove_secret("ANOTHER")
    assert printed(lease.bash("echo ${#ANOTHER}").check()) == "0\n"


def test_artifacts_are_raw_and_their_owners(stockade: Stockade) -> None:
    """As the documents say: so this lease has a secret of its own, and is gone at the end."""
    with stockade.lease() as made:
        made.add_secret("RAW", "raw-bytes-stay-in-it")
        result = made.bash("printf %s $RAW; head -c 40000 /dev/zero; printf %s $RAW").check()
        assert "raw-bytes" not in printed(result)
        assert result.stdout is not None
        assert result.stdout.artifact_id is not None
        assert made.artifact(result.stdout.artifact_id, 0, 20) == b"raw-bytes-stay-in-it"


def test_a_child_that_shares_the_workspace_hides_it_too(lease: Lease) -> None:
    lease.bash("echo $API_TOKEN >shared").check()
    with lease.child("helper", share=True) as child:
        assert child.secrets() == []
        assert printed(child.bash("echo [${#API_TOKEN}]").check()) == "[0]\n"
        hidden(child.view("shared").check())
    with lease.child("copy", fork=True) as fork:
        hidden(fork.bash("cat shared").check())


def test_a_narrower_token_neither_adds_nor_lists(lease: Lease) -> None:
    narrow = lease.narrowed(tools=["bash_execute"])
    asked: list[Callable[[], object]] = [
        narrow.secrets,
        lambda: narrow.add_secret("MINE", "a-narrow-holders-value"),
        lambda: narrow.remove_secret("API_TOKEN"),
    ]
    for ask in asked:
        with pytest.raises(StockadeError, match="lease_not_granted"):
            ask()


def test_secrets_outlive_a_daemon_and_end_with_their_lease() -> None:
    with daemon() as made:
        with made.connect() as first:
            lease = first.lease(tenant="acme", trajectory="long")
            lease.add_secret("API_TOKEN", SECRET)
        made.kill()
        made.start()
        with made.connect() as again:
            lease = again.attach(lease.id, lease.token)
            assert printed(lease.bash("echo $API_TOKEN").check()) == f"{HIDDEN}\n"
            lease.release().check()
            other = again.lease()
            assert SECRET in printed(other.bash(f"echo {SECRET}").check())
            other.release().check()
        made.stop()
        with closing(sqlite3.connect(made.state / "ledger.db")) as ledger, ledger:
            assert ledger.execute("SELECT count(*) FROM secret").fetchone() == (0,)
            assert ledger.execute("SELECT count(*) FROM claim").fetchone() > (0,)
        ledger.close()


def test_raw_bytes_are_kept_where_characters_were_made_visible(stockade: Stockade) -> None:
    with stockade.lease() as made:
        raw = "a\u202eb\u200b\n".encode()
        result = made.run(["printf", "%s", raw.decode()]).check()
        assert printed(result) == "a<U+202E>b<U+200B>\n"
        assert [(w.code, w.count) for w in result.warnings] == [(Warn.MADE_VISIBLE, 2)]
        assert result.stdout is not None
        assert result.stdout.artifact_id is not None
        assert [each.id for each in result.artifacts] == [result.stdout.artifact_id]
        assert made.artifact(result.stdout.artifact_id) == raw
        # With a secret beside it the bytes are not written to the disk.
        made.add_secret("BESIDE", "a-value-beside-it", redact_only=True)
        result = made.run(["printf", "%s", raw.decode() + "a-value-beside-it"]).check()
        assert printed(result) == "a<U+202E>b<U+200B>\n[redacted:BESIDE]"
        assert result.artifacts == []


def test_credentials_of_known_forms_are_hidden_everywhere(stockade: Stockade) -> None:
    token = "ghp_" + "a1B2c3" * 6
    with stockade.lease() as made:
        encoded = base64.b64encode(f"token={token}".encode()).decode()
        result = made.bash(f"echo {token} {encoded} {quote(token)}").check()
        assert printed(result).count("[redacted:github_token]") == 3
        assert made.token is not None
        assert "[redacted:stockade_token]" in printed(made.bash(f"echo {made.token}").check())


def test_the_name_of_what_an_export_leaves_out_is_hidden(
    stockade: Stockade, tmp_path: Path
) -> None:
    with stockade.lease(tenant="acme", trajectory="export") as made:
        value = "another-s3cr3t-0123456789"
        made.add_secret("OTHER", value)
        made.bash("mkfifo $OTHER; mkfifo $'\\u202eok'").check()
        result = made.export_to(tmp_path).check()
        [warning] = result.warnings
        assert (warning.code, warning.count) == (Warn.SKIPPED, 2)
        assert "[redacted:OTHER]: not a file" in warning.message
        assert "<U+202E>ok" in warning.message
        assert value not in result.to_json().decode()

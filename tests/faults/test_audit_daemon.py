"""A real daemon's audit: what is done to its files while it is stopped is found and named; a crash
leaves an intent without an outcome and no gap; each tenant sees its own.

Verification is the command line's, as an operator would do it.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.decide import signatures
from stockade.decide.chain import body_of, hash_of, result_digest
from stockade.edge.client.results import StockadeError
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import LeaseCreate
from stockade.ledger.audit_files import CHECKPOINT_FILE, KEY_FILE
from stockade.terms.audit import AuditEvent, AuditKind, AuditLine, AuditRecord
from stockade.terms.fault import Code, Status
from stockade.tools.shape import timestamp
from tests.daemons import PROGRAM, WAIT_S, InCall, as_user, daemon, error, peers, place, until

ACME, OTHER = 4001, 4002


def cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**os.environ, **(env or {})},
    )


def verified(state: Path, *options: str) -> tuple[int, str]:
    """Exit status and what was said of a stopped daemon's ledger."""
    done = cli("audit", "verify", str(state / "ledger.db"), *options)
    return done.returncode, done.stdout + done.stderr


def records(state: Path) -> list[AuditRecord]:
    connection = sqlite3.connect(state / "ledger.db")
    try:
        rows = connection.execute("SELECT body FROM audit ORDER BY seq").fetchall()
        return [AuditRecord.model_validate_json(row[0]) for row in rows]
    finally:
        connection.close()


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory's files of a daemon that served two runs with a restart between them."""
    kept = tmp_path_factory.mktemp("worn")
    with daemon() as made:
        for _ in range(2):
            with made.connect() as stockade, stockade.lease() as lease:
                lease.bash("true").check()
                lease.file_view("/etc/passwd")
            made.end()
            made.start()
        made.end()
        for name in ("ledger.db", KEY_FILE, CHECKPOINT_FILE):
            shutil.copy2(made.state / name, kept / name)
    return kept


@pytest.fixture
def state(worn: Path, tmp_path: Path) -> Path:
    for path in worn.iterdir():
        shutil.copy2(path, tmp_path / path.name)
    return tmp_path


def tamper(state: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    connection = sqlite3.connect(state / "ledger.db")
    connection.execute("DROP TRIGGER audit_no_update")
    connection.execute("DROP TRIGGER audit_no_delete")
    for statement, values in statements:
        connection.execute(statement, values)
    connection.commit()
    connection.close()


def test_what_nobody_touched_is_fine_and_signed(state: Path) -> None:
    status, said = verified(state)
    count = len(records(state))
    assert (status, said.split(";")[0]) == (0, f"ok: {count} records, 1 to {count}")
    assert signatures.public_key(_seed(state)).hex() in said


def test_a_changed_record_is_found_and_named(state: Path) -> None:
    old = records(state)[4]
    body = json.dumps(old.model_dump(mode="json", exclude_none=True) | {"actor": "uid 99"})
    tamper(state, ("UPDATE audit SET body = ? WHERE seq = 5", (body,)))
    assert verified(state) == (1, "record 5 was changed: its hash is not its own\n")


def test_a_removed_record_is_found_and_named(state: Path) -> None:
    tamper(state, ("DELETE FROM audit WHERE seq = 4", ()))
    assert verified(state) == (1, "record 4 is missing: record 5 stands in its place\n")


def test_an_inserted_record_is_found_and_named(state: Path) -> None:
    event = AuditEvent(AuditKind.CAPABILITY_MINTED, 1, tenant="acme")
    last = len(records(state))
    tamper(
        state,
        ("UPDATE audit SET seq = -seq WHERE seq >= 3", ()),
        ("UPDATE audit SET seq = 1 - seq WHERE seq < 0", ()),
        ("INSERT INTO audit VALUES (3, ?, ?)", (bytes(32), body_of(event, 3))),
    )
    assert len(records(state)) == last + 1
    status, said = verified(state)
    assert status == 1
    assert said.startswith("record 3 ")


def test_exchanged_records_are_found_and_the_first_named(state: Path) -> None:
    tamper(
        state,
        ("UPDATE audit SET seq = -3 WHERE seq = 3", ()),
        ("UPDATE audit SET seq = 3 WHERE seq = 6", ()),
        ("UPDATE audit SET seq = 6 WHERE seq = -3", ()),
    )
    status, said = verified(state)
    assert status == 1
    assert said.startswith("record 3 ")


def test_an_end_that_was_cut_off_is_found_by_the_checkpoint_beside(state: Path) -> None:
    last = len(records(state))
    tamper(state, ("DELETE FROM audit WHERE seq > ?", (last - 3,)))
    status, said = verified(state)
    assert (status, said) == (
        1,
        f"record {last - 2} is missing: a checkpoint signs records up to {last - 1}\n",
    )


def test_an_end_that_was_cut_off_with_its_checkpoint_is_found_by_one_kept_elsewhere(
    state: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.jsonl"
    shutil.copy2(state / CHECKPOINT_FILE, outside)
    last = len(records(state))
    tamper(state, ("DELETE FROM audit WHERE seq > ?", (last - 2,)))
    (state / CHECKPOINT_FILE).unlink()
    assert verified(state)[0] == 0  # nothing here says that there was more
    said = f"checkpoint {outside.read_text().strip()}"
    logged = tmp_path / "logged"
    for line in (
        outside.read_text(),
        f"2026-01-01T00:00:00.000Z INFO stockade.audit {said}",
        json.dumps({"level": "info", "logger": "stockade.audit", "message": said}),
    ):
        logged.write_text(line)
        status, found = verified(state, "--checkpoint", str(logged))
        assert status == 1
        assert found.startswith(f"record {last - 1} is missing")


def test_a_chain_made_anew_from_a_change_on_meets_a_signature(state: Path) -> None:
    made = records(state)
    prev = bytes.fromhex(next(r.checkpoint.hash for r in made if r.checkpoint))
    start, sealed = [record.seq for record in made if record.checkpoint][:2]
    connection = sqlite3.connect(state / "ledger.db")
    rows = connection.execute("SELECT seq, hash, body FROM audit ORDER BY seq").fetchall()
    connection.close()
    changes: list[tuple[str, tuple[object, ...]]] = []
    prev = bytes(rows[0][1])
    for seq, _, body in rows[1:]:
        text = body.replace('"actor":"uid 0"', '"actor":"uid 9"')
        prev = hash_of(prev, text)
        changes.append(("UPDATE audit SET hash = ?, body = ? WHERE seq = ?", (prev, text, seq)))
    tamper(state, *changes)
    status, said = verified(state)
    assert status == 1
    assert said.startswith(f"record {sealed} is a checkpoint that does not fit: records {start} to")


def test_what_was_added_behind_an_orderly_end_is_found_and_named(state: Path) -> None:
    connection = sqlite3.connect(state / "ledger.db")
    [(last, prev)] = connection.execute("SELECT max(seq), hash FROM audit").fetchall()
    connection.close()
    assert records(state)[-2].kind is AuditKind.DAEMON_STOPPED
    body = body_of(AuditEvent(AuditKind.CAPABILITY_MINTED, 1, tenant="acme"), last + 1)
    added = "INSERT INTO audit VALUES (?, ?, ?)"
    tamper(state, (added, (last + 1, hash_of(prev, body), body)))
    said = f"record {last + 1} was added after the daemon had stopped\n"
    assert verified(state) == (1, said)


def test_only_what_is_asked_for_is_verified_from_its_checkpoint_on(state: Path) -> None:
    made = records(state)
    sealed = [record.seq for record in made if record.checkpoint]
    tamper(state, ("UPDATE audit SET hash = x'00' WHERE seq = 2", ()))
    assert verified(state)[0] == 1
    assert verified(state, "--since", str(sealed[0] - 1))[0] == 1
    status, said = verified(state, "--since", str(sealed[1] + 1))
    assert status == 0
    assert f"{sealed[1]} to {len(made)};" in said
    latest = timestamp(made[-1].at_ms / 1000)
    assert verified(state, "--since", latest.replace("Z", "+00:00"))[0] == 0
    assert verified(state, "--since", "1970-01-01T00:00:00Z")[0] == 1
    assert verified(state, "--since", "yesterday")[0] == 2


def test_a_file_that_is_no_audit_is_no_proof(state: Path) -> None:
    other = state / "other"
    other.write_text("hello\n")
    assert cli("audit", "verify", str(other)).returncode == 1
    sqlite3.connect(other.with_name("empty.db")).close()
    other.write_text("")
    done = cli("audit", "verify", str(other))
    assert (done.returncode, done.stdout) == (
        1,
        "record 1 is missing: there is nothing to verify\n",
    )
    shutil.copy2("/bin/true", other)
    assert cli("audit", "verify", str(other)).returncode == 1


def test_a_signature_by_another_key_is_refused(state: Path) -> None:
    good = signatures.public_key(_seed(state)).hex()
    assert verified(state, "--key", good)[0] == 0
    status, said = verified(state, "--key", "ab" * 32)
    assert status == 1
    assert "unknown key" in said


def test_a_ledger_that_lost_its_end_says_so_for_ever_after_the_next_start() -> None:
    with daemon() as made:
        with made.connect() as stockade, stockade.lease() as lease:
            lease.bash("true").check()
        made.end()
        last = len(records(made.state))
        tamper(made.state, ("DELETE FROM audit WHERE seq > ?", (last - 3,)))
        made.start()
        assert any(f"lacks records up to {last - 1}" in line for line in made.log.lines)
        done = cli("audit", "verify", "--socket", made.socket)
        assert done.returncode == 1
        assert done.stdout.startswith(f"record {last - 2} stands where others were")


def test_an_exported_file_is_verified_without_the_daemon_and_its_key() -> None:
    with daemon() as made, place() as elsewhere:
        with made.connect() as stockade, stockade.lease() as lease:
            lease.bash("true").check()
        key = cli("audit", "key", "--socket", made.socket).stdout.strip()
        file = elsewhere / "audit.jsonl"
        broken = subprocess.run(
            ["prlimit", "--fsize=100", PROGRAM, "audit", "export", "--to", file],
            env={**os.environ, "STOCKADE_SOCKET": made.socket},
            capture_output=True,
            timeout=WAIT_S,
        )
        assert broken.returncode == 1
        assert not file.exists()
        done = cli("audit", "export", "--to", str(file), "--socket", made.socket)
        assert done.returncode == 0, done.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        with made.connect() as stockade:
            now = stockade.audit.status()
        lines = file.read_text().splitlines()
        assert now.exported == len(lines)
        again = cli("audit", "export", "--to", str(file), "--socket", made.socket)
        assert again.returncode != 0  # never over an older copy
        made.end()
        shutil.rmtree(made.state)
        assert cli("audit", "verify", str(file), "--key", key).returncode == 0
        assert '"kind":"checkpoint"' in lines[-1]
        file.write_text("\n".join(lines[:3] + lines[4:]) + "\n")
        done = cli("audit", "verify", str(file), "--key", key)
        assert (done.returncode, done.stdout[:9]) == (1, "record 4 ")


def test_exported_and_old_records_are_dropped_and_the_rest_is_still_verified() -> None:
    config = "[audit]\nkeep_s = 0\ncheckpoint_s = 1\n"
    with daemon(config) as made, place() as elsewhere:
        with made.connect() as stockade:
            with stockade.lease() as lease:
                lease.bash("true").check()
            file = str(elsewhere / "audit.jsonl")
            assert cli("audit", "export", "--to", file, "--socket", made.socket).returncode == 0
            until(lambda: stockade.audit.status().first > 1, "exported records are dropped")
            assert stockade.audit.verify().flaw is None
        done = cli("audit", "verify", "--socket", made.socket)
        assert done.returncode == 0, done.stdout
        made.end()
        assert verified(made.state)[0] == 0
        tamper(made.state, ("DELETE FROM audit WHERE seq <= (SELECT min(seq) FROM audit)", ()))
        assert verified(made.state)[0] == 1


def test_b71_a_kill_in_mid_call_leaves_its_intent_and_no_gap() -> None:
    with daemon() as made:
        stockade = made.connect()
        lease = stockade.lease()
        call = InCall(lease, "sleep 600")
        made.kill()
        assert call.result().status is Status.UNKNOWN
        stockade.close()
        made.start()
        with made.connect() as again:

            def found() -> list[AuditRecord]:
                return [line.record for line in again.audit.show(call.call_id)]

            # It goes on, and its outcome is recorded when it has one.
            assert [record.kind for record in found()] == [AuditKind.CALL_INTENT]
            assert again.attach(lease.id, lease.token).cancel(call.call_id) == 1
            until(lambda: len(found()) == 3, "the call is settled")
            settled, cancelled = sorted(found()[1:], key=lambda record: record.kind, reverse=True)
            assert (settled.kind, settled.status) == (AuditKind.CALL_SETTLED, "cancelled")
            assert (cancelled.kind, cancelled.actor) == (
                AuditKind.CALL_CANCELLED,
                f"uid {os.getuid()}",
            )
            assert (cancelled.lease_id, cancelled.detail) == (lease.id, {"calls": 1})
            assert again.audit.verify().flaw is None
        assert cli("audit", "verify", "--socket", made.socket).returncode == 0


def test_b81_a_lease_that_ends_in_mid_call_is_told_from_a_timeout() -> None:
    with daemon() as made, made.connect() as stockade:
        lease = stockade.lease(ttl_s=2)
        call = InCall(lease, "sleep 600")
        assert error(call.result()).code is Code.LEASE_EXPIRED_IN_CALL
        outcome = stockade.audit.show(call.call_id)[-1].record
        assert (outcome.kind, outcome.status) == (AuditKind.CALL_OUTCOME, "limited")
        assert outcome.code == "lease_expired_in_call"

        def ended() -> list[AuditKind]:
            lines: list[bytes] = []
            stockade.audit.lines(lines.append)
            return [AuditRecord(**json.loads(line)["record"]).kind for line in lines]

        until(lambda: AuditKind.LEASE_EXPIRED in ended(), "the end of the lease is recorded")


def test_every_answer_names_the_record_that_covers_it() -> None:
    with daemon() as made, made.connect() as stockade, stockade.lease() as lease:
        assert lease.file_view("/etc/passwd").audit is not None  # refused
        lease.upload(__file__, "a")
        read = lease.call("file_view", {"path": "a"}, call_id="read")
        assert read.audit is None  # its record is written when nobody waits for it
        for result in (lease.bash("true"), lease.bash("false")):
            assert result.audit is not None
            lines: list[bytes] = []
            stockade.audit.lines(lines.append, since=result.audit.seq)
            line = json.loads(lines[0])
            assert line["hash"] == result.audit.hash
            assert line["record"]["result_digest"] == result_digest(result)
        (shown,) = stockade.audit.show("read")
        assert shown.record.result_digest == result_digest(read)


def test_a_stored_result_is_held_against_its_record(tmp_path: Path) -> None:
    with daemon() as made, made.connect() as stockade, stockade.lease() as lease:
        result = lease.run(["echo", "hi"], call_id="c-1")
        file = tmp_path / "result.json"
        file.write_bytes(result.to_json())
        shown = ("audit", "show", "c-1", "--socket", made.socket, "--result", str(file))
        done = cli(*shown)
        assert done.returncode == 0
        assert result.audit is not None
        assert f"the one that record {result.audit.seq} covers" in done.stdout
        value = json.loads(result.to_json())
        value["exit"]["code"] = 1
        file.write_text(json.dumps(value))
        assert cli(*shown).returncode == 1


def test_a_tenant_sees_its_own_calls_and_nothing_else() -> None:
    with daemon(peers(acme=ACME, other=OTHER)) as made:
        for uid in (ACME, OTHER):
            with as_user(uid), made.connect() as stockade:
                _, lease = stockade.create_lease(LeaseCreate(trajectory="run-1"))
                assert lease is not None
                lease.run(["true"], call_id="same")
                shown = [line.record for line in stockade.audit.show("same")]
                assert {record.tenant for record in shown} == {"acme" if uid == ACME else "other"}
                assert [record.kind.value for record in shown] == ["call_intent", "call_outcome"]
                assert {record.actor for record in shown} == {f"uid {uid}"}
                for refused in _operators_only(stockade):
                    with pytest.raises(StockadeError) as caught:
                        refused()
                    assert caught.value.error.code is Code.PEER_NOT_ALLOWED
        with made.connect() as stockade:
            assert len(stockade.audit.show("same")) == 4
            lines: list[bytes] = []
            stockade.audit.lines(lines.append)
            denied = [
                AuditRecord(**value["record"])
                for value in map(json.loads, lines)
                if value["record"]["kind"] == "request_refused"
            ]
            assert len(denied) == 8
            assert {record.code for record in denied} == {"peer_not_allowed"}
        tail = cli("audit", "tail", "--tenant", "acme", "-n", "100", "--socket", made.socket)
        assert "tenant=acme" in tail.stdout
        assert "tenant=other" not in tail.stdout


def test_who_calls_and_with_which_model_is_recorded() -> None:
    with daemon() as made:
        with Stockade.connect(made.socket, client="agent/2", model="m-1") as stockade:
            with stockade.lease() as lease:
                lease.run(["true"], call_id="c-1")
                lease.add_secret("TOKEN", "s3cret-value")
            stockade.rotate_key()
            stockade.audit.exported(1)
            lines: list[bytes] = []
            stockade.audit.lines(lines.append)
            said = {
                record.kind: (record.client, record.model, record.request_id is not None)
                for record in (AuditLine.model_validate_json(line).record for line in lines)
            }
            for kind in ("call_intent", "secret_added", "key_rotated", "audit_exported"):
                assert said[AuditKind(kind)] == ("agent/2", "m-1", True), kind
        status, said = made.ask("GET", "/v1/health", headers={"Stockade-Model": "m" * 129})
        assert (status, said["error"]["code"]) == (400, "invalid_argument")


def _operators_only(stockade: Stockade) -> list[Callable[[], object]]:
    return [
        stockade.audit.status,
        stockade.audit.seal,
        lambda: stockade.audit.lines(lambda line: None),
        lambda: stockade.audit.exported(1),
    ]


def _seed(state: Path) -> bytes:
    return bytes.fromhex(json.loads((state / KEY_FILE).read_text())["seed"])

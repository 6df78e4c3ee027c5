"""Keys, revocation and ceilings through a real daemon: HTTP, SDK, command line, three users.

The attacks are a tenant's: ending what is another's, ending what its own capability came from,
reaching keys. Each has the legitimate act beside it, so that a refusal is not just a broken route.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from stockade.command import Native
from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.edge.cli.main import main
from stockade.edge.client.results import StockadeError
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import LeaseCreate
from stockade.terms.fault import Code, Status
from stockade.terms.result import Warn
from tests.daemons import (
    PROGRAM,
    WAIT_S,
    Daemon,
    InCall,
    as_user,
    daemon,
    error,
    output,
    peers,
    until,
)

ACME, OTHER = 4242, 4343
CONFIG = peers(acme=ACME, other=OTHER) + '[[tenant]]\nname = "tiny"\nceiling = "small"\n'


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with daemon(CONFIG) as made:
        yield made


@pytest.fixture(scope="module")
def operator(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


def below(token: str, **components: Any) -> str:
    return attenuate(token, narrow(inspect(token).blocks[-1], **components))


def last_id(token: str) -> str:
    return inspect(token).last_id


def refusal(work: Any) -> Code:
    with pytest.raises(StockadeError) as caught:
        work()
    return caught.value.error.code


def ask_as(uid: int, server: Daemon, body: object, route: str = "capabilities/revoke") -> Any:
    with as_user(uid):
        return server.ask("POST", f"/v1/{route}", json.dumps(body))


# Revocation.


def test_a_revoked_narrowing_is_refused_at_the_next_call_everywhere(
    server: Daemon, operator: Stockade
) -> None:
    with operator.lease(tenant="acme", trajectory="narrowed") as lease:
        assert lease.token is not None
        child = below(lease.token)
        grandchild = below(child)
        held = [operator.attach(lease.id, token) for token in (child, grandchild)]
        assert [one.view("nothing").status for one in held] == [Status.REJECTED] * 2
        made = operator.revoke(token=child, reason="the sub-agent went astray")
        assert made.block == last_id(child)
        for one in held:
            refused = one.view("nothing")
            assert refused.status is Status.DENIED
            assert error(refused).code is Code.TOKEN_REVOKED
            assert error(one.run(["true"])).code is Code.TOKEN_REVOKED
            assert error(one.reset()).code is Code.TOKEN_REVOKED
            assert error(one.changes()).code is Code.TOKEN_REVOKED
            assert refusal(one.export_patch) is Code.TOKEN_REVOKED
            assert refusal(partial(one.cancel, "c-1")) is Code.TOKEN_REVOKED
        assert output(lease, "echo still") == "still\n"
        assert made in operator.revocations()


def test_a_running_call_below_it_is_cancelled_and_the_lease_goes(
    server: Daemon, operator: Stockade
) -> None:
    root = operator.mint("acme", "running", "agent", 600)
    lease = operator.lease(tenant="acme", trajectory="running", capability=root)
    with operator.lease(tenant="acme", trajectory="beside") as beside:
        ours, others = InCall(lease, "sleep 600"), InCall(beside, "sleep 600")
        operator.revoke(block=last_id(root))
        ended = ours.result()
        assert (ended.status, error(ended).code) == (Status.CANCELLED, Code.CANCELLED)
        assert others.running
        assert beside.cancel(others.call_id) == 1
        others.result()
    # A peer that omits the token acts under the lease's, which is revoked, or gone already.
    assert operator.attach(lease.id).bash("true").status is Status.DENIED
    until(lambda: lease.id not in server.leases_on_disk(), "the sweeper removes the lease")
    refused, none = operator.create_lease(LeaseCreate(tenant="acme", trajectory="running"), root)
    assert none is None
    assert error(refused).code is Code.TOKEN_REVOKED


def test_revocations_outlive_a_kill() -> None:
    with daemon(CONFIG) as server, server.connect() as operator:
        token = operator.mint("acme", "outlived", "read-only", 600)
        made = operator.revoke(token=token)
        server.kill()
        server.start()
        assert operator.revocations() == [made]
        refused, _ = operator.create_lease(LeaseCreate(tenant="acme", trajectory="outlived"), token)
        assert error(refused).code is Code.TOKEN_REVOKED


def test_a_tenant_ends_what_it_holds(server: Daemon, operator: Stockade) -> None:
    token = operator.mint("acme", "held", "edit", 600)
    status, made = ask_as(ACME, server, {"token": below(token), "reason": "done with it"})
    assert status == 200
    assert made["block"] == last_id(below(token))
    assert made["revoked_by"] == f"uid {ACME}"
    with operator.lease(tenant="acme", trajectory="held", capability=token) as lease:
        assert lease.view("nothing").status is Status.REJECTED


def test_a_tenant_can_not_end_what_is_another_tenants(server: Daemon, operator: Stockade) -> None:
    token = operator.mint("other", "theirs", "edit", 600)
    status, refused = ask_as(ACME, server, {"token": token})
    assert (status, refused["error"]["code"]) == (403, "lease_not_granted")
    status, refused = ask_as(ACME, server, {"block": last_id(token)})
    assert (status, refused["error"]["code"]) == (403, "peer_not_allowed")
    with operator.lease(tenant="other", trajectory="theirs", capability=token):
        pass
    status, _ = ask_as(OTHER, server, {"token": token})
    assert status == 200


def test_a_holder_can_not_end_what_its_own_came_from(server: Daemon, operator: Stockade) -> None:
    with operator.lease(tenant="acme", trajectory="parent") as lease:
        assert lease.token is not None
        child = below(lease.token, tools=("file_view",))
        # It can learn the ids of the blocks before from any result, and can't use them.
        shown = operator.attach(lease.id, child).view("nothing").provenance.capability_chain
        assert shown[-1] == last_id(child)
        for block in shown[:-1]:
            status, refused = ask_as(ACME, server, {"block": block})
            assert (status, refused["error"]["code"]) == (403, "peer_not_allowed")
        # Nor can it make the parent's token of its own.
        head, *blocks, signature = child.split(".")
        for forged in (blocks[:-1], blocks[:1], blocks[::-1]):
            status, refused = ask_as(ACME, server, {"token": ".".join((head, *forged, signature))})
            assert status == 403
            assert refused["error"]["code"] in ("bad_signature", "token_malformed")
        assert output(lease, "echo alive") == "alive\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_argument"),
        ({"token": "x", "block": "0" * 32}, "invalid_argument"),
        ({"block": "0" * 31}, "invalid_argument"),
        ({"block": "G" * 32}, "invalid_argument"),
        ({"block": "0" * 32, "reason": "a\nb"}, "invalid_argument"),
        ({"block": "0" * 32, "reason": "x" * 257}, "invalid_argument"),
        ({"block": "0" * 32, "who": "me"}, "unknown_field"),
        ({"token": "nonsense"}, "token_malformed"),
    ],
)
def test_a_revocation_that_names_nothing(server: Daemon, body: object, code: str) -> None:
    status, refused = server.ask("POST", "/v1/capabilities/revoke", json.dumps(body))
    assert status in (400, 403)
    assert refused["error"]["code"] == code


# Lease operations with a token.


def test_a_narrower_token_can_not_end_the_lease_over_http(
    server: Daemon, operator: Stockade
) -> None:
    with operator.lease(tenant="acme", trajectory="owned") as lease:
        assert lease.token is not None
        child = operator.attach(lease.id, below(lease.token, tools=("file_view",)))
        for result in (child.reset(), child.release(), child.renew(60)):
            assert error(result).code is Code.LEASE_NOT_GRANTED
        assert child.changes().status is Status.SUCCEEDED
        own = lease.renew(4000)
        assert own.status is Status.SUCCEEDED
        # A tenant's peer without a token acts by who it is.
        with as_user(ACME):
            status, renewed = server.ask("POST", f"/v1/leases/{lease.id}/renew", '{"ttl_s": 60}')
        assert (status, renewed["status"]) == (200, "succeeded")


# Keys.


@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("GET", "keys", None),
        ("POST", "keys/rotate", "{}"),
        ("POST", "keys/retire", '{"kid": "k1", "force": true}'),
        ("GET", "capabilities/revocations", None),
    ],
)
def test_keys_and_the_list_are_the_operators(
    server: Daemon, operator: Stockade, method: str, route: str, body: str | None
) -> None:
    before = operator.keys()
    with as_user(ACME):
        status, refused = server.ask(method, f"/v1/{route}", body)
    assert (status, refused["error"]["code"]) == (403, "peer_not_allowed")
    assert operator.keys() == before


def all_above(now: list[int], before: list[int]) -> bool:
    return all(a > b for a, b in zip(now, before, strict=True))


def test_no_call_fails_while_keys_rotate() -> None:
    with daemon() as server, server.connect() as operator:
        faults: list[str] = []
        done, calls = threading.Event(), [0, 0, 0]

        def work(number: int) -> None:
            with server.connect() as own:
                lease = own.lease(tenant="acme", trajectory=f"busy-{number}")
                while not done.is_set():
                    result = lease.bash(f"echo {number}")
                    if result.status is not Status.SUCCEEDED:
                        faults.append(result.to_json().decode())
                    # Leases are made and capabilities minted all the while, too.
                    token = own.mint("acme", f"minted-{number}-{calls[number]}", "edit", 60)
                    made = own.lease(
                        tenant="acme",
                        trajectory=f"minted-{number}-{calls[number]}",
                        capability=token,
                    )
                    made.release().check()
                    calls[number] += 1
                lease.release().check()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(10):
                until(partial(all_above, calls, list(calls)), "calls go on")
                assert operator.rotate_key().keys[-1].kid == f"k{turn + 2}"
        finally:
            done.set()
            for thread in threads:
                thread.join(WAIT_S)
        assert faults == []
        assert all(count >= 10 for count in calls), calls
        assert not any(thread.is_alive() for thread in threads)


def test_a_retired_keys_leases_are_refused_and_a_restart_keeps_it_so() -> None:
    with daemon() as server, server.connect() as operator:
        lease = operator.lease(tenant="acme", trajectory="old-key")
        assert lease.view("nothing").status is Status.REJECTED
        operator.rotate_key()
        assert error(lease.view("nothing")).code is Code.NOT_FOUND
        with pytest.raises(StockadeError) as caught:
            operator.retire_key("k1")
        assert caught.value.error.code is Code.KEY_IN_USE
        assert caught.value.error.details is not None
        assert caught.value.error.details["leases"] == 1
        left = operator.retire_key("k1", force=True)
        assert [(key.kid, key.current, key.leases) for key in left.keys] == [("k2", True, 0)]
        assert error(lease.view("nothing")).code is Code.TOKEN_UNKNOWN_KEY
        server.end()
        server.start()
        assert operator.keys() == left
        assert error(lease.view("nothing")).code is Code.TOKEN_UNKNOWN_KEY
        operator.attach(lease.id).release().check()


# Ceilings.


def test_a_tenant_of_a_small_ceiling_gets_the_intersection_if_it_asks(operator: Stockade) -> None:
    asked = LeaseCreate(tenant="tiny", trajectory="t-1")
    refused, none = operator.create_lease(asked)
    assert none is None
    assert error(refused).code is Code.CEILING_EXCEEDED
    assert error(refused).rule == "per_call.output_bytes"
    made, lease = operator.create_lease(asked.model_copy(update={"within_ceiling": True}))
    assert lease is not None
    assert lease.token is not None
    (warning,) = made.warnings
    assert warning.code is Warn.CLAMPED
    assert "per_lease.memory_bytes" in warning.message
    assert inspect(lease.token).blocks[-1].per_lease.memory_bytes == 512 << 20
    assert output(lease, "cat /sys/fs/cgroup/memory.max 2>/dev/null; echo in").endswith("in\n")
    lease.release().check()
    assert refusal(partial(operator.mint, "tiny", "t-2", "agent", 60)) is Code.CEILING_EXCEEDED
    within = operator.mint_within("tiny", "t-2", "agent", 60)
    assert "per_lease.pids" in within.cut
    with operator.lease(tenant="tiny", trajectory="t-2", capability=within.token) as held:
        assert output(held, "echo works") == "works\n"


# The command line.


class Cli:
    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = main(Native(), arguments)
        return status, *self._captured.readouterr()


@pytest.fixture
def stk(server: Daemon, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("STOCKADE_SOCKET", server.socket)
    return Cli(capfd)


def test_the_commands_of_revocation(stk: Cli, operator: Stockade) -> None:
    token = operator.mint("acme", "cli", "edit", 600)
    child = below(token)
    status, out, _ = stk("capability", "revoke", child, "--reason", "by hand")
    assert (status, out.split(":")[0]) == (0, last_id(child))
    status, out, _ = stk("capability", "revoke", last_id(token), "--json")
    assert (status, json.loads(out)["block"]) == (0, last_id(token))
    status, out, _ = stk("capability", "revocations", "--json")
    listed = {made["block"]: made for made in json.loads(out)}
    assert listed[last_id(child)]["reason"] == "by hand"
    assert listed[last_id(token)]["not_after"] is None
    status, out, _ = stk("capability", "revocations")
    assert "by hand" in out
    status, out, err = stk(
        "lease", "create", "--tenant", "acme", "--trajectory", "cli", "--capability", token
    )
    assert (status, out) == (3, "")
    assert "token_revoked" in err
    status, _, err = stk("capability", "revoke", "no-token")
    assert (status, err.count("\n")) == (3, 1)


def test_the_commands_of_keys(stk: Cli, operator: Stockade) -> None:
    before = operator.keys().keys
    status, out, _ = stk("key", "rotate", "--json")
    assert status == 0
    assert [key["kid"] for key in json.loads(out)["keys"]][:-1] == [key.kid for key in before]
    status, out, _ = stk("key", "list")
    assert status == 0
    assert out.count("current") == 1
    assert "secret" not in out
    status, out, err = stk(
        "key", "retire", json.loads(stk("key", "list", "--json")[1])["keys"][-1]["kid"]
    )
    assert status == 2
    assert "invalid_argument" in err
    status, out, _ = stk("key", "retire", before[0].kid, "--force", "--json")
    assert status == 0
    assert before[0].kid not in [key["kid"] for key in json.loads(out)["keys"]]


def test_the_options_of_ceilings(stk: Cli) -> None:
    arguments = ("capability", "mint", "--tenant", "tiny", "--trajectory", "c", "--ttl-s", "60")
    status, out, err = stk(*arguments)
    assert (status, out) == (3, "")
    assert "ceiling_exceeded" in err
    status, out, err = stk(*arguments, "--within-ceiling")
    assert status == 0
    assert "per_lease.pids" in err
    assert inspect(out.strip()).blocks[0].per_lease.pids == 256
    status, out, err = stk(
        "lease", "create", "--tenant", "tiny", "--trajectory", "c2", "--within-ceiling"
    )
    assert status == 0
    assert "cut to the tenant's ceiling" in err
    lease = out.split("lease_id: ")[1].split()[0]
    assert stk("lease", "release", lease)[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[[tenant]]\nname = "acme"\nceiling = "huge"\n',
            "there is no ceiling huge; there are default, small",
        ),
        (
            '[defaults]\ngrant = "typo"\n',
            "defaults.grant: there is no grant typo; there are agent, ",
        ),
    ],
)
def test_config_check_finds_what_serve_refuses(server: Daemon, text: str, said: str) -> None:
    file = server.config.with_name("wrong.toml")
    file.write_text(text)
    for command in (["config", "check", str(file)], ["serve", "--config", str(file)]):
        done = subprocess.run(
            [PROGRAM, *command], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 2
        assert said in done.stderr

"""Keys that change without a pause, and revocation that the next call sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.flow import authority as module
from stockade.flow.authority import Authority
from stockade.terms.authority import MAX_KEYS, RootKeys
from stockade.terms.fault import Code, Failure
from stockade.terms.outcome import End
from stockade.terms.result import error_of
from stockade.testing.house import KID, TENANT, Caller, House, code_of, open_house


def root(house: House, tenant: str = TENANT, ttl_s: int = 600) -> str:
    return house.minter.root(tenant, "run-1", "agent", ttl_s, house.clock()).token


def below(token: str) -> str:
    return attenuate(token, narrow(inspect(token).blocks[-1]))


def verdict(house: House, token: str) -> Code | None:
    return code_of(lambda: house.authority.verify(token, house.clock()))


def revoke(house: House, token: str, tenant: str | None = None) -> str:
    made = house.authority.revoke_token(token, tenant, "uid 0", "why", house.clock())
    return made.block


def test_revoking_a_block_ends_its_subtree_and_nothing_beside_or_above(house: House) -> None:
    top = root(house)
    middle = below(top)
    leaf = below(middle)
    parent = inspect(top).blocks[-1]
    beside = attenuate(top, narrow(parent, tools=("file_view",)))
    every = (top, middle, leaf, beside)
    assert [verdict(house, token) for token in every] == [None] * 4  # and remembered
    chain = house.permit(leaf).chain
    assert revoke(house, middle) == chain[1]
    refused = Code.TOKEN_REVOKED
    assert [verdict(house, token) for token in every] == [None, refused, refused, None]
    # One that was made after, offline.
    assert verdict(house, below(leaf)) is refused


def test_a_refusal_does_not_say_which_block_it_was(house: House) -> None:
    leaf = below(below(root(house)))
    block = house.permit(leaf).chain[0]
    house.authority.revoke_block(block, "uid 0", "a secret reason", house.clock())
    with pytest.raises(Failure) as caught:
        house.permit(leaf)
    fault = caught.value.fault
    assert (fault.code, fault.rule) == (Code.TOKEN_REVOKED, "revocation")
    assert not fault.details
    assert "secret" not in fault.message


def test_revocations_outlive_the_daemon(tmp_path: Path) -> None:
    house = open_house(str(tmp_path))
    token = root(house)
    revoke(house, token)
    listed = house.authority.revocations()
    house.close()
    again = open_house(str(tmp_path), clock=house.clock)
    assert verdict(again, token) is Code.TOKEN_REVOKED
    assert again.authority.revocations() == listed
    again.close()


def test_revoking_again_changes_nothing(house: House) -> None:
    token = root(house)
    first = house.authority.revoke_token(token, None, "uid 0", "first", house.clock())
    house.clock.advance(5)
    assert house.authority.revoke_token(token, None, "uid 9", "second", house.clock()) == first
    assert house.authority.revocations() == [first]


def test_a_tenant_revokes_with_a_token_of_its_own_only(house: House) -> None:
    mine, theirs = root(house), root(house, "other")
    assert code_of(lambda: revoke(house, theirs, TENANT)) is Code.LEASE_NOT_GRANTED
    assert verdict(house, theirs) is None
    forged = mine[:-6] + ("A" if mine[-6] != "A" else "B") + mine[-5:]
    assert code_of(lambda: revoke(house, forged, TENANT)) is Code.BAD_SIGNATURE
    assert code_of(lambda: revoke(house, "nonsense", TENANT)) is Code.TOKEN_MALFORMED
    revoke(house, mine, TENANT)
    assert verdict(house, mine) is Code.TOKEN_REVOKED


def test_a_holder_ends_what_it_holds_and_never_its_parent(house: House) -> None:
    parent = root(house)
    child = below(parent)
    # The child's bytes without the last block have no signature that fits.
    cut = ".".join([*child.split(".")[:-2], child.split(".")[-1]])
    assert code_of(lambda: revoke(house, cut, TENANT)) is Code.BAD_SIGNATURE
    revoke(house, child, TENANT)
    assert verdict(house, parent) is None


def test_a_token_can_be_revoked_before_and_after_its_time(house: House) -> None:
    token = root(house, ttl_s=60)
    parent = inspect(token).blocks[-1]
    early = attenuate(token, narrow(parent, not_before_s=parent.not_before_s + 30))
    assert verdict(house, early) is Code.TOKEN_NOT_YET_VALID
    revoke(house, early)
    house.clock.advance(31)
    assert verdict(house, early) is Code.TOKEN_REVOKED
    house.clock.advance(60)
    revoke(house, token)


def test_what_is_known_to_have_ended_is_forgotten_a_day_later(house: House) -> None:
    short, unknown = root(house, ttl_s=60), "f" * 32
    block = revoke(house, short)
    house.authority.revoke_block(unknown, "uid 0", "", house.clock())
    house.clock.advance(60 + 86_400)
    house.ledger.sweep(house.clock.moment())
    revoke(house, root(house))
    assert block in {made.block for made in house.authority.revocations()}
    house.clock.advance(1)
    house.ledger.sweep(house.clock.moment())
    last = revoke(house, root(house))
    kept = {made.block for made in house.authority.revocations()}
    assert unknown in kept
    assert last in kept
    assert block not in kept
    assert kept == {made.block for made in house.ledger.revocations()}


def test_a_step_of_the_clock_and_back_brings_no_revoked_block_to_life(house: House) -> None:
    house.ledger.sweep(house.clock.moment())
    token = root(house, ttl_s=3600)
    block = revoke(house, token)
    house.clock.step(2 * 86_400)
    house.ledger.sweep(house.clock.moment())
    revoke(house, root(house))
    house.clock.step(-2 * 86_400)
    assert verdict(house, token) is Code.TOKEN_REVOKED
    assert block in {made.block for made in house.ledger.revocations()}


def test_tenants_can_not_fill_the_list_and_an_operator_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BY_TENANTS", 3)
    token = root(house)
    for _ in range(3):
        token = below(token)
        revoke(house, token, TENANT)
    token = below(token)
    assert code_of(lambda: revoke(house, token, TENANT)) is Code.BUSY
    revoke(house, token)
    house.authority.revoke_block("0" * 64, "uid 0", "leaked", house.clock())


def test_running_calls_below_a_revoked_block_are_cancelled_and_others_go_on(house: House) -> None:
    one = house.leases.create(house.request("run-1")).record
    two = house.leases.create(house.request("run-2")).record
    with Caller(house, two) as other:
        with Caller(house, one) as caller:
            house.authority.revoke_block(one.chain[0], "uid 0", "", house.clock())
        assert caller.reason is End.CANCELLED
        assert house.running.cancel(two.id, f"rq-{two.id}") == 1
    assert other.reason is End.CANCELLED


def test_a_call_that_enters_after_the_revocation_is_refused_though_it_was_verified_before(
    house: House,
) -> None:
    record = house.leases.create(house.request()).record
    permit = house.permit(record.token)
    revoke(house, record.token)
    with house.running.enter(record.id, "rq", None, 8, chain=permit.chain):
        admitted = code_of(lambda: house.leases.admit(record.id, permit))
    assert admitted is Code.TOKEN_REVOKED


# Keys.


def test_new_tokens_carry_the_new_key_at_once_and_old_ones_stay_valid(house: House) -> None:
    old = root(house)
    lease = house.leases.create(house.request()).record
    assert house.authority.rotate() == "k2"
    new = root(house)
    assert [inspect(token).blocks[0].kid for token in (old, new)] == ["k1", "k2"]
    assert verdict(house, old) is None
    assert verdict(house, new) is None
    assert house.leases.create(house.request()).record == lease
    made = house.leases.create(house.request("run-2")).record
    assert inspect(made.token).blocks[0].kid == "k2"
    assert [tuple(use) for use in house.authority.key_uses()] == [
        ("k1", False, 1),
        ("k2", True, 1),
    ]


def test_a_retired_keys_tokens_are_unknown_from_the_next_call_on(house: House) -> None:
    old = root(house)
    leaf = below(old)
    house.authority.rotate()
    assert verdict(house, leaf) is None  # remembered
    house.authority.retire("k1", force=False)
    assert verdict(house, leaf) is Code.TOKEN_UNKNOWN_KEY
    assert verdict(house, old) is Code.TOKEN_UNKNOWN_KEY
    assert verdict(house, root(house)) is None


def test_the_current_key_and_an_unknown_one_are_not_retired(house: House) -> None:
    for kid in (KID, "k9"):
        with pytest.raises(Failure) as caught:
            house.authority.retire(kid, force=True)
        assert caught.value.fault.code is Code.INVALID_ARGUMENT
    assert verdict(house, root(house)) is None


def test_a_key_with_living_leases_is_retired_only_by_force(house: House) -> None:
    record = house.leases.create(house.request()).record
    house.leases.create(house.request("run-2"))
    house.authority.rotate()
    with pytest.raises(Failure) as caught:
        house.authority.retire("k1", force=False)
    assert caught.value.fault.code is Code.KEY_IN_USE
    assert caught.value.fault.details["leases"] == 2
    assert verdict(house, record.token) is None
    house.leases.release(TENANT, record.id)
    house.authority.retire("k1", force=True)
    assert [use.kid for use in house.authority.key_uses()] == ["k2"]


def test_a_lease_under_a_retired_key_can_be_taken_over(house: House) -> None:
    old = house.leases.create(house.request()).record
    house.authority.rotate()
    house.authority.retire("k1", force=True)
    new = house.leases.create(house.request(take_over=True)).record
    assert (new.id, new.generation) == (old.id, 2)
    assert house.leases.admit(new.id, house.permit(new.token)) == new


def test_a_key_id_never_comes_twice_while_tokens_of_it_may_be_about(house: House) -> None:
    made = [house.authority.rotate()]
    house.authority.retire("k1", force=True)
    made.append(house.authority.rotate())
    house.authority.retire("k2", force=True)
    made.append(house.authority.rotate())
    assert made == ["k2", "k3", "k4"]


def test_there_are_never_more_keys_than_the_file_can_hold(house: House) -> None:
    for _ in range(MAX_KEYS - 1):
        house.authority.rotate()
    with pytest.raises(Failure) as caught:
        house.authority.rotate()
    assert caught.value.fault.code is Code.KEY_IN_USE
    # What ends no token comes first in the hint, also where nothing is retired yet.
    hint = error_of(caught.value.fault).hint or ""
    assert hint.index("key list") < hint.index("retired") < hint.index("force")
    house.authority.retire("k1", force=True)
    house.authority.rotate()


def rebuilt(house: House, save: Callable[[RootKeys], None]) -> Authority:
    return Authority(
        RootKeys(KID, {KID: bytes(32)}),
        save=save,
        ledger=house.ledger,
        running=house.running,
        random_hex=lambda size: "7" * (2 * size),
    )


def test_nothing_is_signed_with_a_key_that_is_not_on_the_disk(house: House) -> None:
    saved: list[RootKeys] = []
    authority = rebuilt(house, saved.append)
    assert authority.rotate() == "k2"
    assert saved == [RootKeys("k2", {"k1": bytes(32), "k2": b"\x77" * 32})]

    def broken(keys: RootKeys) -> None:
        raise OSError("disk")

    authority = rebuilt(house, broken)
    with pytest.raises(OSError, match="disk"):
        authority.rotate()
    assert authority.signer().kid == KID
    assert [use.kid for use in authority.key_uses()] == [KID]


def test_a_key_is_added_beside_those_with_other_names(house: House) -> None:
    """Whoever wrote the key file chose them."""
    keys = RootKeys("prod", {name: bytes(32) for name in ("prod", "kx", "k", "97")})
    authority = Authority(
        keys,
        save=lambda keys: None,
        ledger=house.ledger,
        running=house.running,
        random_hex=lambda size: "7" * (2 * size),
    )
    assert authority.rotate() == "k1"
    assert authority.rotate() == "k2"


def test_a_lease_whose_token_is_of_another_version_holds_no_key(house: House) -> None:
    record = house.leases.create(house.request()).record
    house.ledger.put_lease(replace(record, token="stk0.of-before"))
    assert [use.leases for use in house.authority.key_uses()] == [0]

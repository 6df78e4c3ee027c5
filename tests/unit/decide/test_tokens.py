from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from stockade.decide.blocks import block_bytes, narrow
from stockade.decide.tokens import KeyRing, Verifier, attenuate, inspect, mint, verify
from stockade.decide.tokentext import join, split
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Block, CheckPattern, LeaseBinding

BACK_REFERENCE = CheckPattern(kind="pattern", tool="run", argument="cwd", pattern=r"(a)\1")


def code_of(token: str, ring: KeyRing, now_s: float, *, skew_s: float = 0) -> Code | None:
    try:
        verify(token, ring, now_s, skew_s=skew_s)
    except Failure as error:
        return error.fault.code
    return None


def test_a_minted_token_gives_its_permit(root: Block, ring: KeyRing, now: int) -> None:
    permit = verify(mint(ring, "k1", root), ring, now)
    assert (permit.tenant, permit.trajectory) == ("acme", "run-1")
    assert permit.grant.scope == root.scope
    assert (permit.lease_id, permit.generation, permit.bound_at) == (None, None, None)
    assert permit.not_after_s == root.not_after_s
    assert len(permit.chain) == 1
    assert len(permit.chain[0]) == 32


def test_the_chain_of_ids_grows_and_keeps_its_beginning(
    root: Block, ring: KeyRing, now: int
) -> None:
    token = mint(ring, "k1", root)
    child = narrow(root, lease=LeaseBinding(id="ls_00112233445566aa", generation=4))
    longer = attenuate(token, child)
    permit = verify(longer, ring, now)
    assert permit.chain[:1] == verify(token, ring, now).chain
    assert (permit.lease_id, permit.generation) == ("ls_00112233445566aa", 4)
    assert inspect(longer).last_id == permit.chain[-1]
    assert inspect(longer).blocks == (root, child)


def test_attenuation_needs_nothing_but_the_token(root: Block, ring: KeyRing) -> None:
    token = mint(ring, "k1", root)
    raw = block_bytes(narrow(root))
    text = split(token)
    by_hand = join((*text.blocks, raw), hmac.digest(text.signature, raw, "sha256"))
    assert attenuate(token, narrow(root)) == by_hand


def test_every_flipped_character_is_noticed(root: Block, ring: KeyRing, now: int) -> None:
    token = attenuate(mint(ring, "k1", root), narrow(root))
    for position in range(0, len(token), 7):
        other = "A" if token[position] != "A" else "B"
        flipped = token[:position] + other + token[position + 1 :]
        assert code_of(flipped, ring, now) is not None, position


def test_keys_of_tenants_and_installations_differ(root: Block, ring: KeyRing, now: int) -> None:
    keys = {ring.tenant_key(kid, tenant) for kid in ("k1", "k2") for tenant in ("a", "ab", "b")}
    assert len(keys) == 6
    token = mint(ring, "k1", root)
    assert code_of(token, KeyRing({"k1": bytes(32)}), now) is Code.BAD_SIGNATURE
    assert code_of(token, KeyRing({}), now) is Code.TOKEN_UNKNOWN_KEY


def test_rotation_keeps_tokens_of_the_old_key_while_it_is_there(
    root: Block, ring: KeyRing, now: int
) -> None:
    old = mint(ring, "k1", root)
    new = mint(ring, "k2", root.model_copy(update={"kid": "k2"}))
    assert code_of(old, ring, now) is code_of(new, ring, now) is None
    rotated = KeyRing({"k2": bytes(range(32, 64))})
    assert code_of(old, rotated, now) is Code.TOKEN_UNKNOWN_KEY
    assert code_of(new, rotated, now) is None


@pytest.mark.parametrize(
    "secrets", [{"k1": b"short"}, {"k1": bytes(33)}, {"": bytes(32)}, {"k/1": bytes(32)}]
)
def test_a_key_ring_refuses_bad_material(secrets: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=r"key"):
        KeyRing(secrets)


def test_a_key_ring_does_not_show_its_secrets(ring: KeyRing) -> None:
    assert repr(ring) == "KeyRing(['k1', 'k2'])"


def test_the_window_is_closed_at_its_beginning_and_open_at_its_end(
    root: Block, ring: KeyRing
) -> None:
    token = mint(ring, "k1", root)
    first, last = root.not_before_s, root.not_after_s
    assert code_of(token, ring, first - 0.001) is Code.TOKEN_NOT_YET_VALID
    assert code_of(token, ring, first) is None
    assert code_of(token, ring, last - 0.001) is None
    assert code_of(token, ring, last) is Code.TOKEN_EXPIRED
    assert code_of(token, ring, first - 5, skew_s=5) is None
    assert code_of(token, ring, last + 4.9, skew_s=5) is None
    assert code_of(token, ring, last + 5, skew_s=5) is Code.TOKEN_EXPIRED
    assert code_of(token, ring, float("nan")) is Code.TOKEN_NOT_YET_VALID


def test_a_remembered_token_still_expires(root: Block, ring: KeyRing) -> None:
    verifier = Verifier(ring)
    token = mint(ring, "k1", root)
    permit = verifier.verify(token, root.not_before_s)
    assert verifier.verify(token, root.not_after_s - 1) is permit
    for now_s, code in (
        (root.not_after_s, Code.TOKEN_EXPIRED),
        (root.not_before_s - 1, Code.TOKEN_NOT_YET_VALID),
    ):
        with pytest.raises(Failure) as caught:
            verifier.verify(token, now_s)
        assert caught.value.fault.code is code


def test_long_tokens_and_refused_ones_are_not_remembered(
    root: Block, ring: KeyRing, now: int
) -> None:
    verifier = Verifier(ring)
    token = mint(ring, "k1", root)
    wide = narrow(root, deny=tuple(f"/workspace/{n:02}" + "x" * 150 for n in range(60)))
    wide = narrow(wide, deny=(*wide.deny, "/workspace/.git/hooks"))
    long = attenuate(token, wide)
    assert len(long) > 8192
    assert verifier.verify(long, now) == verifier.verify(long, now)
    assert verifier.verify(long, now) is not verifier.verify(long, now)
    with pytest.raises(Failure):
        verifier.verify(token[:-1] + ("A" if token[-1] != "A" else "Q"), now)
    assert verifier.verify(token, now).chain == verifier.verify(long, now).chain[:1]


def test_mint_refuses_what_verify_would_refuse(root: Block, ring: KeyRing) -> None:
    for update, code in (
        ({"checks": (BACK_REFERENCE,)}, Code.TOKEN_MALFORMED),
        ({"deny": ("repo:x",)}, Code.TOKEN_UNSUPPORTED),
        ({"kid": "k2"}, Code.TOKEN_MALFORMED),
        ({"trajectory": None}, Code.TOKEN_MALFORMED),
        ({"tenant": None}, Code.TOKEN_MALFORMED),
        ({"tools": tuple(f"t{n}" for n in range(65))}, Code.TOKEN_MALFORMED),
        ({"depth": 99}, Code.TOKEN_MALFORMED),
    ):
        with pytest.raises(Failure) as caught:
            mint(ring, "k1", root.model_copy(update=update))
        assert caught.value.fault.code is code, update
    with pytest.raises(Failure) as caught:
        mint(ring, "k9", root.model_copy(update={"kid": "k9"}))
    assert caught.value.fault.code is Code.TOKEN_UNKNOWN_KEY


def test_attenuate_refuses_root_fields_depth_and_length(root: Block, ring: KeyRing) -> None:
    token = mint(ring, "k1", root)
    for child, code in (
        (root, Code.TOKEN_MALFORMED),
        (narrow(root).model_copy(update={"tenant": "acme"}), Code.TOKEN_MALFORMED),
        (narrow(root).model_copy(update={"depth": 8}), Code.WIDER_BLOCK),
        (narrow(root).model_copy(update={"checks": (BACK_REFERENCE,)}), Code.TOKEN_MALFORMED),
        (
            narrow(root).model_copy(update={"deny": (*root.deny, "repo:x")}),
            Code.TOKEN_UNSUPPORTED,
        ),
    ):
        with pytest.raises(Failure) as caught:
            attenuate(token, child)
        assert caught.value.fault.code is code
    with pytest.raises(Failure) as caught:
        attenuate("stk1.x", narrow(root))
    assert caught.value.fault.code is Code.TOKEN_MALFORMED
    deep = root.model_copy(update={"depth": 16})
    token = mint(ring, "k1", deep)
    block = deep
    for _ in range(15):
        block = narrow(block)
        token = attenuate(token, block)
    with pytest.raises(Failure) as caught:
        attenuate(token, narrow(block))
    assert caught.value.fault.code is Code.TOKEN_TOO_LONG


def test_attenuate_does_not_extend_a_chain_that_verify_refuses(root: Block, ring: KeyRing) -> None:
    wider = narrow(root).model_copy(update={"depth": 8})
    raws = (block_bytes(root), block_bytes(wider))
    forged = join(raws, hmac.digest(split(mint(ring, "k1", root)).signature, raws[1], "sha256"))
    with pytest.raises(Failure) as caught:
        attenuate(forged, narrow(wider))
    assert caught.value.fault.code is Code.WIDER_BLOCK
    assert caught.value.fault.details == {"component": "depth", "block": 1}


def test_inspect_reads_without_believing(root: Block, ring: KeyRing) -> None:
    token = mint(ring, "k1", root)
    forged = join(split(token).blocks, bytes(32))
    assert inspect(forged).blocks == (root,)
    assert inspect(forged).last_id == hashlib.sha256(bytes(32)).hexdigest()[:32]
    with pytest.raises(Failure):
        inspect("stk1.e30." + base64.urlsafe_b64encode(bytes(32)).decode().rstrip("="))


def test_a_refusal_does_not_repeat_a_hostile_field_name(root: Block, ring: KeyRing) -> None:
    raw = block_bytes(root)[:-1] + b',"' + b"z" * 5000 + b'":1}'
    signature = hmac.digest(ring.tenant_key("k1", "acme"), raw, "sha256")
    with pytest.raises(Failure) as caught:
        verify(join((raw,), signature), ring, 0)
    assert caught.value.fault.code is Code.TOKEN_MALFORMED
    assert len(str(caught.value)) < 300

"""Ed25519 against a vector of RFC 8032, section 7.1 (test 2), and what does not verify."""

from __future__ import annotations

from stockade.decide.signatures import public_key, sign, verifies

SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
KEY = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_it_is_rfc_8032() -> None:
    assert public_key(SEED) == KEY
    assert sign(SEED, b"\x72") == SIGNATURE
    assert verifies(KEY, SIGNATURE, b"\x72")


def test_anything_else_does_not_verify() -> None:
    assert not verifies(KEY, SIGNATURE, b"\x73")
    assert not verifies(public_key(bytes(32)), SIGNATURE, b"\x72")
    assert not verifies(KEY, SIGNATURE[:-1], b"\x72")
    assert not verifies(KEY[:-1], SIGNATURE, b"\x72")

"""Ed25519 for the audit's checkpoints: pure functions over bytes; the key is passed in.

The public key alone verifies, so an exported file can be checked on a machine that could never
have signed it.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SEED_BYTES: Final = 32


def public_key(seed: bytes) -> bytes:
    """The 32 bytes that verify what the 32 bytes `seed` sign."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(seed: bytes, data: bytes) -> bytes:
    """64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(seed).sign(data)


def verifies(key: bytes, signature: bytes, data: bytes) -> bool:
    """False as well for a key or a signature of the wrong length."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True

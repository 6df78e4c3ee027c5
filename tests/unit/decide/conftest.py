"""Values that the tests of the authority core start from."""

from __future__ import annotations

import pytest

from stockade.decide.blocks import root_block
from stockade.decide.tokens import KeyRing
from stockade.terms.grant import Block, Grant, PerCall, PerLease, Profile, Scope, System, Tier
from tests.grants import NO_BUDGET

NOW = 1_750_000_000


@pytest.fixture
def now() -> int:
    return NOW


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing({"k1": bytes(range(32)), "k2": bytes(range(32, 64))})


@pytest.fixture
def grant() -> Grant:
    return Grant(
        scope=Scope(
            read=("/tmp", "/workspace"), write=("/tmp", "/workspace"), execute=("/",), connect=()
        ),
        deny=("/workspace/.git/hooks",),
        tools=("bash_execute", "file_edit", "file_view"),
        system=System(profile=Profile.AGENT, images=("host",), tier_min=Tier.CONTAINER),
        per_call=PerCall(wall_ms=300_000, output_bytes=1 << 26),
        per_lease=PerLease(
            memory_bytes=1 << 30,
            cpu_millis=2000,
            pids=512,
            disk_bytes=1 << 30,
            inodes=100_000,
            sandboxes=4,
            parallel=8,
        ),
        total=NO_BUDGET,
        depth=8,
        checks=(),
        approve=(),
    )


@pytest.fixture
def root(grant: Grant) -> Block:
    return root_block(grant, "acme", "run-1", "k1", NOW - 60, NOW + 3600)

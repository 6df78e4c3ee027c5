"""A configuration as the engine writes it."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from stockade.decide.compile import compile_plan
from stockade.engines.oci import spec
from stockade.host.policy_files import load_policy
from stockade.terms.plan import Kind

FACTS = {"pid": "7", "uid": "1000", "place": "/var/tmp/place", "capabilities": "CAP_KILL"}


@pytest.fixture
def config() -> dict[str, JsonValue]:
    policy = load_policy()
    plan = compile_plan(
        policy.grant("agent"), Kind.COMMAND, policy, image="host", image_env={}, lease_env=()
    )
    made = spec.config(
        plan,
        uid_base=1 << 30,
        netns_path="/proc/1/ns/net",
        rootfs="/rootfs",
        guest="/guest",
        persistent=False,
        seccomp={"defaultAction": "SCMP_ACT_ERRNO"},
    )
    assert isinstance(made, dict)
    return made


def differences(one: JsonValue, other: JsonValue) -> set[str]:
    """Dotted names of what differs, down to two levels."""
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    found = set()
    for key in one.keys() | other.keys():
        left, right = one.get(key), other.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            found |= {
                f"{key}.{name}"
                for name in left.keys() | right.keys()
                if left.get(name) != right.get(name)
            }
        elif left != right:
            found.add(key)
    return found

"""What every peer is given before it is compared: the walls and limits of the `agent` grant."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from pydantic import JsonValue

from stockade.decide.compile import compile_plan
from stockade.decide.seccomp import compile_seccomp
from stockade.host.policy_files import load_policy
from stockade.terms.plan import Kind, SandboxPlan


@dataclass(frozen=True, slots=True)
class Features:
    plan: SandboxPlan
    seccomp: JsonValue


def agent() -> Features:
    policy = load_policy()
    plan = compile_plan(
        policy.grant("agent"),
        Kind.COMMAND,
        policy,
        image="host",
        image_env={"PATH": "/usr/bin:/bin"},
        lease_env=(),
    )
    seccomp = compile_seccomp(policy.seccomp[plan.seccomp], platform.machine()).to_json()
    return Features(plan, seccomp)

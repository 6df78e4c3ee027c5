"""Each case is put to the package and to the reference, and the laws are held.

1. The package raises nothing but `Failure`.
2. A verifier that remembers gives the verdict of one that doesn't.
3. What the package accepts, the reference accepts: the token, the call, and for every path and
   number of a small universe what the permit and the plans come to.

`accepted` counts how often both accept, for a soak in which nothing is accepted proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from stockade.decide.authorize import FileRight, allowed_path, authorize, path_scope
from stockade.decide.checks import approvals_needed
from stockade.decide.compile import compile_plan
from stockade.decide.policy import Policy
from stockade.decide.tokens import KeyRing, Verifier, verify
from stockade.host.policy_files import load_policy
from stockade.terms.call import Permit
from stockade.terms.fault import Failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.plan import Kind, SandboxPlan
from stockade.tools import catalog
from tests.grants import lease_of
from tests.soak import reference
from tests.soak.cases import Case, case
from tests.soak.chains import KEYS
from tests.soak.reference import PROFILES, TIERS, Block, Refused, components, covered

T = TypeVar("T")

RIGHTS: Final[tuple[FileRight, ...]] = ("read", "write")
UNIVERSE: Final = [
    top.rstrip("/") + rest or "/"
    for top in ("/", "/workspace", "/workspace-evil", "/tmp", "/usr")
    for rest in ("", "/a", "/a/b", "/ab", "/a-b", "/.git/a")
]


class Broken(AssertionError):
    """A law does not hold."""


@dataclass
class Tally:
    """`verified` tokens held; `accepted` calls were allowed by both; `refused_alone` by the package
    only. `codes` says why the package refused."""

    verified: int = 0
    accepted: int = 0
    compiled: int = 0
    refused_alone: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        for name in ("verified", "accepted", "compiled", "refused_alone", "kinds", "codes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Judge:
    def __init__(self) -> None:
        self.tally = Tally()
        self._ring = KeyRing(KEYS)
        self._verifier = Verifier(self._ring)
        self._policy: Policy = load_policy()

    def case(self, seed: int, number: int) -> None:
        """Raises Broken, which names seed and number."""
        given = case(seed, number)
        try:
            self._judge(given)
        except Exception as error:
            raise Broken(
                f"seed {seed}, case {number} ({given.kind}): {type(error).__name__}: {error}; "
                f"again: python -m tests.soak --seed {seed} --first {number} --count 1"
            ) from error

    def _judge(self, given: Case) -> None:
        permit = _or_failure(lambda: verify(given.token, self._ring, given.now_s))
        # What the hostile one was made of is remembered when it comes.
        _or_failure(lambda: self._verifier.verify(given.genuine, given.now_s))
        for _ in range(2):
            again = _or_failure(lambda: self._verifier.verify(given.token, given.now_s))
            _law(_verdict(again) == _verdict(permit), "remembering changed the verdict")
        try:
            blocks, ids = reference.genuine(given.token, KEYS, given.now_s)
        except Refused as refused:
            _law(isinstance(permit, Failure), f"a token was accepted: {refused}")
            blocks, ids = [], []
        if isinstance(permit, Failure):
            self._refused(permit)
            return
        self.tally.verified += 1
        _law(list(permit.chain) == ids, "other ids")
        _law((permit.tenant, permit.trajectory) == _names(blocks[0]), "another tenant")
        _law([t.model_dump() for t in permit.totals] == [b["total"] for b in blocks], "totals")
        self._universe(permit, blocks)
        self._call(given, permit, blocks, ids)

    def _call(self, given: Case, permit: Permit, blocks: list[Block], ids: list[str]) -> None:
        refusal = _or_failure(lambda: self._authorized(given, permit))
        allowed = reference.bound(
            blocks, ids, given.lease_id, given.generation, given.chain
        ) and _trajectory(blocks[0]["trajectory"], given.trajectory)
        if isinstance(refusal, Failure):
            self._refused(refusal)
            if allowed and given.tool in reference.DEFAULTS:
                self.tally.refused_alone += _allowed(blocks, given)
            return
        _law(allowed, "a lease was accepted that the token is not for")
        for block in blocks:
            _law(reference.allows(block, given.tool, given.arguments), "a call was accepted")
            waits = reference.waits(block, given.tool, given.arguments)
            _law(refusal or not waits, "a call that a person must approve was not asked about")
        self.tally.accepted += 1
        self.tally.kinds[given.kind] += 1

    def _authorized(self, given: Case, permit: Permit) -> bool:
        """Whether a person must approve the call. Raises Failure."""
        tool = catalog.get(given.tool)
        arguments, _ = catalog.parse_arguments(tool, given.arguments)
        values = arguments.model_dump(mode="json")
        authorize(permit, tool.name, tool.rights(arguments), values, _record(given, permit))
        return approvals_needed(permit, tool.name, values) is not None

    def _universe(self, permit: Permit, blocks: list[Block]) -> None:
        """Each path and number is held against each block by itself."""
        scope = path_scope(permit, "file_view")
        for path in UNIVERSE:
            for right in RIGHTS:
                if allowed_path(scope, path, right):
                    _law(all(reference.may(b, right, path) for b in blocks), f"{right} {path}")
        grant = permit.grant.model_dump(mode="json")
        for block in blocks:
            for group in ("per_call", "per_lease", "total"):
                _law(all(grant[group][n] <= v for n, v in block[group].items()), group)
            _law({*grant["tools"]} <= {*block["tools"]}, "tools")
        for kind in Kind:
            plan = _or_failure(partial(self._compiled, permit, kind))
            if isinstance(plan, SandboxPlan):
                self.tally.compiled += 1
                _within(plan, blocks)

    def _compiled(self, permit: Permit, kind: Kind) -> SandboxPlan:
        return compile_plan(
            permit.grant, kind, self._policy, image="host", image_env={}, lease_env=()
        )

    def _refused(self, refusal: Failure) -> None:
        self.tally.codes[refusal.fault.code.value] += 1


def _within(plan: SandboxPlan, blocks: list[Block]) -> None:
    """No plan gives what one of the blocks doesn't."""
    for path in UNIVERSE:
        around = [tree for tree in plan.trees if covered(path, [tree.path])]
        if around:
            tree = max(around, key=lambda tree: len(components(tree.path)))
            writable = tree.writable and not covered(path, list(plan.deny))
            for block in blocks:
                _law(reference.may(block, "read", path), f"{path} is mounted")
                _law(not writable or reference.may(block, "write", path), f"{path} is writable")
                _law(
                    not tree.executable or covered(path, block["scope"]["execute"]),
                    f"{path} is executable",
                )
    limits = plan.limits.model_dump()
    for block in blocks:
        system = block["system"]
        _law(plan.kind is Kind.SEARCH or "host" in system["images"], "another image")
        _law(PROFILES.index(plan.profile) <= PROFILES.index(system["profile"]), "profile")
        _law(TIERS.index(plan.tier_min) >= TIERS.index(system["tier_min"]), "tier")
        _law(all(limits[name] <= block["per_lease"][name] for name in limits), "limits")
    _law(plan.connect == (), "a destination")


def _law(holds: object, broken: str) -> None:
    if not holds:
        raise Broken(broken)


def _or_failure(act: Callable[[], T]) -> T | Failure:
    try:
        return act()
    except Failure as error:
        return error


def _verdict(answer: Permit | Failure) -> Any:
    return answer.fault if isinstance(answer, Failure) else answer


def _allowed(blocks: list[Block], given: Case) -> bool:
    try:
        return all(reference.allows(block, given.tool, given.arguments) for block in blocks)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False  # arguments that are none


def _names(root: Block) -> tuple[str, str]:
    return root["tenant"], root["trajectory"]


def _trajectory(own: str, of_lease: str) -> bool:
    return of_lease.split("/")[: len(own.split("/"))] == own.split("/")


def _record(given: Case, permit: Permit) -> LeaseRecord:
    return lease_of(
        permit,
        id=given.lease_id,
        trajectory=given.trajectory,
        generation=given.generation,
        token=given.token,
        chain=given.chain,
    )

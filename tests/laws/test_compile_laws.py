"""Laws of the plan compiler, over generated grants: it is a function, and it is monotone.

What a plan allows is read off here path by path with component lists, not with the string
comparison that the compiler uses.
"""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.decide.attenuation import exceeds, meet
from stockade.decide.blocks import normal
from stockade.decide.compile import compile_plan, lease_tmp_bytes, plan_digest
from stockade.decide.objects import covers_connect
from stockade.decide.policy import Policy
from stockade.engines.oci.staging import tree_mounts
from stockade.host.policy_files import load_policy
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import (
    CheckPrefix,
    ConnectHost,
    Grant,
    PerCall,
    PerLease,
    Profile,
    Scope,
    System,
    Tier,
)
from stockade.terms.plan import Kind, SandboxPlan
from tests.grants import NO_BUDGET

COMPONENT = st.sampled_from(["a", "b", "ab", "a-b", ".git"])
TOP = st.sampled_from(["/workspace", "/tmp", "/usr", "/root", "/workspace-evil", "/dev/shm"])
PATH = st.just("/") | st.builds(
    lambda top, rest: "/".join([top, *rest]), TOP, st.lists(COMPONENT, max_size=3)
)
PATHS = st.lists(PATH, max_size=4).map(tuple)
INSIDE = st.builds(
    lambda top, rest: "/".join([top, *rest]),
    st.sampled_from(["/workspace", "/tmp"]),
    st.lists(COMPONENT, max_size=3),
)
DENY = st.lists(INSIDE, max_size=3).map(tuple)
MIB = 1 << 20
HOSTS = st.builds(
    ConnectHost,
    kind=st.just("host"),
    host=st.sampled_from(["a.test", "*.a.test", "x.a.test", "b.test"]),
    ports=st.lists(st.sampled_from([80, 443]), max_size=2).map(tuple),
    tls=st.booleans(),
)
CHECKS = st.lists(
    st.builds(
        CheckPrefix,
        kind=st.just("prefix"),
        tool=st.sampled_from(["grep_search", "file_view"]),
        argument=st.just("path"),
        paths=st.lists(PATH, min_size=1, max_size=2).map(tuple),
    ),
    max_size=2,
).map(tuple)


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    read = draw(PATHS)
    below = st.sampled_from(read or ("/none",))
    write = draw(st.lists(below, max_size=3).map(tuple)) if read else ()
    return normal(
        Grant(
            scope=Scope(
                read=read,
                write=write,
                execute=draw(PATHS),
                connect=draw(st.lists(HOSTS, max_size=3).map(tuple)),
            ),
            deny=draw(DENY),
            tools=("run",),
            system=System(
                profile=draw(st.sampled_from(Profile)), images=("host",), tier_min=Tier.CONTAINER
            ),
            per_call=PerCall(wall_ms=1000, output_bytes=1000),
            per_lease=PerLease(
                memory_bytes=draw(st.integers(16, 2048)) * MIB + draw(st.integers(0, 5000)),
                cpu_millis=draw(st.integers(10, 8000)),
                pids=draw(st.integers(16, 1000)),
                disk_bytes=draw(st.integers(1, 4096)) * MIB,
                inodes=draw(st.integers(64, 1 << 20)),
                sandboxes=8,
                parallel=8,
            ),
            total=NO_BUDGET,
            depth=8,
            checks=draw(CHECKS),
            approve=(),
        )
    )


NESTED = st.sampled_from(
    ["/workspace", "/tmp"]
    + [top + rest for top in ("/workspace", "/tmp") for rest in ("/a", "/a/a", "/a/a/a", "/a/ab")]
)


@st.composite
def nested(draw: st.DrawFn) -> Grant:
    """Many prefixes in few directories, one in the other."""
    few = st.lists(NESTED, max_size=3).map(tuple)
    read = (*draw(few), draw(NESTED))
    write = draw(st.just(read) | st.lists(st.sampled_from(read), max_size=2).map(tuple))
    execute = draw(few)
    deny = draw(few | st.just(execute))
    scope = Scope(read=read, write=write, execute=("/usr", *execute), connect=())
    return normal(draw(grants()).model_copy(update={"scope": scope, "deny": deny}))


@functools.cache
def _policy() -> Policy:
    return load_policy()


def _compiled(grant: Grant, kind: Kind) -> SandboxPlan | Failure:
    try:
        return compile_plan(grant, kind, _policy(), image="host", image_env={}, lease_env=())
    except Failure as refusal:
        return refusal


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _within(path: str, prefix: str) -> bool:
    inner, outer = _parts(path), _parts(prefix)
    return inner[: len(outer)] == outer


def _mode(plan: SandboxPlan, path: str) -> tuple[bool, bool, bool]:
    """(there, writable, executable) of a path of the lease's trees, as the mounts make it."""
    around = [tree for tree in plan.trees if _within(path, tree.path)]
    if not around:
        return False, False, False
    tree = max(around, key=lambda tree: len(_parts(tree.path)))
    denied = any(_within(path, prefix) for prefix in plan.deny)
    return True, tree.writable and not denied, tree.executable


def _granted(grant: Grant, path: str) -> tuple[bool, bool, bool]:
    """The same from the grant alone."""
    there = any(_within(path, prefix) for prefix in grant.scope.read)
    writable = any(_within(path, prefix) for prefix in grant.scope.write)
    denied = any(_within(path, prefix) for prefix in grant.deny)
    executable = any(_within(path, prefix) for prefix in grant.scope.execute)
    return there, there and writable and not denied, there and executable


@given(grant=grants(), kind=st.sampled_from(Kind))
def test_compile_is_a_function(grant: Grant, kind: Kind) -> None:
    first, second = _compiled(grant, kind), _compiled(grant, kind)
    if isinstance(first, Failure):
        assert isinstance(second, Failure)
        assert first.fault == second.fault
    else:
        assert first == second
        assert plan_digest(first) == plan_digest(SandboxPlan.model_validate(first.model_dump()))


@given(grant=grants(), path=INSIDE)
@settings(max_examples=300)
def test_mounts_are_exactly_the_scope(grant: Grant, path: str) -> None:
    plan = _compiled(grant, Kind.COMMAND)
    if isinstance(plan, SandboxPlan):
        assert _mode(plan, path) == _granted(grant, path)
    search = _compiled(grant, Kind.SEARCH)
    assert isinstance(search, SandboxPlan)
    searched = _granted(grant, path)[0] and all(
        any(_within(path, prefix) for prefix in getattr(check, "paths", ()))
        for check in grant.checks
        if check.tool == "grep_search"
    )
    assert _mode(search, path) == (searched, False, False)


@given(grant=nested())
@settings(max_examples=300)
def test_no_mount_can_be_moved_and_each_has_the_mode_of_its_path(grant: Grant) -> None:
    """A mount point can't be renamed, the directories above it can."""
    plan = _compiled(grant, Kind.COMMAND)
    if not isinstance(plan, SandboxPlan):
        return
    mounts = {mount.path: mount for mount in tree_mounts(plan)}
    assert mounts.keys() >= {*(tree.path for tree in plan.trees), *plan.deny}
    for path, mount in mounts.items():
        assert (True, mount.writable, mount.executable) == _granted(grant, path)
        parents = ["/" + "/".join(_parts(path)[:depth]) for depth in range(1, len(_parts(path)))]
        assert {parent for parent in parents if _granted(grant, parent)[1]} <= mounts.keys()


@given(grant=grants())
def test_no_mount_is_superfluous(grant: Grant) -> None:
    plan = _compiled(grant, Kind.COMMAND)
    if not isinstance(plan, SandboxPlan):
        return
    paths = [tree.path for tree in plan.trees]
    assert paths == sorted(set(paths))
    for tree in plan.trees:
        assert _within(tree.path, "/workspace") or _within(tree.path, "/tmp")
        rest = plan.model_copy(update={"trees": tuple(t for t in plan.trees if t != tree)})
        assert _mode(rest, tree.path) != _mode(plan, tree.path)
    for path in plan.deny:
        rest = plan.model_copy(update={"deny": tuple(p for p in plan.deny if p != path)})
        assert _mode(rest, path) != _mode(plan, path)


@given(one=grants(), other=grants(), kind=st.sampled_from(Kind), path=INSIDE)
@settings(max_examples=300)
def test_a_narrower_grant_never_has_a_wider_plan(
    one: Grant, other: Grant, kind: Kind, path: str
) -> None:
    child, parent = meet(one, other), one
    assert exceeds(child, parent) is None
    narrow, wide = _compiled(child, kind), _compiled(parent, kind)
    if isinstance(narrow, Failure):
        return
    if isinstance(wide, Failure):
        # The one thing that may keep a wider grant from having a plan: a denial that would not hold
        # in its wider profile or with less of /tmp shared.
        assert wide.fault.code is Code.UNENFORCEABLE
        assert wide.fault.rule == "deny"
        return
    assert all(a <= b for a, b in zip(_mode(narrow, path), _mode(wide, path), strict=True))
    for tree in narrow.trees:
        assert all(
            a <= b for a, b in zip(_mode(narrow, tree.path), _mode(wide, tree.path), strict=True)
        )
    assert narrow.profile.rank <= wide.profile.rank
    assert set(narrow.capabilities) <= set(wide.capabilities)
    assert narrow.system_writable <= wide.system_writable
    assert narrow.system_executable <= wide.system_executable
    for prefix in narrow.system_execute:
        assert any(_within(prefix, outer) for outer in parent.scope.execute)
    for item in narrow.connect:
        assert any(covers_connect(outer, item) for outer in wide.connect)
    limits = wide.limits.model_dump()
    assert all(value <= limits[name] for name, value in narrow.limits.model_dump().items())
    _assert_places_within(narrow, wide, parent)


def _assert_places_within(narrow: SandboxPlan, wide: SandboxPlan, parent: Grant) -> None:
    """A private place is no larger than its counterpart, or stands where the wider plan has a
    writable system or the shared /tmp; none is executable outside the parent's `execute`."""
    sizes = {place.path: place.size_bytes for place in wide.tmpfs}
    sizes.setdefault("/tmp", lease_tmp_bytes(parent.per_lease))
    for place in narrow.tmpfs:
        if place.path in sizes:
            assert place.size_bytes <= sizes[place.path]
        else:
            assert wide.system_writable
        if place.executable:
            assert any(_within(place.path, prefix) for prefix in parent.scope.execute)
    assert sum(place.size_bytes for place in narrow.tmpfs) <= narrow.limits.memory_bytes // 2


@given(grant=grants())
def test_only_an_empty_execute_or_an_unholdable_denial_is_refused(grant: Grant) -> None:
    plan = _compiled(grant, Kind.COMMAND)
    if isinstance(plan, Failure):
        if grant.scope.execute:
            assert (plan.fault.code, plan.fault.rule) == (Code.UNENFORCEABLE, "deny")
        else:
            assert plan.fault.code is Code.RIGHT_NOT_GRANTED
    else:
        assert grant.scope.execute

"""From capability to walls: each row of the table in docs/design.md, and what is refused."""

from __future__ import annotations

import pytest

from stockade.decide.compile import compile_plan, lease_tmp_bytes, plan_digest, tmpfs_sizes
from stockade.decide.environment import MAX_ENVIRONMENT_BYTES, MAX_VARIABLE_BYTES, check_variables
from stockade.decide.policy import Policy
from stockade.host.policy_files import load_policy
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import CheckPrefix, Grant, PerLease, Profile, Scope, System, Tier
from stockade.terms.plan import Kind, SandboxPlan

MIB = 1 << 20


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy()


@pytest.fixture
def agent(policy: Policy) -> Grant:
    return policy.grant("agent")


def _plan(
    policy: Policy,
    grant: Grant,
    kind: Kind = Kind.COMMAND,
    *,
    image: str = "host",
    image_env: dict[str, str] | None = None,
    lease_env: tuple[tuple[str, str], ...] = (),
) -> SandboxPlan:
    return compile_plan(
        grant, kind, policy, image=image, image_env=image_env or {}, lease_env=lease_env
    )


def _scoped(
    grant: Grant,
    *,
    read: tuple[str, ...] = ("/workspace", "/tmp"),
    write: tuple[str, ...] = ("/workspace", "/tmp"),
    execute: tuple[str, ...] = ("/",),
    deny: tuple[str, ...] = (),
    profile: Profile = Profile.AGENT,
) -> Grant:
    scope = Scope(read=read, write=write, execute=execute, connect=())
    system = System(profile=profile, images=("host",), tier_min=Tier.CONTAINER)
    return grant.model_copy(update={"scope": scope, "deny": deny, "system": system})


def _limited(grant: Grant, **limits: int) -> Grant:
    return grant.model_copy(update={"per_lease": grant.per_lease.model_copy(update=limits)})


def _modes(plan: SandboxPlan) -> dict[str, str]:
    return {
        tree.path: ("rw" if tree.writable else "ro") + (" x" if tree.executable else "")
        for tree in plan.trees
    }


def _refused(code: Code, rule: str, policy: Policy, grant: Grant, **more: object) -> Failure:
    with pytest.raises(Failure) as caught:
        _plan(policy, grant, **more)  # type: ignore[arg-type]
    assert (caught.value.fault.code, caught.value.fault.rule) == (code, rule)
    return caught.value


def test_the_default_grant(policy: Policy, agent: Grant) -> None:
    plan = _plan(policy, agent)
    assert _modes(plan) == {"/tmp": "rw x", "/workspace": "rw x"}
    assert plan.deny == ("/workspace/.git/hooks",)
    assert (plan.uid, plan.gid, plan.system_writable, plan.system_executable) == (0, 0, True, True)
    assert plan.capabilities == (
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FOWNER",
        "CAP_FSETID",
        "CAP_SETGID",
        "CAP_SETUID",
    )
    assert [(m.path, m.size_bytes, oct(m.mode)) for m in plan.tmpfs] == [
        ("/dev/shm", 96 * MIB, "0o1777"),
        ("/root", 192 * MIB, "0o700"),
        ("/run", 16 * MIB, "0o755"),
    ]
    assert plan.connect == ()
    assert plan.limits.model_dump() == {
        "memory_bytes": 1 << 30,
        "cpu_millis": 2000,
        "pids": 512,
        "disk_bytes": 1 << 30,
        "inodes": 262144,
    }
    assert "/proc/kcore" in plan.masked
    assert "/proc/sys" in plan.readonly


def test_the_strict_profile(policy: Policy, agent: Grant) -> None:
    plan = _plan(policy, _scoped(agent, profile=Profile.STRICT))
    assert (plan.profile, plan.uid, plan.gid) == (Profile.STRICT, 1000, 1000)
    assert plan.capabilities == ()
    assert not plan.system_writable
    assert "/home/agent" in {place.path for place in plan.tmpfs}
    assert dict(plan.env)["HOME"] == "/home/agent"
    assert dict(plan.env)["USER"] == "agent"


@pytest.mark.parametrize("name", ["read-only", "edit"])
def test_without_execute_no_program_runs(policy: Policy, name: str) -> None:
    _refused(Code.RIGHT_NOT_GRANTED, "scope.execute", policy, policy.grant(name))
    assert _plan(policy, policy.grant(name), Kind.SEARCH).kind is Kind.SEARCH


def test_an_image_that_is_not_granted_is_refused(policy: Policy, agent: Grant) -> None:
    caught = _refused(Code.RIGHT_NOT_GRANTED, "system.images", policy, agent, image="debian")
    assert caught.fault.details["images"] == ("host",)


@pytest.mark.parametrize(
    ("read", "write", "execute", "deny", "trees", "denied"),
    [
        # the whole, however it is said
        (("/",), ("/",), ("/",), (), {"/tmp": "rw x", "/workspace": "rw x"}, ()),
        (("/workspace",), (), ("/",), (), {"/workspace": "ro x"}, ()),
        (("/workspace/a",), (), ("/",), (), {"/workspace/a": "ro x"}, ()),
        # nothing of the workspace
        (("/srv",), (), ("/",), (), {}, ()),
        # writable inside read-only
        (
            ("/workspace",),
            ("/workspace/a",),
            ("/",),
            (),
            {"/workspace": "ro x", "/workspace/a": "rw x"},
            (),
        ),
        # executable inside noexec
        (
            ("/workspace",),
            ("/workspace",),
            ("/usr", "/workspace/bin"),
            (),
            {"/workspace": "rw", "/workspace/bin": "rw x"},
            (),
        ),
        # execute outside read gives nothing
        (("/workspace/a",), (), ("/workspace",), (), {"/workspace/a": "ro x"}, ()),
        (("/workspace/a",), (), ("/workspace/b",), (), {"/workspace/a": "ro"}, ()),
        # siblings with a common prefix of characters, not of components
        (
            ("/workspace/a", "/workspace/a-b"),
            ("/workspace/a",),
            ("/",),
            (),
            {"/workspace/a": "rw x", "/workspace/a-b": "ro x"},
            (),
        ),
        # deny: below a writable tree kept, elsewhere dropped
        (
            ("/workspace", "/tmp"),
            ("/workspace",),
            ("/",),
            ("/tmp/x", "/workspace/.git", "/workspace/.git/hooks", "/workspace/z"),
            {"/tmp": "ro x", "/workspace": "rw x"},
            ("/workspace/.git", "/workspace/z"),
        ),
        # deny of a whole tree, or of more than it
        (("/workspace",), ("/workspace",), ("/",), ("/workspace",), {"/workspace": "ro x"}, ()),
        (
            ("/workspace",),
            ("/workspace/a/b",),
            ("/",),
            ("/workspace/a",),
            {"/workspace": "ro x"},
            (),
        ),
        # an executable part of a denied part of a writable tree stays read-only
        (
            ("/workspace",),
            ("/workspace",),
            ("/workspace/a/b",),
            ("/workspace/a",),
            {"/workspace": "rw", "/workspace/a/b": "ro x"},
            ("/workspace/a",),
        ),
        # and one that is denied itself is held where it is
        (
            ("/workspace",),
            ("/workspace",),
            ("/workspace/a/b",),
            ("/workspace/a/b",),
            {"/workspace": "rw", "/workspace/a/b": "ro x"},
            ("/workspace/a/b",),
        ),
        # what is around a denied path is the innermost tree
        (
            ("/workspace",),
            ("/workspace/a",),
            ("/workspace/a/b",),
            ("/workspace/a/b/c", "/workspace/a/d", "/workspace/e"),
            {"/workspace": "ro", "/workspace/a": "rw", "/workspace/a/b": "rw x"},
            ("/workspace/a/b/c", "/workspace/a/d"),
        ),
        # a denied part of what is granted in a private /tmp, and of what is not granted
        (
            ("/tmp/a", "/workspace/a"),
            ("/tmp/a", "/workspace/a"),
            ("/",),
            ("/tmp/a/x", "/workspace/b"),
            {"/tmp/a": "rw x", "/workspace/a": "rw x"},
            ("/tmp/a/x",),
        ),
    ],
)
def test_trees_are_exactly_what_is_granted(
    policy: Policy,
    agent: Grant,
    read: tuple[str, ...],
    write: tuple[str, ...],
    execute: tuple[str, ...],
    deny: tuple[str, ...],
    trees: dict[str, str],
    denied: tuple[str, ...],
) -> None:
    plan = _plan(policy, _scoped(agent, read=read, write=write, execute=execute, deny=deny))
    assert _modes(plan) == trees
    assert plan.deny == denied
    assert [tree.path for tree in plan.trees] == sorted(trees)


def test_write_without_read_is_refused(policy: Policy, agent: Grant) -> None:
    grant = _scoped(agent, read=("/workspace/a",), write=("/workspace",))
    _refused(Code.TOKEN_MALFORMED, "scope.write", policy, grant)


@pytest.mark.parametrize("path", ["/workspace/../etc", "/workspace//a", "workspace", "/a/./b"])
def test_b48_an_odd_prefix_is_refused(policy: Policy, agent: Grant, path: str) -> None:
    for kind in Kind:
        grant = _scoped(agent, read=(path, "/workspace", "/tmp"))
        _refused(Code.TOKEN_MALFORMED, "scope.read", policy, grant, kind=kind)


def test_b48_a_sibling_of_the_workspace_is_not_in_it(policy: Policy, agent: Grant) -> None:
    plan = _plan(policy, _scoped(agent, read=("/workspace-evil", "/tmpfs"), write=()))
    assert plan.trees == ()


def test_tmp_is_private_unless_granted(policy: Policy, agent: Grant) -> None:
    private = _plan(policy, _scoped(agent, read=("/workspace",), write=("/workspace",)))
    (tmp,) = [place for place in private.tmpfs if place.path == "/tmp"]
    assert (tmp.size_bytes, tmp.mode) == (lease_tmp_bytes(agent.per_lease), 0o1777)
    shared = _plan(policy, agent)
    assert "/tmp" not in {place.path for place in shared.tmpfs}
    partly = _plan(policy, _scoped(agent, read=("/tmp/a",), write=("/tmp/a",)))
    assert "/tmp" in {place.path for place in partly.tmpfs}
    assert _modes(partly) == {"/tmp/a": "rw x"}


def test_everything_outside_execute_is_noexec(policy: Policy, agent: Grant) -> None:
    plan = _plan(policy, _scoped(agent, execute=("/usr", "/opt/tools", "/root/bin", "/dev/shm")))
    assert not plan.system_executable
    assert plan.system_execute == ("/opt/tools", "/usr")
    assert {place.path: place.executable for place in plan.tmpfs} == {
        "/dev/shm": True,
        "/root": False,
        "/run": False,
    }
    assert _modes(plan) == {"/tmp": "rw", "/workspace": "rw"}


def test_execute_everywhere(policy: Policy, agent: Grant) -> None:
    plan = _plan(policy, agent)
    assert plan.system_executable
    assert plan.system_execute == ()
    assert all(place.executable for place in plan.tmpfs)


@pytest.mark.parametrize("path", ["/", "/etc", "/root", "/root/.ssh", "/dev", "/var/lib/x"])
def test_a_denial_that_would_not_hold_is_refused(policy: Policy, agent: Grant, path: str) -> None:
    caught = _refused(Code.UNENFORCEABLE, "deny", policy, _scoped(agent, deny=(path,)))
    assert caught.fault.details["path"] == path


def test_every_denial_has_to_hold_not_only_the_first(policy: Policy, agent: Grant) -> None:
    deny = ("/workspace/x", "/zzz")
    caught = _refused(Code.UNENFORCEABLE, "deny", policy, _scoped(agent, deny=deny))
    assert caught.fault.details["path"] == "/zzz"


def test_a_denial_in_a_read_only_system_holds_already(policy: Policy, agent: Grant) -> None:
    strict = Profile.STRICT
    assert _plan(policy, _scoped(agent, deny=("/etc", "/usr/lib"), profile=strict)).deny == ()
    # A process may write what is its own in /proc and /dev.
    for path in ("/home/agent/.ssh", "/home", "/", "/proc", "/proc/self/x", "/dev/null"):
        grant = _scoped(agent, deny=(path,), profile=strict)
        _refused(Code.UNENFORCEABLE, "deny", policy, grant)


def test_a_denial_in_a_private_tmp_is_refused(policy: Policy, agent: Grant) -> None:
    grant = _scoped(
        agent, read=("/workspace",), write=("/workspace",), deny=("/tmp/x",), profile=Profile.STRICT
    )
    _refused(Code.UNENFORCEABLE, "deny", policy, grant)


def test_mounts_of_denied_and_granted_paths_are_bounded(policy: Policy, agent: Grant) -> None:
    """As many as the launcher can hold (max_slots in sandbox/launch.c), whatever their depth."""
    seven = tuple(f"/workspace/{index}/b/c/d/e/f/g" for index in range(64))
    assert len(_plan(policy, _scoped(agent, deny=seven)).deny) == 64
    shared = tuple(f"/workspace/{'a/' * 400}{index}" for index in range(64))
    assert len(_plan(policy, _scoped(agent, deny=shared)).deny) == 64
    deep = ("/workspace" + "/a" * 2000,)
    for deny in (tuple(f"{path}/h/i" for path in seven), deep):
        _refused(Code.UNENFORCEABLE, "deny", policy, _scoped(agent, deny=deny))
    assert _plan(policy, _scoped(agent, read=deep, write=deep)).trees
    below_tmp = ("/tmp" + "/a" * 2000,)
    _refused(Code.UNENFORCEABLE, "scope", policy, _scoped(agent, read=below_tmp, write=()))
    # A tree in a writable one has its parents held too, in a read-only one not.
    run = _scoped(agent, execute=("/usr", *deep), deny=())
    _refused(Code.UNENFORCEABLE, "scope", policy, run)
    assert len(_plan(policy, _scoped(agent, execute=deep, write=())).trees) == 3


def test_search_is_the_narrowest_sandbox(policy: Policy, agent: Grant) -> None:
    plan = _plan(
        policy,
        agent,
        Kind.SEARCH,
        image="anything",
        image_env={"LD_PRELOAD": "/x"},
        lease_env=(("RIPGREP_CONFIG_PATH", "/workspace/rc"),),
    )
    assert _modes(plan) == {"/tmp": "ro", "/workspace": "ro"}
    assert (plan.image, plan.profile, plan.uid) == ("", Profile.STRICT, 1000)
    for nothing in (plan.capabilities, plan.deny, plan.tmpfs, plan.connect):
        assert nothing == ()
    assert not plan.system_writable
    assert not plan.system_executable
    assert dict(plan.env) == {
        "HOME": "/",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "TZ": "UTC",
    }
    assert plan.limits.memory_bytes == 256 * MIB
    small = _plan(policy, _limited(agent, memory_bytes=64 * MIB, pids=19), Kind.SEARCH)
    assert (small.limits.memory_bytes, small.limits.pids) == (64 * MIB, 19)
    for cpu_millis in (100, plan.limits.cpu_millis):
        slow = _plan(policy, _limited(agent, cpu_millis=cpu_millis), Kind.SEARCH)
        assert slow.limits.cpu_millis == cpu_millis
    fast = _plan(policy, _limited(agent, cpu_millis=64_000), Kind.SEARCH)
    assert fast.limits.cpu_millis == 4000
    strict = _plan(policy, _scoped(agent, profile=Profile.STRICT))
    assert (plan.masked, plan.readonly) == (strict.masked, strict.readonly)
    assert plan.masked
    assert plan.readonly


def test_every_grant_that_reads_the_same_searches_in_one_sandbox(policy: Policy) -> None:
    digests = {plan_digest(_plan(policy, policy.grant(n), Kind.SEARCH)) for n in policy.grants}
    assert len(digests) == 1


def test_grants_with_the_same_effect_have_one_plan(policy: Policy, agent: Grant) -> None:
    same = agent.model_copy(
        update={
            "tools": ("run",),
            "depth": 1,
            "scope": agent.scope.model_copy(
                update={"read": ("/tmp", "/workspace", "/workspace/a")}
            ),
            "deny": ("/workspace/.git/hooks", "/workspace/.git/hooks/pre-commit"),
        }
    )
    assert plan_digest(_plan(policy, same)) == plan_digest(_plan(policy, agent))


def test_the_digest_tells_every_field_apart(policy: Policy, agent: Grant) -> None:
    plan = _plan(policy, agent)
    search = _plan(policy, agent, Kind.SEARCH)
    digest = plan_digest(plan)
    assert len(digest) == 64
    assert int(digest, 16) >= 0
    seen = {digest}
    for name in SandboxPlan.model_fields:
        mine, other = getattr(plan, name), getattr(search, name)
        if name in ("version", "tier_min", "hostname", "connect", "seccomp"):
            continue  # equal in both plans
        if mine == other:
            assert name in ("masked", "readonly", "system_execute"), name
            other = ("/x",)
        seen.add(plan_digest(plan.model_copy(update={name: other})))
    assert len(seen) == 1 + len(SandboxPlan.model_fields) - 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_bytes", 0),
        ("memory_bytes", 16 * MIB - 1),
        ("cpu_millis", 9),
        ("pids", 15),
        ("disk_bytes", 0),
        ("inodes", 0),
    ],
)
def test_a_limit_that_can_not_be_held_is_refused(
    policy: Policy, agent: Grant, name: str, value: int
) -> None:
    little = _limited(agent, **{name: value})
    _refused(Code.UNENFORCEABLE, f"per_lease.{name}", policy, little)
    if name in ("memory_bytes", "cpu_millis", "pids"):
        _refused(Code.UNENFORCEABLE, f"per_lease.{name}", policy, little, kind=Kind.SEARCH)


@pytest.mark.parametrize("memory", [16 * MIB, 16 * MIB + 1, 100_000_000, 1 << 30, (1 << 53) - 1])
def test_b34_memory_backed_places_are_sized_and_take_half_of_memory_at_most(
    policy: Policy, agent: Grant, memory: int
) -> None:
    limits = agent.per_lease.model_copy(update={"memory_bytes": memory})
    for profile in policy.profiles.values():
        sizes = [*tmpfs_sizes(memory, profile).values(), lease_tmp_bytes(limits)]
        assert sum(sizes) <= memory // 2
        assert all(size >= 4096 and size % 4096 == 0 for size in sizes)


def test_b33_a_place_never_has_more_inodes_than_the_lease(policy: Policy, agent: Grant) -> None:
    plan = _plan(policy, _limited(agent, inodes=100))
    assert {place.inodes for place in plan.tmpfs} == {100}
    plan = _plan(policy, agent)
    assert all(0 < place.inodes <= place.size_bytes // 8192 for place in plan.tmpfs)


def test_b25_the_image_s_variables_are_kept(policy: Policy, agent: Grant) -> None:
    plan = _plan(policy, agent, image_env={"PATH": "/opt/t/bin:/usr/bin", "FOO": "1", "HOME": "/x"})
    env = dict(plan.env)
    assert env["PATH"] == "/opt/t/bin:/usr/bin"
    assert env["FOO"] == "1"
    assert (env["HOME"], env["USER"]) == ("/root", "root")


def test_b26_the_locale_is_utf_8_and_can_be_changed(policy: Policy, agent: Grant) -> None:
    assert dict(_plan(policy, agent).env)["LANG"] == "C.UTF-8"
    env = _plan(policy, agent, lease_env=(("LANG", "C"), ("A", "é"), ("PATH", "/bin"))).env
    assert dict(env) == {
        "A": "é",
        "HOME": "/root",
        "LANG": "C",
        "PATH": "/bin",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "TZ": "UTC",
        "USER": "root",
    }
    assert list(env) == sorted(env)


def test_b54_the_environment_is_an_allow_list(
    policy: Policy, agent: Grant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_X", "1")
    names = {name for name, _ in _plan(policy, agent).env}
    assert names == {"HOME", "LANG", "PATH", "TERM", "TMPDIR", "TZ", "USER"}


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("", "x", Code.INVALID_ARGUMENT),
        ("A=B", "x", Code.INVALID_ARGUMENT),
        ("1A", "x", Code.INVALID_ARGUMENT),
        ("A B", "x", Code.INVALID_ARGUMENT),
        ("A\n", "x", Code.INVALID_ARGUMENT),
        ("A\0", "x", Code.INVALID_ARGUMENT),
        ("BASH_FUNC_f%%", "x", Code.INVALID_ARGUMENT),
        ("A", "x\0y", Code.INVALID_ARGUMENT),
        ("A", "\ud800", Code.INVALID_ARGUMENT),
        ("PATH", "", Code.INVALID_ARGUMENT),
        ("A", "x" * (MAX_VARIABLE_BYTES - 2), Code.ARGUMENT_TOO_LARGE),
        ("A", "é" * (MAX_VARIABLE_BYTES // 2), Code.ARGUMENT_TOO_LARGE),
    ],
)
def test_b22_a_bad_variable_is_refused(
    policy: Policy, agent: Grant, name: str, value: str, code: Code
) -> None:
    _refused(code, "env", policy, agent, lease_env=((name, value),))


def test_b22_the_largest_variable_and_the_largest_sum(policy: Policy, agent: Grant) -> None:
    largest = "x" * (MAX_VARIABLE_BYTES - len("A=") - 1)
    assert dict(_plan(policy, agent, lease_env=(("A", largest),)).env)["A"] == largest
    many = tuple((f"V{i}", "x" * 1000) for i in range(MAX_ENVIRONMENT_BYTES // 1000))
    _refused(Code.ARGUMENT_TOO_LARGE, "env", policy, agent, lease_env=many)


def test_b22_variables_may_fill_all_the_room_and_no_more() -> None:
    half = MAX_ENVIRONMENT_BYTES // 2 - len("A=") - 1
    check_variables({"A": "x" * half, "B": "x" * half})
    with pytest.raises(Failure) as caught:
        check_variables({"A": "x" * half, "B": "x" * (half - 3), "C": "x"})
    assert caught.value.fault.code is Code.ARGUMENT_TOO_LARGE


def test_lease_tmp_is_a_function_of_the_limits_alone() -> None:
    limits = PerLease(
        memory_bytes=1 << 30,
        cpu_millis=1,
        pids=1,
        disk_bytes=1,
        inodes=1,
        sandboxes=1,
        parallel=1,
    )
    assert lease_tmp_bytes(limits) == 192 * MIB


def test_a_search_mounts_only_what_its_checks_leave(policy: Policy, agent: Grant) -> None:
    """The name that a search begins at may lead elsewhere by the time it starts."""

    def mounted(*checks: CheckPrefix) -> list[str]:
        plan = _plan(policy, agent.model_copy(update={"checks": checks}), Kind.SEARCH)
        return [tree.path for tree in plan.trees]

    def below(*paths: str, tool: str = "grep_search") -> CheckPrefix:
        return CheckPrefix(kind="prefix", tool=tool, argument="path", paths=paths)

    assert mounted() == ["/tmp", "/workspace"]
    assert mounted(below("/workspace/src", "/etc")) == ["/workspace/src"]
    assert mounted(below("/workspace/src"), below("/tmp")) == []
    assert mounted(below("/workspace/src", tool="file_view")) == ["/tmp", "/workspace"]
    # Programs are not held to the arguments of other tools.
    command = _plan(policy, agent.model_copy(update={"checks": (below("/workspace/src"),)}))
    assert [tree.path for tree in command.trees] == [
        tree.path for tree in _plan(policy, agent).trees
    ]

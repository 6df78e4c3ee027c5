"""From capability to walls: a grant, the policy data and a kind of work give a `SandboxPlan`.

Everything that decides what the inside of a sandbox may do is decided here, once, without looking
at a host: equal inputs give equal plans, and a narrower grant never gives a wider plan.

Trees. Below `/workspace` and `/tmp` each granted prefix is a candidate mount whose mode follows
from coverage alone: readable below `read`, writable below `read` and `write` and not below `deny`,
executable below `execute`. A candidate that has the mode of what it lies in adds nothing and is
dropped. What is left below a writable tree of `deny` goes into the plan as it is, whether or not
it exists. Outside the two trees there is only the system, the profile's private places, and `/tmp`
where no tree covers it.

What can't be carried out exactly is refused, never approximated upwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from stockade.decide import objects
from stockade.decide.blocks import normal
from stockade.decide.canonical import digest
from stockade.decide.checks import readable_by_search
from stockade.decide.environment import environment, search_environment
from stockade.decide.policy import Policy
from stockade.decide.profile_file import MEMORY_PARTS, TMP_PARTS, ProfileData
from stockade.terms.fault import Code, failure
from stockade.terms.grant import Grant, PerLease, Profile
from stockade.terms.pathname import TMP, WORKSPACE
from stockade.terms.plan import Kind, Limits, SandboxPlan, TmpfsMount, TreeMount

HOSTNAME: Final = "sandbox"
_TOPS: Final = (WORKSPACE, TMP)
# Mounts that the trees of one sandbox may take. The launcher holds a descriptor of each at the same
# time (max_slots in sandbox/launch.c).
MAX_MOUNTS: Final = 512
# Of the kernel: what a process finds of itself there, it may write, however the system is mounted.
_KERNEL: Final = ("/dev", "/proc")
_PAGE: Final = 4096
# An inode of a tmpfs costs about 1 KiB of the same memory limit: one for 8 KiB adds an eighth.
_BYTES_PER_INODE: Final = 8192
# Below these a limit means something else to the kernel (size=0 is a tmpfs without a limit, a CPU
# quota is at least 1 ms in 100), or the sandbox can't start a single program; a search beside what
# waits for commands needs 13 processes.
_LEAST: Final = Limits(memory_bytes=16 << 20, cpu_millis=10, pids=16, disk_bytes=1 << 20, inodes=64)
_SEARCH_TOOL: Final = "grep_search"
# ripgrep with a thread for each processor; it writes nothing.
_SEARCH: Final = Limits(memory_bytes=256 << 20, cpu_millis=4000, pids=64, disk_bytes=0, inodes=0)


def compile_plan(
    grant: Grant,
    kind: Kind,
    policy: Policy,
    *,
    image: str,
    image_env: Mapping[str, str],
    lease_env: tuple[tuple[str, str], ...],
) -> SandboxPlan:
    """The sandbox for work of `kind` under `grant`. `image`, `image_env` and `lease_env` count
    for `Kind.COMMAND` only: a search has no image and a fixed environment.

    Raises Failure(token_malformed) for a grant that has no normal form,
    Failure(right_not_granted) when it has no `execute` or not this image,
    Failure(unenforceable) for what no sandbox can be built to, and Failure(invalid_argument,
    argument_too_large) for a variable of the environment.
    """
    grant = normal(grant)
    if kind is Kind.SEARCH:
        return _search(grant, policy)
    if not grant.scope.execute:
        raise failure(Code.RIGHT_NOT_GRANTED, "no program may be executed", rule="scope.execute")
    if image not in grant.system.images:
        raise failure(
            Code.RIGHT_NOT_GRANTED,
            "the image is not granted",
            rule="system.images",
            images=grant.system.images,
        )
    _check_least(grant.per_lease, ("memory_bytes", "cpu_millis", "pids", "disk_bytes", "inodes"))
    profile = policy.profiles[grant.system.profile]
    scope = grant.scope
    trees = _trees(scope.read, scope.write, scope.execute, grant.deny)
    private_tmp = all(tree.path != TMP for tree in trees)
    tmpfs = _tmpfs(grant.per_lease, profile, scope.execute, private_tmp=private_tmp)
    _check_deny_outside(grant.deny, trees, tmpfs, profile)
    # Elsewhere nothing can be written anyway.
    deny = _in_writable(grant.deny, trees)
    _check_mounts(trees, deny, private_tmp=private_tmp)
    return SandboxPlan(
        version=1,
        kind=kind,
        profile=profile.name,
        tier_min=grant.system.tier_min,
        image=image,
        uid=profile.uid.value,
        gid=profile.gid.value,
        capabilities=tuple(sorted(item.name for item in profile.capabilities)),
        system_writable=profile.system_writable.value,
        system_executable=_covered("/", scope.execute),
        system_execute=_system_execute(scope.execute, tmpfs),
        trees=trees,
        deny=deny,
        tmpfs=tmpfs,
        connect=scope.connect,
        seccomp=policy.seccomp_ref(profile),
        limits=lease_limits(grant.per_lease),
        env=environment(profile, image_env, lease_env),
        hostname=HOSTNAME,
        masked=tuple(sorted(item.path for item in profile.masked)),
        readonly=tuple(sorted(item.path for item in profile.readonly)),
    )


def _search(grant: Grant, policy: Policy) -> SandboxPlan:
    profile = policy.profiles[Profile.STRICT]
    lease = grant.per_lease
    _check_least(lease, ("memory_bytes", "cpu_millis", "pids"))
    return SandboxPlan(
        version=1,
        kind=Kind.SEARCH,
        profile=profile.name,
        tier_min=grant.system.tier_min,
        image="",
        uid=profile.uid.value,
        gid=profile.gid.value,
        capabilities=(),
        system_writable=False,
        system_executable=False,
        trees=_trees(readable_by_search(grant, _SEARCH_TOOL), (), (), ()),
        deny=(),
        tmpfs=(),
        connect=(),
        seccomp=policy.seccomp_ref(profile),
        limits=Limits(
            memory_bytes=min(lease.memory_bytes, _SEARCH.memory_bytes),
            cpu_millis=min(lease.cpu_millis, _SEARCH.cpu_millis),
            pids=min(lease.pids, _SEARCH.pids),
            disk_bytes=_SEARCH.disk_bytes,
            inodes=_SEARCH.inodes,
        ),
        env=search_environment(profile),
        hostname=HOSTNAME,
        masked=tuple(sorted(item.path for item in profile.masked)),
        readonly=tuple(sorted(item.path for item in profile.readonly)),
    )


def plan_digest(plan: SandboxPlan) -> str:
    """SHA-256 of the plan's canonical JSON, 64 hex digits: the sandbox's name within a lease."""
    return digest(plan.model_dump(mode="json"))


def lease_limits(per_lease: PerLease) -> Limits:
    """What of a grant the kernel enforces, on the lease and on each sandbox."""
    return Limits.model_validate({name: getattr(per_lease, name) for name in Limits.model_fields})


def lease_tmp_bytes(per_lease: PerLease) -> int:
    """Size of the `/tmp` that the sandboxes of a lease share, and of a private one: 3/16 of the
    memory, in whole pages."""
    return _share(per_lease.memory_bytes, TMP_PARTS)


def tmpfs_sizes(memory_bytes: int, profile: ProfileData) -> dict[str, int]:
    """Bytes of each private place of a sandbox, by path; with `/tmp` at most half of memory."""
    return {place.path: _share(memory_bytes, place.share_1024) for place in profile.tmpfs}


def _share(memory_bytes: int, parts: int) -> int:
    return memory_bytes * parts // MEMORY_PARTS // _PAGE * _PAGE


def _check_least(lease: PerLease, names: Iterable[str]) -> None:
    for name in names:
        least = int(getattr(_LEAST, name))
        if getattr(lease, name) < least:
            raise failure(
                Code.UNENFORCEABLE,
                f"{name} is below {least}, the least that a sandbox can be held to",
                rule=f"per_lease.{name}",
                least=least,
            )


def _covered(path: str, prefixes: Iterable[str]) -> bool:
    return any(objects.covers_path(prefix, path) for prefix in prefixes)


def _trees(
    read: tuple[str, ...],
    write: tuple[str, ...],
    execute: tuple[str, ...],
    deny: tuple[str, ...],
) -> tuple[TreeMount, ...]:
    """Parents before children."""
    candidates: set[str] = set()
    for prefix in (*read, *write, *execute):
        for top in _TOPS:
            if objects.covers_path(prefix, top):
                candidates.add(top)
            elif objects.covers_path(top, prefix):
                candidates.add(prefix)
    kept: list[TreeMount] = []
    for path in sorted(candidates):
        if not _covered(path, read):
            continue
        denied = _covered(path, deny)
        tree = TreeMount(
            path=path,
            writable=_covered(path, write) and not denied,
            executable=_covered(path, execute),
        )
        around = _innermost(path, kept)
        if (
            around is None
            or (around.writable and not denied) != tree.writable
            or around.executable != tree.executable
        ):
            kept.append(tree)
    return tuple(kept)


def _innermost(path: str, trees: Iterable[TreeMount]) -> TreeMount | None:
    around = [tree for tree in trees if objects.covers_path(tree.path, path)]
    return max(around, key=lambda tree: len(tree.path), default=None)


def _in_writable(paths: tuple[str, ...], trees: tuple[TreeMount, ...]) -> tuple[str, ...]:
    """Those of `paths` that hang on a writable tree. One that is a tree itself (it is executable, or
    denied as well, and so read-only) hangs on what is around it."""
    around = ((path, _innermost(path, [t for t in trees if t.path != path])) for path in paths)
    return tuple(path for path, owner in around if owner is not None and owner.writable)


def _check_mounts(
    trees: tuple[TreeMount, ...], deny: tuple[str, ...], *, private_tmp: bool
) -> None:
    """A denied path takes a mount and one for each directory above it in its tree, so that none is
    renamed; so does a tree in a writable one or in a private /tmp. A path has up to 2,048 names, a
    grant 64 paths."""
    paths = tuple(tree.path for tree in trees)
    mounts = {*paths}
    apart = [
        *_in_writable(paths, trees),
        *(path for path in paths if private_tmp and objects.covers_path(TMP, path)),
    ]
    for path in (*deny, *apart):
        while path not in _TOPS:
            mounts.add(path)
            path = path[: path.rindex("/")]
        if len(mounts) > MAX_MOUNTS:
            raise failure(
                Code.UNENFORCEABLE,
                "the denied and granted paths, with the directories above them, are more than "
                f"{MAX_MOUNTS} mounts",
                rule="deny" if deny else "scope",
            )


def _check_deny_outside(
    deny: tuple[str, ...],
    trees: tuple[TreeMount, ...],
    tmpfs: tuple[TmpfsMount, ...],
    profile: ProfileData,
) -> None:
    """A denied path of the system or of a private place holds only where all of that is read-only;
    one that would stay writable is refused."""
    places = (*_KERNEL, *(place.path for place in tmpfs))
    for path in deny:
        if objects.covers_path(WORKSPACE, path) or _innermost(path, trees) is not None:
            continue
        system = profile.system_writable.value and not objects.covers_path(TMP, path)
        private = any(
            objects.covers_path(path, place) or objects.covers_path(place, path) for place in places
        )
        if system or private:
            raise failure(
                Code.UNENFORCEABLE,
                "a path outside the granted trees can't be denied where the system or a private "
                "place is writable",
                rule="deny",
                path=path,
                profile=profile.name.value,
            )


def _tmpfs(
    lease: PerLease, profile: ProfileData, execute: tuple[str, ...], *, private_tmp: bool
) -> tuple[TmpfsMount, ...]:
    sizes = tmpfs_sizes(lease.memory_bytes, profile)
    modes = {place.path: int(place.mode, 8) for place in profile.tmpfs}
    if private_tmp:
        sizes[TMP], modes[TMP] = lease_tmp_bytes(lease), 0o1777
    return tuple(
        TmpfsMount(
            path=path,
            size_bytes=size,
            inodes=min(max(_LEAST.inodes, size // _BYTES_PER_INODE), lease.inodes),
            mode=modes[path],
            executable=_covered(path, execute),
        )
        for path, size in sorted(sizes.items())
    )


def _system_execute(execute: tuple[str, ...], tmpfs: tuple[TmpfsMount, ...]) -> tuple[str, ...]:
    """Executable subtrees of the system, where not all of it is. A prefix inside a private place
    gives nothing: such a place is executable as a whole or not at all."""
    if _covered("/", execute):
        return ()
    elsewhere = (*_TOPS, *(place.path for place in tmpfs))
    return tuple(path for path in execute if not _covered(path, elsewhere))

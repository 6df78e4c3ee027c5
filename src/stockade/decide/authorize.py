"""What may this call do? The last question before anything runs.

`authorize` holds a verified capability against one call: the lease it names, the tool, every
(right, object) that the tool's target table derives from the arguments, and the checks on the
arguments themselves (`checks`). It is asked at each call, not only when a lease is made.

Paths are checked twice. Here, lexically, so that a refusal costs nothing; and by the file tools
with `allowed_path` and `failed_on_path` on the path that the resolver reached, which alone decides
once symbolic links are followed. A path with `..` has no lexical meaning, so for it this stage only
asks that the right is granted at all; a check on it fails.

A lease is matched by its id, tenant, trajectory and generation, and by the ids of its token's
blocks: a holder can append any lease binding, and only the ids, which come from signatures, tell
that block from the one the daemon appended. No block may set a binding after that one either
(`descends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from stockade.decide.checks import (
    Arguments,
    check_failure,
    checks_of,
    checks_on_path,
    first_failed,
)
from stockade.decide.objects import (
    covers_connect,
    covers_path,
    is_resolved_path,
    normalize_call_path,
    parse_connect_sugar,
)
from stockade.terms import pathname
from stockade.terms.call import Permit, Right
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.grant import PerLease
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import PathScope

FileRight: TypeAlias = Literal["read", "write"]

_NOT_GRANTED: Final = "the capability grants no such lease"


def authorize(
    permit: Permit,
    tool: str,
    rights: Sequence[Right],
    arguments: Arguments,
    lease: LeaseRecord | None,
) -> None:
    """Return if the call is granted in full.

    `arguments` are JSON values with the tool's defaults filled in. `lease` is the record under the
    id that the call names, or None if there is none: the answer is the same as for a lease of
    somebody else. Asked in this order, raises Failure(lease_not_granted, stale_generation,
    tool_not_granted, right_not_granted, unenforceable, check_failed) with `rule` = the component.
    """
    _check_lease(permit, lease)
    if tool not in permit.grant.tools:
        raise failure(
            Code.TOOL_NOT_GRANTED, f"the capability does not grant the tool {tool}", rule="tools"
        )
    for right in rights:
        refusal = _refusal(permit, right)
        if refusal is not None:
            raise refusal
    if lease is not None and any(right.right in ("write", "execute") for right in rights):
        check_disk(permit.grant.per_lease, lease.grant.per_lease)
    failed = first_failed(checks_of(permit.grant, tool), arguments)
    if failed is not None:
        raise check_failure(failed)


def path_scope(permit: Permit, tool: str) -> PathScope:
    """Where `tool` of this permit may go among the files."""
    grant = permit.grant
    return PathScope(
        read=grant.scope.read,
        write=grant.scope.write,
        deny=grant.deny,
        checks=checks_on_path(grant, tool),
    )


def failed_on_path(scope: PathScope, resolved_path: str) -> Failure | None:
    """Failure(check_failed) for the first check on the path that a resolved one doesn't satisfy."""
    failed = first_failed(scope.checks, {check.argument: resolved_path for check in scope.checks})
    return None if failed is None else check_failure(failed)


def allowed_path(scope: PathScope, resolved_path: str, right: FileRight) -> bool:
    """Whether `right` covers a path that has been resolved: absolute, in the text form of
    `terms.pathname`, no links, dots or empty components. Anything else is not allowed.

    A denied path may be read; neither it nor anything below it may be written, whether it exists
    or not.
    """
    if not is_resolved_path(resolved_path):
        return False
    if right == "read":
        return _covered(scope.read, resolved_path)
    return _covered(scope.write, resolved_path) and not _covered(scope.deny, resolved_path)


def check_disk(wanted: PerLease, made: PerLease) -> None:
    """A workspace has one disk, which was made with the limits of its lease. Whoever writes there
    with less can't be held to it: Failure(unenforceable)."""
    if wanted.disk_bytes < made.disk_bytes:
        name, least = "disk_bytes", made.disk_bytes
    elif wanted.inodes < made.inodes:
        name, least = "inodes", made.inodes
    else:
        return
    raise failure(
        Code.UNENFORCEABLE,
        f"the workspace's disk was made with {name} {least}, and nothing holds who writes there to "
        "less; make a lease of the narrower capability with a disk of its own",
        rule=f"per_lease.{name}",
        least=least,
    )


def _check_lease(permit: Permit, lease: LeaseRecord | None) -> None:
    if (
        lease is None
        or permit.lease_id != lease.id
        or permit.tenant != lease.tenant
        or not same_or_below(permit.trajectory, lease.trajectory)
    ):
        raise failure(Code.LEASE_NOT_GRANTED, _NOT_GRANTED, rule="lease")
    if permit.generation != lease.generation:
        raise failure(
            Code.STALE_GENERATION,
            "the capability is bound to another generation of the lease",
            rule="lease",
        )
    if not descends(permit, lease):
        raise failure(Code.LEASE_NOT_GRANTED, _NOT_GRANTED, rule="lease")


def descends(permit: Permit, lease: LeaseRecord) -> bool:
    """Whether the permit's chain is that of the lease's own token, or that with narrowing blocks
    after it. The binding in force must be the one that the lease's own last block set: a child's
    chain begins with its parent's as well, and a holder can append any binding."""
    own = len(lease.chain)
    return own > 0 and permit.chain[:own] == lease.chain and permit.bound_at == own - 1


def same_or_below(trajectory: str, other: str) -> bool:
    """Whether `other` is `trajectory` or one of its children: `run-1/sub-2` is of `run-1`."""
    return other == trajectory or below(trajectory, other)


def below(trajectory: str, other: str) -> bool:
    return other.startswith(trajectory + "/")


def _refusal(permit: Permit, right: Right) -> Failure | None:
    scope = permit.grant.scope
    rule = f"scope.{right.right}"
    match right.right:
        case "read":
            granted = _path_granted(scope.read, right.object)
        case "write":
            granted = _path_granted(scope.write, right.object)
            if granted and _path_granted(permit.grant.deny, right.object, unknown=False):
                granted, rule = False, "deny"
        case "execute":
            granted = _path_granted(scope.execute, right.object)
        case "connect":
            granted = _connect_granted(permit, right.object)
        case _:
            granted, rule = False, "scope"
    if granted:
        return None
    return failure(
        Code.RIGHT_NOT_GRANTED,
        f"the capability does not grant {right.right} on {right.object}",
        rule=rule,
    )


def _path_granted(prefixes: tuple[str, ...], text: str, *, unknown: bool = True) -> bool:
    """`unknown` is the answer for a path that only the resolver can place, if there are any
    prefixes."""
    try:
        path = pathname.to_text(normalize_call_path(text))
    except ValueError:
        return False
    if ".." in path.split("/"):
        return unknown and bool(prefixes)
    return _covered(prefixes, path)


def _connect_granted(permit: Permit, text: str) -> bool:
    try:
        wanted = parse_connect_sugar(text)
    except ValueError:
        return False
    return any(covers_connect(granted, wanted) for granted in permit.grant.scope.connect)


def _covered(prefixes: tuple[str, ...], path: str) -> bool:
    return any(covers_path(prefix, path) for prefix in prefixes)

"""What may this call do? The last question before anything runs.

`authorize` holds a verified capability against one call: the lease it names, the tool, and every
(right, object) that the tool's target table derives from the arguments. It is asked at each call,
not only when a lease is made.

Paths are checked twice. Here, lexically, so that a refusal costs nothing; and by the file tools
with `allowed_path` on the path that the resolver reached, which alone decides once symbolic links
are followed. A path with `..` has no lexical meaning, so for it this stage only asks that the
right is granted at all.

A lease is matched by its id, tenant, trajectory and generation, and by the ids of its token's
blocks: a holder can append any lease binding to a token that has none, and only the ids, which
come from signatures, tell that block from the one the daemon appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

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
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import PathScope

FileRight: TypeAlias = Literal["read", "write"]

_NOT_GRANTED: Final = "the capability grants no such lease"


def authorize(
    permit: Permit, tool: str, rights: Sequence[Right], lease: LeaseRecord | None
) -> None:
    """Return if the call is granted in full.

    `lease` is the record under the id that the call names, or None if there is none: the answer
    is the same as for a lease of somebody else. Raises Failure(lease_not_granted,
    stale_generation, tool_not_granted, right_not_granted) with `rule` = the component.
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


def path_scope(permit: Permit) -> PathScope:
    """The prefixes that file tools of this permit may touch."""
    scope = permit.grant.scope
    return PathScope(read=scope.read, write=scope.write, deny=permit.grant.deny)


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


def _check_lease(permit: Permit, lease: LeaseRecord | None) -> None:
    if (
        lease is None
        or permit.lease_id != lease.id
        or permit.tenant != lease.tenant
        or not _same_or_below(permit.trajectory, lease.trajectory)
    ):
        raise failure(Code.LEASE_NOT_GRANTED, _NOT_GRANTED, rule="lease")
    if permit.generation != lease.generation:
        raise failure(
            Code.STALE_GENERATION,
            "the capability is bound to another generation of the lease",
            rule="lease",
        )
    if not lease.chain or permit.chain[: len(lease.chain)] != lease.chain:
        raise failure(Code.LEASE_NOT_GRANTED, _NOT_GRANTED, rule="lease")


def _same_or_below(trajectory: str, other: str) -> bool:
    return other == trajectory or other.startswith(trajectory + "/")


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

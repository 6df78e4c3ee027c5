"""What a lease is asked to be, and whether an existing one already is it."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from stockade.terms.base import MAX_INTEGER, Model
from stockade.terms.fault import Code, failure
from stockade.terms.grant import Grant
from stockade.terms.ids import Name, Tenant, Trajectory
from stockade.terms.lease import LeaseRecord

DEFAULT_TTL_S: Final = 3600
DEFAULT_NAME: Final = "main"
MAX_VARIABLES: Final = 256

HostPath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
Glob = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=4096)]


class LeaseRequest(Model):
    """At most one of `grant` (a name of the policy) and `capability` (a token); neither means the
    default grant. `source` is an absolute host path; `image` None is the first one that is granted;
    `env` is bounded by `decide.environment`; `ttl_s` is in seconds. `within_ceiling` asks for what
    the tenant's ceiling leaves of the authority, instead of a refusal where it is wider.

    `share` and `fork` are addresses of a lease whose workspace this one works in, or begins with a
    copy of; then `capability` None means that lease's own token."""

    tenant: Tenant
    trajectory: Trajectory
    name: Name = DEFAULT_NAME
    source: HostPath | None = None
    excludes: Annotated[tuple[Glob, ...], Field(max_length=64)] = ()
    image: Name | None = None
    env: Annotated[tuple[tuple[str, str], ...], Field(max_length=MAX_VARIABLES)] = ()
    grant: Name | None = None
    capability: str | None = None
    ttl_s: Annotated[int, Field(ge=1, le=MAX_INTEGER)] = DEFAULT_TTL_S
    take_over: bool = False
    within_ceiling: bool = False
    share: str | None = None
    fork: str | None = None


def chosen_image(request: LeaseRequest, grant: Grant, origin: LeaseRecord | None) -> str:
    """When none is asked for, that of the lease whose workspace this is, else the first. Raises
    Failure(right_not_granted) for an image that the grant doesn't name."""
    images = grant.system.images
    usual = images[0] if images else None
    image = request.image or (usual if origin is None else origin.image)
    if image is None or image not in images:
        raise failure(
            Code.RIGHT_NOT_GRANTED,
            f"the image {image or '(none)'} is not among those granted: {', '.join(images)}",
            rule="system.images",
        )
    return image


def check_same(
    record: LeaseRecord,
    request: LeaseRequest,
    image: str,
    grant: Grant,
    same_chain: bool,
    origin: LeaseRecord | None,
) -> None:
    """Raises Failure(key_reused) that names the first parameter in which the lease differs from
    what is asked for. `grant` is what a lease of this request would be granted; `origin` the lease
    that it shares or forks."""
    origin_id = None if origin is None else origin.id
    for name, equal in (
        ("source", record.source == request.source),
        ("excludes", set(record.excludes) == set(request.excludes)),
        ("image", record.image == image),
        ("env", record.env == request.env),
        ("grant", record.grant == grant),
        ("capability", same_chain),
        ("share", record.shares == (origin_id if request.share is not None else None)),
        ("fork", record.forked_from == (origin_id if request.fork is not None else None)),
    ):
        if not equal:
            raise failure(
                Code.KEY_REUSED,
                f"the lease {record.tenant}/{record.trajectory} named {record.name} exists with "
                f"another {name}: release it first, or use another trajectory or name",
                rule=name,
                lease_id=record.id,
            )

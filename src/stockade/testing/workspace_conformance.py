"""What every implementation of workspaces must do when one begins as a copy of another.

A check is a function of a `Place`; it raises AssertionError. It puts files into a workspace and
looks at them through the file tools only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from stockade.terms.fault import Code, Failure
from stockade.terms.lease import UID_RANGE
from stockade.terms.ports import PathScope, Workspaces, WorkspaceSpec

EVERYWHERE: Final = PathScope(read=("/workspace",), write=("/workspace",), deny=())


@dataclass(frozen=True, slots=True)
class Place:
    """Workspaces, and what one without a source is made of. The id ends with a hex digit that is
    not "f"."""

    workspaces: Workspaces
    spec: WorkspaceSpec

    def fork_spec(self) -> WorkspaceSpec:
        return replace(
            self.spec,
            lease_id=f"{self.spec.lease_id[:-1]}f",
            uid_base=self.spec.uid_base + UID_RANGE,
        )


def _put(place: Place, spec: WorkspaceSpec, name: str, content: bytes) -> None:
    files = place.workspaces.attach(spec).files
    files.write(f"/workspace/{name}", iter([content]), EVERYWHERE)


def _get(place: Place, spec: WorkspaceSpec, name: str) -> bytes | None:
    files = place.workspaces.attach(spec).files
    try:
        return b"".join(files.read(f"/workspace/{name}", EVERYWHERE)[1])
    except Failure as error:
        if error.fault.code is Code.NOT_FOUND:
            return None
        raise


def _forked(place: Place, read: tuple[str, ...] = ("/workspace",)) -> WorkspaceSpec:
    place.workspaces.create(place.spec)
    _put(place, place.spec, "src/a", b"one")
    _put(place, place.spec, "doc/b", b"two")
    fork = place.fork_spec()
    place.workspaces.fork(fork, place.spec, read)
    return fork


def begins_as_a_copy(place: Place) -> None:
    fork = _forked(place)
    assert _get(place, fork, "src/a") == b"one"
    assert list(place.workspaces.attach(fork).changes()) == []


def goes_its_own_way(place: Place) -> None:
    fork = _forked(place)
    _put(place, fork, "src/a", b"in the fork")
    _put(place, place.spec, "doc/b", b"in the origin")
    assert (_get(place, fork, "src/a"), _get(place, fork, "doc/b")) == (b"in the fork", b"two")
    assert _get(place, place.spec, "src/a") == b"one"
    assert [change.kind for change in place.workspaces.attach(fork).changes()] == ["modified"]
    place.workspaces.remove(place.spec.lease_id)
    assert _get(place, fork, "src/a") == b"in the fork"


def is_reset_to_what_it_began_with(place: Place) -> None:
    fork = _forked(place)
    _put(place, fork, "src/a", b"in the fork")
    place.workspaces.reset(place.spec)
    place.workspaces.reset(fork)
    assert _get(place, fork, "src/a") == b"one"


def holds_what_may_be_read(place: Place) -> None:
    fork = _forked(place, ("/workspace/src",))
    assert (_get(place, fork, "src/a"), _get(place, fork, "doc/b")) == (b"one", None)


def fits_its_disk_or_is_not_there(place: Place) -> None:
    place.workspaces.create(place.spec)
    _put(place, place.spec, "big", b"x" * (3 << 20))
    fork = place.fork_spec()
    limits = fork.limits.model_copy(update={"disk_bytes": 2 << 20})
    small = replace(fork, limits=limits)
    refused = None
    try:
        place.workspaces.fork(small, place.spec, ("/workspace",))
    except Failure as error:
        refused = error.fault.code
    assert refused is Code.DISK_FULL
    place.workspaces.fork(fork, place.spec, ("/workspace",))  # the id is free


CHECKS: Final[tuple[Callable[[Place], None], ...]] = (
    begins_as_a_copy,
    goes_its_own_way,
    is_reset_to_what_it_began_with,
    holds_what_may_be_read,
    fits_its_disk_or_is_not_there,
)

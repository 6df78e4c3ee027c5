"""Profile files: what a flavour of a sandbox is, with the reason for each part."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from stockade.decide import objects
from stockade.decide.grant_file import Reason, Reasoned
from stockade.terms.base import Model
from stockade.terms.grant import Profile
from stockade.terms.ids import Name
from stockade.terms.pathname import TMP, WORKSPACE

# Memory-backed places of one sandbox, the lease's /tmp among them, hold at most half of its memory:
# once they fill the whole limit, even the `rm` that would free it is killed.
MEMORY_PARTS: Final = 1024
TMP_PARTS: Final = 192
PLACES_PARTS: Final = MEMORY_PARTS // 2 - TMP_PARTS

AbsolutePath = Annotated[
    str, StringConstraints(pattern=r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$", max_length=255)
]


class Capability(Model):
    """A capability(7) of the sandbox's own user namespace."""

    name: Annotated[str, StringConstraints(pattern=r"^CAP_[A-Z_]{3,32}$")]
    reason: Reason


class TmpfsPlace(Model):
    """A private memory-backed place: `share_1024` parts of 1,024 of the memory limit, at least 1.
    `mode` is four octal digits; the place belongs to the sandbox's user."""

    path: AbsolutePath
    mode: Annotated[str, StringConstraints(pattern=r"^[01][0-7]{3}$")]
    share_1024: Annotated[int, Field(ge=1, le=PLACES_PARTS)]
    reason: Reason


class Variable(Model):
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
    value: Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$", max_length=1024)]
    reason: Reason


class KernelPath(Model):
    """A path below /proc or /sys that is covered or made read-only where it exists."""

    path: Annotated[
        str, StringConstraints(pattern=r"^/(proc|sys)(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$")
    ]
    reason: Reason


class ProfileData(Model):
    """A flavour of a sandbox. `uid` and `gid` are ids inside; `path` is used for images without
    a PATH of their own."""

    version: Literal[1]
    name: Profile
    reason: Reason
    uid: Reasoned[Annotated[int, Field(ge=0, le=65533)]]
    gid: Reasoned[Annotated[int, Field(ge=0, le=65533)]]
    user: Reasoned[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]]
    home: Reasoned[AbsolutePath]
    capabilities: tuple[Capability, ...]
    system_writable: Reasoned[bool]
    tmpfs: tuple[TmpfsPlace, ...]
    path: Reasoned[Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9._/-]+:?)+$")]]
    env: tuple[Variable, ...]
    masked: tuple[KernelPath, ...]
    readonly: tuple[KernelPath, ...]
    seccomp: Reasoned[Name]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if sum(place.share_1024 for place in self.tmpfs) > PLACES_PARTS:
            raise ValueError(f"the tmpfs places take more than {PLACES_PARTS}/{MEMORY_PARTS}")
        if self.home.value not in {place.path for place in self.tmpfs}:
            raise ValueError("home must be one of the tmpfs places, else it isn't writable")
        for place in self.tmpfs:
            if any(objects.covers_path(top, place.path) for top in (WORKSPACE, TMP)):
                raise ValueError("/workspace and /tmp are the lease's, not the profile's")
        for what, names in (
            ("capabilities", [item.name for item in self.capabilities]),
            ("tmpfs", [item.path for item in self.tmpfs]),
            ("env", [item.name for item in self.env]),
            ("masked and readonly", [item.path for item in self.masked + self.readonly]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what} names something twice")
        return self

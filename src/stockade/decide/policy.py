"""The policy data as one value, and the parsers of its files.

A file is closed like every other input: an unknown, missing or doubled key is an error, never a
default, and a rule without a reason is not a rule. Reading the files is the host's
(`host.policy_files`); here are bytes in and values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from pydantic import ValidationError

from stockade.decide.canonical import parse_strict
from stockade.decide.grant_file import CeilingFile, GrantFile
from stockade.decide.profile_file import ProfileData
from stockade.decide.redaction_file import RedactionFile, TokenPattern
from stockade.decide.seccomp import SeccompPolicy
from stockade.terms.base import Model, first_finding
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.grant import Grant, Profile

MAX_FILE_BYTES: Final = 1 << 20
_File = TypeVar("_File", bound=Model)


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything under `policy/`, checked. `seccomp` is keyed by `SeccompPolicy.ref`, which plans
    carry; the other tables by name."""

    grants: Mapping[str, GrantFile]
    ceilings: Mapping[str, CeilingFile]
    profiles: Mapping[Profile, ProfileData]
    seccomp: Mapping[str, SeccompPolicy]
    redaction: tuple[TokenPattern, ...] = ()

    def grant(self, name: str) -> Grant:
        """The grant file's components. Raises Failure(invalid_argument) for an unknown name."""
        found = self.grants.get(name)
        if found is None:
            raise failure(
                Code.INVALID_ARGUMENT, "there is no such grant file", grants=tuple(self.grants)
            )
        return found.grant()

    def ceiling(self, name: str) -> CeilingFile:
        """Raises Failure(invalid_argument) for an unknown name."""
        found = self.ceilings.get(name)
        if found is None:
            raise failure(
                Code.INVALID_ARGUMENT,
                "there is no such ceiling file",
                ceilings=tuple(self.ceilings),
            )
        return found

    def seccomp_ref(self, profile: ProfileData) -> str:
        """The ref of the list that `profile` names."""
        return next(ref for ref, item in self.seccomp.items() if item.name == profile.seccomp.value)


def make_policy(
    grants: tuple[GrantFile, ...],
    ceilings: tuple[CeilingFile, ...],
    profiles: tuple[ProfileData, ...],
    seccomp: tuple[SeccompPolicy, ...],
    redaction: tuple[RedactionFile, ...] = (),
) -> Policy:
    """Put the files together. Raises ValueError where one names another that isn't there."""
    if {profile.name for profile in profiles} != set(Profile):
        raise ValueError("there must be one profile file for each profile")
    for profile in profiles:
        if profile.seccomp.value not in {item.name for item in seccomp}:
            raise ValueError(f"profile {profile.name} names an unknown seccomp list")
    return Policy(
        grants=MappingProxyType({item.name: item for item in grants}),
        ceilings=MappingProxyType({item.name: item for item in ceilings}),
        profiles=MappingProxyType({item.name: item for item in profiles}),
        seccomp=MappingProxyType({item.ref: item for item in seccomp}),
        redaction=tuple(pattern for file in redaction for pattern in file.patterns),
    )


def parse_grant(data: bytes) -> GrantFile:
    """Raises ValueError, whose text names the place in the file."""
    return _parse(GrantFile, data)


def parse_ceiling(data: bytes) -> CeilingFile:
    """Raises ValueError, whose text names the place in the file."""
    return _parse(CeilingFile, data)


def parse_profile(data: bytes) -> ProfileData:
    """Raises ValueError, whose text names the place in the file."""
    return _parse(ProfileData, data)


def parse_seccomp(data: bytes) -> SeccompPolicy:
    """Raises ValueError, whose text names the place in the file."""
    return _parse(SeccompPolicy, data)


def parse_redaction(data: bytes) -> RedactionFile:
    """Raises ValueError, whose text names the place in the file."""
    return _parse(RedactionFile, data)


def _parse(model: type[_File], data: bytes) -> _File:
    try:
        # Doubled keys and the like: pydantic's reader would take the last one.
        parse_strict(data, MAX_FILE_BYTES, floats=False)
        return model.model_validate_json(data)
    except Failure as error:
        raise ValueError(error.fault.message) from None
    except ValidationError as error:
        place, reason = first_finding(error)
        raise ValueError(f"{place or 'the file'}: {reason}") from None

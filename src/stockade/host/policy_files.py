"""Reads the policy data: shipped inside the package, or the repository's own in a checkout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from stockade.decide import policy
from stockade.decide.grant_file import CeilingFile, GrantFile
from stockade.decide.policy import MAX_FILE_BYTES, Policy
from stockade.host.data import data_directory
from stockade.terms.fault import Code, Failure, failure
from stockade.tools.catalog import unknown_name


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Item = TypeVar("_Item", bound=_Named)


def load_policy(directory: Path | None = None) -> Policy:
    """Everything under `directory` (default: what the package ships), checked.

    Raises Failure(internal) that names the file and the place in it. There is no partial policy:
    one bad file and nothing starts.
    """
    root = data_directory("policy") if directory is None else directory
    try:
        made = policy.make_policy(
            grants=_read(root / "grants", policy.parse_grant),
            ceilings=_read(root / "ceilings", policy.parse_ceiling),
            profiles=_read(root / "profiles", policy.parse_profile),
            seccomp=_read(root / "seccomp", policy.parse_seccomp),
            redaction=_read(root / "redaction", policy.parse_redaction),
        )
    except ValueError as error:
        raise _bad(root, str(error)) from error
    for folder, files in (("grants", made.grants), ("ceilings", made.ceilings)):
        for file in files.values():
            wrong = next(_unknown_names(file), None)
            if wrong is not None:
                raise _bad(root / folder / f"{file.name}.json", wrong)
    return made


def _unknown_names(file: GrantFile) -> Iterator[str]:
    """A check, a rule or a price that names no tool would hold for no call, and nobody would see it
    missing."""
    grant = file.grant()
    named: list[tuple[str, str, str | None]] = [("tools", tool, None) for tool in grant.tools]
    named += [("checks", check.tool, check.argument) for check in grant.checks]
    named += [("approve", rule.tool, rule.argument) for rule in grant.approve]
    if isinstance(file, CeilingFile):
        named += [("prices.call", tool, None) for tool in file.prices.call.value]
    for place, tool, argument in named:
        wrong = unknown_name(tool, argument)
        if wrong is not None:
            yield f"{place}: {wrong}"


def _read(directory: Path, parse: Callable[[bytes], _Item]) -> tuple[_Item, ...]:
    try:
        files = sorted(directory.iterdir())
    except OSError as error:
        raise _bad(directory, error.strerror or "unreadable") from error
    items = []
    for file in files:
        if file.suffix != ".json":
            raise _bad(file, "only .json files belong here")
        try:
            with file.open("rb") as stream:
                item = parse(stream.read(MAX_FILE_BYTES + 1))
        except OSError as error:
            raise _bad(file, error.strerror or "unreadable") from error
        except ValueError as error:
            raise _bad(file, str(error)) from error
        if item.name != file.stem:
            raise _bad(file, f"the name inside is {item.name!r}")
        items.append(item)
    return tuple(items)


def _bad(place: Path, message: str) -> Failure:
    return failure(Code.INTERNAL, f"policy data: {place.parent.name}/{place.name}: {message}")

r"""The links of a chain, and grants that are known by their texts.

A link is a block as `tokens` needs it: what it grants, and what is its own (names, lease, times).
What blocks grant comes again and again: roots are made from grant files, children are narrowed in
the same ways. So `Grants` remembers what accepted blocks grant by the part of their bytes that
says it, and a block with that part is cut in two by one pattern and not read: its own part holds
a few names and numbers.

Only that is a link which the reference (`tokentext.read_blocks`) accepts, and it is the same one;
None leaves the block to the reference. A block is in its one form if each member is, in order: the
normal form looks at no two components at once, and what the pattern takes as a number, a name or a
binding has no other spelling. Nothing rests on where the pattern cuts hostile bytes: whatever is
not one of those must be known as a whole, with the names in it.

An entry can't be out of date. It says what bytes mean, not whose they are or how long they hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from pydantic import ValidationError

from stockade.decide.memory import Memory
from stockade.decide.plain import lease_text
from stockade.terms.base import MAX_INTEGER
from stockade.terms.grant import TOKEN_VERSION, Block, Grant, LeaseBinding
from stockade.terms.ids import NAME_PATTERN, TENANT_PATTERN, TRAJECTORY_PATTERN

_NUMBER: Final = "(?:0|[1-9][0-9]{0,15})"
_NAMES: Final = r"\[[^]]*+\]"
_OBJECT: Final = r"\{[^}]*+\}"


def _part(name: str, pattern: str) -> str:
    return f"(?P<{name}>{pattern.removeprefix('^').removesuffix('$')})"


def _texts(opening: str, closing: str, following: str) -> str:
    """A value whose texts may hold brackets: it ends where the member `following` begins. Atomic:
    a pattern that tried each end of each value took 0.2 s for 4 KiB of hostile bytes."""
    return rf'\{opening}(?>(?:[^{closing}]*+\{closing})+?(?=,"{following}":))'


_BLOCK: Final = re.compile(
    r"\{"
    + _part(
        "head",
        rf'"approve":{_texts("[", "]", "checks")},"checks":{_texts("[", "]", "deny")}'
        rf',"deny":{_texts("[", "]", "depth")},"depth":[0-9]++',
    )
    + rf'(?:,"kid":"{_part("kid", NAME_PATTERN)}")?'
    + rf',"lease":{_part("lease", f"null|{_OBJECT}")}'
    + rf',"not_after_s":{_part("not_after_s", _NUMBER)}'
    + rf',"not_before_s":{_part("not_before_s", _NUMBER)},'
    + _part(
        "middle",
        rf'"per_call":{_OBJECT},"per_lease":{_OBJECT},"scope":{_texts("{", "}", "system")}'
        rf',"system":{_OBJECT}',
    )
    + rf'(?:,"tenant":"{_part("tenant", TENANT_PATTERN)}")?,'
    + _part("tail", rf'"tools":{_NAMES},"total":{_OBJECT}')
    + rf'(?:,"trajectory":"{_part("trajectory", TRAJECTORY_PATTERN)}","v":{TOKEN_VERSION})?\}}'
)
_GRANT: Final = ("head", "middle", "tail")
_OWN: Final = ("lease", "not_before_s", "not_after_s", "kid", "tenant", "trajectory")
_MODELS: Final = ("scope", "system", "per_call", "per_lease", "total")
_GrantText: TypeAlias = tuple[str | None, ...]


class Link(NamedTuple):
    """A block of a chain; the names are None in all but the root."""

    grant: Grant
    lease: LeaseBinding | None
    not_before_s: int
    not_after_s: int
    kid: str | None
    tenant: str | None
    trajectory: str | None


def link_of(block: Block, parent: Link | None = None) -> Link:
    """What equals the parent's is the parent's own object: it needs no comparison then."""
    values = {name: getattr(block, name) for name in Grant.model_fields}
    if parent is not None:
        for name, theirs in vars(parent.grant).items():
            mine = values[name]
            # A fifth of the time that the models' own comparison takes.
            same = vars(mine) == vars(theirs) if name in _MODELS else mine == theirs
            if same:
                values[name] = theirs
    return Link(
        Grant.model_construct(**values),
        block.lease,
        block.not_before_s,
        block.not_after_s,
        block.kid,
        block.tenant,
        block.trajectory,
    )


class Grants:
    """What accepted blocks grant, by their texts. Threads may share it, as they may a `Memory`."""

    __slots__ = ("_known",)

    def __init__(self, size: int) -> None:
        self._known: Memory[_GrantText, Grant] = Memory(size)

    def links(self, raws: Sequence[bytes]) -> list[Link | None]:
        """The links of a chain, None for each that only the reference can read."""
        links: list[Link | None] = []
        # A child is mostly bound to what its parent is.
        bindings: dict[str, LeaseBinding | None] = {"null": None}
        for raw in raws:
            found = _cut(raw)
            grant = None if found is None else self._known.get(found.group(*_GRANT))
            if found is None or grant is None:
                links.append(None)
            else:
                links.append(_link(found, grant, bindings, root=not links))
        return links

    def learn(self, raw: bytes, link: Link) -> None:
        """`raw` is a block of an accepted token, `link` what the reference made of it."""
        found = _cut(raw)
        if found is not None:
            self._known.put(found.group(*_GRANT), link.grant)


def _link(
    found: re.Match[str], grant: Grant, bindings: dict[str, LeaseBinding | None], *, root: bool
) -> Link | None:
    lease, not_before, not_after, kid, tenant, trajectory = found.group(*_OWN)
    if (kid, tenant, trajectory).count(None) != (0 if root else 3):
        return None
    start, end = int(not_before), int(not_after)
    if start > MAX_INTEGER or end > MAX_INTEGER:
        return None
    if lease not in bindings:
        binding = _binding(lease)
        if binding is None:
            return None
        bindings[lease] = binding
    return Link(grant, bindings[lease], start, end, kid, tenant, trajectory)


def _cut(raw: bytes) -> re.Match[str] | None:
    try:
        return _BLOCK.fullmatch(raw.decode())
    except UnicodeDecodeError:
        return None


def _binding(text: str) -> LeaseBinding | None:
    """A binding in its canonical form, else None."""
    try:
        lease = LeaseBinding.model_validate_json(text)
    except ValidationError:
        return None
    return lease if lease_text(lease) == text else None

r"""The links of a chain, and grants that are known by their texts.

A link is a block as `tokens` needs it: what it grants, and what is its own (names, lease, times).
What blocks grant comes again and again: roots are made from grant files, children are narrowed in
the same ways. So `Grants` remembers what accepted blocks grant by the part of their bytes that
says it, and of a block with that part only the rest is read: its own part, which holds a few names
and numbers. `Admitted` remembers which chains of grants were found to narrow.

Only that is a link which the reference (`tokentext.read_blocks`) accepts, and it is the same one;
None leaves the block to the reference. A block is in its one form if each member is, in order: the
normal form looks at no two components at once, and what the patterns take as a number, a name or a
binding has no other spelling. Nothing rests on where they cut hostile bytes: whatever is not one of
those must be known as a whole, with the names in it.

An entry can't be out of date. It says what bytes mean, or how two grants compare; not whose they
are or how long they hold.
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


def _part(name: str, pattern: str) -> str:
    return f"(?P<{name}>{pattern.removeprefix('^').removesuffix('$')})"


# The own part of a block, and what else a root has of its own. Each is looked for once, by its
# first key: a search that tried every place would take the square of the length of hostile bytes.
_OWN_KEY, _ROOT_KEY, _NAMES_KEY = ',"lease":', ',"kid":', ',"tenant":'
_OWN: Final = re.compile(
    rf'(?:{_ROOT_KEY}"{_part("kid", NAME_PATTERN)}")?'
    rf"{_OWN_KEY}{_part('lease', r'null|{[^}]*+}')}"
    rf',"not_after_s":{_part("not_after_s", _NUMBER)}'
    rf',"not_before_s":{_part("not_before_s", _NUMBER)},'
)
_NAMES: Final = re.compile(
    rf'{_NAMES_KEY}"{_part("tenant", TENANT_PATTERN)}"'
    + _part("tail", r',"tools":\[[^]]*+\],"total":{[^}]*+}')
    + rf',"trajectory":"{_part("trajectory", TRAJECTORY_PATTERN)}","v":{TOKEN_VERSION}}}'
)
_MODELS: Final = ("scope", "system", "per_call", "per_lease", "total")
_GrantText: TypeAlias = tuple[str, ...]


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
        # A child is mostly bound to what its parent is.
        bindings: dict[str, LeaseBinding | None] = {"null": None}
        return [self._link(raw, bindings, place == 0) for place, raw in enumerate(raws)]

    def learn(self, raw: bytes, link: Link) -> None:
        """`raw` is a block of an accepted token, `link` what the reference made of it."""
        found = _cut(raw, link.kid is not None)
        if found is not None:
            self._known.put(found[0], link.grant)

    def _link(
        self, raw: bytes, bindings: dict[str, LeaseBinding | None], root: bool
    ) -> Link | None:
        found = _cut(raw, root)
        if found is None:
            return None
        text, own, (tenant, trajectory) = found
        grant = self._known.get(text)
        if grant is None:
            return None
        kid, lease, not_after, not_before = own.groups()
        start, end = int(not_before), int(not_after)
        if start > MAX_INTEGER or end > MAX_INTEGER:
            return None
        if lease not in bindings:
            binding = _binding(lease)
            if binding is None:
                return None
            bindings[lease] = binding
        return Link(grant, bindings[lease], start, end, kid, tenant, trajectory)


class Admitted:
    """Chains of grants that are supported, each no wider than the one before it.

    They are known by the ids of their objects, since to hash a grant takes as long as to compare
    it. An entry holds its objects, so no others have these ids while it is there. Threads may
    share it."""

    __slots__ = ("_known",)

    def __init__(self, size: int) -> None:
        self._known: Memory[tuple[int, ...], tuple[Grant, ...]] = Memory(size)

    def __contains__(self, grants: tuple[Grant, ...]) -> bool:
        return self._known.get(tuple(map(id, grants))) is not None

    def add(self, grants: tuple[Grant, ...]) -> None:
        self._known.put(tuple(map(id, grants)), grants)


def _cut(
    raw: bytes, root: bool
) -> tuple[_GrantText, re.Match[str], tuple[str | None, str | None]] | None:
    """What a block grants, its own part, and a root's tenant and trajectory."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    own = _OWN.match(text, text.find(_ROOT_KEY if root else _OWN_KEY))
    if own is None:
        return None
    start, end = own.span()
    if not root:
        return (text[:start], text[end:]), own, (None, None)
    names = _NAMES.fullmatch(text, text.find(_NAMES_KEY, end))
    if names is None:
        return None
    tenant, tail, trajectory = names.group("tenant", "tail", "trajectory")
    return (text[:start], text[end : names.start()], tail), own, (tenant, trajectory)


def _binding(text: str) -> LeaseBinding | None:
    """A binding in its canonical form, else None."""
    try:
        lease = LeaseBinding.model_validate_json(text)
    except ValidationError:
        return None
    return lease if lease_text(lease) == text else None

r"""Plain blocks, whose canonical and normal form is recognized without writing it.

A block is accepted if writing its normal form gives its bytes again (`tokentext`). That takes
0.1 ms a block, most of it in walks of single characters. Nearly all blocks are plain: no
destination, check or approval, and paths of printable ASCII. For such a block the bytes are held
against one template, and its lists against what the normal form asks of them.

Only "yes" means anything. A "no" leaves the block to the reference, `blocks.normal` and RFC 8785,
so this module can be incomplete, and a component that a later version adds is slow until it is
added here. A law in tests/laws holds every "yes" against the reference.

Why bytes that equal the template are canonical: its keys are in order and there is no space; the
texts in it stand there without an escape, and JSON that was read as the same text from the same
bytes holds none that needs one.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Final

from stockade.terms.base import Model
from stockade.terms.grant import Block, LeaseBinding, PerCall, PerLease, Total

# What `objects.parse_path` gives back unchanged, of printable ASCII without the backslash.
_PATH: Final = re.compile(r"/|(?:/(?!\.{1,2}(?:/|\Z))[ -.0-\[\]-~]+)+")


def _numbers(component: str, model: type[Model]) -> tuple[str, tuple[str, ...]]:
    """The template of a component that holds numbers only, and where they come from."""
    names = sorted(model.model_fields)
    inner = ",".join(f'"{name}":%d' for name in names)
    return f'"{component}":{{{inner}}}', tuple(f"{component}.{name}" for name in names)


_PER_CALL, _PER_CALL_FIELDS = _numbers("per_call", PerCall)
_PER_LEASE, _PER_LEASE_FIELDS = _numbers("per_lease", PerLease)
_TOTAL, _TOTAL_FIELDS = _numbers("total", Total)
_HEAD: Final = '{"approve":[],"checks":[],"deny":%s,"depth":%d,'
_REST: Final = (
    '"lease":%s,"not_after_s":%d,"not_before_s":%d,'
    f"{_PER_CALL},{_PER_LEASE},"
    '"scope":{"connect":[],"execute":%s,"read":%s,"write":%s},'
    '"system":{"images":%s,"profile":"%s","tier_min":"%s"},'
)
_CHILD: Final = f'{_HEAD}{_REST}"tools":%s,{_TOTAL}}}'
_ROOT: Final = (
    f'{_HEAD}"kid":"%s",{_REST}"tenant":"%s","tools":%s,{_TOTAL},"trajectory":"%s","v":%d}}'
)
_middle: Final = attrgetter("not_after_s", "not_before_s", *_PER_CALL_FIELDS, *_PER_LEASE_FIELDS)
_totals: Final = attrgetter(*_TOTAL_FIELDS)


def is_plain(block: Block, raw: bytes) -> bool:
    """Whether `block`, which was read from `raw`, is a plain one in canonical and normal form."""
    scope, system, tools = block.scope, block.system, block.tools
    read = scope.read
    if (
        scope.connect
        or block.checks
        or block.approve
        or not (_is_normal(read) and _is_normal(scope.execute) and _is_normal(block.deny))
        or not (scope.write == read or (_is_normal(scope.write) and _within(scope.write, read)))
        or not (_ascends(tools) and _ascends(system.images))
    ):
        return False
    first: tuple[object, ...] = (_list(block.deny), block.depth)
    middle = (
        lease_text(block.lease),
        *_middle(block),
        _list(scope.execute),
        _list(read),
        _list(scope.write),
        _list(system.images),
        system.profile,
        system.tier_min,
    )
    totals = (_list(tools), *_totals(block))
    if block.v is None:
        text = _CHILD % (first + middle + totals)
    else:
        text = _ROOT % (
            *first,
            block.kid,
            *middle,
            block.tenant,
            *totals,
            block.trajectory,
            block.v,
        )
    return text.encode() == raw


def _is_normal(paths: tuple[str, ...]) -> bool:
    """In ascending order, each in its one spelling, and none below another."""
    for path in paths:
        if not _PATH.fullmatch(path):
            return False
    if len(paths) < 2:
        return True
    borders = _borders(paths)
    return _ascends(paths) and paths[0] != "/" and not any(p.startswith(borders) for p in paths)


def _within(inner: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    borders = ("/",) if outer == ("/",) else _borders(outer)
    return all(path in outer or path.startswith(borders) for path in inner)


def _borders(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([path + "/" for path in paths])


def _ascends(texts: tuple[str, ...]) -> bool:
    last = ""
    for text in texts:
        if text <= last:
            return False
        last = text
    return True


def _list(texts: tuple[str, ...]) -> str:
    return '["' + '","'.join(texts) + '"]' if texts else "[]"


def lease_text(lease: LeaseBinding | None) -> str:
    """The canonical text of a binding."""
    if lease is None:
        return "null"
    nonce = "" if lease.nonce is None else f',"nonce":"{lease.nonce}"'
    return f'{{"generation":{lease.generation},"id":"{lease.id}"{nonce}}}'

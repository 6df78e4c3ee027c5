"""Laws of the capability algebra, as properties over generated grants, chains and spellings.

The reference for "covers" here is written over component and label lists, not over the strings
that the package compares, and signatures are made by hand where the package would refuse to.
"""

from __future__ import annotations

import functools
import hmac
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stockade.decide.attenuation import exceeds, meet, wider_link
from stockade.decide.authorize import allowed_path, authorize, path_scope
from stockade.decide.blocks import block_bytes, grant_of, normal, root_block
from stockade.decide.checks import approvals_needed
from stockade.decide.links import link_of
from stockade.decide.objects import (
    antichain,
    covers_connect,
    covers_host,
    covers_path,
    normal_connect,
    normalize_call_path,
    parse_host,
    parse_host_pattern,
    parse_path,
)
from stockade.decide.tokens import KeyRing, attenuate, mint, verify
from stockade.decide.tokentext import join, split
from stockade.terms.call import Right
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import (
    ApprovalRule,
    Block,
    Check,
    CheckOneOf,
    CheckPattern,
    CheckPrefix,
    CheckRange,
    Connect,
    ConnectBroker,
    ConnectCidr,
    ConnectHost,
    Grant,
    LeaseBinding,
    PerCall,
    PerLease,
    Profile,
    Scope,
    System,
    Tier,
    Total,
)
from tests.grants import NO_BUDGET, lease_of

RING = KeyRing({"k1": bytes(range(32))})
NOW = 1000
LEASE = LeaseBinding(id="ls_00112233445566aa", generation=1)

# A small alphabet of components makes coverage and near misses (a, ab, a-b) common.
COMPONENT = st.sampled_from(["a", "b", "ab", "a-b", "a.b", "é", "\\xff"])
PATH = st.lists(COMPONENT, max_size=3).map(lambda parts: "/" + "/".join(parts))
PATHS = st.lists(PATH, max_size=4).map(tuple)
LABEL = st.sampled_from(["a", "b", "ab", "a-b", "test"])
HOST = st.lists(LABEL, min_size=1, max_size=3).map(".".join)
PATTERN = HOST | HOST.map(lambda host: "*." + host)
NAMES = st.sets(st.sampled_from(["x", "y", "z"])).map(lambda names: tuple(sorted(names)))
SMALL = st.integers(0, 3)
PORTS = st.lists(st.sampled_from([53, 80, 443]), max_size=3).map(tuple)
CIDR = st.sampled_from(
    ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "11.0.0.0/8", "::/0", "fd00::/8"]
)
CONNECT: st.SearchStrategy[Connect] = st.one_of(
    st.builds(ConnectHost, kind=st.just("host"), host=PATTERN, ports=PORTS, tls=st.booleans()),
    st.builds(ConnectCidr, kind=st.just("cidr"), cidr=CIDR, ports=PORTS),
    st.builds(
        ConnectBroker,
        kind=st.just("broker"),
        name=st.sampled_from(["x", "y"]),
        methods=st.lists(st.sampled_from(["GET", "PUT"]), max_size=2).map(tuple),
        paths=st.lists(st.sampled_from(["/", "/a", "/a/b", "/ab"]), max_size=2).map(tuple),
    ),
)


TOOL = st.sampled_from(["x", "y"])
ARGUMENT = st.sampled_from(["path", "text", "count"])
REGEX = st.sampled_from(["a*", "[ab]+", "/workspace/(a|b)", ".*", "[0-9]", "true"])
WORDS = st.sampled_from(["a", "aa", "b", "", "1", "true", "/workspace/a", "é"])
CHECK: st.SearchStrategy[Check] = st.one_of(
    st.builds(CheckPattern, kind=st.just("pattern"), tool=TOOL, argument=ARGUMENT, pattern=REGEX),
    st.builds(
        CheckOneOf,
        kind=st.just("one_of"),
        tool=TOOL,
        argument=st.sampled_from(["text", "count"]),
        values=st.lists(WORDS, min_size=1, max_size=3).map(tuple),
    ),
    st.builds(
        CheckRange,
        kind=st.just("range"),
        tool=TOOL,
        argument=ARGUMENT,
        minimum=st.integers(-1, 1),
        maximum=st.integers(1, 3),
    ),
    st.builds(
        CheckPrefix,
        kind=st.just("prefix"),
        tool=TOOL,
        argument=ARGUMENT,
        paths=st.lists(PATH, min_size=1, max_size=3).map(tuple),
    ),
)
RULE = st.builds(ApprovalRule, tool=TOOL, argument=st.none(), pattern=st.none()) | st.builds(
    ApprovalRule, tool=TOOL, argument=ARGUMENT, pattern=REGEX
)
CHECKS = st.lists(CHECK, max_size=3).map(tuple)
RULES = st.lists(RULE, max_size=2).map(tuple)
ARGUMENTS = st.dictionaries(
    ARGUMENT,
    st.one_of(
        WORDS, PATH, st.integers(-2, 4), st.booleans(), st.none(), st.just(1.5), st.just(["a"])
    ),
)


@st.composite
def grants(draw: st.DrawFn, *, supported: bool = False) -> Grant:
    """Any grant in normal form; with `supported`, one that a token may hold today."""
    read = draw(PATHS)
    below = st.tuples(st.sampled_from(read), PATHS) if read else st.just(("/", ()))
    prefix, paths = draw(below)
    write = tuple(prefix.rstrip("/") + path.rstrip("/") or "/" for path in paths)
    connect = () if supported else draw(st.lists(CONNECT, max_size=3).map(tuple))
    return normal(
        Grant(
            scope=Scope(read=read, write=write, execute=draw(PATHS), connect=connect),
            deny=draw(PATHS),
            tools=draw(NAMES),
            system=System(
                profile=draw(st.sampled_from(Profile)),
                images=draw(NAMES),
                tier_min=draw(st.sampled_from(Tier)),
            ),
            per_call=draw(numbers(PerCall)),
            per_lease=draw(numbers(PerLease)),
            total=draw(st.just(NO_BUDGET) | numbers(Total)),
            depth=draw(st.integers(0, 16)),
            checks=draw(CHECKS),
            approve=draw(RULES),
        )
    )


def numbers(model: Any) -> st.SearchStrategy[Any]:
    return st.builds(model, **dict.fromkeys(model.model_fields, SMALL))


@st.composite
def below(draw: st.DrawFn, grant: Grant) -> Grant:
    """A grant that is often, but not always, no wider than `grant`."""
    other = draw(grants())
    return draw(st.sampled_from([other, meet(grant, other), grant]))


@st.composite
def chains(draw: st.DrawFn) -> tuple[Block, Block]:
    """A root and a candidate for its child, each with values that a token may hold; the child is
    wider in about every second chain."""
    first, second = draw(grants(supported=True)), draw(grants(supported=True))
    root = root_block(first, "acme", "run-1", "k1", draw(SMALL), NOW + draw(SMALL) + 1)
    base = draw(st.sampled_from([meet(first, second), meet(first, second), second]))
    lower = max(0, root.depth - 1)
    fields = {name: getattr(base, name) for name in Grant.model_fields}
    fields["depth"] = draw(st.sampled_from([lower, lower, 0, 16]))
    fields["lease"] = draw(st.sampled_from([None, LEASE]))
    fields["not_before_s"] = root.not_before_s + draw(st.sampled_from([0, 0, 0, 1]))
    fields["not_after_s"] = root.not_after_s + draw(st.sampled_from([0, 0, 0, -1, 1]))
    return root, Block(**fields)


def appended(token: str, child: Block) -> str:
    """What a holder can always make: the child's bytes, signed with the signature carried."""
    text, raw = split(token), block_bytes(child)
    return join((*text.blocks, raw), hmac.digest(text.signature, raw, "sha256"))


def code_of(token: str, now_s: int = NOW) -> Code | None:
    try:
        verify(token, RING, now_s)
    except Failure as error:
        return error.fault.code
    return None


@given(grants(), grants(), grants())
def test_no_wider_than_is_a_partial_order(a: Grant, b: Grant, c: Grant) -> None:
    assert exceeds(a, a) is None
    if exceeds(a, b) is None and exceeds(b, a) is None:
        assert a == b
    low = meet(meet(a, b), c)
    for x, y, z in ((a, b, c), (low, meet(a, b), a)):
        if exceeds(x, y) is None and exceeds(y, z) is None:
            assert exceeds(x, z) is None


@given(st.data(), grants())
def test_equal_grants_are_the_only_ones_below_each_other(data: st.DataObject, a: Grant) -> None:
    b = data.draw(below(a))
    if exceeds(a, b) is None and exceeds(b, a) is None:
        assert a == b


@given(st.data(), grants(), grants())
def test_meet_is_the_greatest_lower_bound(data: st.DataObject, a: Grant, b: Grant) -> None:
    both = meet(a, b)
    assert exceeds(both, a) is None
    assert exceeds(both, b) is None
    assert both == meet(b, a) == normal(both)
    assert meet(a, a) == a
    c = data.draw(below(both))
    if exceeds(c, a) is None and exceeds(c, b) is None:
        assert exceeds(c, both) is None


@given(grants(), grants())
def test_a_grant_meets_its_ceiling_unchanged_iff_it_is_within(a: Grant, b: Grant) -> None:
    assert (meet(a, b) == a) == (exceeds(a, b) is None)


@given(chains())
def test_attenuate_accepts_exactly_what_verify_accepts(chain: tuple[Block, Block]) -> None:
    root, child = chain
    token = mint(RING, "k1", root)
    forced = appended(token, child)
    if wider_link(link_of(child), link_of(root)) is None:
        assert attenuate(token, child) == forced
        assert code_of(forced) in (None, Code.TOKEN_EXPIRED)
    else:
        with pytest.raises(Failure) as caught:
            attenuate(token, child)
        assert caught.value.fault.code is code_of(forced) is Code.WIDER_BLOCK


@given(chains(), chains())
def test_no_chain_that_verifies_is_wider_than_any_of_its_blocks(
    first: tuple[Block, Block], second: tuple[Block, Block]
) -> None:
    root, child = first
    token = appended(mint(RING, "k1", root), child)
    if code_of(token) is None:
        permit = verify(token, RING, NOW)
        assert permit.grant == grant_of(child)
        assert exceeds(permit.grant, grant_of(root)) is None
        assert permit.not_after_s <= root.not_after_s
        longer = appended(token, second[1])
        if code_of(longer) is None:
            assert exceeds(verify(longer, RING, NOW).grant, permit.grant) is None


RIGHTS = st.builds(
    Right,
    right=st.sampled_from(["read", "write", "execute", "connect"]),
    object=PATH | HOST.map(lambda host: host + ":443"),
)


@st.composite
def long_chains(draw: st.DrawFn) -> tuple[Block, ...]:
    """A root and up to four blocks, each no wider than the one before."""
    first = draw(grants(supported=True)).model_copy(update={"depth": 16})
    blocks = [root_block(first, "acme", "run-1", "k1", draw(SMALL), NOW + 4)]
    for _ in range(draw(st.integers(0, 4))):
        parent = blocks[-1]
        low = meet(grant_of(parent), draw(grants(supported=True)))
        fields = {name: getattr(low, name) for name in Grant.model_fields}
        fields["depth"] = parent.depth - draw(st.integers(1, 3))
        fields["lease"] = parent.lease or draw(st.sampled_from([None, LEASE]))
        fields["not_before_s"] = parent.not_before_s + draw(st.integers(0, 1))
        fields["not_after_s"] = parent.not_after_s - draw(st.integers(0, 1))
        blocks.append(Block(**fields))
    return tuple(blocks)


@given(long_chains())
def test_the_meet_of_a_chain_is_below_every_block_and_is_what_is_permitted(
    blocks: tuple[Block, ...],
) -> None:
    token = mint(RING, "k1", blocks[0])
    for block in blocks[1:]:
        token = attenuate(token, block)
    lowest = functools.reduce(meet, map(grant_of, blocks))
    for block in blocks:
        assert exceeds(lowest, grant_of(block)) is None
    latest = max(block.not_before_s for block in blocks)
    earliest = min(block.not_after_s for block in blocks)
    if latest >= earliest:
        assert code_of(token, latest) is Code.TOKEN_EXPIRED
        return
    permit = verify(token, RING, latest)
    assert permit.grant == lowest
    assert permit.totals == tuple(block.total for block in blocks)
    assert permit.not_after_s == earliest
    assert code_of(token, earliest) is Code.TOKEN_EXPIRED
    assert code_of(token, latest - 1) is Code.TOKEN_NOT_YET_VALID


@given(chains(), st.lists(RIGHTS, max_size=2), st.sampled_from(["x", "y", "z"]), PATH, ARGUMENTS)
def test_a_child_is_never_allowed_what_its_parent_is_not(
    chain: tuple[Block, Block], rights: list[Right], tool: str, path: str, arguments: Any
) -> None:
    root, child = chain
    bound = root.model_copy(update={"lease": LEASE})
    token = mint(RING, "k1", bound)
    longer = appended(token, child.model_copy(update={"lease": LEASE}))
    assume(code_of(longer) is None)
    parent, permit = verify(token, RING, NOW), verify(longer, RING, NOW)
    record = lease_of(parent, token=token)

    def allowed(who: Any) -> bool:
        try:
            authorize(who, tool, rights, arguments, record)
        except Failure:
            return False
        return True

    assert allowed(parent) or not allowed(permit)
    for right in ("read", "write"):
        if allowed_path(path_scope(permit, "x"), path, right):
            assert allowed_path(path_scope(parent, "x"), path, right)
    if approvals_needed(permit, tool, arguments) is None:
        assert approvals_needed(parent, tool, arguments) is None
    assert not allowed(replace(permit, generation=2))


SPELLED = st.text(
    st.sampled_from("ab/.\\x2eé\x00\n") | st.characters(exclude_categories=()), max_size=12
).map(lambda text: "/" + text)


@given(SPELLED)
def test_a_path_that_a_parser_accepts_has_no_way_up(text: str) -> None:
    try:
        path = parse_path(text)
    except ValueError:
        return
    parts = path.split("/")[1:]
    assert path == "/" or not {"", ".", ".."} & set(parts)
    assert parse_path(path) == path
    assert all(ord(char) >= 0x20 for char in path)


@given(PATH, SPELLED | PATH)
def test_no_path_escapes_its_prefix_by_spelling(prefix: str, path: str) -> None:
    """Coverage is a comparison of component lists, and dots are never covered."""
    inside = path.split("/") if path != "/" else [""]
    above = prefix.split("/") if prefix != "/" else [""]
    clean = not {"", ".", ".."} & set(inside[1:])
    assert covers_path(prefix, path) == (clean and inside[: len(above)] == above)


@given(st.lists(PATH, max_size=6))
def test_an_antichain_grants_the_same_and_repeats_nothing(paths: list[str]) -> None:
    kept = antichain(tuple(paths))
    assert set(kept) <= set(paths)
    for path in paths:
        assert any(covers_path(prefix, path) for prefix in kept)
    for a in kept:
        assert [b for b in kept if covers_path(b, a)] == [a]
    assert list(kept) == sorted(set(kept))


@given(st.text(st.sampled_from("ab/.~ "), min_size=1, max_size=12))
def test_a_call_path_keeps_its_meaning(text: str) -> None:
    """Folding drops what a kernel ignores, and keeps each `..` and its order."""
    raw = normalize_call_path(text).decode()
    whole = text if text.startswith("/") else "/workspace/" + text
    assert raw.split("/")[1:] == [part for part in whole.split("/") if part not in ("", ".")] or [
        ""
    ]
    assert normalize_call_path(raw).decode() == raw


HOSTILE_HOST = st.text(
    st.sampled_from("aA0x.-_*:/@\x00 \n\u212a\u3002\uff0eé") | st.characters(), max_size=14
)


@given(PATTERN, HOSTILE_HOST | PATTERN, st.sampled_from(["", "."]), st.booleans())
def test_no_host_escapes_its_pattern_by_spelling(
    pattern: str, host: str, dot: str, upper: bool
) -> None:
    text = (host.upper() if upper and host.isascii() else host) + dot
    try:
        name = parse_host_pattern(text)
    except ValueError:
        return
    assert name.isascii()
    assert name == name.lower()
    assert set(name.removeprefix("*.")) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert parse_host_pattern(name) == name
    labels, granted = name.split("."), parse_host_pattern(pattern).split(".")
    if granted[0] == "*":
        tail = granted[1:]
        expected = labels[-len(tail) :] == tail and len(labels) > len(tail)
    else:
        expected = labels == granted
    assert covers_host(parse_host_pattern(pattern), name) == expected


@given(st.integers(0, 2**32 - 1), st.sampled_from(["d", "x", "o", "dotted", "dotted-octal"]))
def test_no_spelling_of_an_address_is_a_host(number: int, form: str) -> None:
    octets = number.to_bytes(4, "big")
    text = {
        "d": str(number),
        "x": hex(number),
        "o": f"0{number:o}",
        "dotted": ".".join(map(str, octets)),
        "dotted-octal": ".".join(f"0{octet:o}" for octet in octets),
    }[form]
    for host in (text, text + ".", text.upper()):
        try:
            parsed = parse_host(host)
        except ValueError:
            continue
        raise AssertionError(f"{host} was read as the host {parsed}")


@settings(max_examples=200)
@given(CONNECT, CONNECT, CONNECT)
def test_destinations_are_partially_ordered(a: Connect, b: Connect, c: Connect) -> None:
    a, b, c = normal_connect(a), normal_connect(b), normal_connect(c)
    assert covers_connect(a, a)
    if covers_connect(a, b) and covers_connect(b, a):
        assert a == b
    if covers_connect(a, b) and covers_connect(b, c):
        assert covers_connect(a, c)

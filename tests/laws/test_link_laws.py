"""A block that is cut in two and not read gives the link that the reference gives, or none."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.decide.attenuation import wider_link
from stockade.decide.blocks import block_bytes, grant_of, lease_block, narrow, normal, root_block
from stockade.decide.links import Admitted, Grants, Link, link_of
from stockade.decide.tokentext import read_blocks
from stockade.host.policy_files import load_policy
from stockade.terms.base import MAX_INTEGER
from stockade.terms.fault import Failure
from stockade.terms.grant import Block, Grant
from tests.laws.test_attenuation_laws import NOW, grants

LEASE_ID = "ls_00112233445566aa"
NONCE = "0123456789abcdef" * 2
# Spellings that some reader takes for the same, and values just beyond what a block can hold.
CHANGES: list[tuple[bytes, bytes]] = [
    (b",", b", "),
    (b"{", b"{ "),
    (b'"depth":', b'"depth":0'),
    (b'"depth":', b'"depth":-'),
    (b'"depth":', b'"depth":1'),
    (b'"not_after_s":', b'"not_after_s":0'),
    (b'"not_after_s":1009', b'"not_after_s":%d' % (MAX_INTEGER + 1)),
    (b'"not_before_s":0', b'"not_before_s":%d' % (MAX_INTEGER + 1)),
    (b'"not_before_s":', b'"not_before_s":1e'),
    (b'"not_before_s":0', b'"not_before_s":0.0'),
    (b'"lease":', b'"lease":null,"lease":'),
    (b'"lease":null', b'"lease":{}'),
    (b'"lease":null', b'"lease":{"generation":1,"id":"ls_00112233445566aa","nonce":null}'),
    (b'"generation":', b'"generation":0'),
    (b'"generation":3', b'"generation":0'),
    (b'"generation":3,"id":"ls_00112233445566aa"', b'"id":"ls_00112233445566aa","generation":3'),
    (b'"nonce":"0', b'"nonce":"g'),
    (b'"nonce"', b'"nonce":"","nonce"'),
    (b'"v":1', b'"v":2'),
    (b'"v":1', b'"v":true'),
    (b',"v":1', b""),
    (b"}", b',"v":1}'),
    (b'"kid":"k1",', b""),
    (b'"kid":"k1"', b'"kid":"k/1"'),
    (b'"kid":"k1"', b'"kid":""'),
    (b'"lease"', b'"kid":"k1","lease"'),
    (b'"tenant":"acme"', b'"tenant":"Acme"'),
    (b'"tenant":"acme",', b""),
    (b'"tools"', b'"tenant":"acme","tools"'),
    (b'"trajectory":"run-1"', b'"trajectory":"run-1\\n"'),
    (b'"trajectory":"run-1"', b'"trajectory":"run-1/"'),
    (b'"trajectory":"run-1"', b'"trajectory":null'),
    (b"a", b"\\u0061"),
    (b"a", b"\xff"),
    (b"/", b"//"),
    (b'"deny":[', b'"deny":["/zz",'),
    (b'"scope"', b'"scop"'),
]


def chain_of(grant: Grant, nonce: str | None = None) -> list[Block]:
    root = root_block(grant, "acme", "run-1", "k1", 0, NOW + 9)
    if root.depth == 0:
        return [root]
    return [root, lease_block(root, LEASE_ID, 3, NOW + 9, nonce)]


def reference(raws: list[bytes], place: int) -> Link | None:
    try:
        return link_of(read_blocks(raws, [place])[0])
    except Failure:
        return None


def learnt(chains: list[list[Block]]) -> Grants:
    known = Grants(64)
    for blocks in chains:
        for block in blocks:
            known.learn(block_bytes(block), link_of(block))
    return known


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_other_spellings_are_no_links(old: bytes, new: bytes) -> None:
    grant = load_policy().grant("agent")
    chains = [chain_of(grant), chain_of(grant, NONCE)]
    known, tried = learnt(chains), 0
    for blocks in chains:
        for place, block in enumerate(blocks):
            parts = block_bytes(block).split(old)
            for cut in range(1, len(parts)):
                raws = [block_bytes(one) for one in blocks]
                raws[place] = old.join(parts[:cut]) + new + old.join(parts[cut:])
                link = known.links(raws)[place]
                assert link is None or link == reference(raws, place), raws[place]
                tried += 1
    assert tried


def test_every_byte_of_a_block_counts() -> None:
    """One at the edge of a part that is cut out would be read by nobody."""
    blocks = chain_of(load_policy().grant("agent"), NONCE)
    known = learnt([blocks])
    for place in range(len(blocks)):
        raws = [block_bytes(one) for one in blocks]
        right = known.links(raws)[place]
        assert right is not None
        raw = raws[place]
        for at in range(len(raw) + 1):
            for other in (raw[:at] + raw[at + 1 :], raw[:at] + b" " + raw[at + 1 :]):
                if other != raw:
                    raws[place] = other
                    link = known.links(raws)[place]
                    assert link is None or link == reference(raws, place), other


@given(st.data(), st.lists(grants(supported=True), min_size=1, max_size=3))
@settings(max_examples=300)
def test_a_link_that_is_not_read_is_the_reference_s_link(
    data: st.DataObject, made: list[Grant]
) -> None:
    """Blocks that are known, changed in ways that matter, and put together of each other."""
    nonce = data.draw(st.sampled_from([None, NONCE]))
    chains = [chain_of(normal(grant), nonce) for grant in made]
    known = learnt(chains)
    good = [block_bytes(block) for blocks in chains for block in blocks]
    for blocks in chains:
        raws = [block_bytes(block) for block in blocks]
        assert known.links(raws) == [link_of(block) for block in blocks]
    changed = list(good)
    for raw in good:
        old, new = data.draw(st.sampled_from(CHANGES))
        places = raw.count(old)
        if places:
            parts = raw.split(old, data.draw(st.integers(1, places)))
            changed.append(old.join(parts[:-1]) + new + parts[-1])
        other = data.draw(st.sampled_from(good))
        first, second = raw.split(b',"'), other.split(b',"')
        at, to = data.draw(st.integers(0, len(first))), data.draw(st.integers(0, len(second)))
        changed.append(b',"'.join(first[:at] + second[to:]))
    raws = data.draw(st.lists(st.sampled_from(changed), min_size=1, max_size=4))
    for place, link in enumerate(known.links(raws)):
        assert link is None or link == reference(raws, place)


@given(grants(supported=True), grants(supported=True))
def test_what_a_child_shares_with_its_parent_changes_no_comparison(
    one: Grant, other: Grant
) -> None:
    parent, child = (chain_of(normal(grant))[0] for grant in (one, other))
    above = link_of(parent)
    below = link_of(child, above)
    assert below == link_of(child)
    assert below.grant == grant_of(child)
    assert wider_link(below, above) == wider_link(link_of(child), link_of(parent))


def test_a_new_token_of_a_grant_file_is_not_read_by_the_reference() -> None:
    """Also with brackets and quotes in its paths; or the short way would be of no use."""
    policy = load_policy()
    agent = policy.grant("agent")
    odd = ('/workspace/[id]/],"checks":[', "/workspace/é}{")
    for grant in (*map(policy.grant, policy.grants), agent.model_copy(update={"deny": odd})):
        blocks = chain_of(normal(grant))
        blocks.append(narrow(blocks[-1], tools=()))
        known = learnt([blocks])
        own: dict[str, Any] = {"not_after_s": NOW + 5}
        fresh = [block.model_copy(update=own) for block in blocks]
        fresh[0] = fresh[0].model_copy(update={"trajectory": "run-2"})
        links = known.links([block_bytes(block) for block in fresh])
        assert links == [link_of(block) for block in fresh]


def test_chains_of_grants_are_known_by_their_objects_and_order() -> None:
    """Also when objects that are gone leave their ids to new ones, as here each time."""
    known, grant = Admitted(8), load_policy().grant("agent")
    for _ in range(1000):
        chain = (grant.model_copy(), grant.model_copy())
        assert chain not in known
        known.add(chain)
        assert chain in known
        assert chain[::-1] not in known
        assert chain[:1] not in known


HOSTILE = [
    (b'{"approve":[', b'],"checks":[' * 260, b'],"deny":[' * 260, b'],"depth":1' * 260),
    (b"{", b',"lease":{' * 6000),
    (
        b'{,"kid":"a","lease":null,"not_after_s":1,"not_before_s":1,',
        b',"tenant":"a","tools":[' * 9000,
    ),
]


@pytest.mark.parametrize("parts", HOSTILE)
def test_hostile_bytes_take_no_longer_than_their_length(parts: tuple[bytes, ...]) -> None:
    """Lists that could end in many places, times each other, and keys that come again and again:
    0.2 s and more where a pattern goes back, or tries every place."""
    raw = b"".join(parts)
    started = time.thread_time()
    assert Grants(8).links([raw, raw]) == [None, None]
    assert time.thread_time() - started < 0.1

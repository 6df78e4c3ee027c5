"""A tenant's ceiling: a refusal that names the component, or the intersection if asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from stockade.decide.attenuation import exceeds, meet
from stockade.decide.blocks import narrow
from stockade.decide.grant_file import CeilingFile
from stockade.decide.tokens import attenuate, inspect
from stockade.host.policy_files import load_policy
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import MAX_BLOCKS
from stockade.testing.house import TENANT, House, code_of, open_house

SMALL = load_policy().ceiling("small")
CUT = (
    "per_call.output_bytes",
    "per_lease.memory_bytes",
    "per_lease.cpu_millis",
    "per_lease.pids",
    "per_lease.disk_bytes",
    "per_lease.inodes",
    "per_lease.sandboxes",
    "per_lease.parallel",
    "depth",
)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[House]:
    house = open_house(str(tmp_path / "small"), ceiling=lambda given: SMALL)
    yield house
    house.close()


class Lowered:
    """A ceiling that an operator lowers while capabilities are about."""

    def __init__(self) -> None:
        self.now: CeilingFile | None = None

    def __call__(self, given: CeilingFile) -> CeilingFile:
        return self.now or given


@pytest.fixture
def lowered() -> Lowered:
    return Lowered()


@pytest.fixture
def house(tmp_path: Path, lowered: Lowered) -> Iterator[House]:
    house = open_house(str(tmp_path / "state"), ceiling=lowered)
    yield house
    house.close()


def test_without_being_asked_nothing_is_cut(small: House) -> None:
    with pytest.raises(Failure) as caught:
        small.leases.create(small.request())
    assert caught.value.fault.code is Code.CEILING_EXCEEDED
    assert caught.value.fault.rule == CUT[0]
    with pytest.raises(Failure) as caught:
        small.minter.root(TENANT, "run-1", "agent", 60, small.clock())
    assert caught.value.fault.rule == CUT[0]
    assert small.ledger.leases() == []


def test_a_lease_within_the_ceiling_is_what_both_allow(small: House) -> None:
    made = small.leases.create(small.request(within_ceiling=True))
    assert made.cut == CUT
    grant = made.record.grant
    assert exceeds(grant, SMALL.grant()) is None
    assert exceeds(grant, small.policy.grant("agent")) is None
    assert grant.per_lease == SMALL.grant().per_lease
    assert grant.per_call.wall_ms == small.policy.grant("agent").per_call.wall_ms
    assert small.leases.admit(made.record.id, small.permit(made.record.token)) == made.record


def test_a_repeated_create_gives_the_lease_and_says_again_what_was_cut(small: House) -> None:
    request = small.request(within_ceiling=True)
    first, again = small.leases.create(request), small.leases.create(request)
    assert (again.record, again.cut) == (first.record, CUT)
    assert code_of(lambda: small.leases.create(small.request())) is Code.CEILING_EXCEEDED


def test_asking_for_it_where_nothing_is_wider_changes_nothing(house: House) -> None:
    plain = house.leases.create(house.request())
    asked = house.leases.create(house.request(within_ceiling=True))
    assert asked.record == plain.record
    assert asked.cut == ()


def test_a_capability_is_cut_in_the_block_that_the_lease_adds(
    house: House, lowered: Lowered
) -> None:
    root = house.minter.root(TENANT, "run-1", "agent", 600, house.clock()).token
    held = attenuate(root, narrow(inspect(root).blocks[-1], tools=("file_view", "bash_execute")))
    lowered.now = SMALL
    assert code_of(lambda: house.leases.create(house.request(capability=held))) is (
        Code.CEILING_EXCEEDED
    )
    made = house.leases.create(house.request(capability=held, within_ceiling=True))
    blocks = inspect(made.record.token).blocks
    assert blocks[:2] == inspect(held).blocks
    assert exceeds(blocks[2], SMALL.grant()) is None
    assert made.record.grant.tools == ("bash_execute", "file_view")
    assert made.record.grant.per_lease == SMALL.grant().per_lease
    assert made.record.grant.depth == SMALL.depth.value
    assert made.cut == CUT
    assert house.leases.admit(made.record.id, house.permit(made.record.token)) == made.record
    again = house.leases.create(house.request(capability=held, within_ceiling=True))
    assert again.record == made.record


def test_a_lease_that_was_cut_is_another_one_when_the_ceiling_has_changed(
    house: House, lowered: Lowered
) -> None:
    lowered.now = SMALL
    house.leases.create(house.request(within_ceiling=True))
    lowered.now = None
    with pytest.raises(Failure) as caught:
        house.leases.create(house.request(within_ceiling=True))
    assert (caught.value.fault.code, caught.value.fault.rule) == (Code.KEY_REUSED, "grant")


def test_a_minted_capability_is_cut_and_its_life_too(small: House) -> None:
    longest = SMALL.max_ttl_s.value
    made = small.minter.root(
        TENANT, "run-1", "agent", longest + 1, small.clock(), within_ceiling=True
    )
    assert made.cut == (*CUT, "max_ttl_s")
    (block,) = inspect(made.token).blocks
    assert exceeds(block, SMALL.grant()) is None
    assert block.not_after_s - block.not_before_s == longest


def test_an_intersection_without_an_image_makes_no_lease(tmp_path: Path) -> None:
    images = SMALL.system.images.model_copy(update={"value": ("debian",)})
    system = SMALL.system.model_copy(update={"images": images})
    other = SMALL.model_copy(update={"system": system})
    house = open_house(str(tmp_path), ceiling=lambda given: other)
    request = house.request(within_ceiling=True)
    assert code_of(lambda: house.leases.create(request)) is Code.RIGHT_NOT_GRANTED
    assert house.ledger.leases() == []
    house.close()


# Depth and length of chains.


def with_depth(ceiling: CeilingFile, depth: int) -> CeilingFile:
    changed = ceiling.depth.model_copy(update={"value": depth})
    return ceiling.model_copy(update={"depth": changed})


def test_a_grants_depth_is_held_against_the_ceilings(house: House, lowered: Lowered) -> None:
    depth = house.policy.grant("agent").depth
    lowered.now = with_depth(house.policy.ceiling("default"), depth - 1)
    mint = partial(house.minter.root, TENANT, "run-1", "agent", 60, house.clock())
    with pytest.raises(Failure) as caught:
        mint()
    assert (caught.value.fault.code, caught.value.fault.rule) == (Code.CEILING_EXCEEDED, "depth")
    made = mint(within_ceiling=True)
    assert made.cut == ("depth",)
    assert inspect(made.token).blocks[0].depth == depth - 1


def test_a_chain_ends_at_its_depth_also_for_the_leases_block(house: House) -> None:
    token = house.minter.root(TENANT, "run-1", "agent", 60, house.clock()).token
    depth = inspect(token).blocks[0].depth
    for left in range(depth - 1, -1, -1):
        parent = inspect(token).blocks[-1]
        if left:
            equal = narrow(parent, depth=parent.depth)
            assert code_of(partial(attenuate, token, equal)) is Code.WIDER_BLOCK
        token = attenuate(token, narrow(parent))
        assert inspect(token).blocks[-1].depth == left
    assert code_of(lambda: narrow(inspect(token).blocks[-1])) is Code.WIDER_BLOCK
    request = house.request(capability=token)
    assert code_of(lambda: house.leases.create(request)) is Code.WIDER_BLOCK
    request = house.request(capability=token, within_ceiling=True)
    assert code_of(lambda: house.leases.create(request)) is Code.WIDER_BLOCK


def test_sixteen_blocks_are_a_chain_and_seventeen_are_none(tmp_path: Path) -> None:
    policy = load_policy()
    deep = policy.grant("agent").model_copy(update={"depth": MAX_BLOCKS})
    house = open_house(str(tmp_path))
    house.minter._grant_named = lambda name: deep
    token = house.minter.root(TENANT, "run-1", "agent", 60, house.clock()).token
    for _ in range(MAX_BLOCKS - 1):
        token = attenuate(token, narrow(inspect(token).blocks[-1]))
    assert len(house.permit(token).chain) == MAX_BLOCKS
    assert inspect(token).blocks[-1].depth == 1
    one_more = narrow(inspect(token).blocks[-1])
    assert code_of(lambda: attenuate(token, one_more)) is Code.TOKEN_TOO_LONG
    request = house.request(capability=token)
    assert code_of(lambda: house.leases.create(request)) is Code.TOKEN_TOO_LONG
    house.close()


def test_the_shipped_ceilings_stand_in_an_order() -> None:
    policy = load_policy()
    small, default = policy.ceiling("small").grant(), policy.ceiling("default").grant()
    assert exceeds(small, default) is None
    for name in policy.grants:
        met = meet(policy.grant(name), small)
        assert met.system.images, f"{name} can't be used under the ceiling small"

"""The policy files: closed, with a reason beside every rule, and what the shipped ones say."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.decide.attenuation import exceeds
from stockade.decide.policy import (
    Policy,
    make_policy,
    parse_ceiling,
    parse_grant,
    parse_profile,
    parse_redaction,
    parse_seccomp,
)
from stockade.decide.profile_file import PLACES_PARTS, TMP_PARTS
from stockade.host.data import data_directory
from stockade.host.policy_files import load_policy
from stockade.terms.base import MAX_INTEGER, MAX_SECONDS, Model
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Profile
from tests.grants import NO_BUDGET

PARSERS: dict[str, Callable[[bytes], Model]] = {
    "grants": parse_grant,
    "ceilings": parse_ceiling,
    "profiles": parse_profile,
    "seccomp": parse_seccomp,
    "redaction": parse_redaction,
}
FILES = sorted(data_directory("policy").rglob("*.json"))


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy()


def _removals(value: object) -> Iterator[object]:
    """Every copy of `value` that lacks one key somewhere."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            for smaller in _removals(value[key]):
                yield {**value, key: smaller}
    elif isinstance(value, list):
        for index, item in enumerate(value):
            for smaller in _removals(item):
                yield [*value[:index], smaller, *value[index + 1 :]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_key_is_needed_the_reasons_too(file: Path) -> None:
    parse = PARSERS[file.parent.name]
    whole = json.loads(file.read_bytes())
    assert parse(json.dumps(whole).encode()) is not None
    count = 0
    for smaller in _removals(whole):
        if "also" in json.dumps(whole) and "also" not in json.dumps(smaller):
            continue  # the one optional key: a second condition
        count += 1
        with pytest.raises(ValueError, match=r"required|discriminator"):
            parse(json.dumps(smaller).encode())
    assert count > 30


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_unknown_doubled_and_empty_are_refused(file: Path) -> None:
    parse = PARSERS[file.parent.name]
    data = file.read_bytes()
    assert b'"version": 1' in data
    for bad in (
        data.replace(b'"version": 1', b'"version": 1, "comment": "x"', 1),
        data.replace(b'"version": 1', b'"version": 1, "version": 1', 1),
        data.replace(b'"version": 1', b'"version": 1.0', 1),
        data.replace(b'"reason": "', b'"reason": "", "x": "', 1),
        data[:-3],
        b"\xff" + data,
        b"",
        b"[]",
    ):
        with pytest.raises(ValueError, match=r"."):
            parse(bad)


def test_grants_are_ordered_by_what_they_allow(policy: Policy) -> None:
    names = ("read-only", "edit", "agent", "agent-net")
    grants = [policy.grant(name) for name in names]
    assert set(policy.grants) == set(names)
    for narrow, wide in itertools.pairwise(grants):
        assert exceeds(narrow, wide) is None
    for grant in grants:
        assert exceeds(grant, policy.ceiling("default").grant()) is None


def test_the_shipped_grants_say_what_the_documents_promise(policy: Policy) -> None:
    read_only, edit, agent = (policy.grant(name) for name in ("read-only", "edit", "agent"))
    assert read_only.tools == ("file_view", "grep_search")
    assert read_only.scope.write == read_only.scope.execute == ()
    assert edit.tools == ("file_edit", "file_view", "grep_search")
    assert edit.scope.execute == ()
    assert agent.tools == ("bash_execute", "file_edit", "file_view", "grep_search", "run")
    assert agent.scope.execute == ("/",)
    assert agent.scope.read == agent.scope.write == ("/tmp", "/workspace")
    assert agent.deny == ("/workspace/.git/hooks",)
    assert agent.scope.connect == policy.grant("agent-net").scope.connect == ()
    assert agent.total == NO_BUDGET
    assert agent.per_call.wall_ms == 300_000
    assert agent.per_lease.inodes == 262_144
    assert policy.ceiling("default").max_ttl_s.value == 7 * 24 * 3600


def test_profiles(policy: Policy) -> None:
    strict, agent = policy.profiles[Profile.STRICT], policy.profiles[Profile.AGENT]
    assert (strict.uid.value, strict.gid.value, strict.system_writable.value) == (1000, 1000, False)
    assert strict.capabilities == ()
    assert (agent.uid.value, agent.gid.value, agent.system_writable.value) == (0, 0, True)
    assert {item.name for item in agent.capabilities} == {
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FOWNER",
        "CAP_FSETID",
        "CAP_SETGID",
        "CAP_SETUID",
    }
    for profile in (strict, agent):
        assert sum(place.share_1024 for place in profile.tmpfs) + TMP_PARTS <= 512
        assert policy.seccomp_ref(profile) in policy.seccomp


def _edited(name: str, edit: Callable[[dict[str, object]], None]) -> bytes:
    document = json.loads((data_directory("policy") / name).read_bytes())
    edit(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "path",
    ["workspace", "/workspace/../etc", "/workspace//a", "/workspace/.", "/a\0b", "/a\nb", ""],
)
def test_b48_a_grant_file_with_an_odd_path_is_refused(path: str) -> None:
    def edit(document: dict[str, object]) -> None:
        document["deny"] = {"value": [path], "reason": "an odd spelling"}

    with pytest.raises(ValueError, match=r"."):
        parse_grant(_edited("grants/agent.json", edit))


@pytest.mark.parametrize("component", ["checks", "approve"])
def test_what_is_not_enforced_yet_is_refused(component: str) -> None:
    def edit(document: dict[str, object]) -> None:
        document[component] = {"value": ["anything"], "reason": "not enforced yet"}

    with pytest.raises(ValueError, match=component):
        parse_grant(_edited("grants/agent.json", edit))


@pytest.mark.parametrize("number", [-1, MAX_INTEGER + 1, 1.5, "1", True, None])
def test_numbers_are_plain_integers_in_range(number: object) -> None:
    def edit(document: dict[str, object]) -> None:
        limits = document["per_lease"]
        assert isinstance(limits, dict)
        limits["pids"] = {"value": number, "reason": "not a number of ours"}

    with pytest.raises(ValueError, match=r"."):
        parse_grant(_edited("grants/agent.json", edit))


def test_a_ceiling_gives_a_hundred_years_at_most() -> None:
    """No token has a later end than its numbers and RFC 3339 can say."""

    def edit(document: dict[str, object]) -> None:
        document["max_ttl_s"] = {"value": longest, "reason": "as long as can be"}

    longest = MAX_SECONDS
    assert parse_ceiling(_edited("ceilings/default.json", edit)).max_ttl_s.value == longest
    longest += 1
    with pytest.raises(ValueError, match="max_ttl_s"):
        parse_ceiling(_edited("ceilings/default.json", edit))


def test_a_profile_whose_places_exceed_half_of_memory_is_refused() -> None:
    def edit(document: dict[str, object]) -> None:
        places = document["tmpfs"]
        assert isinstance(places, list)
        places[0]["share_1024"] = PLACES_PARTS

    with pytest.raises(ValueError, match="take more than"):
        parse_profile(_edited("profiles/agent.json", edit))


@pytest.mark.parametrize("path", ["/workspace", "/tmp/x", "/workspace/home"])
def test_a_profile_has_no_place_in_the_lease_s_trees(path: str) -> None:
    def edit(document: dict[str, object]) -> None:
        places = document["tmpfs"]
        assert isinstance(places, list)
        places[0]["path"] = path

    with pytest.raises(ValueError, match="the lease's"):
        parse_profile(_edited("profiles/agent.json", edit))


def test_a_home_that_is_not_writable_is_refused() -> None:
    def edit(document: dict[str, object]) -> None:
        document["home"] = {"value": "/srv", "reason": "is in no list"}

    with pytest.raises(ValueError, match="home"):
        parse_profile(_edited("profiles/agent.json", edit))


def test_files_that_name_each_other_must_be_there(policy: Policy) -> None:
    profiles = tuple(policy.profiles.values())
    with pytest.raises(ValueError, match="each profile"):
        make_policy((), (), profiles[:1], tuple(policy.seccomp.values()))
    with pytest.raises(ValueError, match="seccomp"):
        make_policy((), (), profiles, ())


def test_an_unknown_name_is_a_clear_fault(policy: Policy) -> None:
    with pytest.raises(Failure) as caught:
        policy.grant("root")
    assert caught.value.fault.code is Code.INVALID_ARGUMENT
    assert caught.value.fault.details["grants"] == tuple(policy.grants)
    with pytest.raises(Failure, match="ceiling"):
        policy.ceiling("none")

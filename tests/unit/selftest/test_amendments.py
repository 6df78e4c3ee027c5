"""Each amendment takes away what it says and nothing else, and refuses to take away nothing."""

from __future__ import annotations

import copy

import pytest
from pydantic import JsonValue

from stockade.engines.oci import spec
from stockade.selftest import amendments
from stockade.selftest.scene import Amend
from tests.unit.selftest.conftest import FACTS, differences

CHANGES: dict[str, tuple[Amend, set[str]]] = {
    "pid": (amendments.without_namespace("pid"), {"linux.namespaces"}),
    "host_processes": (amendments.with_host_processes, {"linux.namespaces", "mounts"}),
    "network": (amendments.with_namespace("network", "pid"), {"linux.namespaces"}),
    "owned": (amendments.with_namespace("network", None), {"linux.namespaces"}),
    "uts": (amendments.without_namespace("uts"), {"linux.namespaces", "hostname"}),
    "ipc": (amendments.without_namespace("ipc"), {"linux.namespaces", "linux.sysctl"}),
    "user": (
        amendments.without_namespace("user"),
        {"linux.namespaces", "linux.uidMappings", "linux.gidMappings"},
    ),
    "host_user": (
        amendments.as_host_user,
        {
            *("linux.namespaces", "linux.uidMappings", "linux.gidMappings"),
            *("process.user", "process.capabilities"),
        },
    ),
    "filter": (amendments.without_filter, {"linux.seccomp"}),
    "capabilities": (amendments.with_capabilities("CAP_KILL"), {"process.capabilities"}),
    "own_capabilities": (amendments.with_own_capabilities, {"process.capabilities"}),
    "more": (amendments.with_more_capabilities("CAP_KILL"), {"process.capabilities"}),
    "mount": (amendments.with_mount("{place}", "/srv"), {"mounts"}),
    "options": (amendments.with_mount_options("/dev", "nosuid"), {"mounts"}),
    "privileges": (amendments.with_new_privileges, {"process.noNewPrivileges"}),
    "covers": (amendments.without_covers, {"linux.maskedPaths", "linux.readonlyPaths"}),
    "limit": (amendments.with_resource_limit("RLIMIT_CORE", 1), {"process.rlimits"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_changes_what_it_says_and_leaves_the_original(
    config: dict[str, JsonValue], name: str
) -> None:
    amend, places = CHANGES[name]
    before = copy.deepcopy(config)
    changed = amend(config, FACTS)
    assert config == before
    assert differences(config, changed) == places


def test_two_changes_are_both_made(config: dict[str, JsonValue]) -> None:
    amend = amendments.both(amendments.without_filter, amendments.without_covers)
    assert differences(config, amend(config, FACTS)) == {
        *("linux.seccomp", "linux.maskedPaths", "linux.readonlyPaths"),
    }


@pytest.mark.parametrize(
    "amend",
    [
        amendments.without_namespace("time"),
        amendments.with_mount_options("/nowhere", "ro"),
        amendments.with_resource_limit("RLIMIT_AS", 1),
        amendments.with_mount("{unknown}", "/srv"),
        amendments.with_namespace("network", "unknown"),
    ],
)
def test_what_is_not_there_can_not_be_taken_away(
    config: dict[str, JsonValue], amend: Amend
) -> None:
    with pytest.raises((KeyError, ValueError)):
        amend(config, FACTS)


def test_a_filter_that_is_gone_can_not_be_taken_away_again(config: dict[str, JsonValue]) -> None:
    bare = amendments.without_filter(config, FACTS)
    with pytest.raises(KeyError):
        amendments.without_filter(bare, FACTS)


def test_new_privileges_are_forbidden_by_the_engine(config: dict[str, JsonValue]) -> None:
    """Else the control of set-uid programs would take nothing away."""
    process = config["process"]
    assert isinstance(process, dict)
    assert process["noNewPrivileges"] is True
    assert spec.CONTROL_FD == 3

"""Changes of the runtime's configuration, each of which takes one wall away. Pure.

A configuration is a value of the OCI runtime specification (config.md, config-linux.md), as
`engines.oci.spec` writes it. Every function gives a new one. What a change expects to find must be
there: a control that takes nothing away would prove nothing, so a `KeyError` or `ValueError` ends it.
"""

from __future__ import annotations

import copy
from typing import TypeAlias

from pydantic import JsonValue

from stockade.selftest.scene import Amend, Facts

_Object: TypeAlias = dict[str, JsonValue]


def both(*changes: Amend) -> Amend:
    """One after the other."""

    def amend(config: JsonValue, facts: Facts) -> JsonValue:
        for change in changes:
            config = change(config, facts)
        return config

    return amend


def without_namespace(kind: str) -> Amend:
    """The host's namespace of this kind is the sandbox's."""

    def amend(config: JsonValue, facts: Facts) -> JsonValue:
        made = _copy(config)
        linux = _object(made, "linux")
        kept = [item for item in _list(linux, "namespaces") if _kind(item) != kind]
        if len(kept) == len(_list(linux, "namespaces")):
            raise ValueError(f"there is no {kind} namespace to take away")
        linux["namespaces"] = kept
        if kind == "ipc":
            linux.pop("sysctl", None)  # they would be the host's
        if kind == "uts":
            del made["hostname"]  # it would become the host's
        if kind == "user":
            del linux["uidMappings"], linux["gidMappings"]
        return made

    return amend


def with_namespace(kind: str, fact: str | None) -> Amend:
    """Another namespace of this kind: that of the process whose pid is the fact, or a new one that
    the runtime makes, so that the inside owns it."""

    def amend(config: JsonValue, facts: Facts) -> JsonValue:
        made = _copy(without_namespace(kind)(config, facts))
        entry: _Object = {"type": kind}
        if fact is not None:
            file = {"network": "net", "mount": "mnt"}.get(kind, kind)
            entry["path"] = f"/proc/{facts[fact]}/ns/{file}"
        _list(_object(made, "linux"), "namespaces").append(entry)
        return made

    return amend


def without_filter(config: JsonValue, facts: Facts) -> JsonValue:
    made = _copy(config)
    del _object(made, "linux")["seccomp"]
    return made


def with_capabilities(*names: str) -> Amend:
    """These and no others, for pid 1 and what it starts."""

    def amend(config: JsonValue, facts: Facts) -> JsonValue:
        made = _copy(config)
        sets = _object(_object(made, "process"), "capabilities")
        for kind in ("bounding", "effective", "permitted"):
            sets[kind] = list(names)
        return made

    return amend


def with_own_capabilities(config: JsonValue, facts: Facts) -> JsonValue:
    """Every one that the selftest itself has."""
    return with_capabilities(*facts["capabilities"].split())(config, facts)


def with_more_capabilities(*names: str) -> Amend:
    def amend(config: JsonValue, facts: Facts) -> JsonValue:
        sets = _object(_object(_copy(config), "process"), "capabilities")
        old = [str(name) for name in _list(sets, "bounding")]
        return with_capabilities(*old, *names)(config, facts)

    return amend


def as_host_user(config: JsonValue, facts: Facts) -> JsonValue:
    """The lease's user as the host has it, without capabilities: there is no user namespace any
    more."""
    made = _copy(with_capabilities()(without_namespace("user")(config, facts), facts))
    uid = int(facts["uid"])
    _object(made, "process")["user"] = {"uid": uid, "gid": uid}
    return made


def with_mount(source: str, target: str, *options: str) -> Amend:
    """A directory of the host; `{fact}` may stand in either path."""

    def amend(config: JsonValue, facts: Facts) -> JsonValue:
        made = _copy(config)
        entry: _Object = {
            "destination": target.format_map(facts),
            "type": "bind",
            "source": source.format_map(facts),
            "options": ["bind", *options],
        }
        _list(made, "mounts").append(entry)
        return made

    return amend


def with_mount_options(target: str, *options: str) -> Amend:
    """Instead of all options that the mount at `target` has."""

    def amend(config: JsonValue, facts: Facts) -> JsonValue:
        made = _copy(config)
        for item in _list(made, "mounts"):
            if isinstance(item, dict) and item["destination"] == target:
                item["options"] = list(options)
                return made
        raise ValueError(f"nothing is mounted at {target}")

    return amend


def with_host_processes(config: JsonValue, facts: Facts) -> JsonValue:
    """No pid namespace. Who does not own the pid namespace can't mount its /proc, so it is bound."""
    made = _copy(without_namespace("pid")(config, facts))
    for item in _list(made, "mounts"):
        if isinstance(item, dict) and item["destination"] == "/proc":
            item["type"], item["source"], item["options"] = "bind", "/proc", ["bind"]
    return made


def with_new_privileges(config: JsonValue, facts: Facts) -> JsonValue:
    made = _copy(config)
    _object(made, "process")["noNewPrivileges"] = False
    return made


def without_covers(config: JsonValue, facts: Facts) -> JsonValue:
    """No masked and no read-only path of /proc and /sys."""
    made = _copy(config)
    linux = _object(made, "linux")
    linux["maskedPaths"], linux["readonlyPaths"] = [], []
    return made


def with_resource_limit(name: str, value: int) -> Amend:
    def amend(config: JsonValue, facts: Facts) -> JsonValue:
        made = _copy(config)
        for item in _list(_object(made, "process"), "rlimits"):
            if isinstance(item, dict) and item["type"] == name:
                item["soft"] = item["hard"] = value
                return made
        raise ValueError(f"{name} is not limited")

    return amend


def _copy(config: JsonValue) -> _Object:
    if not isinstance(config, dict):
        raise ValueError("a configuration is an object")
    return copy.deepcopy(config)


def _object(value: _Object, key: str) -> _Object:
    found = value[key]
    if not isinstance(found, dict):
        raise ValueError(f"{key} is no object")
    return found


def _list(value: _Object, key: str) -> list[JsonValue]:
    found = value[key]
    if not isinstance(found, list):
        raise ValueError(f"{key} is no list")
    return found


def _kind(item: JsonValue) -> JsonValue:
    return item["type"] if isinstance(item, dict) else None

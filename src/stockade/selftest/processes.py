"""Attempts on a process of the host that runs as the very user that the sandbox is outside."""

from __future__ import annotations

from typing import Final

from stockade.selftest.attempt import Attempt
from stockade.selftest.scene import Scene
from stockade.selftest.scenes import PLAIN, SAME_USER, SAME_USER_NO_FILTER, SHARED_PIDS

_GROUP: Final = "processes"
_PIDS: Final = "an own pid namespace: the host's processes have no number inside"
_USER: Final = "own pid and user namespaces"


def _at(name: str, attack: str, defence: str, control: Scene, action: str) -> Attempt:
    return Attempt(name, _GROUP, attack, defence, PLAIN, control, action)


def _seen(name: str, attack: str, action: str) -> Attempt:
    return _at(name, attack, _PIDS, SHARED_PIDS, action)


def _same(name: str, attack: str, action: str) -> Attempt:
    return _at(name, attack, _USER, SAME_USER, action)


def _filtered(name: str, attack: str, action: str) -> Attempt:
    defence = f"{_USER}, and the filter"
    return _at(name, attack, defence, SAME_USER_NO_FILTER, action)


ATTEMPTS: Final = (
    _seen(
        "host_process_seen",
        "read the arguments of a process of the host",
        "read /proc/{bait_pid}/cmdline {mark}",
    ),
    _seen(
        "host_process_signal",
        "send it a signal; it runs as the very same user",
        "signal {bait_pid}",
    ),
    _seen("host_process_pidfd", "send it one by a pidfd", "signal-by-pidfd {bait_pid}"),
    _seen("host_process_nice", "lower its priority", "renice {bait_pid}"),
    _seen("host_process_affinity", "choose its processors", "pin {bait_pid}"),
    _same("host_process_trace", "trace it", "trace {bait_pid}"),
    _same(
        "host_process_memory",
        "read its memory with process_vm_readv",
        "read-memory {bait_pid} {bait_address}",
    ),
    _same(
        "host_process_memory_file",
        "open its memory for writing",
        "read-memory-file {bait_pid} {bait_address}",
    ),
    _same(
        "host_process_root",
        "read a file of the host below its root",
        "read /proc/{bait_pid}/root/{bait}/secret {mark}",
    ),
    _same(
        "host_process_cwd",
        "read a file of the host in its working directory",
        "read /proc/{bait_pid}/cwd/secret {mark}",
    ),
    _same(
        "host_process_environment",
        "read its environment",
        "read /proc/{bait_pid}/environ {mark}",
    ),
    _same(
        "host_process_descriptor",
        "open a file that it holds open",
        "read /proc/{bait_pid}/fd/{bait_fd} {mark}",
    ),
    _filtered(
        "host_process_take_descriptor",
        "take a descriptor out of it",
        "take-descriptor {bait_pid} {bait_fd}",
    ),
    _filtered("host_process_limits", "change its limits", "limit-process {bait_pid}"),
)

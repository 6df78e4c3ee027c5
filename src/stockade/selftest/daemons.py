"""Attempts on what is ours: the guest, what every sandbox gets from us, the daemon's socket and state,
and the daemon itself through a socket that a sandbox never has.
"""

from __future__ import annotations

from typing import Final

from stockade.selftest.amendments import both, with_mount, without_filter, without_namespace
from stockade.selftest.attempt import Attempt
from stockade.selftest.scene import Scene
from stockade.selftest.scenes import NO_FILTER, PLAIN

_GROUP: Final = "daemon"
_GUEST: Final = "the guest can't be dumped: its program is unreadable, and it says so itself"
_STATE: Final = "the daemon's directories are not in the sandbox's mount namespace"

_READABLE: Final = Scene(
    "guest_readable",
    taken="the guest's two defences: its mode and PR_SET_DUMPABLE",
    guest="readable",
)
_READABLE_NO_FILTER: Final = Scene(
    "guest_readable_no_filter",
    taken="the guest's two defences, its mode and PR_SET_DUMPABLE, and the filter of system calls",
    guest="readable",
    amend=without_filter,
)
_TOOLBOX: Final = Scene(
    "toolbox_writable",
    taken="the read-only mount of /run/stockade, and the owner and mode of what is in it",
    amend=with_mount("{toolbox_copy}", "/run/stockade"),
)
_SOCKET: Final = Scene(
    "socket_mounted",
    taken="the emptiness of the mount namespace: the socket's directory is mounted",
    amend=with_mount("{doors}", "{doors}"),
)
_KEYS: Final = Scene(
    "state_mounted",
    taken="the emptiness of the mount namespace: the state directory is mounted; and the user "
    "namespace, so that its owner is root inside",
    amend=both(with_mount("{daemon_state}", "{daemon_state}"), without_namespace("user")),
)
_STRONG: Final = Scene("door", amend=with_mount("{doors}", "/srv"), facts=(("variant", "strong"),))


def _guest(name: str, attack: str, action: str) -> Attempt:
    return Attempt(name, _GROUP, attack, _GUEST, PLAIN, _READABLE, action)


def _door(name: str, attack: str, defence: str, taken: str, mark: str = "{mark}") -> Attempt:
    weak = Scene(
        f"door_{name}",
        taken=taken,
        amend=with_mount("{doors}", "/srv"),
        facts=(("variant", "weak"),),
    )
    place = f"/srv/{{variant}}/{name}"
    action = f"request {place}.sock {place}.request {mark}"
    return Attempt(f"daemon_{name}", _GROUP, attack, defence, _STRONG, weak, action)


ATTEMPTS: Final = (
    _guest("guest_trace", "trace pid 1", "trace 1"),
    _guest("guest_memory", "read its memory with process_vm_readv", "read-memory 1 0"),
    _guest("guest_memory_file", "open its memory for writing", "read-memory-file 1 0"),
    _guest("guest_descriptors", "see what it holds open", "readlink /proc/1/fd/3"),
    _guest("guest_root", "use its root directory", "readlink /proc/1/root"),
    _guest("guest_environment", "read its environment", "shell exec 3</proc/1/environ"),
    _guest(
        "guest_program_by_proc",
        "read its program through /proc (CVE-2019-5736)",
        "read /proc/1/exe ELF",
    ),
    _guest("guest_program", "read its program's file", "read /run/stockade/guest ELF"),
    Attempt(
        "guest_take_descriptor",
        _GROUP,
        "take its control socket out of it",
        f"{_GUEST}, and the filter refuses pidfd_getfd(2)",
        PLAIN,
        _READABLE_NO_FILTER,
        "take-descriptor 1 3",
    ),
    Attempt(
        "guest_limits",
        _GROUP,
        "lower its limits, so that it serves nobody any more",
        "the filter refuses prlimit64(2) for another process",
        PLAIN,
        NO_FILTER,
        "limit-process 1",
    ),
    Attempt(
        "toolbox_write",
        _GROUP,
        "change what we preload into shells",
        "/run/stockade is read-only and belongs to the host's root",
        PLAIN,
        _TOOLBOX,
        "open-for-writing /run/stockade/hold.so",
    ),
    Attempt(
        "daemon_socket",
        _GROUP,
        "connect to the daemon's socket by its path",
        _STATE,
        PLAIN,
        _SOCKET,
        "connect {doors}/tenant.sock",
    ),
    Attempt(
        "daemon_keys",
        _GROUP,
        "read the file of signing keys",
        f"{_STATE}; mode 0600",
        PLAIN,
        _KEYS,
        "read {daemon_state}/keys.json current",
    ),
    Attempt(
        "daemon_ledger",
        _GROUP,
        "read the ledger, which holds every token",
        f"{_STATE}; mode 0600",
        PLAIN,
        _KEYS,
        "read {daemon_state}/ledger.db SQLite",
    ),
    _door(
        "unknown_peer",
        "call through the socket as a user that nobody named",
        "peers come from the kernel and are in a closed table",
        "the table: the user is in it",
    ),
    _door(
        "flipped_token",
        "change one character of a token's signature",
        "each token is signed",
        "the unknown signature: it is the right one",
    ),
    _door(
        "narrowing_undone",
        "cut the last block off a narrowed token",
        "only the last signature is carried, and it does not lead back",
        "the secrecy of the earlier signature: it is known",
    ),
    _door(
        "narrowed_token",
        "read outside of what a narrowed token says",
        "the last block counts",
        "the narrowing",
    ),
    _door(
        "token_of_another_lease",
        "use a lease with the token of another one",
        "a token is bound to one lease",
        "the binding to another lease: it is that lease's own token",
    ),
    _door(
        "stolen_token",
        "use another tenant's lease with that tenant's own token",
        "the peer's tenant must be the token's",
        "the peer's tenant: it is the victim's",
    ),
    _door(
        "stale_generation",
        "go on with a token after somebody took the lease over",
        "each take-over raises the generation",
        "the raised generation: the token has the new one",
    ),
    _door(
        "no_token",
        "call without any token",
        "only the daemon's own user may",
        "the difference between users: it counts as the daemon's own",
    ),
    _door(
        "mint",
        "mint a capability as a tenant",
        "only operators mint",
        "the peer's role: it is an operator's",
        "stk1.",
    ),
    _door(
        "host_source",
        "let the daemon copy a directory of the host",
        "only operators name directories of the host",
        "the peer's role: it is an operator's",
        '"status":"succeeded"',
    ),
)

"""`SandboxPlan`: a container described without naming an engine or a host.

A plan is a pure function of the verified capability, the profile data and the kind of work. Its
digest (SHA-256 of its canonical JSON, hex) is the identity of a sandbox within a lease, so it must
hold everything that decides what the inside may do, and nothing that does not (no lease id, no
host path, no token id): two capabilities with the same effect share one sandbox.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from stockade.terms.base import Model
from stockade.terms.grant import Connect, Profile, Tier


class Kind(StrEnum):
    """`command` runs programs of the image and the workspace; `search` runs nothing but our own
    search program over a read-only view, and has no image at all."""

    COMMAND = "command"
    SEARCH = "search"


class TreeMount(Model):
    """A subtree of the lease's tree at the same container path, `/workspace…` or `/tmp…`."""

    path: str
    writable: bool
    executable: bool


class TmpfsMount(Model):
    """A private, sized, empty place that belongs to the plan's uid and gid. `mode` is permission
    bits. A tree below it (`/tmp/a` below a private `/tmp`) is mounted on top."""

    path: str
    size_bytes: int
    inodes: int
    mode: int
    executable: bool


class Limits(Model):
    """Enforced on the lease's cgroup and file systems. `cpu_millis` 1000 is one processor."""

    memory_bytes: int
    cpu_millis: int
    pids: int
    disk_bytes: int
    inodes: int


class SandboxPlan(Model):
    """`system_execute` are the executable subtrees of a system that is otherwise noexec; `masked`
    and `readonly` are paths of /proc and /sys, where they exist; `seccomp` names the list and its
    content (`SeccompPolicy.ref`). `decide.compile` sets every field."""

    version: Literal[1]
    kind: Kind
    profile: Profile
    tier_min: Tier
    image: str
    uid: int
    gid: int
    capabilities: tuple[str, ...]
    system_writable: bool
    system_executable: bool
    trees: tuple[TreeMount, ...]
    deny: tuple[str, ...]
    tmpfs: tuple[TmpfsMount, ...]
    connect: tuple[Connect, ...]
    seccomp: str
    limits: Limits
    env: tuple[tuple[str, str], ...]
    hostname: str
    system_execute: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()

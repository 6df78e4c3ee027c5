"""Attempts on what root of the host may do, and on what /proc and /sys let change or tell."""

from __future__ import annotations

from typing import Final

from stockade.selftest.amendments import without_covers
from stockade.selftest.attempt import Attempt
from stockade.selftest.scene import Scene
from stockade.selftest.scenes import PLAIN, REAL_ROOT

_GROUP: Final = "kernel"
_NO_COVERS: Final = Scene("no_covers", taken="the covers of /proc and /sys", amend=without_covers)
_ROOT: Final = "only root of the host with {} may, and the filter refuses {}"


def _root(name: str, attack: str, defence: str, action: str) -> Attempt:
    """Filter, user namespace and capabilities hold it, for some the covers too."""
    return Attempt(name, _GROUP, attack, defence, PLAIN, REAL_ROOT, action)


def _covered(name: str, attack: str, defence: str, action: str) -> Attempt:
    return Attempt(name, _GROUP, attack, defence, PLAIN, _NO_COVERS, action)


ATTEMPTS: Final = (
    _root(
        "remount_writable",
        "make a read-only mount writable",
        "mounts belong to the host's user namespace, and the filter refuses mount(2)",
        "mounts remount",
    ),
    _root(
        "umount_cover",
        "unmount what covers something else",
        "mounts belong to the host's user namespace, and the filter refuses umount2(2)",
        "mounts umount",
    ),
    _root(
        "mount_setattr",
        "change a mount's attributes",
        "mounts belong to the host's user namespace, and the filter refuses mount_setattr(2)",
        "mounts setattr",
    ),
    _root("bpf", "load a kernel program's map", _ROOT.format("CAP_BPF", "bpf(2)"), "call bpf"),
    _root(
        "perf_event_open",
        "count what the processor does",
        _ROOT.format("CAP_PERFMON", "perf_event_open(2)"),
        "call perf_event_open",
    ),
    _root(
        "swapon",
        "give the kernel a swap file (one that is absent: past the check is a win)",
        _ROOT.format("CAP_SYS_ADMIN", "swapon(2)"),
        "call swapon",
    ),
    _root(
        "acct",
        "have every process recorded (in a file whose directory is absent)",
        _ROOT.format("CAP_SYS_PACCT", "acct(2)"),
        "call acct",
    ),
    _root(
        "settimeofday",
        "set the host's clock (to nothing)",
        _ROOT.format("CAP_SYS_TIME", "settimeofday(2)"),
        "call settimeofday",
    ),
    _root(
        "syslog",
        "read the kernel's log (its size)",
        _ROOT.format("CAP_SYSLOG", "syslog(2)"),
        "call syslog",
    ),
    _root(
        "terminal_injection",
        "type into a terminal with TIOCSTI (CVE-2017-5226)",
        "the filter refuses ioctl(2) with TIOCSTI",
        "terminal inject",
    ),
    _root(
        "terminal_injection_wide",
        "the same with a bit in the upper half (CVE-2019-10063)",
        "the filter compares 32 bits, as the kernel does",
        "terminal inject-wide",
    ),
    _root(
        "core_pattern",
        "open the host's core pattern for writing",
        "/proc/sys is covered read-only and belongs to the host's root",
        "open-for-writing /proc/sys/kernel/core_pattern",
    ),
    _root(
        "drop_caches",
        "open a switch of the host's memory management for writing",
        "/proc/sys is covered read-only and belongs to the host's root",
        "open-for-writing /proc/sys/vm/drop_caches",
    ),
    _root(
        "kernel_log_file",
        "read the kernel's log from /proc/kmsg",
        "it belongs to the host's root and asks for CAP_SYSLOG of the host",
        "shell exec 3</proc/kmsg",
    ),
    _covered(
        "proc_sys",
        "change a kernel setting that its namespace's root may change",
        "/proc/sys is covered read-only",
        "open-for-writing /proc/sys/kernel/msgmax",
    ),
    _covered(
        "disk_statistics",
        "count what other leases' disks do",
        "/proc/diskstats is masked",
        "shell grep -q . /proc/diskstats",
    ),
    _covered(
        "interrupt_counts",
        "count the host's key strokes and packets",
        "/proc/interrupts is masked",
        "shell grep -q . /proc/interrupts",
    ),
)

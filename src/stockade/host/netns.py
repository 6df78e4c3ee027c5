"""Network namespaces that hold nothing but loopback.

A namespace belongs to the user namespace of the process that makes it. The daemon makes it, in a
thread of its own that ends at once, so that inside a sandbox nobody owns it: no link, route, rule
or sysctl can be changed there, whatever capabilities the inside has. The home of pyroute2.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from stockade.host import syscalls
from stockade.terms.fault import Code, failure

_LOOPBACK_INDEX: Final = 1  # the first interface of every network namespace


def _make(result: dict[str, int | BaseException]) -> None:
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        with IPRoute() as route:
            route.link("set", index=_LOOPBACK_INDEX, state="up")
        # Every program may bind every port: the namespace is its own, and services under test
        # listen on 80 without a capability for it. /proc/sys/net is that of the opening thread.
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as f:
            f.write("0")
        result["fd"] = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except BaseException as error:  # carried to the caller's thread, which raises it
        result["error"] = error


def create() -> int:
    """A descriptor of a new namespace with `lo` up; it lives as long as something holds it.
    Raises Failure(engine_unavailable)."""
    result: dict[str, int | BaseException] = {}
    thread = threading.Thread(target=_make, args=(result,), name="netns")
    thread.start()
    thread.join()
    error = result.get("error")
    if isinstance(error, (OSError, NetlinkError)):
        raise failure(
            Code.ENGINE_UNAVAILABLE, f"a network namespace could not be made: {error}"
        ) from error
    if isinstance(error, BaseException):
        raise error
    fd = result["fd"]
    assert isinstance(fd, int)
    return fd

from __future__ import annotations

import os
import threading

from stockade.host import netns, syscalls


def inside(fd: int, path: str) -> str:
    """Read a file as a thread in the namespace sees it."""
    said: list[str] = []

    def look() -> None:
        syscalls.setns(fd, syscalls.CLONE_NEWNET)
        with open(path) as file:
            said.append(file.read())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return said[0]


def test_has_loopback_and_no_route_elsewhere() -> None:
    fd = netns.create()
    try:
        assert inside(fd, "/proc/thread-self/net/dev").count(":") == 1
        assert inside(fd, "/proc/thread-self/net/route").count("\n") == 1
        assert inside(fd, "/proc/sys/net/ipv4/ip_unprivileged_port_start") == "0\n"
        assert "00000000000000000000000000000001 01" in inside(fd, "/proc/thread-self/net/if_inet6")
    finally:
        os.close(fd)


def test_the_host_is_not_changed() -> None:
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
        before = file.read()
    own = os.readlink("/proc/self/ns/net")
    os.close(netns.create())
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
        assert file.read() == before
    assert os.readlink("/proc/self/ns/net") == own

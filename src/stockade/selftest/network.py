"""Attempts on the network: the host's, an outside world, and changes of the sandbox's own."""

from __future__ import annotations

from typing import Final

from stockade.selftest.amendments import (
    both,
    with_more_capabilities,
    with_namespace,
    without_filter,
    without_namespace,
)
from stockade.selftest.attempt import Attempt
from stockade.selftest.scene import Scene
from stockade.selftest.scenes import PLAIN

_GROUP: Final = "network"
_OWN: Final = "an own network namespace"
_LOOPBACK: Final = "there is loopback and nothing else"
_OWNER: Final = "the namespace belongs to the host's user namespace, and CAP_NET_ADMIN is withheld"

_HOST: Final = Scene(
    "host_network", taken="the network namespace", amend=without_namespace("network")
)
_OUTSIDE: Final = Scene(
    "outside_network",
    taken="the emptiness of the network namespace: this one has addresses of the outside world",
    amend=with_namespace("network", "outside_pid"),
)
_OWNED: Final = Scene(
    "owned_network",
    taken="the daemon's ownership of the network namespace, and CAP_NET_ADMIN and CAP_NET_RAW are "
    "not withheld",
    amend=both(
        with_namespace("network", None), with_more_capabilities("CAP_NET_ADMIN", "CAP_NET_RAW")
    ),
)
_OWNED_NO_FILTER: Final = Scene(
    "owned_network_no_filter",
    taken=f"{_OWNED.taken}; the filter of system calls",
    amend=both(_OWNED.amend, without_filter),
)


def _at(name: str, attack: str, defence: str, control: Scene, action: str) -> Attempt:
    return Attempt(name, _GROUP, attack, defence, PLAIN, control, action)


ATTEMPTS: Final = (
    _at(
        "host_loopback",
        "connect to a server on the host's loopback",
        _OWN,
        _HOST,
        "tcp 127.0.0.1 {host_tcp} {mark}",
    ),
    _at(
        "host_loopback_ipv6",
        "connect to it by IPv6",
        _OWN,
        _HOST,
        "tcp ::1 {host_tcp6} {mark}",
    ),
    _at(
        "host_loopback_mapped",
        "connect to it by an IPv4 address inside an IPv6 one",
        _OWN,
        _HOST,
        "tcp ::ffff:127.0.0.1 {host_tcp} {mark}",
    ),
    _at(
        "host_resolver",
        "ask a server on the host's loopback by UDP",
        _OWN,
        _HOST,
        "udp 127.0.0.1 {host_udp} {mark}",
    ),
    _at(
        "host_abstract_socket",
        "connect to an abstract unix socket of the host (CVE-2020-15257)",
        _OWN,
        _HOST,
        "abstract {mark} {mark}",
    ),
    _at(
        "metadata_address",
        "ask the metadata service of a cloud",
        _LOOPBACK,
        _OUTSIDE,
        "tcp 169.254.169.254 80 {mark}",
    ),
    _at(
        "outside_address",
        "connect to an address of the outside world",
        _LOOPBACK,
        _OUTSIDE,
        "tcp 192.0.2.1 80 {mark}",
    ),
    _at(
        "outside_address_ipv6",
        "connect to one by IPv6",
        _LOOPBACK,
        _OUTSIDE,
        "tcp 2001:db8::1 80 {mark}",
    ),
    _at(
        "outside_dns",
        "send data out in a DNS query",
        _LOOPBACK,
        _OUTSIDE,
        "udp 198.51.100.53 53 {mark}",
    ),
    _at("add_address", "give the interface another address", _OWNER, _OWNED, "interface address"),
    _at("add_route", "add a route", _OWNER, _OWNED, "interface route"),
    _at("interface_down", "take the interface down", _OWNER, _OWNED, "interface down"),
    _at(
        "raw_socket",
        "forge packets with a raw socket",
        "the namespace belongs to the host's user namespace, and CAP_NET_RAW is withheld",
        _OWNED,
        "raw-socket",
    ),
    _at(
        "packet_socket",
        "read every packet",
        "the filter refuses the family, and CAP_NET_RAW is withheld",
        _OWNED_NO_FILTER,
        "packet-socket",
    ),
)

r"""The objects of a capability: which texts name one, and when one covers another.

Each kind of object has one parser, used for grants, tokens and calls alike, because a checker and
a connector that parse differently are how a NUL byte in a host name once got past a proxy. A
parser gives the only spelling of what it accepts (the normal form) and raises ValueError, whose
text is fit for a caller, on everything else. The `covers_*` functions take normal forms and
compare whole components or labels, never characters; what is not in normal form is not covered.

Paths: absolute container paths in the text form of `terms.pathname`. Hosts: ASCII labels, lower
case, no trailing dot; `*.` as the whole first label stands for one or more labels. Whatever a C
library could read as an address (`127.1`, `0x7f000001`, `2130706433`) is no host name; addresses
are written as cidr objects, where the prefix length is explicit.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from typing import Final

from stockade.terms import pathname
from stockade.terms.grant import Connect, ConnectBroker, ConnectCidr, ConnectHost

_UNCLEAN: Final = re.compile(r"/\.{0,2}(?:/|\Z)")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# The last label decides whether inet_aton(3) and browsers read the whole as an IPv4 address.
_NUMERIC_LABEL: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_CIDR: Final = re.compile(r"[0-9a-fA-F:.]{2,45}/[0-9]{1,3}")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_METHOD: Final = re.compile(r"[A-Z]{1,16}")
_URL_PATH: Final = re.compile(r"/[A-Za-z0-9._~@:+,=$!*()/-]{0,1023}")
_MAX_HOST: Final = 253
_TLS_PORT: Final = 443


def parse_path(text: str) -> str:
    r"""A path prefix of a grant: absolute, no `.`, `..` or empty component, no control character
    (also not as `\xNN`); one trailing slash is folded."""
    raw = pathname.to_bytes(text)
    if not raw.startswith(b"/"):
        raise ValueError("a granted path must be absolute")
    if _CONTROL.search(raw):
        raise ValueError("a granted path can't hold control characters")
    if raw == b"/":
        return "/"
    clean = pathname.to_text(raw.removesuffix(b"/"))
    if _UNCLEAN.search(clean):
        raise ValueError("a granted path can't have '.', '..' or empty components")
    return clean


def is_resolved_path(text: str) -> bool:
    """Whether `text` is the one spelling of an absolute path without dots and empty components."""
    try:
        spelled = pathname.to_text(pathname.to_bytes(text))
    except ValueError:
        return False
    return spelled == text and text[0] == "/" and (text == "/" or not _UNCLEAN.search(text))


def covers_path(prefix: str, path: str) -> bool:
    """Whether `path` is `prefix` or below it. False for a path with dots or empty components."""
    if path == prefix:
        return path == "/" or not _UNCLEAN.search(path)
    border = "/" if prefix == "/" else prefix + "/"
    return path.startswith(border) and not _UNCLEAN.search(path)


def normalize_call_path(text: str) -> bytes:
    """A path argument of a tool as bytes: made absolute below `/workspace`, `//`, `.` and a
    trailing slash folded. `..` stays, since what it leads to depends on symbolic links: only the
    resolver knows, and authority over such a path is decided on the resolved one."""
    parts = pathname.absolute(pathname.to_bytes(text)).split(b"/")
    raw = b"/" + b"/".join([part for part in parts if part not in (b"", b".")])
    if len(raw) > pathname.MAX_PATH_BYTES:
        raise ValueError(f"the path has more than {pathname.MAX_PATH_BYTES} bytes")
    return raw


def parse_host(text: str) -> str:
    """One host name without a wildcard."""
    # str.lower() maps the Kelvin sign to k, so anything that is not ASCII goes first.
    if not text.isascii():
        raise ValueError("a host must be ASCII; write an international name as xn--…")
    host = text.lower().removesuffix(".")
    if not host or len(host) > _MAX_HOST:
        raise ValueError(f"a host has 1 to {_MAX_HOST} characters")
    labels = host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(
            "a host is made of labels of 1 to 63 letters, digits, hyphens and underscores, "
            "without scheme, port or spaces"
        )
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        raise ValueError("an address is no host; grant it as a network (10.0.0.1/32)")
    return host


def parse_host_pattern(text: str) -> str:
    """A host of a grant: a name, or `*.` and a name."""
    return "*." + parse_host(text[2:]) if text.startswith("*.") else parse_host(text)


def covers_host(pattern: str, host: str) -> bool:
    """`*.a.org` covers `x.a.org`, `x.y.a.org` and `*.x.a.org`, not `a.org` and not `xa.org`.
    False for a host that is not in normal form."""
    if pattern != host and not (pattern.startswith("*.") and host.endswith(pattern[1:])):
        return False
    try:
        return parse_host_pattern(host) == host
    except ValueError:
        return False


def parse_cidr(text: str) -> str:
    """A network, `10.0.0.0/8` or `2001:db8::/32`, without host bits. IPv4 in IPv6 is refused:
    one destination must not have two networks that name it."""
    if not _CIDR.fullmatch(text):
        raise ValueError("a network is written as address/prefix length")
    try:
        network = ipaddress.ip_network(text, strict=True)
    except ValueError as error:
        raise ValueError(f"not a network: {error}") from None
    first = network.network_address
    if isinstance(first, ipaddress.IPv6Address) and first.ipv4_mapped is not None:
        raise ValueError("write an IPv4 network in IPv4 notation")
    return str(network)


def covers_cidr(outer: str, inner: str) -> bool:
    """Whether every address of `inner` is one of `outer`. Both in normal form."""
    a, b = _network(outer), _network(inner)
    if isinstance(a, ipaddress.IPv4Network) and isinstance(b, ipaddress.IPv4Network):
        return b.subnet_of(a)
    if isinstance(a, ipaddress.IPv6Network) and isinstance(b, ipaddress.IPv6Network):
        return b.subnet_of(a)
    return False


def antichain(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The normal form of a set of prefixes: sorted, and none that another one covers."""
    kept: list[str] = []
    # In the order of components, what a prefix covers follows it at once.
    for path in sorted(set(paths), key=_components):
        if not kept or not covers_path(kept[-1], path):
            kept.append(path)
    return tuple(sorted(kept))


def normal_connect(item: Connect) -> Connect:
    """The one spelling of a connect object. Raises ValueError."""
    if isinstance(item, ConnectHost):
        host = parse_host_pattern(item.host)
        return ConnectHost(kind="host", host=host, ports=_sorted(item.ports), tls=item.tls)
    if isinstance(item, ConnectCidr):
        return ConnectCidr(kind="cidr", cidr=parse_cidr(item.cidr), ports=_sorted(item.ports))
    if not all(_METHOD.fullmatch(method) for method in item.methods):
        raise ValueError("a method is 1 to 16 upper-case letters")
    paths = antichain(tuple(_url_path(path) for path in item.paths))
    return ConnectBroker(
        kind="broker", name=item.name, methods=tuple(sorted(set(item.methods))), paths=paths
    )


def covers_connect(outer: Connect, inner: Connect) -> bool:
    """Whether every connection that `inner` allows, `outer` allows."""
    if isinstance(outer, ConnectHost) and isinstance(inner, ConnectHost):
        return (
            covers_host(outer.host, inner.host)
            and set(inner.ports) <= set(outer.ports)
            and (inner.tls or not outer.tls)
        )
    if isinstance(outer, ConnectCidr) and isinstance(inner, ConnectCidr):
        return covers_cidr(outer.cidr, inner.cidr) and set(inner.ports) <= set(outer.ports)
    if isinstance(outer, ConnectBroker) and isinstance(inner, ConnectBroker):
        return (
            outer.name == inner.name
            and set(inner.methods) <= set(outer.methods)
            and all(any(covers_path(p, path) for p in outer.paths) for path in inner.paths)
        )
    return False


def parse_connect_sugar(text: str) -> ConnectHost | ConnectCidr:
    """The short form of CLI and SDK: `example.org:443`, `*.example.org:80,443`, `10.0.0.0/8:53`,
    `[2001:db8::/32]:443`. A host with port 443 alone is granted for TLS only; anything else needs
    the object form. Raises ValueError."""
    target, colon, tail = text.rpartition(":")
    if not colon or not target:
        raise ValueError("write a destination as host:port or network:port")
    numbers = tail.split(",")
    if not all(_PORT.fullmatch(number) and int(number) <= 65535 for number in numbers):
        raise ValueError("ports are numbers from 1 to 65535, separated by commas")
    ports = _sorted(tuple(int(number) for number in numbers))
    if target.startswith("[") and target.endswith("]"):
        target = target[1:-1]
        if ":" not in target:
            raise ValueError("brackets are for IPv6 networks")
    elif ":" in target:
        raise ValueError("write an IPv6 network in brackets, and leave a scheme out")
    if "/" in target:
        return ConnectCidr(kind="cidr", cidr=parse_cidr(target), ports=ports)
    host = parse_host_pattern(target)
    return ConnectHost(kind="host", host=host, ports=ports, tls=ports == (_TLS_PORT,))


@functools.lru_cache(maxsize=1024)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    # Parsing costs ten times the comparison, and lists are compared all with all.
    return ipaddress.ip_network(text)


def _components(path: str) -> list[str]:
    return path.split("/")


def _sorted(ports: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(ports)))


def _url_path(text: str) -> str:
    if not _URL_PATH.fullmatch(text):
        raise ValueError("a broker path is absolute, without escapes, query or fragment")
    if text == "/":
        return "/"
    clean = text.removesuffix("/")
    if _UNCLEAN.search(clean):
        raise ValueError("a broker path can't have '.', '..' or empty components")
    return clean

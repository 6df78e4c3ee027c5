"""No accepted host or network escapes its object by spelling.

A destination has many spellings that some reader somewhere takes for the same: other scripts that
fold to ASCII, numbers in other bases, IPv4 inside IPv6. Each is either refused, or read as exactly
one object, so that what was checked is what will be connected to.
"""

from __future__ import annotations

import contextlib
import ipaddress
import unicodedata
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.decide.objects import (
    covers_cidr,
    covers_connect,
    covers_host,
    normalize_call_path,
    parse_cidr,
    parse_connect_sugar,
    parse_host,
    parse_host_pattern,
    parse_path,
)
from stockade.terms import pathname
from stockade.terms.grant import ConnectCidr, ConnectHost

HOST: Final = "a1.example.org"
V4 = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
V6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)


def lookalikes(char: str) -> list[str]:
    """Characters that NFKC or case folding makes into `char`, and are not it."""
    found = []
    for point in range(0x80, 0x1F200):
        other = chr(point)
        folded = unicodedata.normalize("NFKC", other).casefold()
        if folded == char or other.lower() == char:
            found.append(other)
    return found


LOOKALIKES: Final = {char: lookalikes(char) for char in set(HOST)}
# IDNA readers take these for the dot between labels.
LOOKALIKES["."] += ["\u3002", "\uff0e", "\uff61"]


@given(st.data())
def test_no_character_of_another_script_is_read_as_ascii(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(HOST) - 1))
    other = data.draw(st.sampled_from(LOOKALIKES[HOST[at]]))
    text = HOST[:at] + other + HOST[at + 1 :]
    for spelled in (text, text.upper(), text + ".", unicodedata.normalize("NFD", text)):
        if spelled.isascii():
            continue
        with pytest.raises(ValueError, match="ASCII"):
            parse_host(spelled)
        with pytest.raises(ValueError, match=r"ASCII|destination|ports"):
            parse_connect_sugar(spelled + ":443")
    assert not covers_host(HOST, text)
    assert not covers_host("*.example.org", text)


@given(st.text(st.sampled_from("äßöé漢\u0131\u017f"), min_size=1, max_size=8))
def test_an_international_name_and_its_ascii_form_are_not_confused(text: str) -> None:
    """Only the ASCII form is a name, and it covers itself alone."""
    with pytest.raises(ValueError, match="ASCII"):
        parse_host(text + ".org")
    with contextlib.suppress(UnicodeError):
        name = text.encode("idna").decode() + ".org"
        assert parse_host(name) == name.lower()
        assert not covers_host(parse_host(name), text + ".org")


@given(st.sampled_from([HOST, "*." + HOST, "x." + HOST]), st.data())
def test_case_and_one_trailing_dot_are_folded_and_nothing_else(
    name: str, data: st.DataObject
) -> None:
    upper = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    text = "".join(c.upper() if up else c for c, up in zip(name, upper, strict=True))
    assert parse_host_pattern(text) == parse_host_pattern(text + ".") == name
    extra = data.draw(st.sampled_from(list(" \t\n\r\x00/\\@:#?%,;[]()'\"*|&")))
    at = data.draw(st.integers(0, len(text)))
    with pytest.raises(ValueError, match="host"):
        parse_host(text[:at] + extra + text[at:])
    for dotted in (text + "..", "." + text, text.replace(".", "..", 1)):
        with pytest.raises(ValueError, match="host"):
            parse_host_pattern(dotted)


def spellings(address: ipaddress.IPv4Address) -> list[str]:
    """What inet_aton(3), browsers and IPv6 readers take for this IPv4 address."""
    number, octets = int(address), address.packed
    a, b, c, d = octets
    return [
        str(address),
        str(number),
        hex(number),
        f"0{number:o}",
        f"0x{number:08X}",
        ".".join(f"0{octet:o}" for octet in octets),
        ".".join(f"0x{octet:x}" for octet in octets),
        ".".join(f"{octet:03}" for octet in octets),
        f"{a}.{number & 0xFFFFFF}",
        f"{a}.{b}.{number & 0xFFFF}",
        f"{a}.{b}.0x{c:x}.0{d:o}",
        f"{address}.",
        f"::ffff:{address}",
        f"[::ffff:{address}]",
        f"::ffff:{number >> 16:x}:{number & 0xFFFF:x}",
        f"0:0:0:0:0:ffff:{number >> 16:x}:{number & 0xFFFF:x}",
        f"::FFFF:{address}",
        f"::{address}",
        f"64:ff9b::{address}",
        "".join(chr(0xFF10 + int(x)) if x.isdigit() else x for x in str(address)),
    ]


@given(V4, st.integers(0, 32))
def test_no_spelling_of_an_ipv4_address_is_a_host_or_a_second_network(
    address: ipaddress.IPv4Address, length: int
) -> None:
    network = ipaddress.ip_network((address, length), strict=False)
    granted = parse_cidr(str(network))
    for text in spellings(address):
        with pytest.raises(ValueError, match=r"."):
            parse_host(text)
        for target in (f"{text}:80", f"[{text}]:80", f"*.{text}:80"):
            with pytest.raises(ValueError, match=r"."):
                parse_connect_sugar(target)
        for bits in (32, 128):
            found = None
            with contextlib.suppress(ValueError):
                found = parse_cidr(f"{text}/{bits}")
            if found is None:
                continue
            read = ipaddress.ip_network(found)
            if read.version == 4:
                # Only the decimal form without leading zeros, which names this very address.
                assert text == str(address)
                assert read.network_address == address
                assert covers_cidr(granted, found)
            else:
                # IPv6 addresses that hold the bits of an IPv4 one are addresses of their own ...
                assert not covers_cidr(granted, found)
                assert isinstance(read.network_address, ipaddress.IPv6Address)
                # ... but the form that kernels treat as the IPv4 one is refused.
                assert read.network_address.ipv4_mapped is None


@given(V6, st.integers(0, 128), st.booleans())
def test_every_spelling_of_an_ipv6_network_is_one_network(
    address: ipaddress.IPv6Address, length: int, upper: bool
) -> None:
    network = ipaddress.ip_network((address, length), strict=False)
    first = network.network_address
    assert isinstance(first, ipaddress.IPv6Address)
    texts = [str(first), first.exploded]
    for text in texts:
        spelled = f"{text.upper() if upper else text}/{length}"
        if first.ipv4_mapped is not None:
            with pytest.raises(ValueError, match="IPv4"):
                parse_cidr(spelled)
        else:
            assert parse_cidr(spelled) == str(network)
    for text in (f"{first}%eth0/{length}", f"[{first}]/{length}", f"{first}/0{length}x"):
        with pytest.raises(ValueError, match="network"):
            parse_cidr(text)


@given(V4, V4, st.integers(0, 32), st.integers(0, 32))
def test_a_network_covers_the_addresses_that_it_has(
    a: ipaddress.IPv4Address, b: ipaddress.IPv4Address, one: int, other: int
) -> None:
    outer = ipaddress.ip_network((a, one), strict=False)
    inner = ipaddress.ip_network((b, other), strict=False)
    expected = one <= other and int(a) >> (32 - one) == int(b) >> (32 - one)
    assert covers_cidr(parse_cidr(str(outer)), parse_cidr(str(inner))) == expected


@pytest.mark.parametrize(
    "text",
    [
        "https://a.org:443",
        "user@a.org:443",
        "a.org:443/path",
        "a.org:0443",
        "a.org:+443",
        "a.org: 443",
        "a.org:443:443",
        "a.org:443,",
        "a.org:65536",
        "a.org:\uff14\uff14\uff13",
        "a.org%00.evil.test:443",
        "a.org\x00.evil.test:443",
        "a.org#evil.test:443",
        "[a.org]:443",
        "*.*.org:443",
        "a.*.org:443",
        "**.org:443",
        "*:443",
        "*.:443",
        ":443",
        "10.0.0.1/8:80",
        "010.0.0.0/8:80",
        "10.0.0.0/08x:80",
        "10.0.0.0/255.0.0.0:80",
        "10.0.0.0/8/8:80",
        "10/8:80",
        "fd00::/8:80",
        "[fd00::/8%1]:80",
        "[::ffff:10.0.0.0/104]:80",
    ],
)
def test_what_could_be_read_in_two_ways_is_no_destination(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_connect_sugar(text)


@given(st.sampled_from(["a.org", "*.a.org"]), st.text(st.sampled_from("ab.org-*:"), max_size=9))
def test_a_destination_covers_by_labels(pattern: str, text: str) -> None:
    outer = ConnectHost(kind="host", host=pattern, ports=(443,), tls=True)
    try:
        inner = parse_connect_sugar(text + ":443")
    except ValueError:
        return
    assert not isinstance(inner, ConnectCidr)
    labels = inner.host.split(".")
    if pattern == "a.org":
        expected = labels == ["a", "org"]
    else:
        expected = labels[-2:] == ["a", "org"] and len(labels) > 2
    assert covers_connect(outer, inner) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/workspace/é", "/workspace/e\u0301"),  # composed and decomposed
        ("/workspace/a", "/workspace/\uff41"),  # full width
        ("/workspace/a", "/workspace/A"),
        ("/workspace/a", "/workspace\u2215a"),  # a division slash
        ("/workspace/k", "/workspace/\u212a"),
        ("/workspace/a", "/workspace/a\u200b"),  # a zero-width space
        ("/workspace/a", "/workspace/a "),
        ("/workspace/a", "/workspace/a."),
        ("/workspace/a", "/workspace/\u202ea"),
        ("/workspace/%61", "/workspace/a"),
    ],
)
def test_names_that_look_alike_are_different_files(one: str, other: str) -> None:
    assert parse_path(one) != parse_path(other)
    assert normalize_call_path(one) != normalize_call_path(other)
    assert pathname.to_text(normalize_call_path(other)) == other

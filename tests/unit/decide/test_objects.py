from __future__ import annotations

import pytest

from stockade.decide.objects import (
    antichain,
    covers_cidr,
    covers_connect,
    covers_host,
    covers_path,
    is_resolved_path,
    normal_connect,
    normalize_call_path,
    parse_cidr,
    parse_connect_sugar,
    parse_host,
    parse_host_pattern,
    parse_path,
)
from stockade.terms.grant import Connect, ConnectBroker, ConnectCidr, ConnectHost


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/", "/"),
        ("/workspace", "/workspace"),
        ("/workspace/", "/workspace"),
        ("/a b/é/...", "/a b/é/..."),
        ("/..a/.b/c..", "/..a/.b/c.."),
        (r"/\x41", "/A"),
        (r"/\xff", r"/\xff"),
        (r"/a\x5cb", r"/a\x5cb"),
        ("/~", "/~"),
    ],
)
def test_a_granted_path_has_one_spelling(text: str, clean: str) -> None:
    assert parse_path(text) == clean
    assert parse_path(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "",
        "workspace",
        "~",
        "//",
        "///",
        "//workspace",
        "/workspace//",
        "/workspace//a",
        "/.",
        "/..",
        "/workspace/.",
        "/workspace/./a",
        "/workspace/..",
        "/workspace/../etc",
        r"/workspace/\x2e\x2e/etc",
        r"/workspace/\x2e./etc",
        r"/workspace\x2f/etc",
        "/a\x00b",
        r"/a\x00b",
        "/a\nb",
        r"/a\x0ab",
        r"/a\x7fb",
        "/a\\b",
        "/a\ud800",
        "/" + "a" * 4096,
        "repo:a",
    ],
)
def test_a_granted_path_that_could_mean_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"path|surrogates"):
        parse_path(text)


@pytest.mark.parametrize(
    ("prefix", "path", "covered"),
    [
        ("/", "/", True),
        ("/", "/etc/passwd", True),
        ("/workspace", "/workspace", True),
        ("/workspace", "/workspace/a/b", True),
        ("/workspace", "/workspace-evil", False),
        ("/workspace", "/workspace-evil/x", False),
        ("/workspace", "/workspacé", False),
        ("/workspace", "/Workspace/a", False),
        ("/workspace", "/", False),
        ("/workspace/a", "/workspace", False),
        ("/workspace", "/workspace/../etc", False),
        ("/workspace", "/workspace/..", False),
        ("/workspace", "/workspace/./a", False),
        ("/workspace", "/workspace//a", False),
        ("/workspace", "/workspace/", False),
        ("/workspace", "workspace/a", False),
        ("/", "workspace", False),
        ("/", "/..", False),
        ("/", "", False),
        ("/", "repo:a", False),
        ("/a/..", "/a/..", False),
    ],
)
def test_paths_are_covered_by_whole_components(prefix: str, path: str, covered: bool) -> None:
    assert covers_path(prefix, path) is covered


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/workspace-evil/x", b"/workspace-evil/x"),
        ("/workspace/../workspace-evil/x", b"/workspace/../workspace-evil/x"),
        ("/workspace//../etc/passwd", b"/workspace/../etc/passwd"),
        ("/workspace/./x", b"/workspace/x"),
        ("/workspace/x/", b"/workspace/x"),
        ("~", b"/workspace/~"),
        ("a", b"/workspace/a"),
        ("./a//b/.", b"/workspace/a/b"),
        ("../etc", b"/workspace/../etc"),
        (".", b"/workspace"),
        ("/", b"/"),
        ("//", b"/"),
        (r"n\xffw\x0a", b"/workspace/n\xffw\n"),
        (r"\x2e\x2e/etc", b"/workspace/../etc"),
    ],
)
def test_b48_a_call_path_is_made_absolute_and_its_dots_keep_their_meaning(
    text: str, expected: bytes
) -> None:
    assert normalize_call_path(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a\x00b", r"a\x00b", "a" * 5000, "/" + "a" * 5000, "a" * 4090]
)
def test_b48_a_call_path_that_no_kernel_takes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        normalize_call_path(text)


def test_b48_a_sibling_with_the_same_beginning_is_not_inside() -> None:
    granted = parse_path("/workspace")
    for text in (
        "/workspace-evil/x",
        "/workspace/../workspace-evil/x",
        "/workspace//../etc/passwd",
    ):
        assert not covers_path(granted, normalize_call_path(text).decode())
    for text in ("/workspace/./x", "/workspace/x/", "x"):
        assert covers_path(granted, normalize_call_path(text).decode())


def test_a_resolved_path_may_hold_every_name_that_linux_allows() -> None:
    for text in ("/", "/workspace/a", r"/workspace/\x0a\xff", "/workspace/..."):
        assert is_resolved_path(text)
    for text in ("", "a", "/a/", "//a", "/a/..", "/a/./b", "/a\nb", r"/\x41", "/a\x00", "/\ud800"):
        assert not is_resolved_path(text)


def test_antichain_keeps_the_widest_prefixes_only() -> None:
    paths = ("/b", "/a/b", "/a-b", "/a", "/a", "/a.b/c", "/a/b/c")
    assert antichain(paths) == ("/a", "/a-b", "/a.b/c", "/b")
    assert antichain(("/a", "/", "/b")) == ("/",)
    assert antichain(()) == ()


@pytest.mark.parametrize(
    ("pattern", "host", "covered"),
    [
        ("example.test", "example.test", True),
        ("example.test", "EXAMPLE.test.", True),
        ("example.test", "notexample.test", False),
        ("example.test", "example.test.evil.test", False),
        ("example.test", "a.example.test", False),
        ("*.ok.test", "x.ok.test", True),
        ("*.ok.test", "a.b.ok.test", True),
        ("*.ok.test", "X.OK.test.", True),
        ("*.ok.test", "ok.test", False),
        ("*.ok.test", "xok.test", False),
        ("*.ok.test", "x.ok.test.evil.test", False),
        ("*.OK.test.", "x.ok.test", True),
        ("*.ok.test", "*.ok.test", True),
        ("*.ok.test", "*.x.ok.test", True),
        ("*.x.ok.test", "*.ok.test", False),
        ("x.ok.test", "*.ok.test", False),
        ("xn--bcher-kva.test", "xn--bcher-kva.test", True),
        ("xn--bcher-kva.test", "bucher.test", False),
    ],
)
def test_b67_hosts_are_covered_by_whole_labels(pattern: str, host: str, covered: bool) -> None:
    assert covers_host(parse_host_pattern(pattern), parse_host_pattern(host)) is covered


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "*",
        "*.",
        "*.*.test",
        "a.*.test",
        "x*.test",
        "*x.test",
        "**.test",
        "a..test",
        ".a.test",
        "a.test..",
        "a.test:443",
        "https://a.test",
        "a.test/",
        "a test",
        " a.test",
        "a.test ",
        "a.test\n",
        "a.test\x00.ok.test",
        "user@a.test",
        "bücher.test",
        "a.tes\u212a",
        "a\u3002test",
        "a\uff0etest",
        "-a.test",
        "a-.test",
        "a" * 64 + ".test",
        ".".join(["a" * 60] * 5),
        "127.0.0.1",
        "127.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0X7F.1",
        "0177.0.0.1",
        "1.2.3.0x",
        "*.1",
        "a.test.08",
        "::1",
        "[::1]",
        "::ffff:127.0.0.1",
        "fe80::1%eth0",
    ],
)
def test_b67_a_malformed_host_is_refused_at_load(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|address"):
        parse_host_pattern(text)


def test_b67_a_host_has_253_characters_at_most() -> None:
    longest = ".".join(["a" * 49] * 5) + ".abc"
    assert len(longest) == 253
    assert parse_host(longest) == longest
    with pytest.raises(ValueError, match="253"):
        parse_host("a" + longest)


def test_a_wildcard_is_for_grants_only() -> None:
    with pytest.raises(ValueError, match="host"):
        parse_host("*.a.test")
    assert parse_host("A_b-C.Test.") == "a_b-c.test"
    assert parse_host("1.2.3.4.test") == "1.2.3.4.test"


def test_a_host_that_was_not_parsed_is_not_covered() -> None:
    for host in ("x..ok.test", "evil.test\x00.ok.test", "X.ok.test", "-.ok.test", ".ok.test"):
        assert not covers_host("*.ok.test", host)


@pytest.mark.parametrize(
    ("outer", "inner", "covered"),
    [
        ("10.0.0.0/8", "10.1.0.0/16", True),
        ("10.0.0.0/8", "10.0.0.0/8", True),
        ("10.1.0.0/16", "10.0.0.0/8", False),
        ("10.0.0.0/8", "11.0.0.0/8", False),
        ("0.0.0.0/0", "::/0", False),
        ("::/0", "0.0.0.0/0", False),
        ("2001:db8::/32", "2001:db8:1::/48", True),
    ],
)
def test_networks_are_covered_within_their_family(outer: str, inner: str, covered: bool) -> None:
    assert covers_cidr(parse_cidr(outer), parse_cidr(inner)) is covered


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1/8",
        "10.0.0.0",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/ 8",
        "010.0.0.0/8",
        "0x0a.0.0.0/8",
        "10.0.0/8",
        "::ffff:10.0.0.0/104",
        "::ffff:a00:0/104",
        "fe80::%1/64",
        "/8",
        "",
        "a.test/8",
    ],
)
def test_a_network_with_two_readings_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"network|IPv4"):
        parse_cidr(text)


def test_a_network_has_one_spelling() -> None:
    assert parse_cidr("2001:DB8:0:0::/32") == "2001:db8::/32"


def host(name: str, *ports: int, tls: bool = False) -> ConnectHost:
    return ConnectHost(kind="host", host=name, ports=ports, tls=tls)


def cidr(name: str, *ports: int) -> ConnectCidr:
    return ConnectCidr(kind="cidr", cidr=name, ports=ports)


def broker(name: str, methods: tuple[str, ...], *paths: str) -> ConnectBroker:
    return ConnectBroker(kind="broker", name=name, methods=methods, paths=paths)


@pytest.mark.parametrize(
    ("outer", "inner", "covered"),
    [
        (host("a.test", 80, 443), host("a.test", 443), True),
        (host("a.test", 443), host("a.test", 80, 443), False),
        (host("a.test"), host("a.test", 80), False),
        (host("*.test", 443), host("a.test", 443), True),
        (host("a.test", 443), host("a.test", 443, tls=True), True),
        (host("a.test", 443, tls=True), host("a.test", 443), False),
        (cidr("10.0.0.0/8", 53), cidr("10.0.0.0/9", 53), True),
        (cidr("10.0.0.0/8", 53), cidr("10.0.0.0/9", 54), False),
        (cidr("0.0.0.0/0", 53), host("a.test", 53), False),
        (host("a.test", 53), cidr("10.0.0.0/8", 53), False),
        (broker("g", ("GET", "PUT"), "/a"), broker("g", ("GET",), "/a/b"), True),
        (broker("g", ("GET",), "/a"), broker("g", ("PUT",), "/a"), False),
        (broker("g", ("GET",), "/a"), broker("g", ("GET",), "/ab"), False),
        (broker("g", ("GET",), "/a"), broker("h", ("GET",), "/a"), False),
    ],
)
def test_a_destination_covers_another(outer: Connect, inner: Connect, covered: bool) -> None:
    assert covers_connect(normal_connect(outer), normal_connect(inner)) is covered


@pytest.mark.parametrize(
    "item",
    [
        broker("g", ("get",), "/a"),
        broker("g", ("G ET",), "/a"),
        broker("g", ("GET",), "a"),
        broker("g", ("GET",), "/a/../b"),
        broker("g", ("GET",), "/a//b"),
        broker("g", ("GET",), "//"),
        broker("g", ("GET",), "/%2e%2e"),
        broker("g", ("GET",), "/a?x=1"),
        broker("g", ("GET",), "/a#b"),
        broker("g", ("GET",), "/a\\b"),
        host("a.test:80", 80),
        cidr("10.0.0.1/8", 80),
    ],
)
def test_a_malformed_destination_is_refused(item: Connect) -> None:
    with pytest.raises(ValueError, match=r"."):
        normal_connect(item)


def test_a_destination_has_one_spelling() -> None:
    assert normal_connect(host("A.Test.", 443, 80, 443)) == host("a.test", 80, 443)
    assert normal_connect(broker("g", ("PUT", "GET"), "/a/", "/a/b")) == broker(
        "g", ("GET", "PUT"), "/a"
    )


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("example.org:443", host("example.org", 443, tls=True)),
        ("Example.org.:80", host("example.org", 80)),
        ("example.org:1,65535", host("example.org", 1, 65535)),
        ("*.example.org:443,80", host("*.example.org", 80, 443)),
        ("10.0.0.0/8:53", cidr("10.0.0.0/8", 53)),
        ("[2001:db8::/32]:443", cidr("2001:db8::/32", 443)),
    ],
)
def test_the_short_form_of_a_destination(text: str, item: Connect) -> None:
    assert parse_connect_sugar(text) == item


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.org",
        ":443",
        "example.org:",
        "example.org:0",
        "example.org:65536",
        "example.org:0443",
        "example.org:+80",
        "example.org:80,",
        "example.org:80,+443",
        "example.org:80,٤٤٣",
        "example.org:80-90",
        "example.org:٤",
        "https://example.org:443",
        "https://example.org",
        "10.0.0.1:53",
        "2001:db8::/32:443",
        "[10.0.0.0/8]:53",
        "[example.org]:53",
        "[::1]:53",
        "[2001:db8::/32:443",
        "2001:db8::/32]:443",
        "*:443",
    ],
)
def test_a_malformed_short_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_connect_sugar(text)

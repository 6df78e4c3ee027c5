from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stockade.edge.exchange import Peer, Role
from stockade.edge.server import config as module
from stockade.edge.server.config import Config, ConfigError, ceilings_of, load, peers
from stockade.edge.server.startup import resolve

OWN = 1_000_001


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_a_missing_default_file_allows_only_the_daemons_own_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEFAULT_CONFIG", str(tmp_path / "none"))
    read = load()
    assert read == Config()
    assert read.socket_mode == 0o600
    assert peers(read, OWN) == {OWN: Peer(OWN, None, Role.OPERATOR, own=True)}


def test_a_missing_file_that_was_named_is_an_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(str(file))


def test_peers_by_uid_and_by_name(file: Path) -> None:
    file.write_text(
        '[[peer]]\nuid = 4242\nrole = "tenant"\ntenant = "acme"\n'
        '[[peer]]\nuser = "root"\nrole = "operator"\n'
    )
    table = peers(load(str(file)), OWN)
    assert table[4242] == Peer(4242, "acme", Role.TENANT, own=False)
    assert table[0] == Peer(0, None, Role.OPERATOR, own=False)
    assert set(table) == {OWN, 4242, 0}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sokcet = '/a'", "sokcet: there is no such key"),
        ("[limits]\ncals = 1", "limits.cals: there is no such key"),
        ("socket = 'relative'", "socket"),
        (f"socket = '/{'x' * 107}'", "socket"),
        (f"socket = '/{'é' * 54}'", "socket"),
        ("[limits]\ncalls = 1025", "limits.calls"),
        ("[limits]\nqueue = 1025", "limits.queue"),
        (f"state_dir = '/{'x' * 490}'", "state_dir: the path has 491 bytes"),
        ("state_dir = 7", "state_dir"),
        ("socket_mode = 0o7777", "socket_mode"),
        ("socket_mode = '0600'", "socket_mode"),
        ("[limits]\ncalls = 0", "limits.calls"),
        ("[limits]\ncalls = true", "limits.calls"),
        ("[limits]\ncalls = 4\nper_tenant = 5", "limits"),
        ("[limits]\nqueue_s = 0", "limits.queue_s"),
        ("[log]\nformat = 'xml'", "log.format"),
        ("[trace]\nendpoint = 'localhost:4318'", "trace.endpoint"),
        ("[tokens]\nskew_s = 3600", "tokens.skew_s"),
        ("[[peer]]\nuid = 1\nrole = 'admin'", "peer.0.role"),
        ("[[peer]]\nuid = 1\nrole = 'tenant'", "peer.0"),
        ("[[peer]]\nuid = 1\nrole = 'operator'\ntenant = 'a'", "peer.0"),
        ("[[peer]]\nrole = 'operator'", "peer.0"),
        ("[[peer]]\nuid = 1\nuser = 'root'\nrole = 'operator'", "peer.0"),
        ("[[peer]]\nuid = -1\nrole = 'operator'", "peer.0.uid"),
        ("[[peer]]\nuid = 1\nrole = 'tenant'\ntenant = '../x'", "peer.0.tenant"),
        ("[[tenant]]\nname = 'acme'", "tenant.0.ceiling"),
        ("[[tenant]]\nname = '../x'\nceiling = 'small'", "tenant.0.name"),
        ("[[tenant]]\nname = 'acme'\nceiling = 'small'\nttl = 1", "tenant.0.ttl"),
        ("a = ", "not TOML"),
        ("a = 1\na = 2", "not TOML"),
    ],
)
def test_every_mistake_is_named(file: Path, text: str, named: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(str(file))
    assert str(file) in str(raised.value)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_eighth_of_the_places_is_for_other_tenants_unless_said_otherwise(file: Path) -> None:
    for text, calls in (("", 56), ("calls = 2", 2), ("calls = 8", 7), ("per_tenant = 3", 3)):
        file.write_text(f"[limits]\n{text}\n")
        assert load(str(file)).limits.tenant_calls == calls


def test_bytes_that_are_not_utf_8_are_an_error(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="can't be read"):
        load(str(file))


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        ('[[peer]]\nuser = "no-such-user-here"\nrole = "operator"\n', "no such user"),
        ('[[peer]]\nuid = 5\nrole = "operator"\n' * 2, "named twice"),
        (f'[[peer]]\nuid = {OWN}\nrole = "tenant"\ntenant = "a"\n', "own user"),
    ],
)
def test_peers_that_contradict_are_refused(file: Path, rules: str, match: str) -> None:
    file.write_text(rules)
    with pytest.raises(ConfigError, match=match):
        peers(load(str(file)), OWN)


def test_tenants_have_the_ceilings_that_the_file_names(file: Path) -> None:
    file.write_text('[[tenant]]\nname = "acme"\nceiling = "small"\n')
    assert ceilings_of(load(str(file)), {"default", "small"}) == {"acme": "small"}
    assert ceilings_of(Config(), {"default"}) == {}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('[[tenant]]\nname = "acme"\nceiling = "huge"\n', "acme: there is no ceiling huge"),
        ('[[tenant]]\nname = "acme"\nceiling = "small"\n' * 2, "acme: named twice"),
    ],
)
def test_an_unknown_ceiling_and_a_doubled_tenant_are_refused(
    file: Path, text: str, match: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=match):
        ceilings_of(load(str(file)), {"default", "small"})


def test_a_package_that_tracing_lacks_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('[trace]\nendpoint = "http://127.0.0.1:4318/v1/traces"\n')
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "stockade.edge.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"trace\.endpoint: opentelemetry.* is missing"):
        resolve(load(str(file)), OWN, grants={"agent"}, ceilings={"default"})

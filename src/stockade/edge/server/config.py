"""The daemon's configuration: a closed TOML file, and the built-in default when there is none.

```toml
state_dir = "/var/lib/stockade"
socket = "/run/stockade/stockade.sock"
socket_mode = 0o600

[[peer]]
user = "alice"        # or uid = 1000
role = "tenant"       # or "operator"
tenant = "acme"       # tenants only

[[tenant]]
name = "acme"
ceiling = "small"     # a file of policy/ceilings; "default" for tenants not named here

[limits]
calls = 64

[log]
format = "json"       # or "text"

[trace]
endpoint = "http://127.0.0.1:4318/v1/traces"

[defaults]
grant = "agent"

[retention]
claims_s = 604800     # after the lease's release

[audit]
checkpoint_s = 60
```

The daemon's own uid is always an operator: whoever runs as it can read the state directory and
the keys anyway. Every other uid is refused unless a `[[peer]]` names it.
"""

from __future__ import annotations

import pwd
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from stockade.edge.exchange import DEFAULT_SOCKET, MAX_CONNECTIONS, Peer, Role
from stockade.terms.base import MAX_INTEGER, Model, first_finding
from stockade.terms.ids import Name, Tenant

DEFAULT_CONFIG: Final = "/etc/stockade/config.toml"
DEFAULT_STATE_DIR: Final = "/var/lib/stockade"
DEFAULT_CEILING: Final = "default"

# sockaddr_un.sun_path holds 108 bytes with the final NUL.
_MAX_SOCKET_PATH: Final = 107
# SQLite takes a path of 512 bytes, and adds to the ledger's ("/ledger.db-journal").
_MAX_STATE_DIR: Final = 490


def _at_most(most: int) -> AfterValidator:
    def bounded(path: str) -> str:
        if (size := len(path.encode())) > most:
            raise ValueError(f"the path has {size} bytes; at most {most} are possible")
        return path

    return AfterValidator(bounded)


StateDir = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$"), _at_most(_MAX_STATE_DIR)]
SocketPath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]+$"), _at_most(_MAX_SOCKET_PATH)]
Seconds = Annotated[int, Field(ge=1, le=MAX_INTEGER)]


class ConfigError(Exception):
    """The file can't be used; the message is one line that names the file and the place."""


class PeerRule(Model):
    """Exactly one of `uid` and `user`. A tenant peer names its tenant, an operator none."""

    uid: Annotated[int, Field(ge=0, lt=2**32 - 1)] | None = None
    user: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    # TOML gives a plain string, which strict mode would not take for an enumeration member.
    role: Annotated[Role, Field(strict=False)]
    tenant: Tenant | None = None

    @model_validator(mode="after")
    def _consistent(self) -> PeerRule:
        if (self.uid is None) == (self.user is None):
            raise ValueError("give exactly one of uid and user")
        if (self.role is Role.TENANT) != (self.tenant is not None):
            raise ValueError("a tenant peer needs a tenant, and an operator has none")
        return self


class TenantRule(Model):
    """A tenant whose ceiling is not the default one."""

    name: Tenant
    ceiling: Name


class ServerLimits(Model):
    """`calls` run at once, `per_tenant` of them of one tenant, and `queue` wait, each for at most
    `queue_s`; more are answered with `busy`. Without `per_tenant` an eighth of `calls` is kept for
    other tenants. Each call has a connection, also while it waits, so more could never be."""

    calls: Annotated[int, Field(ge=1, le=MAX_CONNECTIONS)] = 64
    per_tenant: Annotated[int, Field(ge=1, le=MAX_CONNECTIONS)] | None = None
    queue: Annotated[int, Field(ge=0, le=MAX_CONNECTIONS)] = 256
    queue_s: Annotated[int, Field(ge=1, le=3600)] = 30
    shutdown_grace_s: Annotated[int, Field(ge=0, le=3600)] = 10

    @property
    def tenant_calls(self) -> int:
        return self.per_tenant or self.calls - self.calls // 8

    @model_validator(mode="after")
    def _consistent(self) -> ServerLimits:
        if self.tenant_calls > self.calls:
            raise ValueError("per_tenant is more than calls")
        return self


class Log(Model):
    """Lines for people or for programs."""

    format: Literal["text", "json"] = "text"


class Trace(Model):
    """Where spans of calls are sent, by OTLP over HTTP; without an endpoint there are none."""

    endpoint: (
        Annotated[str, StringConstraints(pattern=r"^https?://[!-~]+$", max_length=2048)] | None
    ) = None


class TokenRules(Model):
    """How long before and after its time a token still holds: its maker's clock is not this one."""

    skew_s: Annotated[int, Field(ge=0, le=300)] = 5


class Defaults(Model):
    """What a lease gets when its request leaves it out."""

    grant: Name = "agent"
    ttl_s: Seconds = 3600


class Retention(Model):
    """Claims and results of calls are kept until `claims_s` after their lease was released."""

    claims_s: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 7 * 24 * 3600


class AuditRules(Model):
    """`flow.auditing.AuditSettings` as the file says it."""

    checkpoint_s: Seconds = 60
    checkpoint_records: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    keep_s: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 7 * 24 * 3600


class Config(Model):
    state_dir: StateDir = DEFAULT_STATE_DIR
    socket: SocketPath = DEFAULT_SOCKET
    socket_mode: Annotated[int, Field(ge=0, le=0o777)] = 0o600
    peer: Annotated[list[PeerRule], Field(max_length=1024)] = Field(default_factory=list)
    tenant: Annotated[list[TenantRule], Field(max_length=1024)] = Field(default_factory=list)
    limits: ServerLimits = ServerLimits()
    log: Log = Log()
    trace: Trace = Trace()
    tokens: TokenRules = TokenRules()
    defaults: Defaults = Defaults()
    retention: Retention = Retention()
    audit: AuditRules = AuditRules()


def load(path: str | None = None) -> Config:
    """Read `path`, or the default file; a missing default file is the built-in default.
    Raises ConfigError."""
    file = Path(path or DEFAULT_CONFIG)
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        if path is None:
            return Config()
        raise ConfigError(f"{file}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: can't be read: {error}") from error
    try:
        return Config.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{file}: {_mistake(error)}") from error


def changed(config: Config, given: Mapping[str, str]) -> Config:
    """With values of the command line in it. Raises ConfigError."""
    try:
        return Config.model_validate(config.model_dump() | dict(given))
    except ValidationError as error:
        raise ConfigError(_mistake(error)) from error


def _mistake(error: ValidationError) -> str:
    """The first one: its place in the file, and what is wrong there."""
    place, reason = first_finding(error)
    unknown = error.errors(include_url=False, include_input=False, include_context=False)[0]["type"]
    if unknown == "extra_forbidden":
        reason = "there is no such key"
    return f"{place}: {reason.removeprefix('Value error, ')}"


def peers(config: Config, own_uid: int) -> Mapping[int, Peer]:
    """uid to peer. Raises ConfigError for an unknown user and for a uid that is named twice."""
    table: dict[int, Peer] = {own_uid: Peer(own_uid, None, Role.OPERATOR, own=True)}
    for rule in config.peer:
        uid = rule.uid if rule.uid is not None else _uid(rule.user or "")
        if uid == own_uid:
            raise ConfigError(f"peer {uid}: the daemon's own user is always an operator")
        if uid in table:
            raise ConfigError(f"peer {uid}: named twice")
        table[uid] = Peer(uid, rule.tenant, rule.role, own=False)
    return table


def ceilings_of(config: Config, known: Collection[str]) -> Mapping[str, str]:
    """Tenant to ceiling, of those that have their own. `known` are the names of the policy's.
    Raises ConfigError for an unknown ceiling and for a tenant that is named twice."""
    table: dict[str, str] = {}
    for rule in config.tenant:
        if rule.name in table:
            raise ConfigError(f"tenant {rule.name}: named twice")
        if rule.ceiling not in known:
            raise ConfigError(
                f"tenant {rule.name}: there is no ceiling {rule.ceiling}; "
                f"there are {', '.join(sorted(known))}"
            )
        table[rule.name] = rule.ceiling
    return table


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(f"peer {user}: there is no such user") from None

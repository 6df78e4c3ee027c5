"""What a configuration comes to on this host: `serve` begins with it and `config check` is it, so
neither accepts what the other refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from stockade.edge import reporting
from stockade.edge.exchange import Peer
from stockade.edge.server.config import Config, ConfigError, ceilings_of, peers


class Startup(NamedTuple):
    """Uid to peer, and tenant to ceiling of those that have their own."""

    peers: Mapping[int, Peer]
    ceilings: Mapping[str, str]


def resolve(
    config: Config, own_uid: int, *, grants: Collection[str], ceilings: Collection[str]
) -> Startup:
    """`grants` and `ceilings` are the names of the policy's files. Raises ConfigError for a name
    that is not there or is given twice, and for a package that is missing."""
    found = Startup(peers(config, own_uid), ceilings_of(config, ceilings))
    if config.defaults.grant not in grants:
        raise ConfigError(
            f"defaults.grant: there is no grant {config.defaults.grant}; "
            f"there are {', '.join(sorted(grants))}"
        )
    reporting.check(config)
    return found

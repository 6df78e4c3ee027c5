"""A daemon to attack: a whole runtime with leases of two tenants, and sockets that lead to it.

The sandbox is given the daemon's sockets, as it never is, so that what is behind them is attacked: the
table of peers, the tokens' signatures, and what a token is for. An attack is one HTTP request in a
file. It is there twice: `strong` as the attacker has it, and `weak`, as it would be if the defence
were not there (the signature known, the peer trusted). The answer to a weak one holds the mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from stockade.edge.client.lease import Lease
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
from stockade.edge.server.http import HttpServer
from stockade.edge.wire import LeaseCreate
from stockade.embedded import EMBEDDED
from stockade.host import leftovers
from stockade.runtime import open_runtime

_OWN: Final = "attacker"
_VICTIM: Final = "victim"


@dataclass(frozen=True, slots=True)
class _Request:
    """`socket` names the peer that its other end takes the sandbox for."""

    socket: str
    path: str
    token: str | None
    body: Mapping[str, JsonValue]

    def text(self) -> bytes:
        body = json.dumps(self.body).encode()
        head = [
            f"POST /v1/{self.path} HTTP/1.1",
            "Host: localhost",
            "Connection: close",
            f"Content-Length: {len(body)}",
        ]
        if self.token is not None:
            head.append(f"Stockade-Capability: {self.token}")
        return "\r\n".join([*head, "", ""]).encode() + body


@contextmanager
def opened(uid: int, mark: str) -> Iterator[dict[str, str]]:
    """The daemon, to the end of the context. `uid` is the attacker's on the host. The facts are
    the directory of its sockets and requests, and its state directory. Raises Failure."""
    state_dir, owned = leftovers.new_state(EMBEDDED)
    with ExitStack() as undo:
        undo.callback(leftovers.remove_state, state_dir, owned)
        runtime = open_runtime(state_dir, owned=owned)
        undo.callback(runtime.close)
        doors = state_dir / "doors"
        doors.mkdir(mode=0o755)
        source = state_dir / "source"
        source.mkdir()
        (source / "secret").write_text(f"{mark}\n")
        peers = {
            "tenant": [Peer(uid, _OWN, Role.TENANT, own=False)],
            "victim": [Peer(uid, _VICTIM, Role.TENANT, own=False)],
            "operator": [Peer(uid, None, Role.OPERATOR, own=False)],
            "own": [Peer(uid, None, Role.OPERATOR, own=True)],
            "stranger": [],
        }
        for name, known in peers.items():
            server = HttpServer(runtime.api, {peer.uid: peer for peer in known})
            server.start(str(doors / f"{name}.sock"), 0o666)
            undo.callback(server.stop, 0)
        root = Peer(0, None, Role.OPERATOR, own=True)
        with Stockade(InProcessTransport(runtime.api, root, lambda: None)) as stockade:
            _write(doors, _requests(stockade, source))
            yield {"doors": str(doors), "daemon_state": str(state_dir)}
            for view in stockade.leases():
                stockade.attach(view.lease_id).release()


def _requests(stockade: Stockade, source: Path) -> dict[str, tuple[_Request, _Request]]:
    """By the attempt's name: strong, weak."""
    own = stockade.lease(source, tenant=_OWN, trajectory="run-1")
    second = stockade.lease(source, tenant=_OWN, trajectory="run-2")
    other = stockade.lease(source, tenant=_VICTIM, trajectory="run-1")
    late = stockade.lease(source, tenant=_OWN, trajectory="run-3")
    former = _token(late)
    taken = stockade.create_lease(_take_over(source), None)[1]
    narrow = _token(own.narrowed(read=("/workspace/none",), write=(), execute=()))
    mint: dict[str, JsonValue] = {
        "tenant": _OWN, "trajectory": "run-1", "grant": "agent", "ttl_s": 60,
    }  # fmt: skip
    source_of_the_host: dict[str, JsonValue] = {"trajectory": "run-4", "source": str(source)}
    return {
        "unknown_peer": (_view("stranger", own.id, own.token), _view("tenant", own.id, own.token)),
        "flipped_token": (
            _view("tenant", own.id, _flipped(_token(own))), _view("tenant", own.id, own.token),
        ),
        "narrowing_undone": (
            _view("tenant", own.id, _without_last_block(narrow)),
            _view("tenant", own.id, own.token),
        ),
        "narrowed_token": (_view("tenant", own.id, narrow), _view("tenant", own.id, own.token)),
        "token_of_another_lease": (
            _view("tenant", second.id, own.token), _view("tenant", second.id, second.token),
        ),
        "stolen_token": (
            _view("tenant", other.id, other.token), _view("victim", other.id, other.token),
        ),
        "stale_generation": (
            _view("tenant", late.id, former), _view("tenant", late.id, _token(taken)),
        ),
        "no_token": (_view("tenant", own.id, None), _view("own", own.id, None)),
        "mint": (
            _Request("tenant", "capabilities", None, mint),
            _Request("operator", "capabilities", None, mint),
        ),
        "host_source": (
            _Request("tenant", "leases", None, source_of_the_host),
            _Request("operator", "leases", None, source_of_the_host),
        ),
    }  # fmt: skip


def _take_over(source: Path) -> LeaseCreate:
    return LeaseCreate(tenant=_OWN, trajectory="run-3", source=str(source), take_over=True)


def _view(socket: str, lease: str, token: str | None) -> _Request:
    arguments: dict[str, JsonValue] = {"path": "/workspace/secret"}
    body: dict[str, JsonValue] = {"tool": "file_view", "lease": lease, "arguments": arguments}
    return _Request(socket, "calls", token, body)


def _flipped(token: str) -> str:
    """Another signature: one character of it differs, away from the end, whose bits may be fixed."""
    at = token.rindex(".") + 5
    return token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]


def _without_last_block(token: str) -> str:
    prefix, *blocks, signature = token.split(".")
    return ".".join([prefix, *blocks[:-1], signature])


def _write(doors: Path, requests: Mapping[str, Sequence[_Request]]) -> None:
    for name, variants in requests.items():
        for variant, request in zip(("strong", "weak"), variants, strict=True):
            place = doors / variant
            place.mkdir(exist_ok=True)
            (place / f"{name}.request").write_bytes(request.text())
            (place / f"{name}.sock").symlink_to(f"../{request.socket}.sock")


def _token(lease: Lease | None) -> str:
    assert lease is not None
    assert lease.token is not None
    return lease.token

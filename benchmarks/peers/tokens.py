"""Other libraries of capability tokens, each with the same three-block chain.

The chain: an authority that may view and edit below /workspace for an hour, a block that ends
sooner, and a block that leaves viewing below /workspace/src. `check` takes the text of a token and
one operation (view /workspace/src/a.py), verifies every signature and decides; it raises unless the
operation is allowed. `attenuate` takes a text and gives one with a block more.

They are loaded by name: a benchmark runs without those that are not installed, and says so.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

PATH = "/workspace/src/a.py"
_HOUR_S = 3600
_TOOLS = ("file_view", "file_edit")


class TokenPeer(Protocol):
    def make(self) -> Any:
        """A new token, and what a call needs beside it."""

    def check(self, token: Any) -> None: ...
    def attenuate(self, token: Any) -> object: ...


class Biscuit:
    """Ed25519 signatures by block, and Datalog for what may be done."""

    def __init__(self) -> None:
        self._lib = importlib.import_module("biscuit_auth")
        self._keys = self._lib.KeyPair()

    def make(self) -> str:
        block, end = self._lib.BlockBuilder, datetime.now(UTC) + timedelta(hours=1)
        token = self._lib.BiscuitBuilder(
            'right("read", "/workspace/"); right("write", "/workspace/");'
            'tool("file_view"); tool("file_edit"); check if time($t), $t < {end};',
            {"end": end},
        ).build(self._keys.private_key)
        token = token.append(
            block("check if time($t), $t < {end};", {"end": end - timedelta(minutes=30)})
        )
        text: str = token.append(self._last()).to_base64()
        return text

    def check(self, token: str) -> None:
        authorizer = self._lib.AuthorizerBuilder(
            'time({now}); tool_call("file_view"); operation("read", {path});'
            "allow if tool_call($t), tool($t), operation($r, $p), right($r, $d),"
            "$p.starts_with($d);",
            {"now": datetime.now(UTC), "path": PATH},
        )
        # By default it gives up after 1 ms, which a busy machine can take.
        limits = authorizer.limits()
        limits.max_time = timedelta(seconds=1)
        authorizer.set_limits(limits)
        authorizer.build(self._lib.Biscuit.from_base64(token, self._keys.public_key)).authorize()

    def attenuate(self, token: str) -> object:
        read = self._lib.Biscuit.from_base64(token, self._keys.public_key)
        return read.append(self._last()).to_base64()

    def _last(self) -> Any:
        return self._lib.BlockBuilder(
            'check if operation("read", $p), $p.starts_with("/workspace/src/");'
            'check if tool_call("file_view");'
        )


class Macaroon:
    """HMAC chains as ours; a caveat is a text that a function of the service understands."""

    def __init__(self) -> None:
        self._lib = importlib.import_module("pymacaroons")
        self._key = "k" * 32

    def make(self) -> str:
        token = self._lib.Macaroon(location="", identifier="k1", key=self._key)
        end = int(time.time()) + _HOUR_S
        for caveat in (
            *("tool file_view file_edit", "path /workspace", f"time {end}"),
            f"time {end - _HOUR_S // 2}",
            *("tool file_view", "path /workspace/src"),
        ):
            token.add_first_party_caveat(caveat)
        text: str = token.serialize()
        return text

    def check(self, token: str) -> None:
        verifier, now_s = self._lib.Verifier(), time.time()

        def holds(caveat: str) -> bool:
            kind, _, rest = caveat.partition(" ")
            if kind == "path":
                return PATH.startswith(rest + "/")
            return "file_view" in rest.split() if kind == "tool" else now_s < int(rest)

        verifier.satisfy_general(holds)
        if not verifier.verify(self._lib.Macaroon.deserialize(token), self._key):
            raise RuntimeError("the macaroon does not hold")

    def attenuate(self, token: str) -> object:
        read = self._lib.Macaroon.deserialize(token)
        read.add_first_party_caveat("tool file_view")
        read.add_first_party_caveat("path /workspace/src")
        return read.serialize()


class Tenuo:
    """Ed25519 warrants by block. It has no token without proof of possession, so a call carries a
    signature of the holder's, made outside of what is timed and verified inside."""

    def __init__(self) -> None:
        self._lib = importlib.import_module("tenuo")
        self._key = self._lib.SigningKey.generate()
        self._authorizer = self._lib.Authorizer(trusted_roots=[self._key.public_key])

    def make(self) -> tuple[str, bytes]:
        wide = {tool: {"path": self._lib.Subpath("/workspace")} for tool in _TOOLS}
        first = self._lib.Warrant.mint(
            keypair=self._key, capabilities=wide, ttl_seconds=_HOUR_S, holder=self._key.public_key
        )
        second = self._narrow(first, wide)
        last = self._narrow(second, self._last())
        proof = last.sign(self._key, "file_view", {"path": PATH}, int(time.time()))
        return self._lib.encode_warrant_stack([first, second, last]), bytes(proof)

    def check(self, token: tuple[str, bytes]) -> None:
        chain = self._lib.decode_warrant_stack_base64(token[0])
        self._authorizer.check_chain(chain, "file_view", {"path": PATH}, signature=token[1])

    def attenuate(self, token: tuple[str, bytes]) -> object:
        chain = self._lib.decode_warrant_stack_base64(token[0])
        return self._lib.encode_warrant_stack([*chain, self._narrow(chain[-1], self._last())])

    def _last(self) -> dict[str, Any]:
        return {"file_view": {"path": self._lib.Subpath("/workspace/src")}}

    def _narrow(self, warrant: Any, capabilities: dict[str, Any]) -> Any:
        return warrant.attenuate(
            capabilities, self._key, ttl_seconds=_HOUR_S // 4, holder=self._key.public_key
        )


LIBRARIES: dict[str, Callable[[], TokenPeer]] = {
    "biscuit-python": Biscuit,
    "pymacaroons": Macaroon,
    "tenuo": Tenuo,
}


def load() -> tuple[dict[str, TokenPeer], list[str]]:
    """The peers by the name of their package, and the names of those that aren't installed."""
    found: dict[str, TokenPeer] = {}
    missing: list[str] = []
    for name, make in LIBRARIES.items():
        try:
            found[name] = make()
        except ModuleNotFoundError:
            missing.append(name)
    return found, missing

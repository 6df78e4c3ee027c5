"""Writes claims.json: names and keys of calls, computed here by hand and not by the package."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("claims.json")
ROWS: list[dict[str, Any]] = [
    {"turn": 1, "call_id": "c1", "tool": "bash_execute", "arguments": {"command": "echo x"}},
    {"turn": None, "call_id": "c1", "tool": "bash_execute", "arguments": {"command": "echo x"}},
    {"turn": 0, "call_id": "c1", "tool": "bash_execute", "arguments": {"command": "echo x"}},
    {"turn": 1, "call_id": "1c1", "tool": "run", "arguments": {"argv": ["a", "b"]}},
    {"turn": 11, "call_id": "c1", "tool": "run", "arguments": {"argv": ["a", "b"]}},
    {"turn": 1, "call_id": "c", "tool": "file_edit", "arguments": {"path": "é\n\u2028", "z": 1}},
    {"turn": 1, "call_id": "c", "tool": "file_edit", "arguments": {"z": 1, "path": "é\n\u2028"}},
]


def text(fields: list[bytes]) -> bytes:
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)


def digest(label: bytes, fields: list[bytes]) -> str:
    return hmac.new(label, text(fields), hashlib.sha256).hexdigest()


def row(given: dict[str, Any]) -> dict[str, Any]:
    turn = "" if given["turn"] is None else str(given["turn"])
    place = [part.encode() for part in ("acme", "run/1", turn, given["call_id"])]
    arguments = json.dumps(
        given["arguments"], sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    whole = [*place, given["tool"].encode(), arguments.encode()]
    return {
        "tenant": "acme",
        "trajectory": "run/1",
        **given,
        "canonical": arguments,
        "name": "cl_" + digest(b"stockade/call-name/1", place)[:32],
        "key": digest(b"stockade/idempotency-key/1", whole),
    }


def document() -> str:
    return json.dumps([row(given) for given in ROWS], indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="ascii")

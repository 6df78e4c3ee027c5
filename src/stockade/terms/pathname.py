r"""Container path names as text, and back.

Linux file names are bytes. They are shown as UTF-8; a byte that is not valid UTF-8, a control
character and the backslash itself are shown as `\xNN`, so that every name has exactly one text,
which is accepted back. Paths may be relative to `/workspace`.
"""

from __future__ import annotations

import re
from typing import Final

WORKSPACE: Final = "/workspace"
TMP: Final = "/tmp"
MAX_PATH_BYTES: Final = 4096

_ESCAPE: Final = re.compile(r"\\x([0-9a-f]{2})")


def to_text(raw: bytes) -> str:
    r"""Show a name: `b"a\xff"` becomes `"a\\xff"`. Total; inverse of `to_bytes`."""
    text = raw.decode("utf-8", "surrogateescape")
    if _is_plain(text):
        return text
    out: list[str] = []
    for char in text:
        point = ord(char)
        if 0xDC80 <= point <= 0xDCFF:
            out.append(f"\\x{point - 0xDC00:02x}")
        elif char == "\\" or point < 0x20 or point == 0x7F:
            out.append(f"\\x{point:02x}")
        else:
            out.append(char)
    return "".join(out)


def to_bytes(text: str) -> bytes:
    r"""Read a name as it was shown. Raises ValueError on NUL, control characters, a lone
    backslash, lone surrogates, an empty path and more than 4,096 bytes."""
    if not text:
        raise ValueError("the path is empty")
    if len(text) <= MAX_PATH_BYTES and _is_plain(text):
        return text.encode("ascii")
    out = bytearray()
    position = 0
    while position < len(text):
        char = text[position]
        if char == "\\":
            escape = _ESCAPE.match(text, position)
            if escape is None:
                raise ValueError(
                    r"a backslash in a path must be written \x5c, another byte as \xNN"
                )
            out.append(int(escape[1], 16))
            position = escape.end()
            continue
        if ord(char) < 0x20 or ord(char) == 0x7F:
            raise ValueError(r"a control character in a path must be written as \xNN")
        out += char.encode("utf-8")
        position += 1
    if 0 in out:
        raise ValueError("a path can't hold a NUL byte")
    if len(out) > MAX_PATH_BYTES:
        raise ValueError(f"the path has {len(out)} bytes; at most {MAX_PATH_BYTES} are possible")
    return bytes(out)


def _is_plain(text: str) -> bool:
    """Whether a name is its own text and has a byte for each character: a walk over the characters
    of one costs 5 us, and every call and every block has several."""
    return text.isascii() and text.isprintable() and "\\" not in text


def absolute(raw: bytes) -> bytes:
    """A path relative to `/workspace` made absolute. Does not resolve dots or links."""
    return raw if raw.startswith(b"/") else b"/workspace/" + raw

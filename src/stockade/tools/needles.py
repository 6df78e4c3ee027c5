"""The forms in which a registered secret may turn up, as bytes to look for.

Beside the secret itself: each line of one that has several (a search, a diff or `cat -n` shows them
one by one), base64 in both alphabets, hex in both cases, percent-encoding, the escapes of a JSON
string, and how the tools show bytes that are no UTF-8.

Base64 works on three bytes at a time, so the text of a secret depends on where in a triple it
begins: there are three, of which only the characters that are the secret's alone are looked for.

Everything is looked for without white space, because base64 and hex dumps are wrapped.
"""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Iterator
from typing import Final

WHITE_SPACE: Final = b" \t\n\r\x0b\x0c"
# A shorter part of a secret is not hidden: it would be found in ordinary text.
FRAGMENT_BYTES: Final = 8
_UNRESERVED: Final = (string.ascii_letters + string.digits + "-._~").encode()
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def needles(secret: bytes) -> tuple[bytes, ...]:
    """Longest first, each without white space and of at least `FRAGMENT_BYTES`."""
    found = {squeeze(form) for form in _forms(secret)}
    return tuple(sorted((n for n in found if len(n) >= FRAGMENT_BYTES), key=len, reverse=True))


def squeeze(data: bytes) -> bytes:
    return data.translate(None, WHITE_SPACE)


def _forms(secret: bytes) -> Iterator[bytes]:
    yield secret
    yield from secret.splitlines()
    for begin in range(3):
        encoded = _base64_from(secret, begin)
        yield encoded
        yield encoded.translate(_URL_SAFE)
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield _percent(secret, _UNRESERVED)
    yield _percent(secret, _UNRESERVED + b"/")
    yield _percent(secret, _UNRESERVED + b" ").replace(b" ", b"+")
    text = secret.decode("utf-8", "replace")
    yield text.encode()
    yield secret.decode("utf-8", "backslashreplace").encode()
    yield json.dumps(text)[1:-1].encode()
    yield json.dumps(text, ensure_ascii=False)[1:-1].encode()


def _percent(secret: bytes, plain: bytes) -> bytes:
    """RFC 3986 and, with the blank as "+", the form encoding of HTML."""
    return b"".join(b"%c" % byte if byte in plain else b"%%%02X" % byte for byte in secret)


def _base64_from(secret: bytes, begin: int) -> bytes:
    """The characters that stand for bits of the secret only, if its first byte is number `begin`
    of a triple."""
    text = base64.b64encode(bytes(begin) + secret)
    first = -(-begin * 8 // 6)
    return text[first : (begin + len(secret)) * 8 // 6]

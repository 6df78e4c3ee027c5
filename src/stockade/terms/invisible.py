"""Characters that change what a reader sees without being seen, and the text that shows them.

A model reads code points, a person what a terminal or browser draws. These make the two differ:

- bidirectional controls reorder what is drawn, so code reads otherwise than it runs
  (CVE-2021-42574);
- zero-width characters, fillers, tags (U+E0000) and variation selectors carry text that nobody
  sees;
- line and paragraph separators and C1 controls break or overwrite lines in some viewers only;
- half a surrogate pair has no UTF-8 at all.

Each is shown as `<U+202E>`. That is the code point's own name, and no string escape of a
programming language, so what was made visible is never taken for an escape that stood there.

What writing needs stays: a joiner between two letters of a script that spells with joiners or
between two emoji, one presentation selector after a character, and a byte-order mark at the very
start, which every decoder drops.
"""

from __future__ import annotations

import re
from typing import Final

# Arabic, the Indic scripts, Myanmar and Khmer write words with joiners inside.
_JOINED: Final = "\u0600-\u06ff\u0750-\u077f\u0900-\u109f\u1780-\u17b3\u17b6-\u17ff"
_EMOJI: Final = "\u2190-\u21ff\u2300-\u27bf\u2934-\u2b55\U0001f000-\U0001faff"
_SELECTED: Final = "\ufe0e\ufe0f"
_HIDDEN: Final = (
    "\x80-\x9f"  # C1: control sequences in one byte
    "\u00ad\u034f"  # soft hyphen, grapheme joiner
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional
    "\u115f\u1160\u3164\uffa0\u17b4\u17b5"  # letters that draw nothing
    "\u180b-\u180f\u200b\u2028\u2029"
    "\u2060-\u2065\u206a-\u206f\ufff9-\ufffb"
    "\ufe00-\ufe0d\U000e0100-\U000e01ef"  # variation selectors
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f"
    "\ud800-\udfff"
)
_FOUND: Final = re.compile(
    f"[{_HIDDEN}]"
    "|(?<!\\A)\ufeff"
    f"|(?<![{_JOINED}])\u200c|\u200c(?![{_JOINED}])"
    f"|(?<![{_JOINED}{_EMOJI}{_SELECTED}])\u200d|\u200d(?![{_JOINED}{_EMOJI}])"
    # A second selector in a row belongs to nothing that is drawn.
    f"|(?:(?<=[{_SELECTED}\\s])|(?<=\\A))[{_SELECTED}]"
)


def show_invisible(text: str) -> tuple[str, int]:
    """The text with such characters shown, and how many there were. Newline, tab and the other C0
    controls stay."""
    if text.isascii():  # a flag of the string: no walk
        return text, 0
    return _FOUND.subn(_name, text)


def show_invisible_in_path(text: str) -> tuple[str, int]:
    r"""As `show_invisible`, in the way of a path's own text (`terms.pathname`): each byte as `\xNN`,
    which is accepted back."""
    if text.isascii():
        return text, 0
    return _FOUND.subn(_bytes, text)


def has_invisible(text: str) -> bool:
    return not text.isascii() and _FOUND.search(text) is not None


def _name(found: re.Match[str]) -> str:
    return f"<U+{ord(found[0]):04X}>"


def _bytes(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))

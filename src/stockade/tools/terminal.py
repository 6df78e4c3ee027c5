r"""Terminal output as the text that a person would see at the end.

Results keep a program's bytes as they are, colour codes and progress bars included, and counts are
of those. A model reads them through `rendered`: colour, title and cursor codes are dropped, CRLF is
a newline, a carriage return goes back to the start of the line and what follows overwrites it, a
backspace goes back by one character, and the codes that erase a line or its rest do so. A position
is a code point: wide and combining characters count as one. What is left of control characters is
shown as a picture of each (NUL as U+2400), and what else can't be seen by its name
(`terms.invisible`), so that nothing invisible reaches a model.
"""

from __future__ import annotations

import re
from typing import Final

from stockade.terms.invisible import show_invisible

_CODE: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|\Z)"  # OSC, DCS and the like: titles, links
    r"|\x1b[ -/]*[0-~]"  # two characters, and character sets
)
_ERASE: Final = re.compile(r"\x1b\[([0-2]?)K")
_PIECE: Final = re.compile(r"\x1b\[[0-2]?K|[\r\b]|[^\r\b\x1b]+|\x1b")
_OVERWRITES: Final = re.compile(r"[\r\b]|\x1b\[[0-2]?K")
_PICTURES: Final = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
}


def rendered(text: str) -> str:
    """The lines as they stand at the end."""
    text = text.replace("\r\n", "\n")
    text = _CODE.sub(lambda found: found[0] if _ERASE.fullmatch(found[0]) else "", text)
    if _OVERWRITES.search(text):
        text = "\n".join(
            _overwritten(line) if _OVERWRITES.search(line) else line for line in text.split("\n")
        )
    return visible(text)


def visible(text: str) -> str:
    """Control characters but newline and tab as pictures, invisible ones by their names."""
    return show_invisible(text.translate(_PICTURES))[0]


def _overwritten(line: str) -> str:
    shown: list[str] = []
    cursor = 0
    for piece in _PIECE.findall(line):
        erase = _ERASE.fullmatch(piece)
        if piece == "\r":
            cursor = 0
        elif piece == "\b":
            cursor = max(0, cursor - 1)
        elif erase is None:
            shown += " " * (cursor - len(shown))
            shown[cursor : cursor + len(piece)] = piece
            cursor += len(piece)
        elif erase[1] == "1":
            end = min(cursor + 1, len(shown))
            shown[:end] = " " * end
        elif erase[1] == "2":
            shown.clear()
        else:
            del shown[cursor:]
    return "".join(shown).rstrip(" ") if _ERASE.search(line) else "".join(shown)

"""What ripgrep says on stderr: skipped entries (debug messages), unreadable files, a refusal.

Names are printed raw, so a hostile name can forge a message: at worst it miscounts what was skipped
in its own tree. Debug messages of 13 begin with `DEBUG|`, those of 14 with `rg: DEBUG|`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stockade.terms.outcome import Captured
from stockade.terms.result import ItemError
from stockade.tools.terminal import visible
from stockade.tools.text import decode

MAX_ERRORS: Final = 20
MAX_EXAMPLES: Final = 4
MAX_REFUSAL_CHARS: Final = 1000
_MAX_NAME_CHARS: Final = 200

_DEBUG: Final = re.compile(r"(?:rg: )?(?:DEBUG|TRACE)\|")
_SKIP: Final = re.compile(r"(?:rg: )?DEBUG\|(?:ignore::walk|rg::\w+)\|[^ ]* ignoring (.*)")
_REASON: Final = re.compile(r"(.*?): (?:Ignore\(IgnoreMatch\((\w+)|(failed to pass))")
_ERROR: Final = re.compile(r"(?:rg: )?(.+): ([^:]+) \(os error (\d+)\)")
_WALK: Final = re.compile(r": IO error for operation on .*\Z", re.DOTALL)
_CODES: Final = {"13": "permission_denied", "2": "vanished", "40": "link_loop"}
# It names options that a caller can't give.
_ADVICE: Final = re.compile(r"\s*Consider enabling (?:multiline mode|PCRE2).*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Messages:
    """Counts are exact if `skipped_exactly`. `refusal` is what is no debug message, in short."""

    hidden: int
    ignored: int
    special: int
    skipped_exactly: bool
    examples: tuple[str, ...]
    errors: tuple[ItemError, ...]
    failed: int
    refusal: str
    raw: str

    @property
    def skipped(self) -> int:
        return self.hidden + self.ignored + self.special

    def is_missing(self, path: bytes) -> bool:
        """Whether the searched path itself is not there (or a component of it no directory)."""
        shown = re.escape(decode(path)[0])
        # 14 names it twice; a name may have lines.
        twice = rf"(?:IO error for operation on {shown}: )?"
        missing = rf"^(?:rg: )?{shown}: {twice}.*\(os error (?:2|20)\)$"
        return re.search(missing, self.raw, re.MULTILINE) is not None


def parse_messages(captured: Captured) -> Messages:
    cut = captured.total_bytes > len(captured.head) + len(captured.tail)
    raw = decode(captured.head + (b"\n" if cut else b"") + captured.tail)[0]
    counts = {"hidden": 0, "ignored": 0, "special": 0}
    examples: list[str] = []
    errors: list[ItemError] = []
    rest: list[str] = []
    failed = 0
    for line in raw.split("\n"):
        skip = _SKIP.fullmatch(line)
        if skip is not None:
            name, kind = _skipped(skip[1])
            counts[kind] += 1
            if len(examples) < MAX_EXAMPLES:
                examples.append(name)
        elif _DEBUG.match(line) is None:
            rest.append(line)
            error = _ERROR.fullmatch(line)
            if error is not None:
                failed += 1
                if len(errors) < MAX_ERRORS:
                    errors.append(_item_error(error))
    refusal = _ADVICE.sub("", "\n".join(rest).strip()).removeprefix("rg: ")
    return Messages(
        hidden=counts["hidden"],
        ignored=counts["ignored"],
        special=counts["special"],
        skipped_exactly=not cut,
        examples=tuple(examples),
        errors=tuple(errors),
        failed=failed,
        refusal=visible(refusal)[:MAX_REFUSAL_CHARS] or "the search program refused its arguments",
        raw=raw,
    )


def _skipped(text: str) -> tuple[str, str]:
    reason = _REASON.match(text)
    if reason is None:
        return _short(text), "ignored"
    if reason[3]:
        return _short(reason[1]), "special"
    return _short(reason[1]), "hidden" if reason[2] == "Hidden" else "ignored"


def _item_error(error: re.Match[str]) -> ItemError:
    return ItemError(
        code=_CODES.get(error[3], "read_error"),
        item=_short(_WALK.sub("", error[1])),
        message=_short(error[2]),
    )


def _short(name: str) -> str:
    return visible(name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "…")

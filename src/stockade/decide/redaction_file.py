"""Redaction files: forms of credentials that are hidden wherever they show up.

A pattern is RE2 syntax over bytes, so a search is linear in the text whatever a program prints.
`begins` are the literal texts one of which every match has in it: one search for all of them says
in one pass that a text holds nothing, and they are what is looked for inside of base64.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from stockade.decide.grant_file import Reason
from stockade.decide.patterns import byte_scanner
from stockade.terms.base import Model
from stockade.terms.ids import Name


class TokenPattern(Model):
    """`kind` stands in the place of what was found: `[redacted:KIND]`."""

    kind: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{1,31}$")]
    begins: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]{3,32}$")], ...],
        Field(strict=False, min_length=1, max_length=16),
    ]
    pattern: Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]{1,1024}$")]
    reason: Reason

    @model_validator(mode="after")
    def _is_a_pattern(self) -> Self:
        byte_scanner(self.pattern)
        return self


class RedactionFile(Model):
    version: Literal[1]
    name: Name
    reason: Reason
    patterns: Annotated[tuple[TokenPattern, ...], Field(strict=False, min_length=1, max_length=64)]

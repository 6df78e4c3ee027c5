"""The JSON bodies of `/v1` about registered secrets, shared by server and client."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from stockade.terms.base import Model
from stockade.terms.secret import MAX_SECRET_BYTES, MAX_SECRETS, SECRET_NAME_PATTERN

_MAX_CHARS: Final = (MAX_SECRET_BYTES + 3) // 3 * 4 + 8

SecretName = Annotated[str, StringConstraints(pattern=SECRET_NAME_PATTERN)]


class SecretAdd(Model):
    """`value_base64` is padded standard base64: a secret need not be text. `redact_only` hides it
    and gives it to no command."""

    name: SecretName
    value_base64: Annotated[str, StringConstraints(max_length=_MAX_CHARS), Field(repr=False)]
    redact_only: bool = False


class SecretRemove(Model):
    name: SecretName


class SecretView(Model):
    """Never the value, nor its length. `added_at` is RFC 3339 UTC."""

    name: str
    redact_only: bool
    added_at: str


class SecretList(Model):
    """Oldest first."""

    secrets: Annotated[list[SecretView], Field(max_length=MAX_SECRETS)]

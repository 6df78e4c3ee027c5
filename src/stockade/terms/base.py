"""The base of every value that is read from or written to bytes.

`Model` is for results, grants and wire objects: pydantic checks them, unknown fields are refused,
instances are frozen. Values that never leave the process are frozen dataclasses with slots, which
cost a tenth of a model to build.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

# The largest integer that every JSON reader keeps exactly (RFC 8785 section 3.2.2.3, I-JSON).
MAX_INTEGER = 2**53 - 1

# The longest time that is counted or written as a date: a hundred years. Dates end with the year
# 9999, nanoseconds of 64 bits and what a thread can wait for after 292 years.
MAX_SECONDS = 36_525 * 24 * 3600


def first_finding(error: ValidationError, skip: int = 0) -> tuple[str, str]:
    """Where the first thing that is wrong is, in dotted form without its first `skip` parts and
    empty for the whole, and what it is; never what was given, which may be large or secret."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(map(str, first["loc"][skip:])), first["msg"]


class Model(BaseModel):
    """A closed, frozen, strictly typed value. Raises pydantic.ValidationError on anything else."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

"""The base of every value that is read from or written to bytes.

`Model` is for results, grants and wire objects: pydantic checks them, unknown fields are refused,
instances are frozen. Values that never leave the process are frozen dataclasses with slots, which
cost a tenth of a model to build.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

# The largest integer that every JSON reader keeps exactly (RFC 8785 section 3.2.2.3, I-JSON).
MAX_INTEGER = 2**53 - 1

# The longest time that is counted or written as a date: a hundred years. Dates end with the year
# 9999, nanoseconds of 64 bits and what a thread can wait for after 292 years.
MAX_SECONDS = 36_525 * 24 * 3600


class Model(BaseModel):
    """A closed, frozen, strictly typed value. Raises pydantic.ValidationError on anything else."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

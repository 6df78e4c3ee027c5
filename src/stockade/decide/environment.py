"""The environment of a command: an allow-list, nothing of the host's.

The image's variables, then those that the profile fixes, then the lease's own; a later one wins.
So an image keeps its PATH and its own settings, HOME is always the writable one unless the lease
says otherwise, and the daemon's environment is nowhere an input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stockade.decide.profile_file import ProfileData
from stockade.terms.fault import Code, failure

# execve(2) takes no string longer than 32 pages, "name=value" and its NUL included.
MAX_VARIABLE_BYTES: Final = 131072
MAX_ENVIRONMENT_BYTES: Final = 262144
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


def search_environment(profile: ProfileData) -> tuple[tuple[str, str], ...]:
    """No directory of a search is a home; "/" holds nothing that ripgrep would read."""
    return tuple(sorted({"HOME": "/", **{v.name: v.value for v in profile.env}}.items()))


def environment(
    profile: ProfileData,
    image_env: Mapping[str, str],
    lease_env: tuple[tuple[str, str], ...],
) -> tuple[tuple[str, str], ...]:
    """Sorted by name. Raises as `check_variables`."""
    variables = {
        **image_env,
        "PATH": image_env.get("PATH") or profile.path.value,
        "HOME": profile.home.value,
        "USER": profile.user.value,
        **{variable.name: variable.value for variable in profile.env},
        **dict(lease_env),
    }
    check_variables(variables)
    if not variables["PATH"]:
        raise failure(Code.INVALID_ARGUMENT, "PATH can't be empty", rule="env", variable="PATH")
    return tuple(sorted(variables.items()))


def check_variables(variables: Mapping[str, str]) -> None:
    """Whether execve(2) and this runtime take them. Raises Failure(invalid_argument,
    argument_too_large) naming the variable."""
    total = 0
    for name, value in variables.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise failure(
                Code.INVALID_ARGUMENT,
                "a variable's name is letters, digits, '_', '.' and '-', not first a digit, and "
                "its value holds no NUL",
                rule="env",
            )
        try:
            size = len(name) + len(value.encode()) + 2
        except UnicodeEncodeError:
            raise failure(
                Code.INVALID_ARGUMENT, "a variable's value is not text", rule="env", variable=name
            ) from None
        total += size
        if size > MAX_VARIABLE_BYTES or total > MAX_ENVIRONMENT_BYTES:
            raise failure(
                Code.ARGUMENT_TOO_LARGE,
                f"a variable has at most {MAX_VARIABLE_BYTES} bytes, all of them together "
                f"{MAX_ENVIRONMENT_BYTES}",
                rule="env",
                variable=name,
            )

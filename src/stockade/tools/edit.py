"""`file_edit`: replace an exact text in one file.

Exact means bytes: both arguments are taken as they are, nothing in them is a pattern, a template or
an escape (CASES B41). Everything outside of the match keeps its bytes, whatever they are.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from stockade.terms.base import Model
from stockade.terms.call import EditOperation, Right
from stockade.terms.outcome import EditOutcome
from stockade.terms.result import EditData
from stockade.tools.arguments import NO_CHANGE, EditText, PathArgument, object_of
from stockade.tools.definition import CallLimits, Description, Policy, Shaped, Target, Tool
from stockade.tools.settle import Probe

MAX_DIFF_BYTES: Final = 4096
_VERSION_PATTERN: Final = r"^[0-9a-f]{32}$"


class EditArguments(Model):
    path: PathArgument
    old_str: Annotated[
        EditText,
        Field(min_length=1, description="The text to replace, exactly as it is in the file."),
    ]
    new_str: Annotated[EditText, Field(description="What to put in its place; may be empty.")]
    allow_multiple: Annotated[
        bool, Field(description="Replace every occurrence instead of refusing more than one.")
    ] = False
    expected_version: Annotated[
        Annotated[str, StringConstraints(pattern=_VERSION_PATTERN)] | None,
        Field(description="Refuse the edit unless the file still has this version (file_view)."),
    ] = None

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if self.old_str == self.new_str:
            raise PydanticCustomError(NO_CHANGE, "old_str and new_str are equal: nothing to change")
        return self


def _rights(arguments: EditArguments) -> tuple[Right, ...]:
    path = object_of(arguments.path)
    return (Right("read", path), Right("write", path))


def _operation(arguments: EditArguments, _: CallLimits) -> EditOperation:
    return EditOperation(
        path=object_of(arguments.path),
        old=arguments.old_str.encode(),
        new=arguments.new_str.encode(),
        allow_multiple=arguments.allow_multiple,
        expected_version=arguments.expected_version,
        max_diff_bytes=MAX_DIFF_BYTES,
    )


def _shape(_: EditArguments, outcome: EditOutcome) -> Shaped:
    return Shaped(
        data=EditData(
            kind="file_edit",
            changed_file=outcome.path,
            replacements=outcome.replacements,
            old_version=outcome.old_version,
            new_version=outcome.new_version,
            diff=outcome.diff,
            diff_truncated=outcome.diff_truncated,
        )
    )


FILE_EDIT: Final = Tool(
    name="file_edit",
    description=Description(
        what="Replace an exact text in a file with another one, atomically.",
        when="Use it to change a file that exists. To create one or to change many files at once "
        "use bash_execute; to move or delete one too.",
        first="View the file first and copy old_str from it without the line number and its tab: "
        "every space, tab and line ending counts. It must occur once; add lines around it until it "
        "does, or set allow_multiple. Nothing is a pattern or an escape.",
        returns="The changed file, the number of replacements, its new version and a diff of at "
        "most 4 KiB. no_match and multiple_matches change nothing and give counts, lines and the "
        "nearest miss.",
    ),
    policy=Policy(
        selection="Preferred over sed and redirections in bash_execute.",
        concurrency="One edit of a file at a time; edits of different files in parallel.",
        idempotency="Happens once under its turn and call id; a repetition gets its result. Settled "
        "by looking: the version tells whether an edit happened.",
        result="data of kind file_edit.",
        approval="Where an approve rule of the capability fits the call.",
        observability="Status, times and byte counts; never path or content.",
    ),
    targets=(Target("read", "path, as resolved"), Target("write", "path, as resolved")),
    effect="A1",
    effect_with_connect="A1",
    arguments=EditArguments,
    data=EditData,
    rights=_rights,
    operation=_operation,
    shape=_shape,
    probe=Probe.VERSION,
)

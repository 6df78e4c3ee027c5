r"""`grep_search`: ripgrep in a search sandbox, its argument vector and the verdict on its end.

The search program runs over a read-only view, in a sandbox without an image, and is started through
its own loader. Its regular expressions are finite automata: no pattern makes one backtrack (CASES
B60), and a search that takes too long is killed from outside like any other program.

What is searched. Everything below the path but hidden names, what `.gitignore`, `.ignore`,
`.rgignore` or `.git/info/exclude` of the tree name, symbolic links, and what is no regular file.
A path given explicitly is searched also when it is hidden or ignored itself. A file that the glob
names is searched also when it is hidden or ignored, unless a directory above it is. The lines of a
binary file are not shown; that it matched is counted.

What is skipped is said. ripgrep names what it skips only as debug messages, at 36 us each, and with
a glob one for every file that the glob leaves out: 600 ms instead of 50 in a tree of 20,000 files.
So it is asked to without a glob, where a message is mostly a whole directory, and with one the rule
is stated without a count.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from stockade.decide.objects import normalize_call_path
from stockade.terms.base import Model
from stockade.terms.call import Capture, ExecOperation, Right
from stockade.terms.fault import Code, Fault, failure
from stockade.terms.outcome import End, ExecOutcome
from stockade.terms.pathname import to_text
from stockade.terms.plan import Kind
from stockade.terms.result import GrepData, Items, Warn, Warning
from stockade.tools.arguments import NoNul, PathArgument, object_of, outside, tree_of
from stockade.tools.definition import (
    CallLimits,
    Description,
    Policy,
    Shaped,
    Target,
    Tool,
    warning,
)
from stockade.tools.execution import (
    SIGKILL,
    applied_timeout_ms,
    execution_warnings,
    interruption,
)
from stockade.tools.grep_messages import Messages, parse_messages
from stockade.tools.grep_output import MATCHES_PER_FILE, Matches, parse_matches

TIMEOUT_MS: Final = 30_000
# Large enough for the one JSON record of a line of several megabytes (CASES B57).
MATCHES_HEAD_BYTES: Final = 8 * 1024 * 1024
MESSAGES_HEAD_BYTES: Final = 64 * 1024
_LOADER: Final = b"/run/stockade/rg/ld.so"
_PROGRAM: Final = (
    _LOADER,
    b"--library-path",
    b"/run/stockade/rg",
    b"--preload",  # opens nothing but regular files: an ignore file may be a FIFO
    b"/run/stockade/rg/regular.so",
    b"/run/stockade/rg/rg",
)
_OPTIONS: Final = (
    b"--no-config",
    b"--json",
    b"--binary",
    b"--no-mmap",  # a mapped file that a program cuts short meanwhile ends the search by SIGBUS
    b"--no-require-git",
    b"--no-ignore-global",
    b"--no-ignore-messages",
    b"--max-count=%d" % MATCHES_PER_FILE,
)
_TROUBLE: Final = 2
_RAN: Final = (0, 1, _TROUBLE)


class GrepArguments(Model):
    pattern: Annotated[
        NoNul,
        Field(min_length=1, max_length=512, description="Regular expression (Rust syntax)."),
    ]
    path: PathArgument
    glob: Annotated[
        NoNul | None,
        Field(
            min_length=1,
            max_length=256,
            description="Only files that match: *.py, src/**, *.{js,ts}; !*.min.js leaves files "
            "out. With a slash it is relative to /workspace (or /tmp, where path is there), or a "
            "whole path.",
        ),
    ] = None


def _rights(arguments: GrepArguments) -> tuple[Right, ...]:
    return (Right("read", object_of(arguments.path)),)


def _operation(arguments: GrepArguments, limits: CallLimits) -> ExecOperation:
    path = normalize_call_path(arguments.path)
    # What a link leads to is settled before the start and by what the search sandbox can see.
    tree = tree_of(path)
    if tree is None:
        raise outside(path)
    options = list(_OPTIONS)
    if _needs_multiline(arguments.pattern):
        options.append(b"--multiline")
    if arguments.glob is None:
        options.append(b"--debug")
    else:
        options.append(b"--glob=" + _anchored(arguments.glob.encode(), tree))
    # One token, so that a pattern that begins with a hyphen is no option.
    options.append(b"--regexp=" + arguments.pattern.encode())
    return ExecOperation(
        kind=Kind.SEARCH,
        paths=(_LOADER,),
        argv=(*_PROGRAM, *options, b"--", path),
        env=(),
        cwd=tree,
        timeout_ms=applied_timeout_ms(TIMEOUT_MS, limits),
        capture=Capture(MATCHES_HEAD_BYTES, MESSAGES_HEAD_BYTES, 0),
        searches=to_text(path),
    )


def _anchored(glob: bytes, tree: bytes) -> bytes:
    """A glob as ripgrep, which runs in `tree`, understands it: to it a slash at the front means the
    directory it runs in, so a whole path would match nothing, "./" never matches, and a slash at
    the front of an alternative neither. Raises Failure(invalid_argument) for `tree` itself."""
    out = b"!" if glob.startswith(b"!") else b""
    rest = glob.removeprefix(b"!")
    fronts = (tree + b"/", b"./", b"/")
    anchored = False
    for at in reversed(_starts(rest)):
        text = rest[at:]
        if text.startswith(tree) and text[len(tree) : len(tree) + 1] in (b"", b"{", b"}", b","):
            name = to_text(tree)
            raise failure(
                Code.INVALID_ARGUMENT,
                f"the glob names {name} itself, which no file fits; write {name}/ and what is below, "
                "in each alternative",
                field="glob",
            )
        front = next((front for front in fronts if text.startswith(front)), b"")
        anchored = anchored or bool(front)
        rest = rest[:at] + text.removeprefix(front)
    return out + (b"/" if anchored else b"") + rest


def _starts(glob: bytes) -> list[int]:
    """Where a path begins in it: at the front, and at the front of each alternative of braces that
    stand there themselves."""
    found, open_braces = [0], list[bool]()
    at, begins = 0, True
    while at < len(glob):
        char = glob[at : at + 1]
        if char == b"{":
            open_braces.append(begins)
        elif char == b"," and open_braces:
            begins = open_braces[-1]
        else:
            begins = False
            if char == b"}" and open_braces:
                open_braces.pop()
            elif char == b"\\":
                at += 1
            elif char == b"[":
                # The first character of a class is never its end, "]" or not.
                first = at + 1 + (glob[at + 1 : at + 2] in (b"!", b"^"))
                end = glob.find(b"]", first + 1)
                at = end if end >= 0 else len(glob)
        at += 1
        if begins:
            found.append(at)
    return found


def _needs_multiline(pattern: str) -> bool:
    r"""Whether the pattern has a newline, itself or as `\n`, outside of a character class. Only
    then: in this mode each file is held in memory, and `\s` crosses lines."""
    in_class = escaped = False
    for char in pattern:
        if escaped:
            if char == "n" and not in_class:
                return True
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "\n" and not in_class:
            return True
        elif char == "[":
            in_class = True
        elif char == "]":
            in_class = False
    return False


def _shape(arguments: GrepArguments, outcome: ExecOutcome) -> Shaped:
    match outcome.end:
        case End.NOT_FOUND:
            return Shaped(fault=Fault(Code.ENGINE_UNAVAILABLE, "the search program is missing"))
        case End.EXITED if outcome.value in _RAN:
            return _finished(arguments, outcome)
        case End.EXITED:
            fault = Fault(
                Code.ENGINE_UNAVAILABLE, f"the search program ended with status {outcome.value}"
            )
        case End.SIGNALED if outcome.value == SIGKILL and outcome.oom_kills > 0:
            fault = Fault(
                Code.MEMORY_EXCEEDED,
                "the search needed more memory than a search may have (256 MiB, or the lease's where "
                "that is less), as for a line of such a size; leave such a file out with a glob "
                "(!name), or search a narrower path",
                rule="per_lease.memory_bytes",
            )
        case End.SIGNALED:
            fault = Fault(Code.SANDBOX_LOST, f"the search was ended by signal {outcome.value}")
        case _:
            fault = interruption(outcome)
    # What was found until then is still true, and is marked as a part.
    found = parse_matches(outcome.stdout)
    return Shaped(fault=fault, data=_data(found, partial=True), warnings=_warnings(found, None))


def _finished(arguments: GrepArguments, outcome: ExecOutcome) -> Shaped:
    found = parse_matches(outcome.stdout)
    said = parse_messages(outcome.stderr)
    if outcome.value == _TROUBLE and outcome.stdout.total_bytes == 0:
        # It refused its arguments: a search that ran ends with a summary.
        in_glob = "glob" in said.refusal.partition(":")[0]
        code = Code.INVALID_ARGUMENT if in_glob else Code.INVALID_PATTERN
        field = "glob" if in_glob else "pattern"
        return Shaped(fault=Fault(code, said.refusal, details={"field": field}))
    path = normalize_call_path(arguments.path)
    if found.total == 0 and said.is_missing(path):
        return Shaped(fault=Fault(Code.NOT_FOUND, f"{to_text(path)} does not exist"))
    # Status 2 without a name: the message was among those that were not kept.
    failed = max(said.failed, int(outcome.value == _TROUBLE))
    items = None
    if failed:
        items = Items(completed=found.files, failed=failed, errors=list(said.errors))
    warnings = _warnings(found, said if arguments.glob is None else None)
    if arguments.glob is not None:
        warnings = (*warnings, _unlisted())
    warnings = (*warnings, *execution_warnings(outcome))
    return Shaped(data=_data(found, partial=False), warnings=warnings, items=items)


def _data(found: Matches, *, partial: bool) -> GrepData:
    at_least = found.at_least or partial
    cut = any(match.cut for match in found.shown)
    return GrepData(
        kind="grep_search",
        matches=list(found.shown),
        matches_total=found.total,
        at_least=at_least,
        files_with_matches=found.files,
        truncated=at_least or cut or len(found.shown) < found.total,
    )


def _warnings(found: Matches, said: Messages | None) -> tuple[Warning, ...]:
    out: list[Warning] = []
    if found.binary:
        out.append(
            warning(
                Warn.SKIPPED, "binary files that match, whose lines are not shown", found.binary
            )
        )
    if found.unshowable:
        out.append(
            warning(
                Warn.SKIPPED,
                "matching lines that are too long to be shown",
                found.unshowable,
            )
        )
    if said is not None and said.skipped:
        at_least = "" if said.skipped_exactly else "at least "
        out.append(
            warning(
                Warn.SKIPPED,
                f"{at_least}{said.hidden} hidden, {said.ignored} ignored and {said.special} special "
                f"entries were not searched: {', '.join(said.examples)}. Give such a path "
                "itself to search it",
                said.skipped,
            )
        )
    return tuple(out)


def _unlisted() -> Warning:
    return warning(
        Warn.SKIPPED,
        "with a glob, what is skipped is not counted: hidden and ignored directories, and hidden "
        "and ignored files that the glob does not name",
        0,
    )


GREP_SEARCH: Final = Tool(
    name="grep_search",
    description=Description(
        what="Search file contents with a regular expression (ripgrep, Rust syntax), line by line.",
        when="Use it to find where something is defined, used or written. To read around a match "
        "use file_view; to find files by name, or to search hidden and ignored files in bulk, "
        "use bash_execute with find or grep -r.",
        first="Escape ( [ { . * + ? to find them literally. Narrow a broad search with path and "
        "glob first. Hidden names, what .gitignore names and binary files are skipped, and the "
        "result says so; a path given itself is always searched.",
        returns="Path, line, column and text per matching line, at most 200 lines and 32 KiB; "
        "of a long line the part around the match. Totals beyond that are stated.",
    ),
    policy=Policy(
        selection="Preferred over grep in bash_execute.",
        concurrency="Parallel with everything; sees files as they are while it runs.",
        idempotency="Repeating is free.",
        result="data of kind grep_search; no match is succeeded with zero; unreadable files make "
        "it partial.",
        approval="Where an approve rule of the capability fits the call.",
        observability="Status, times and counts; never pattern, path or text.",
    ),
    targets=(Target("read", "path"),),
    effect="A0",
    effect_with_connect="A0",
    arguments=GrepArguments,
    data=GrepData,
    rights=_rights,
    operation=_operation,
    shape=_shape,
)

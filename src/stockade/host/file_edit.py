"""An exact edit of one file: read, match, replace, and refuse what is not certain.

The order under the file's lock: open and check, read (at most 16 MiB), compare the version, match,
build the new content, write it to a new inode, see that no program has the file open for writing
(file_writers) and that the name still leads to the file that was read, unchanged, and let the two
change places (file_replace). Programs inside take no lock of ours: when one wrote meanwhile the edit
begins again, and after eight times it is a version_conflict, as it is while a program keeps the
file open for writing. A refusal touches nothing, not even the time of change. What the edit is going
to do is known before it is seen that nobody wrote, and is told then, to be recorded.

The file needs a write bit for its owner (else read_only_file); its directory does not, because the
edit stands for a write to the file. `allow_multiple` replaces every match from left to right
without overlaps; a single match must be the only one, overlaps counted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Final

from stockade.host.file_content import (
    EXACT_BYTES,
    open_regular,
    read_all,
    require_text,
    version_of,
)
from stockade.host.file_diff import Swap, edit_diff
from stockade.host.file_match import (
    as_written,
    find_overlapping,
    find_separate,
    lines_of,
    near_miss,
)
from stockade.host.file_replace import Replacement, edit_name
from stockade.host.file_writers import Writers
from stockade.host.paths import Resolved
from stockade.terms.call import EditOperation
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import EditOutcome
from stockade.terms.pathname import to_text

ATTEMPTS: Final = 8
LISTED_LINES: Final = 20
_MARK: Final = b"[redacted:"  # as in tools.redact


def edit_file(
    resolved: Resolved, operation: EditOperation, before: Callable[[EditOutcome], None]
) -> EditOutcome:
    """Carry out `operation` on the resolved file; the caller holds its lock. `before` is told of
    each try what it is about to do.

    Raises Failure: not_found, not_a_regular_file, not_a_text_file, read_only_file,
    file_too_large, version_conflict, no_match, multiple_matches; OSError.
    """
    for _ in range(ATTEMPTS):
        outcome = _attempt(resolved, operation, before)
        if outcome is not None:
            return outcome
    raise failure(
        Code.VERSION_CONFLICT,
        f"{to_text(resolved.path)} is being written by another program; nothing was edited",
    )


def _attempt(
    resolved: Resolved, operation: EditOperation, before: Callable[[EditOutcome], None]
) -> EditOutcome | None:
    """One try; None when the file changed under it."""
    fd, state = open_regular(resolved)
    try:
        require_writable(state, resolved.path)
        if state.st_size > EXACT_BYTES:
            raise _too_large(resolved.path, state.st_size, "has")
        content = read_all(fd, state.st_size)
        require_text(content, resolved.path)
        version = version_of(content)
        if operation.expected_version not in (None, version):
            raise failure(
                Code.VERSION_CONFLICT,
                f"{to_text(resolved.path)} has changed: its version is {version}",
                current_version=version,
            )
        old, new = as_written(content, operation.old, operation.new)
        count, places = _places(resolved.path, content, old, operation)
        size = len(content) + count * (len(new) - len(old))
        if size > EXACT_BYTES:
            raise _too_large(resolved.path, size, "would have")
        edited = content.replace(old, new)
        with Replacement(resolved.parent_fd) as replacement:
            replacement.edited(edited, fd, state)
            path = to_text(resolved.path)
            diff, cut = edit_diff(path, content, Swap(old, new, places), operation.max_diff_bytes)
            outcome = EditOutcome(path, count, version, version_of(edited), diff, cut)
            before(outcome)
            # Not earlier: `before` waits for a disk, and a name is what a killed daemon leaves.
            replacement.stage(edit_name(outcome))
            writers = Writers(fd)
            if not writers.shut_out() or not still_same(resolved, state):
                return None
            # Before Linux 6.13 a file's times advance by ticks, of 4 ms on Debian: a write of as
            # many bytes in the tick of the one before leaves no mark.
            if read_all(fd, len(content) + 1) != content:
                return None
            replacement.exchange(resolved.name)
            if writers.waiting() or not replacement.displaced(fd, state):
                replacement.exchange(resolved.name)
                return None
    finally:
        os.close(fd)
    return outcome


def require_writable(state: os.stat_result, path: bytes) -> None:
    """Raises Failure(read_only_file) where the owner has no write bit."""
    if not state.st_mode & stat.S_IWUSR:
        raise failure(
            Code.READ_ONLY_FILE,
            f"{to_text(path)} is read-only (mode {stat.S_IMODE(state.st_mode):04o})",
        )


def still_same(resolved: Resolved, state: os.stat_result) -> bool:
    """Whether the name leads to the inode of `state`, with the same owner, size and times."""
    try:
        now = os.stat(resolved.name, dir_fd=resolved.parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return _marks(now) == _marks(state)


def _marks(state: os.stat_result) -> tuple[int, ...]:
    identity = (state.st_dev, state.st_ino, state.st_mode, state.st_uid, state.st_gid)
    return (*identity, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def _places(
    path: bytes, content: bytes, old: bytes, operation: EditOperation
) -> tuple[int, list[int]]:
    """How many replacements there will be, and where: as many as a diff may show. Raises Failure
    where the edit is not certain."""
    if operation.allow_multiple:
        count = content.count(old)
        if count:
            return count, find_separate(content, old, operation.max_diff_bytes)
        raise _no_match(path, content, old)
    places, more = find_overlapping(content, old)
    if not places:
        raise _no_match(path, content, old)
    if len(places) > 1:
        lines = lines_of(content, places[:LISTED_LINES])
        raise failure(
            Code.MULTIPLE_MATCHES,
            f"old_str occurs {'at least ' if more else ''}{len(places)} times in {to_text(path)},"
            f" at lines {', '.join(map(str, lines))}{', …' if len(places) > len(lines) else ''}",
            count=len(places),
            count_at_least=more,
            lines=lines,
        )
    return 1, places


def _no_match(path: bytes, content: bytes, old: bytes) -> Failure:
    shown = to_text(path)
    if _MARK in old:
        return failure(
            Code.NO_MATCH,
            f"old_str holds a mark {_MARK.decode()}…], which is not in {shown}: it stands for text "
            "that results hide. Choose an old_str without it",
            count=0,
        )
    near = near_miss(content, old)
    if near is None:
        return failure(Code.NO_MATCH, f"old_str does not occur in {shown}", count=0)
    words = {
        "line_endings": f"the text at line {near.line} differs only in line endings",
        "undecodable": f"the text at line {near.line} has bytes that are not UTF-8 where results "
        "show U+FFFD, and no old_str matches those; choose one without them",
        "invisible": f"the text at line {near.line} has characters that results show as "
        "<U+NNNN>; old_str needs the characters themselves",
        "whitespace": f"the text at line {near.line} differs only in whitespace",
        "case": f"the text at line {near.line} differs only in letter case or whitespace",
        "similar_line": f"line {near.line} is the most similar",
    }[near.kind]
    return failure(
        Code.NO_MATCH,
        f"old_str does not occur in {shown}; {words}",
        count=0,
        near_miss=near.kind,
        near_line=near.line,
        near_text=near.text,
    )


def _too_large(path: bytes, size: int, verb: str) -> Failure:
    return failure(
        Code.FILE_TOO_LARGE,
        f"{to_text(path)} {verb} {size} bytes; an edit takes at most {EXACT_BYTES}",
        bytes=size,
        limit_bytes=EXACT_BYTES,
    )

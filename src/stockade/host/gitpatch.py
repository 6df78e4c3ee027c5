"""A patch that `git apply` takes, written without git: nothing of the workspace is ever run.

Each difference becomes one entry: header, modes, the two object names, then either text hunks with
three lines of context or, for files with a NUL byte in the first 8,000 and files above `TEXT_BYTES`,
both contents as deflated base-85 literals, so that the patch can be applied in reverse as well.
Git knows regular files, executable files and symlinks; directories, other permissions and files
above `FILE_BYTES` are not in it. Two files are in memory at a time.

Names below a `.git` directory are left out: git refuses a whole patch that has one, and what git
runs by itself lives there (hooks, config). So are links that lead out of the tree: what is applied
on the host is followed there by other programs (CVE-2026-39861). So is a link that has one of the
names of `.gitmodules`, for which git refuses a whole patch as well, and what would take the place of
something that is left out and so still there.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

from stockade.host.changes import DELETED, TYPE_CHANGED, Difference, Node
from stockade.host.leftout import LeftOut
from stockade.host.linediff import Block, blocks

FILE_BYTES: Final = 16 * 1024 * 1024
TEXT_BYTES: Final = 1024 * 1024
GIT_REASON: Final = "git's own directory"
_CONTEXT: Final = 3
_BINARY_PREFIX: Final = 8000
_LITERAL_LINE: Final = 52
_LINK: Final = b"120000"  # git's mode of a symlink
_NO_OBJECT: Final = b"0" * 40
_ESCAPES: Final = {
    byte: b"\\" + char.encode()
    for byte, char in zip(b'\a\b\t\n\v\f\r"\\', 'abtnvfr"\\', strict=True)
}
# What git itself takes for `.git`, on any file system: letter case, NTFS short names, trailing
# dots and spaces, and a stream name.
_GIT_NAME: Final = re.compile(rb"(?:\.git|git~1)[ .]*(?::.*)?", re.IGNORECASE | re.DOTALL)
# The same for `.gitmodules`. Beside `gitmod~1` to 4 NTFS has names that it makes of a hash.
_GIT_MODULES: Final = re.compile(
    rb"(?:\.gitmodules|gitmod~[1-4]|(?=.{8})g?i?7?e?b?a?~[1-9][0-9]*)[ .]*(?::.*)?",
    re.IGNORECASE | re.DOTALL,
)

_Side = tuple[bytes, bytes]  # git's mode, content
_GONE: Final = (DELETED, TYPE_CHANGED)


class _TooLarge(Exception):
    pass


def git_directory(path: bytes) -> bytes | None:
    """The first part of the path that is git's own directory, as a path; None without one."""
    for end in re.finditer(rb"[/\\]|\Z", path):
        name = re.split(rb"[/\\]", path[: end.start()])[-1]
        if _GIT_NAME.fullmatch(name):
            return path[: end.start()]
    return None


def stays_inside(path: bytes, target: bytes) -> bool:
    """Whether a link at `path` leads below the root. A ".." is accepted only at the front, where
    the directories above the link are known to be no links themselves; later on it could climb
    out of a directory that another link leads to."""
    if target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == b"..":
        climbs += 1
    return climbs <= path.count(b"/") and b".." not in parts[climbs:]


def write_patch(differences: Iterable[Difference], out: BinaryIO, left_out: LeftOut) -> int:
    """Write the patch; gives its size in bytes. Raises OSError."""
    total = 0
    still_there = _StillThere()
    for item in differences:
        if item.directory:
            continue
        git = git_directory(item.path)
        if git is not None:
            left_out.add(git, GIT_REASON)
            if item.kind in _GONE:
                still_there.add(git)
            continue
        try:
            reason, before, after = _judge(item, still_there)
        except FileNotFoundError:
            continue  # it vanished since it was found
        if reason is not None:
            left_out.add(item.path, reason)
            if item.kind in _GONE:
                still_there.add(item.path)
            continue
        if item.kind == TYPE_CHANGED:
            pieces = [_entry(item.path, before, None), _entry(item.path, None, after)]
        else:
            pieces = [_entry(item.path, before, after)]
        for piece in pieces:
            for chunk in piece:
                out.write(chunk)
                total += len(chunk)
    return total


class _StillThere:
    """What the base has, the lease no longer, and the patch leaves where it is."""

    def __init__(self) -> None:
        self._paths: set[bytes] = set()
        self._above: set[bytes] = set()

    def add(self, path: bytes) -> None:
        self._paths.add(path)
        self._above.update(_ancestors(path))

    def takes(self, path: bytes) -> bool:
        return path in self._above or not self._paths.isdisjoint(_ancestors(path))


def _ancestors(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _judge(
    item: Difference, still_there: _StillThere
) -> tuple[str | None, _Side | None, _Side | None]:
    """Why it is left out, or None; and both sides."""
    try:
        before, after = _side(item.before), _side(item.after)
    except _TooLarge:
        return f"larger than {FILE_BYTES} bytes", None, None
    reason = None
    named = any(_GIT_MODULES.fullmatch(part) for part in re.split(rb"[/\\]", item.path))
    if named and _LINK in (before and before[0], after and after[0]):
        reason = "a link that git refuses, because of its name"
    elif after is not None and after[0] == _LINK and not stays_inside(item.path, after[1]):
        reason = "a link that leads out of the tree"
    elif after is not None and still_there.takes(item.path):
        reason = "in the place of something that is left out"
    return reason, before, after


def _side(node: Node | None) -> _Side | None:
    if node is None:
        return None
    if stat.S_ISLNK(node.info.st_mode):
        return _LINK, node.link()
    fd = node.open()
    with os.fdopen(fd, "rb", buffering=0) as file:
        content = bytearray()
        while chunk := file.read(FILE_BYTES + 1 - len(content)):
            content += chunk
            if len(content) > FILE_BYTES:
                raise _TooLarge
    return (b"100755" if node.mode & stat.S_IXUSR else b"100644"), bytes(content)


def _entry(path: bytes, before: _Side | None, after: _Side | None) -> Iterator[bytes]:
    """One file of the patch; nothing where git sees no difference."""
    if before == after:
        return
    old_name, new_name = quoted(b"a/" + path), quoted(b"b/" + path)
    yield b"diff --git %s %s\n" % (old_name, new_name)
    old_mode, old = before or (b"", b"")
    new_mode, new = after or (b"", b"")
    if before is None:
        yield b"new file mode %s\n" % new_mode
    elif after is None:
        yield b"deleted file mode %s\n" % old_mode
    elif old_mode != new_mode:
        yield b"old mode %s\nnew mode %s\n" % (old_mode, new_mode)
    if before is not None and after is not None and old == new:
        return
    same_mode = b" " + new_mode if before and after and old_mode == new_mode else b""
    old_id = _object_id(old) if before else _NO_OBJECT
    new_id = _object_id(new) if after else _NO_OBJECT
    yield b"index %s..%s%s\n" % (old_id, new_id, same_mode)
    if _binary(old) or _binary(new):
        yield b"GIT binary patch\n"
        yield from _literal(new)
        yield from _literal(old)
    elif old or new:
        # A tab ends a name with a space in it, which a reader would otherwise take for the end.
        tab = b"\t" if b" " in path else b""
        yield b"--- %s\n" % (old_name + tab if before else b"/dev/null")
        yield b"+++ %s\n" % (new_name + tab if after else b"/dev/null")
        yield from _hunks(_lines(old), _lines(new))


def _object_id(content: bytes) -> bytes:
    """Git's name of a blob. SHA-1 is git's choice and guards nothing here."""
    digest = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest().encode()


def _binary(content: bytes) -> bool:
    return len(content) > TEXT_BYTES or b"\0" in content[:_BINARY_PREFIX]


def _literal(content: bytes) -> Iterator[bytes]:
    yield b"literal %d\n" % len(content)
    packed = zlib.compress(content)
    for start in range(0, len(packed), _LITERAL_LINE):
        line = packed[start : start + _LITERAL_LINE]
        # A to Z for 1 to 26 bytes, a to z for 27 to 52.
        length = len(line) + (64 if len(line) <= 26 else 70)
        yield b"%c%s\n" % (length, base64.b85encode(line, pad=True))
    yield b"\n"


def _lines(content: bytes) -> list[bytes]:
    """Lines with their line feed; nothing else ends a line."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    group: list[Block] = []
    for block in blocks(old, new):
        if group and block.old_start - group[-1].old_end > 2 * _CONTEXT:
            yield from _hunk(old, new, group)
            group = []
        group.append(block)
    if group:
        yield from _hunk(old, new, group)


def _hunk(old: list[bytes], new: list[bytes], group: list[Block]) -> Iterator[bytes]:
    lead = min(_CONTEXT, group[0].old_start)
    start, new_start = group[0].old_start - lead, group[0].new_start - lead
    tail = min(_CONTEXT, len(old) - group[-1].old_end)
    end, new_end = group[-1].old_end + tail, group[-1].new_end + tail
    yield b"@@ -%s +%s @@\n" % (_range(start, end), _range(new_start, new_end))
    at = start
    for block in group:
        yield from (_line(b" ", line) for line in old[at : block.old_start])
        yield from (_line(b"-", line) for line in old[block.old_start : block.old_end])
        yield from (_line(b"+", line) for line in new[block.new_start : block.new_end])
        at = block.old_end
    yield from (_line(b" ", line) for line in old[at:end])


def _range(start: int, end: int) -> bytes:
    length = end - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)


def _line(sign: bytes, line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return sign + line
    return sign + line + b"\n\\ No newline at end of file\n"


def quoted(name: bytes) -> bytes:
    """A name as git writes it: in C quotes where it has a control character, a quote, a backslash
    or a byte above 126."""
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in name):
        return name
    out = bytearray(b'"')
    for byte in name:
        if byte in _ESCAPES:
            out += _ESCAPES[byte]
        elif 32 <= byte < 127:
            out.append(byte)
        else:
            out += b"\\%03o" % byte
    return bytes(out + b'"')

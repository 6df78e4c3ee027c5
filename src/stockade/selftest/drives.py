"""Attempts that need the host's side: its file tools, its look at what was made, a deadline.

Where the scene is `naive`, the host opens by name and follows what it finds: that is the defence of
the file tools taken away. Every function gives what the attack came to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from stockade.selftest.amendments import with_mount
from stockade.selftest.scene import Tried, cannot, held, won
from stockade.selftest.stage import Stage, execute, parse
from stockade.terms.call import EditOperation, ViewOperation
from stockade.terms.fault import Failure
from stockade.terms.grant import Profile
from stockade.terms.ports import PathScope

_SCOPE: Final = PathScope(read=("/workspace", "/tmp"), write=("/workspace", "/tmp"), deny=())
_VIEW_BYTES: Final = 65536
_BLOCKED_S: Final = 1.0
_SWAPS: Final = 400
_SWAPPING_S: Final = 10.0
_SPARSE_MIB: Final = 64
_FLOOD_MIB: Final = 4
_STAY_MS: Final = 2500
_CALL_MS: Final = 30_000


def view_link(stage: Stage) -> Tried:
    return _view_after(stage, "{bait}/secret", "/workspace/link", "/workspace/link")


def view_magic_link(stage: Stage) -> Tried:
    target = "/proc/self/root{bait}/secret"
    return _view_after(stage, target, "/workspace/magic", "/workspace/magic")


def view_linked_directory(stage: Stage) -> Tried:
    return _view_after(stage, "{bait}", "/workspace/directory", "/workspace/directory/secret")


def _view_after(stage: Stage, target: str, link: str, path: str) -> Tried:
    left = stage.probe("leave-link", target, link)
    return left if left.outcome == "cannot" else _judge(stage, path)


def view_swapped(stage: Stage) -> Tried:
    """The program inside goes on swapping until its sandbox ends."""
    left = stage.probe("leave-swapping", "{bait}", "/workspace/swapped")
    if left.outcome != "won":
        return cannot(left.evidence)
    seen: set[str] = set()
    until = time.monotonic() + _SWAPPING_S
    turn = 0
    while True:
        turn += 1
        tried = _judge(stage, "/workspace/swapped/secret")
        if tried.outcome == "won":
            return tried
        seen.add(tried.evidence)
        if turn >= _SWAPS and len(seen) > 1:
            return held(f"{turn} times: {' or '.join(sorted(seen))}")
        if time.monotonic() > until:
            return cannot(f"no swap was seen in {turn} times")


def edit_link(stage: Stage) -> Tried:
    stage.probe("leave-link", "{bait}/target", "/workspace/edited")
    target = Path(stage.facts["bait"]) / "target"
    target.write_text("original\n")

    def edit() -> None:
        if stage.scene.naive:
            Path(stage.host("/workspace/edited")).write_text("changed\n")
        else:
            stage.files.edit(
                EditOperation(
                    path="/workspace/edited",
                    old=b"original",
                    new=b"changed",
                    allow_multiple=False,
                    expected_version=None,
                    max_diff_bytes=4096,
                ),
                _SCOPE,
            )

    refused = _refused(edit)
    return won("the host's file is changed") if "changed" in target.read_text() else held(refused)


def write_link(stage: Stage) -> Tried:
    stage.probe("leave-link", "{bait}", "/workspace/uploads")
    landed = Path(stage.facts["bait"]) / "uploaded"

    def write() -> None:
        if stage.scene.naive:
            Path(stage.host("/workspace/uploads/uploaded")).write_bytes(b"x")
        else:
            stage.files.write("/workspace/uploads/uploaded", iter([b"x"]), _SCOPE)

    refused = _refused(write)
    if landed.exists():
        landed.unlink()
        return won("a file of the host was made")
    return held(refused)


def view_fifo(stage: Stage) -> Tried:
    left = stage.probe("leave-fifo", "/workspace/fifo")
    if left.outcome != "won":
        return cannot(left.evidence)
    said = ["it came back"]

    def view() -> None:
        said[0] = _refused(lambda: _content(stage, "/workspace/fifo"))

    reader = threading.Thread(target=view, name="fifo")
    reader.start()
    reader.join(_BLOCKED_S)
    if not reader.is_alive():
        return held(said[0])
    # What writes to it wakes the reader up.
    os.close(os.open(stage.host("/workspace/fifo"), os.O_WRONLY | os.O_CLOEXEC))
    reader.join()
    return won(f"the host waited for {_BLOCKED_S:.0f} s and would wait for ever")


def view_sparse(stage: Stage) -> Tried:
    left = stage.probe("leave-sparse", "/workspace/sparse", str(_SPARSE_MIB))
    if left.outcome != "won":
        return cannot(left.evidence)
    got = 0

    def view() -> None:
        nonlocal got
        got = len(_content(stage, "/workspace/sparse"))

    refused = _refused(view)
    if got > _VIEW_BYTES:
        return won(f"the host took {got >> 20} MiB of nothing")
    return held(refused or f"{got} bytes")


def mount_link(stage: Stage) -> Tried:
    """The second sandbox is asked for a subtree whose name is a link to the host's directory."""
    left = stage.probe("leave-link", "{bait}", "/workspace/chosen")
    if left.outcome != "won":
        return cannot(left.evidence)
    # Without a writable system: a second one would share the first one's place on the disk.
    scene = replace(stage.scene, profile=Profile.STRICT, write=())
    if stage.scene.naive:
        named = Path(stage.host("/workspace/chosen")).resolve()
        path, scene = "/srv", replace(scene, amend=with_mount(str(named), "/srv"))
    else:
        path = "/workspace/chosen"
        scene = replace(scene, read=("/workspace/chosen", "/workspace/bin"), write=())
    try:
        sandbox = stage.again(scene)
    except Failure as refused:
        return held(refused.fault.message)
    words = ("run", "5000", "read", f"{path}/secret", stage.facts["mark"])
    outcome = execute(sandbox, scene, stage.tree, stage.artifacts, words, _CALL_MS)
    return parse(outcome, 1)[0]


def write_below_the_layer(stage: Stage) -> Tried:
    target = Path(stage.facts["bait"]) / "layer/target"
    target.write_text("below\n")
    tried = stage.probe("write", "{bait}/layer/target")
    if "changed" in target.read_text():
        return won("the host's file is changed")
    return held("the host's file is as it was") if tried.outcome == "won" else tried


def be_root_outside(stage: Stage) -> Tried:
    made = stage.probe("create", "/workspace/mine")
    if made.outcome != "won":
        return cannot(made.evidence)
    owner = os.stat("workspace/mine", dir_fd=stage.tree.root_fd).st_uid
    if owner == 0:
        return won("the file belongs to the host's root")
    return held(f"the file belongs to user {owner}")


def outlive_the_deadline(stage: Stage) -> Tried:
    """A process in a session of its own, whose parents have ended, and that ignores signals."""
    beats = os.path.join("workspace", "beats")
    words = ("bait", "survive", "/workspace/beats", str(_STAY_MS))
    outcome = stage.execute(words, stage.scene.deadline_ms)
    try:
        first = os.stat(beats, dir_fd=stage.tree.root_fd).st_size
    except FileNotFoundError:
        return cannot("it did not start in time")
    until = time.monotonic() + _BLOCKED_S / 2
    while time.monotonic() < until:
        time.sleep(0.01)
        if os.stat(beats, dir_fd=stage.tree.root_fd).st_size > first:
            return won(f"it lives on after the call {outcome.end.value}")
    return held(f"nothing is left after the {outcome.end.value}")


def flood_output(stage: Stage) -> Tried:
    outcome = stage.execute(("bait", "flood", str(_FLOOD_MIB)), _CALL_MS)
    kept = len(outcome.stdout.head) + len(outcome.stdout.tail)
    if outcome.stdout.total_bytes < _FLOOD_MIB << 20:
        return cannot(f"only {outcome.stdout.total_bytes} bytes came")
    if kept > 1 << 20:
        return won(f"the host kept {kept >> 20} MiB")
    return held(f"the host kept {kept} bytes of {outcome.stdout.total_bytes}")


def _content(stage: Stage, path: str) -> bytes:
    if stage.scene.naive:
        return Path(stage.host(path)).read_bytes()
    operation = ViewOperation(
        path=path, offset=1, limit=1000, max_bytes=_VIEW_BYTES, max_line_chars=2000
    )
    return b"".join(stage.files.view(operation, _SCOPE).lines)


def _judge(stage: Stage, path: str) -> Tried:
    found = b""

    def view() -> None:
        nonlocal found
        found = _content(stage, path)

    refused = _refused(view)
    if stage.facts["mark"].encode() in found:
        return won("the host read the mark")
    return held(refused or f"{len(found)} bytes without the mark")


def _refused(act: Callable[[], object]) -> str:
    """Why it was refused; empty if it was not."""
    try:
        act()
    except Failure as refused:
        return f"{refused.fault.code.value}: {refused.fault.message}"
    except OSError as error:
        return str(error.strerror)
    return ""

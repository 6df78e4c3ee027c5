"""Raw bytes beside a text that was changed to be visible.

A stream that fits into its text has no artifact. Where characters of it were made visible the text
is no longer what the program wrote, so its bytes are kept then. Not where something was hidden: the
bytes would hold it, on the disk.
"""

from __future__ import annotations

from stockade.terms.call import Capture
from stockade.terms.invisible import show_invisible
from stockade.terms.outcome import Captured, EditOutcome, ExecOutcome, ViewOutcome
from stockade.terms.ports import ArtifactStore
from stockade.terms.result import Artifact, Stream, ToolResult
from stockade.tools.execution import artifact_of
from stockade.tools.text import decode


def keep_raw(
    result: ToolResult,
    outcome: ExecOutcome | ViewOutcome | EditOutcome,
    capture: Capture,
    artifacts: ArtifactStore,
) -> ToolResult:
    """The result with an artifact for each stream that needs one and has none."""
    lease_id = result.call.lease_id
    if not isinstance(outcome, ExecOutcome) or lease_id is None or not capture.artifact_bytes:
        return result
    made: list[Artifact] = []
    streams: dict[str, Stream | None] = {"stdout": result.stdout, "stderr": result.stderr}
    for name, captured in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        stream = streams[name]
        if stream is None or not _changed(captured):
            continue
        sink = artifacts.open(lease_id, name, 0, capture.artifact_bytes)
        sink.write(captured.head + captured.tail)
        kept = sink.finish()
        if kept is not None and kept.bytes:
            made.append(artifact_of(name, kept))
            streams[name] = stream.model_copy(update={"artifact_id": kept.id})
    if not made:
        return result
    return result.model_copy(update={**streams, "artifacts": [*result.artifacts, *made]})


def _changed(captured: Captured) -> bool:
    if captured.artifact is not None or captured.shown is not None or not captured.whole:
        return False
    return show_invisible(decode(captured.head + captured.tail)[0])[1] > 0

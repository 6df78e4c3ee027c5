"""Values that several tests of the tools need."""

from __future__ import annotations

from stockade.terms.call import Capture
from stockade.terms.ids import CallRef
from stockade.terms.outcome import Captured, CapturedArtifact, End, ExecOutcome
from stockade.terms.result import Provenance
from stockade.tools import catalog
from stockade.tools.definition import AnyTool, CallLimits
from stockade.tools.shape import Frame

LIMITS = CallLimits(
    wall_limit_ms=300_000,
    artifact_bytes=1024,
    search_path=(b"/usr/bin", b"/bin/"),
)
NOTHING = Captured(b"", b"", 0)
PROVENANCE = Provenance(
    trust="untrusted",
    lease_id="ls_0123456789abcdef",
    generation=1,
    plan_digest=None,
    capability_chain=["00"],
    image_digest=None,
    workspace_version=None,
    engine=None,
    profile=None,
    stockade_version="0",
)


def captured(raw: bytes, bounds: Capture, artifact: CapturedArtifact | None = None) -> Captured:
    """What an engine keeps of `raw` under `bounds`."""
    head, rest = raw[: bounds.head_bytes], raw[bounds.head_bytes :]
    tail = rest[max(0, len(rest) - bounds.tail_bytes) :]
    return Captured(head, tail, len(raw), artifact)


def ended(
    end: End,
    value: int | None = None,
    *,
    stdout: Captured = NOTHING,
    stderr: Captured = NOTHING,
    oom_kills: int = 0,
    pids_refused: int = 0,
    left_running: int = 0,
    errno: int | None = None,
) -> ExecOutcome:
    return ExecOutcome(
        end=end,
        value=value,
        stdout=stdout,
        stderr=stderr,
        wall_ms=12,
        oom_kills=oom_kills,
        pids_refused=pids_refused,
        left_running=left_running,
        errno=errno,
    )


def frame(
    tool: AnyTool | None = None,
    *,
    connect: bool = False,
    coerced: tuple[str, ...] = (),
    request_id: str = "rq_00000000deadbeef",
) -> Frame:
    return Frame(
        request_id=request_id,
        call=CallRef(
            lease_id="ls_0123456789abcdef",
            trajectory_id="t",
            turn=1,
            call_id="c",
            tool=tool.name if tool else None,
        ),
        tool=tool,
        connect=connect,
        coerced=coerced,
        started_at=1_700_000_000.0,
        finished_at=1_700_000_000.25,
        provenance=PROVENANCE,
    )


BASH = catalog.get("bash_execute")
RUN = catalog.get("run")
VIEW = catalog.get("file_view")
EDIT = catalog.get("file_edit")
GREP = catalog.get("grep_search")

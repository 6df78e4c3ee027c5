"""Records as OCSF events: what API Activity (6003) of 1.1.0 requires, and that nothing is lost."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from stockade.decide.chain import GENESIS, body_of, hash_of, line_of
from stockade.edge.ocsf import event
from stockade.terms.audit import AuditEvent, AuditKind, AuditLine, AuditUsage, Link

REQUIRED: Final = {
    "activity_id": int,
    "actor": dict,
    "api": dict,
    "category_uid": int,
    "class_uid": int,
    "metadata": dict,
    "severity_id": int,
    "src_endpoint": dict,
    "time": int,
    "type_uid": int,
}


def line(**values: object) -> AuditLine:
    made = AuditEvent(**{"kind": AuditKind.CALL_OUTCOME, "at_ms": 5, **values})  # type: ignore[arg-type]
    body = body_of(made, 3)
    raw = line_of(Link(3, GENESIS, hash_of(GENESIS, body), body))
    return AuditLine.model_validate_json(raw)


def converted(**values: object) -> Any:
    return json.loads(json.dumps(event(line(**values))))


@pytest.mark.parametrize("kind", list(AuditKind))
def test_every_kind_has_what_the_class_requires(kind: AuditKind) -> None:
    made = converted(kind=kind)
    for name, type_ in REQUIRED.items():
        assert isinstance(made[name], type_), name
    assert made["class_uid"] == 6003
    assert made["category_uid"] == 6
    assert made["type_uid"] == 600300 + made["activity_id"]
    assert made["activity_id"] in (1, 2, 3, 4, 99)
    assert made["metadata"]["version"] == "1.1.0"
    assert made["metadata"]["product"]["name"] == "Stockade"
    assert made["metadata"]["event_code"] == kind.value
    assert made["api"]["operation"]
    assert made["actor"]["user"]["uid"]
    assert made["time"] == 5


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("succeeded", (1, 1)),
        ("partial", (1, 1)),
        ("failed", (2, 1)),
        ("denied", (2, 2)),
        ("approval_required", (2, 2)),
        ("unknown", (0, 1)),
    ],
)
def test_a_status_becomes_success_failure_or_unknown(
    status: str, expected: tuple[int, int]
) -> None:
    made = converted(status=status)
    assert (made["status_id"], made["severity_id"]) == expected
    assert made["status"] == status


def test_nothing_of_a_record_is_lost() -> None:
    whole = line(
        tenant="acme",
        trajectory="run-1",
        lease_id="ls_0011223344556677",
        generation=1,
        turn=2,
        call_id="c-1",
        tool="file_view",
        request_id="rq_1",
        actor="uid 7",
        client="sdk/1",
        model="m",
        arguments="{}",
        arguments_bytes=2,
        arguments_digest="0" * 64,
        redactions=1,
        chain=("a",),
        plan_digest="p",
        image_digest="i",
        status="rejected",
        code="not_found",
        rule="scope.read",
        result_digest="1" * 64,
        usage=AuditUsage(1),
        detail={"k": "v"},
    )
    made = json.loads(json.dumps(event(whole)))
    text = json.dumps(made)
    for name, value in whole.record.model_dump(mode="json", exclude_none=True).items():
        if name != "v":
            shown = str(value).removeprefix("uid ") if name == "actor" else value
            assert json.dumps(shown) in text, name
    assert made["metadata"]["uid"] == whole.hash
    assert made["metadata"]["sequence"] == 3
    assert made["activity_id"] == 2
    assert made["actor"]["user"]["uid"] == "7"

"""Writes the published schemas beside this file: `python docs/schema/make_schemas.py`.

`released/vN` holds the ones of the last release of result schema N; this never touches them.
"""

from __future__ import annotations

from pathlib import Path

from stockade.decide.grant_file import CeilingFile, GrantFile
from stockade.decide.profile_file import ProfileData
from stockade.decide.redaction_file import RedactionFile
from stockade.decide.seccomp import SeccompPolicy
from stockade.edge.wire import CallRequest
from stockade.terms.audit import AuditLine
from stockade.tools import schemas

HERE = Path(__file__).parent
# The files below policy/, by directory.
POLICY = {
    "grants": GrantFile,
    "ceilings": CeilingFile,
    "profiles": ProfileData,
    "seccomp": SeccompPolicy,
    "redaction": RedactionFile,
}


def rendered() -> dict[str, str]:
    """File name to content."""
    documents = schemas.documents()
    documents["call-request.json"] = schemas.request_document(CallRequest, "call-request")
    documents["audit-record.json"] = schemas.request_document(AuditLine, "audit-record")
    for directory, model in POLICY.items():
        name = f"policy.{directory}"
        documents[f"{name}.json"] = schemas.request_document(model, name)
    return {name: schemas.render(document) for name, document in documents.items()}


def main() -> None:
    wanted = rendered()
    for stale in HERE.glob("*.json"):
        if stale.name not in wanted:
            stale.unlink()
    for name, content in wanted.items():
        (HERE / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Writes the published schemas beside this file: `python docs/schema/make_schemas.py`.

`released/vN` holds the ones of the last release of result schema N; this never touches them.
"""

from __future__ import annotations

from pathlib import Path

from stockade.edge.wire import CallRequest
from stockade.tools import schemas

HERE = Path(__file__).parent


def rendered() -> dict[str, str]:
    """File name to content."""
    documents = schemas.documents()
    documents["call-request.json"] = schemas.request_document(CallRequest, "call-request")
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

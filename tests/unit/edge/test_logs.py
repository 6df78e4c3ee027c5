"""What passes on its way into the log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from stockade.edge.server import logs


@pytest.fixture
def handler() -> Iterator[tuple[logging.Handler, io.StringIO]]:
    out = io.StringIO()
    made = logging.StreamHandler(out)
    made.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    root = logging.getLogger()
    before = list(root.handlers)
    root.handlers = [made]
    yield made, out
    root.handlers = before


def test_every_line_passes_tracebacks_and_arguments_too(
    handler: tuple[logging.Handler, io.StringIO],
) -> None:
    _, out = handler
    logs.pass_through(lambda text: text.replace("s3cret-value", "[redacted:A]"))
    log = logging.getLogger("stockade.test")
    log.warning("lease=%s said %s", "ls", "s3cret-value")
    try:
        raise ValueError("s3cret-value")
    except ValueError:
        log.exception("a fault")
    said = out.getvalue()
    assert said.startswith("WARNING lease=ls said [redacted:A]\n")
    assert "ValueError: [redacted:A]" in said
    assert "s3cret-value" not in said

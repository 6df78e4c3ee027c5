"""Whole files of this machine as bodies: one goes out as it is read, one comes in whole or not at all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from stockade.edge.client.connection import Message
from stockade.edge.client.link import Link
from stockade.edge.wire import FileWritten


def send_file(link: Link, message: Message, local: str | os.PathLike[str]) -> str:
    """Upload `local` as the body of `message`; gives its version. Raises StockadeError, and OSError
    for the local file."""
    with open(local, "rb") as file:
        upload = replace(message, body=file, length=os.fstat(file.fileno()).st_size)
        return link.ask(upload, FileWritten).version


def fetch_file(link: Link, message: Message, local: str | os.PathLike[str]) -> None:
    """Write the reply's body to `local`, which appears only when it is whole. Raises StockadeError,
    and OSError for the local file."""
    part = Path(f"{os.fspath(local)}.part")
    try:
        with part.open("wb") as file:

            def sink(data: bytes) -> None:
                file.write(data)

            link.pour(message, sink)
        part.replace(local)
    finally:
        part.unlink(missing_ok=True)

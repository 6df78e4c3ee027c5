"""The `stockade` command: the command line, and the runtime for the two commands that need one.

The runtime takes most of a second to import, so only `serve` and an embedded `run` load it; every
other command is a client.
"""

from __future__ import annotations

import sys

from stockade.edge.cli import main as cli
from stockade.edge.selftest import SelftestReport
from stockade.edge.server.config import Config
from stockade.local import Stockade


class Native:
    """What the command line is composed of: `edge.cli.options.Composition`."""

    def serve(self, config: Config) -> None:
        from stockade.daemon import serve

        serve(config)

    def selftest(self, only: str | None) -> SelftestReport:
        from stockade.selftest.run import selftest

        return selftest(only)

    def local(self) -> Stockade:
        return Stockade.local()


def main() -> None:
    sys.exit(cli.main(Native()))

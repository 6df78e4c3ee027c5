"""`Stockade` as the package hands it out: the SDK, with a runtime in this process as a second way in.

Importing the runtime takes a third of a second, most of it for the netlink library, so it is done by
`local` and not by everybody who talks to a daemon.
"""

from __future__ import annotations

from stockade.edge.client import sdk


class Stockade(sdk.Stockade):
    """A connection to a daemon, or a runtime in this process."""

    @classmethod
    def local(cls) -> Stockade:
        """A runtime in this process with a state of its own, which `close` removes. Needs root.
        Makes this process a subreaper. Raises Failure(engine_unavailable) naming what is missing.
        """
        from stockade.embedded import open_local

        return cls(open_local())

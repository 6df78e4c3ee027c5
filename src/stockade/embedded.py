"""A runtime in this process with a state of its own, for the SDK and for `stockade run`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
from stockade.flow.leases import Leases
from stockade.host import cgroup, leftovers
from stockade.native import check_host
from stockade.runtime import open_runtime

# Disk images are sparse files: not below /tmp, which may be memory.
EMBEDDED: Final = Path("/var/tmp/stockade")


def open_local() -> InProcessTransport:
    """A runtime in this process with a state directory of its own below `EMBEDDED`, which `close`
    removes. Any number at once. Makes this process a subreaper (PR_SET_CHILD_SUBREAPER(2const))."""
    check_host(EMBEDDED)
    leftovers.collect(EMBEDDED, cgroup.of_this_host())
    state_dir, owned = leftovers.new_state(EMBEDDED)
    with ExitStack() as undo:
        undo.callback(leftovers.remove_state, state_dir, owned)
        runtime = open_runtime(state_dir, owned=owned)
        undo.callback(runtime.close)
        undo.callback(_release_all, runtime.leases)
        operator = Peer(os.getuid(), None, Role.OPERATOR, own=True)
        return InProcessTransport(runtime.api, operator, undo.pop_all().close)


def _release_all(leases: Leases) -> None:
    for record in leases.list(None):
        leases.release(None, record.id)

"""What a peer that may use the daemon can do to the others."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from stockade.edge.server.lanes import BULK_PLACES
from tests.daemons import daemon


def test_slow_uploads_hold_up_nobody_but_uploads() -> None:
    with daemon() as server, server.connect() as stockade, ExitStack() as stack:
        lease = stockade.lease(trajectory="slow")
        for number in range(BULK_PLACES + 1):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(server.socket)
            target = f"/v1/leases/{lease.id}/files/f{number}"
            # Three bytes of what is said to come: the thread that writes the file waits for more.
            client.sendall(f"PUT {target} HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc".encode())
        other = stockade.lease(trajectory="other")
        other.bash("true").check()
        other.reset().check()
        other.release().check()
        stack.close()
        lease.release().check()

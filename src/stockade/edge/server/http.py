"""HTTP/1.1 on a unix socket: accepts connections and gives each a thread, and nothing else.

Who a client is comes from the kernel (SO_PEERCRED). How many there may be, and who gives way to one
more, is in `crowd`. A host that has no descriptor, memory or thread left for a connection keeps it
waiting, and is asked again until it has.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from stockade.edge.api import Api
from stockade.edge.exchange import Peer
from stockade.edge.server import listening
from stockade.edge.server.connection import Connection
from stockade.edge.server.crowd import Crowd
from stockade.edge.server.lanes import Lanes

LOG: Final = logging.getLogger("stockade.edge.http")

# Ending a tree takes milliseconds, confirming it at most ten seconds.
_END_S: Final = 15.0
_CLOSE_S: Final = 2.0
# Between two tries to take a connection that the host has no room for.
_AGAIN_S: Final = 0.2
# Between two lines of the log that say so.
_QUIET_S: Final = 60.0


class HttpServer:
    """One listening socket and its connections."""

    def __init__(self, api: Api, peers: Mapping[int, Peer]) -> None:
        self._api = api
        self._peers = peers
        self._lanes = Lanes()
        self._crowd = Crowd()
        self._ending = threading.Event()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._path = ""
        self._inode = (0, 0)

    def start(self, path: str, mode: int) -> None:
        """Listen. Raises listening.ListenError."""
        self._listener = listening.listen(path, mode)
        self._path, self._inode = path, listening.inode_of(path)
        self._acceptor = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._acceptor.start()

    def stop(self, grace_s: float, overdue: Callable[[], object] | None = None) -> bool:
        """Refuse new work, wait for what runs, then close. After `grace_s` seconds `overdue` is
        called, once, to end what still runs, so that its reply is sent as well. False when work
        was left running even then."""
        self._api.stop()
        done = self._lanes.idle(grace_s)
        if not done and overdue is not None:
            LOG.warning("calls were still running after %.0f s and are ended", grace_s)
            overdue()
            done = self._lanes.idle(_END_S)
        if self._listener is not None and self._acceptor is not None:
            listening.remove(self._path, self._inode)
            self._ending.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            self._acceptor.join()
            self._listener.close()
        open_now = self._crowd.members()
        for connection in open_now:
            connection.hang_up()
        deadline = time.monotonic() + _CLOSE_S
        for thread in open_now.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return done

    def _accept(self) -> None:
        """Until `stop`. Nothing else may end it: a daemon that takes no connection is of no use."""
        listener = self._listener
        assert listener is not None
        wait_s, quiet_until = 0.0, 0.0
        while not self._ending.wait(wait_s):
            wait_s, sock = 0.0, None
            try:
                sock, _ = listener.accept()
                self._open(sock)
            # The latter where no thread can be started.
            except (OSError, RuntimeError) as error:
                if sock is not None:
                    sock.close()
                if self._ending.is_set():
                    return
                # Descriptors, memory or threads have run out: one idle connection gives its back.
                self._crowd.thin_out()
                wait_s = _AGAIN_S
                if time.monotonic() >= quiet_until:
                    LOG.warning("a connection could not be taken: %s", error)
                    quiet_until = time.monotonic() + _QUIET_S

    def _open(self, sock: socket.socket) -> None:
        """Raises OSError, RuntimeError when there is no thread for it."""
        connection = Connection(sock, self._api, self._lanes, self._peers)
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="connection", daemon=True
        )
        self._crowd.enter(connection, thread)
        try:
            thread.start()
        except RuntimeError:
            self._crowd.leave(connection)
            raise

    def _serve(self, connection: Connection) -> None:
        try:
            connection.run()
        except Exception:
            LOG.exception("a connection ended by a fault of Stockade")
        finally:
            self._crowd.leave(connection)


def serve(
    server: HttpServer,
    path: str,
    mode: int,
    grace_s: float,
    *,
    ready: Callable[[], None],
    stopping: Callable[[], object],
    overdue: Callable[[], object],
) -> int:
    """Run until SIGTERM or SIGINT; gives which. `ready` is called when the socket answers and
    `stopping` when the signal came, to send away calls that have not begun. `overdue` is to end
    those that run: it is called when `grace_s` seconds have passed since, or at a second signal,
    from any thread. To be called in the main thread. Raises listening.ListenError."""
    # A counter of signals: unlike an Event, it has no lock that a handler could meet half taken.
    signals = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        os.eventfd_write(signals, 1)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    server.start(path, mode)
    ready()
    os.read(signals, 8)  # unlike eventfd_read goes on after the handler
    stopping()
    LOG.info("stopping")
    done = threading.Event()

    def hurry() -> None:
        os.read(signals, 8)
        if not done.is_set():
            LOG.warning("asked again to stop: running calls are ended")
            overdue()

    impatient = threading.Thread(target=hurry, name="hurry", daemon=True)
    impatient.start()
    try:
        if not server.stop(grace_s, overdue):
            LOG.error("calls are still running; their replies are lost")
    finally:
        done.set()
        os.eventfd_write(signals, 1)
        impatient.join()
    return came[0]

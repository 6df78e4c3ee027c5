"""HTTP/1.1 on a unix socket: accepts connections and gives each a thread, and nothing else.

Who a client is comes from the kernel (SO_PEERCRED). At most `MAX_CONNECTIONS` are held; for one more
the one that has been idle for longest is closed, which a client of ours notices before it sends.
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
from stockade.edge.server.lanes import Lanes

LOG: Final = logging.getLogger("stockade.edge.http")

MAX_CONNECTIONS: Final = 1024
# Ending a tree takes milliseconds, confirming it at most ten seconds.
_END_S: Final = 15.0
_CLOSE_S: Final = 2.0


class HttpServer:
    """One listening socket and its connections."""

    def __init__(self, api: Api, peers: Mapping[int, Peer]) -> None:
        self._api = api
        self._peers = peers
        self._lanes = Lanes()
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
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
            self._listener.shutdown(socket.SHUT_RDWR)
            self._acceptor.join()
            self._listener.close()
        with self._lock:
            open_now = dict(self._connections)
        for connection in open_now:
            connection.hang_up()
        deadline = time.monotonic() + _CLOSE_S
        for thread in open_now.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return done

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # shut down by `stop`
            try:
                self._open(Connection(sock, self._api, self._lanes, self._peers))
            except OSError as error:
                LOG.warning("a connection could not be taken: %s", error)
                sock.close()

    def _open(self, connection: Connection) -> None:
        with self._lock:
            crowded = len(self._connections) >= MAX_CONNECTIONS
            idle = [(c.idle_since, c) for c in self._connections if crowded and c.idle_since]
        if crowded:
            # Without an idle one there is nothing to give up: the new one is not served.
            min(idle, default=(0.0, connection), key=lambda pair: pair[0])[1].hang_up()
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="connection", daemon=True
        )
        with self._lock:
            self._connections[connection] = thread
        thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.run()
        except Exception:
            LOG.exception("a connection ended by a fault of Stockade")
        finally:
            with self._lock:
                self._connections.pop(connection, None)


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

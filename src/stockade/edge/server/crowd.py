"""Who is connected, and whom it costs its connection when there is no room for one more.

Every connection costs a thread and a descriptor, so there is a most of them. At that bound the user
with most connections gives up the one of its own on which nothing has happened for longest, so a
crowd of one user's never keeps another out; users that the configuration does not know are one user
together. Only a connection on which nothing has begun is given up: its thread waits for a request,
or for the rest of one.
"""

from __future__ import annotations

import threading
from collections import Counter

from stockade.edge.exchange import MAX_CONNECTIONS
from stockade.edge.server.connection import Connection


class Crowd:
    """Thread-safe."""

    def __init__(self, at_most: int = MAX_CONNECTIONS) -> None:
        self._at_most = at_most
        self._lock = threading.Lock()
        self._threads: dict[Connection, threading.Thread] = {}

    def enter(self, connection: Connection, thread: threading.Thread) -> None:
        """One more; at the bound another one, or this one, is hung up. `thread` serves it."""
        with self._lock:
            crowded = len(self._threads) >= self._at_most
            self._threads[connection] = thread
        if crowded:
            self.thin_out(connection)

    def leave(self, connection: Connection) -> None:
        with self._lock:
            self._threads.pop(connection, None)

    def members(self) -> dict[Connection, threading.Thread]:
        """Those of now."""
        with self._lock:
            return dict(self._threads)

    def thin_out(self, newest: Connection | None = None) -> None:
        """Hang up one on which nothing has begun. `newest` goes only when there is no other."""
        with self._lock:
            sizes = Counter(connection.user for connection in self._threads)
            idle = [
                (-sizes[connection.user], since, connection)
                for connection in self._threads
                if connection is not newest and (since := connection.idle_since) is not None
            ]
        chosen = min(idle, key=lambda each: each[:2])[2] if idle else newest
        if chosen is not None:
            chosen.hang_up()

"""A deadline for a whole transfer, which a server cannot stretch by sending a byte now and then.

The timeouts of `requests` are for one read of a socket. So every socket that a session opens is
noted here, and when the time is up all of them are shut down: whatever read or write is under way
ends at once.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from nodeside.driver.http.bounded_response import BoundedResponse

# Kept for one conversation. It has one request at a time, so that older ones are done with.
_CONNECTIONS = 32


class Deadline:
    """`seconds` from now on, for every socket of a session that `watch` was given."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._sockets: list[socket.socket] = []
        self._guard = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._end = time.monotonic() + self.seconds
        self._passed = threading.Event()
        # The event is this time's own: a timer that is late does not end the next request.
        self._timer = threading.Timer(self.seconds, self._expire, [self._passed])
        self._timer.daemon = True
        self._timer.start()

    @contextmanager
    def anew(self) -> Iterator[None]:
        """All the seconds again, for one request of a session that lives on."""
        self._timer.cancel()
        if self.passed:
            self._forget()
        self._begin()
        try:
            yield
        finally:
            self._timer.cancel()

    @property
    def passed(self) -> bool:
        return self._passed.is_set()

    @property
    def left(self) -> float:
        """Seconds, never negative."""
        return max(0.0, self._end - time.monotonic())

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the deadline."""
        self._passed.wait(min(seconds, self.left))

    def close(self) -> None:
        """Forget the sockets. The session must have been closed before."""
        self._timer.cancel()
        self._forget()

    def _forget(self) -> None:
        with self._guard:
            for sock in self._sockets:
                sock.close()
            self._sockets.clear()

    def watch(self, session: requests.Session) -> None:
        """Note every socket that this session opens, also those to a proxy."""
        for prefix in ("http://", "https://"):
            session.mount(prefix, _Adapter(self))

    def note(self, sock: socket.socket) -> None:
        """Keep a duplicate: shutting it down ends the connection, also below TLS."""
        with self._guard:
            self._sockets.append(sock.dup())
            if len(self._sockets) > _CONNECTIONS:
                with self._sockets.pop(0) as oldest, suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        if self.passed:
            self._expire(self._passed)

    def _expire(self, passed: threading.Event) -> None:
        passed.set()
        with self._guard:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class _Adapter(HTTPAdapter):
    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        _note_sockets(self.poolmanager, self._deadline)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        if not proxy.lower().startswith("socks"):
            _note_sockets(manager, self._deadline)
        return manager


def _note_sockets(manager: PoolManager, deadline: Deadline) -> None:
    """Make the manager's connections tell the deadline of their sockets, and read within bounds."""

    class Plain(HTTPConnection):
        response_class = BoundedResponse

        def _new_conn(self) -> socket.socket:
            sock = super()._new_conn()
            deadline.note(sock)
            return sock

    class Secure(HTTPSConnection):
        response_class = BoundedResponse

        def _new_conn(self) -> socket.socket:
            sock = super()._new_conn()
            deadline.note(sock)
            return sock

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

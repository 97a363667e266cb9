"""A deadline for a whole transfer, which a server cannot extend by sending single bytes.

The timeouts of `requests` apply to a single socket read. So every socket that a session opens is
recorded here, and all of them are shut down when the deadline passes. This ends every pending read
or write at once.
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

from nodeside.errors import SystemRefused
from nodeside.http.bounded_response import BoundedResponse

# Sockets recorded per session. A session has one request at a time, so older ones are finished.
_CONNECTIONS = 32


class Deadline:
    """A deadline `seconds` from now for all sockets of the sessions passed to `watch_session`.

    Raises SystemRefused where no further thread may be started.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._sockets: list[socket.socket] = []
        self._guard = threading.Lock()
        self._start_timer()

    def _start_timer(self) -> None:
        self._end = time.monotonic() + self.seconds
        self._passed = threading.Event()
        # Each period has its own event, so a late timer does not end the next request.
        self._timer = threading.Timer(self.seconds, self._shut_down_sockets, [self._passed])
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError as error:  # a limit of processes or memory
            raise SystemRefused(f"cannot start a thread: {error}", retryable=True) from error

    @contextmanager
    def restart(self) -> Iterator[None]:
        """Restart the deadline with its full time, for one request of a long-lived session."""
        self._timer.cancel()
        if self.has_passed:
            self._forget_sockets()
        self._start_timer()
        try:
            yield
        finally:
            self._timer.cancel()

    @property
    def has_passed(self) -> bool:
        return self._passed.is_set()

    @property
    def seconds_left(self) -> float:
        """The remaining seconds, never negative."""
        return max(0.0, self._end - time.monotonic())

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until the deadline if that is sooner."""
        self._passed.wait(min(seconds, self.seconds_left))

    def close(self) -> None:
        """Drop all sockets. Close the session first."""
        self._timer.cancel()
        self._forget_sockets()

    def _forget_sockets(self) -> None:
        with self._guard:
            for sock in self._sockets:
                sock.close()
            self._sockets.clear()

    def watch_session(self, session: requests.Session) -> None:
        """Record every socket that this session opens, including those to a proxy."""
        for prefix in ("http://", "https://"):
            session.mount(prefix, _Adapter(self))

    def record_socket(self, sock: socket.socket) -> None:
        """Store a duplicate of the socket; shutting it down ends the connection, also under TLS."""
        with self._guard:
            self._sockets.append(sock.dup())
            if len(self._sockets) > _CONNECTIONS:
                with self._sockets.pop(0) as oldest, suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        if self.has_passed:
            self._shut_down_sockets(self._passed)

    def _shut_down_sockets(self, passed: threading.Event) -> None:
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
        _record_sockets(self.poolmanager, self._deadline)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        if not proxy.lower().startswith("socks"):
            _record_sockets(manager, self._deadline)
        return manager


def _record_sockets(manager: PoolManager, deadline: Deadline) -> None:
    """Make the manager's connections register their sockets and use BoundedResponse."""

    class Plain(HTTPConnection):
        response_class = BoundedResponse

        def _new_conn(self) -> socket.socket:
            sock = super()._new_conn()
            deadline.record_socket(sock)
            return sock

    class Secure(HTTPSConnection):
        response_class = BoundedResponse

        def _new_conn(self) -> socket.socket:
            sock = super()._new_conn()
            deadline.record_socket(sock)
            return sock

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

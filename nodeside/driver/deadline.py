"""A deadline for a whole transfer, which a server cannot stretch by sending a byte now and then.

The timeouts of `requests` are for one read of a socket. So every socket that a session opens is
noted here, and when the time is up all of them are shut down: whatever read or write is under way
ends at once. Used by `transport.py` only, which imports `requests` late and this module with it.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class Deadline:
    """`seconds` from now on, for every socket of a session that `watch` was given."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._passed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._guard = threading.Lock()
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

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
        if self.passed:
            self._expire()

    def _expire(self) -> None:
        self._passed.set()
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
    """Make the manager's connections tell the deadline of their sockets."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            sock = super()._new_conn()
            deadline.note(sock)
            return sock

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            sock = super()._new_conn()
            deadline.note(sock)
            return sock

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

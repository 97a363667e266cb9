"""A small HTTP server that no client can hold up: for health checks and metrics.

The number of connections and the total time of each are limited, so a client that sends slowly
cannot keep its connection open. It needs only the standard library.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nodeside import log

_CONNECTIONS = 64  # concurrent connections: enough for several slow clients
_SECONDS = 2.0  # for a whole connection
_WAITING = 128  # connections that wait to be accepted
_ROOM = 0.05  # seconds to wait for the end of a connection that was closed to make room


class HttpServer(ThreadingHTTPServer):
    """An HTTP server. Without a `host` it listens on all IPv6 and IPv4 addresses.

    It uses one thread per connection, like the base class, but limits their number and duration. If
    there are too many, it closes the oldest one for which it is not `working`, and if there is none
    the new one.
    """

    daemon_threads = True
    request_queue_size = _WAITING
    connections = _CONNECTIONS
    seconds = _SECONDS

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(self.connections)
        self._open: dict[socket.socket, float] = {}
        self._kept: set[socket.socket] = set()
        everywhere = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if everywhere else socket.AF_INET
        super().__init__(("::" if everywhere else host, port), handler)

    def server_bind(self) -> None:
        """Bind without the base class's DNS lookup for a name that is never used."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False) and not self._make_room():
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._free.release()
            self.shutdown_request(request)

    def _make_room(self) -> bool:
        """Close the oldest connection that may be closed; return whether there is room now."""
        oldest = next((each for each in list(self._open) if each not in self._kept), None)
        if oldest is None:
            return False
        self._open.pop(oldest, None)
        _cut_connection(oldest)
        return self._free.acquire(timeout=_ROOM)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self.limit_time(request):
            super().finish_request(request, client_address)

    @contextmanager
    def limit_time(self, connection: socket.socket) -> Iterator[None]:
        """Limit the time of a connection while the block runs; a limit that runs already stays."""
        self._open.setdefault(connection, time.monotonic() + self.seconds)
        try:
            yield
        finally:
            self._open.pop(connection, None)

    @contextmanager
    def keep_open(self, connection: socket.socket) -> Iterator[None]:
        """Keep a connection open while its answer is made: to close it would free no thread."""
        self._kept.add(connection)
        try:
            yield
        finally:
            self._kept.discard(connection)

    def service_actions(self) -> None:
        """Cut the connections whose time is over. The accepting thread calls this periodically."""
        now = time.monotonic()
        for connection, ends in list(self._open.items()):
            if now > ends:
                _cut_connection(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed request. An OSError means a client that left or was cut; others are bugs."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
        log.detail("a request was not finished", client=str(client_address[0]))


def _cut_connection(connection: socket.socket) -> None:
    """Shut a connection down, which wakes the thread that waits on it.

    This is not SSLSocket.shutdown, which only the thread of the connection may call.
    """
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # already closed

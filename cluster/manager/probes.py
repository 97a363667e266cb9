"""/healthz and /readyz for the kubelet, also readable with curl.

`/healthz` fails only if a restart would help: one round of the main loop has taken too long. An
unreachable API server is not such a case. `/readyz` reports for each kind whether our cache is up
to date. Standard library, no authentication: the answers contain nothing secret. The number of
concurrent connections is limited; the oldest one is closed for a further one, since the kubelet
asks as soon as it has connected. The total time of a connection is limited too, so a client that
sends slowly cannot hold it open.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cluster.controller.pacing import STUCK, Heartbeat
from cluster.kube.reflector import WatchHealth
from nodeside import log
from nodeside.errors import SystemRefused

STALE = 180.0  # seconds without an answer from the API server after which we are not ready
_CONNECTIONS = 64  # concurrent connections: enough for several slow clients
_SECONDS = 2.0  # for a whole connection; the kubelet waits one second
_WAITING = 128  # connections that are not accepted yet
_ROOM = 0.05  # seconds in which a connection that is closed ends
_SWEEP = 0.5  # seconds between two checks for expired connections


@dataclass(frozen=True)
class Report:
    """The result of a check, with one line for each item."""

    healthy: bool
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def alive(pulse: Heartbeat) -> Report:
    """Return whether the main loop makes progress."""
    busy = pulse.busy_for
    if busy > STUCK:
        return Report(False, (f"stuck: one round has taken {busy:.0f} s",))
    return Report(True, ("ok",))


def ready(kinds: list[WatchHealth]) -> Report:
    """Return whether all non-optional kinds are listed and the API server answers.

    A kind that fails counts as unanswered after `STALE` seconds of silence.
    """
    lines = [_line(kind) for kind in kinds]
    return Report(all(_current(kind) for kind in kinds), tuple(lines))


def _current(kind: WatchHealth) -> bool:
    return kind.optional or (kind.synced and not (kind.trouble and kind.silent > STALE))


def _line(kind: WatchHealth) -> str:
    if not kind.synced:
        return f"{kind.name}: not listed yet" + (f": {kind.trouble}" if kind.trouble else "")
    if kind.trouble:
        return f"{kind.name}: nothing heard for {kind.silent:.0f} s: {kind.trouble}"
    return f"{kind.name}: up to date"


class Server(ThreadingHTTPServer):
    """An HTTP server that listens on all IPv6 and IPv4 addresses; the kubelet uses the pod's.

    Uses one thread per connection, like the base class, but limits their number and duration. With
    `makes_room`, the oldest connection is closed for a further one; else that one is closed.
    """

    daemon_threads = True
    request_queue_size = _WAITING
    connections = _CONNECTIONS
    seconds = _SECONDS
    makes_room = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(self.connections)
        self._open: dict[socket.socket, float] = {}
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
        """Close the oldest connection if that is allowed; return whether there is room now."""
        if not self.makes_room:
            return False
        for oldest in list(self._open)[:1]:
            self._open.pop(oldest, None)
            _cut(oldest)
        return self._free.acquire(timeout=_ROOM)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self.timed(request):
            super().finish_request(request, client_address)

    @contextmanager
    def timed(self, connection: socket.socket) -> Iterator[None]:
        """Start the connection's time limit unless it is already running."""
        self._open.setdefault(connection, time.monotonic() + self.seconds)
        try:
            yield
        finally:
            self._open.pop(connection, None)

    def service_actions(self) -> None:
        """End expired connections. The accepting thread calls this periodically."""
        now = time.monotonic()
        for connection, ends in list(self._open.items()):
            if now > ends:
                _cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed request. OSError means the client left or stayed silent; others are bugs."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
        log.detail("a request was not finished", client=str(client_address[0]))


def _cut(connection: socket.socket) -> None:
    """Wake the thread that waits on a connection.

    SSLSocket.shutdown must not be called from other threads.
    """
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # already closed


class HealthServer:
    """The health server. Use as a context manager. `port` 0 picks a free port; see the property.

    Without `host` it listens on all addresses. A connection may last `seconds`. Raises
    SystemRefused if it cannot listen.
    """

    def __init__(
        self,
        port: int,
        checks: dict[str, Callable[[], Report]],
        host: str = "",
        seconds: float = _SECONDS,
    ) -> None:
        handler = type("_Handler", (_Handler,), {"checks": checks})
        try:
            self._server = Server(host, port, handler)
        except OSError as exc:
            raise SystemRefused(
                f"cannot listen on port {port} for health checks: {exc.strerror}",
                hint="choose another one with --health-port",
            ) from exc
        self._server.seconds = seconds
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_SWEEP,), name="health", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    checks: dict[str, Callable[[], Report]]
    timeout = _SECONDS  # wait for the client's next byte

    def do_GET(self) -> None:
        check = self.checks.get(self.path.partition("?")[0])
        if check is None:
            self.send_error(404)
            return
        report = check()
        body = report.text.encode()
        self.send_response(200 if report.healthy else 503)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.detail(format % args, component_part="health")

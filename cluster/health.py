"""/healthz and /readyz for the kubelet, and for whoever asks with curl.

`/healthz` fails only where a restart would help: the main loop has not come round for long. An API
server that is gone is no such reason. `/readyz` says per kind whether what we know is up to date.
One thread, standard library, no authentication: nothing secret is said.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cluster.reflector import Health
from nodeside import log
from nodeside.errors import SystemRefused

STALE = 180.0  # seconds without a word from the API server, after which we are not ready
STUCK = 300.0  # seconds without a round of the main loop, after which a restart would help


@dataclass
class Pulse:
    """When the main loop came round last. `busy` while it works, not while it waits."""

    now: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)

    def begin(self) -> None:
        self._since = self.now()

    def end(self) -> None:
        self._since = None

    @property
    def busy_for(self) -> float:
        since = self._since
        return 0.0 if since is None else self.now() - since


@dataclass(frozen=True)
class Report:
    """An answer: whether all is well, and a line for each thing."""

    well: bool
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def alive(pulse: Pulse) -> Report:
    """Whether the process does its work."""
    busy = pulse.busy_for
    if busy > STUCK:
        return Report(False, (f"stuck: one round has taken {busy:.0f} s",))
    return Report(True, ("ok",))


def ready(kinds: list[Health]) -> Report:
    """Whether everything but what is optional was listed, and the API server is heard."""
    lines = [_line(kind) for kind in kinds]
    return Report(all(_current(kind) for kind in kinds), tuple(lines))


def _current(kind: Health) -> bool:
    return kind.optional or (kind.synced and not (kind.trouble and kind.silent > STALE))


def _line(kind: Health) -> str:
    if not kind.synced:
        return f"{kind.name}: not listed yet" + (f": {kind.trouble}" if kind.trouble else "")
    if kind.trouble:
        return f"{kind.name}: nothing heard for {kind.silent:.0f} s: {kind.trouble}"
    return f"{kind.name}: up to date"


class Server(ThreadingHTTPServer):
    """On every address, of IPv6 and IPv4: the kubelet asks the address that the pod has."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        everywhere = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if everywhere else socket.AF_INET
        super().__init__(("::" if everywhere else host, port), handler)

    def server_bind(self) -> None:
        """Without the base class's look into DNS for a name that nobody uses."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)


class HealthServer:
    """Use as a context manager. `port` 0 takes a free one; the property says which.

    Without `host` it listens on all addresses.
    """

    def __init__(self, port: int, checks: dict[str, Callable[[], Report]], host: str = "") -> None:
        handler = type("_Handler", (_Handler,), {"checks": checks})
        try:
            self._server = Server(host, port, handler)
        except OSError as exc:
            raise SystemRefused(
                f"cannot listen on port {port} for health checks: {exc.strerror}",
                hint="choose another one with --health-port",
            ) from exc
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
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
    timeout = 10  # seconds that a client may take

    def do_GET(self) -> None:
        check = self.checks.get(self.path.partition("?")[0])
        if check is None:
            self.send_error(404)
            return
        report = check()
        body = report.text.encode()
        self.send_response(200 if report.well else 503)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.detail(format % args, component_part="health")

"""/healthz and /readyz for the kubelet, also readable with curl.

`/healthz` fails only if a restart would help: one round of the main loop has taken too long. An
unreachable API server is not such a case. `/readyz` reports for each kind whether our cache is up
to date. No authentication: the answers contain nothing secret. The oldest connection is closed for
one too many, since the kubelet asks as soon as it has connected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from cluster.kube.reflector import WatchHealth
from cluster.reconcile.timings import STUCK, Heartbeat
from nodeside import log
from nodeside.errors import SystemRefused
from nodeside.http.server import HttpServer

STALE = 180.0  # seconds without an answer from the API server after which we are not ready
_SECONDS = 2.0  # for a whole connection; the kubelet waits one second
_SWEEP = 0.5  # seconds between two checks for expired connections


@dataclass(frozen=True)
class ProbeReport:
    """The result of a check, with one line for each item."""

    healthy: bool
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def check_liveness(pulse: Heartbeat) -> ProbeReport:
    """Return whether the main loop makes progress."""
    busy = pulse.busy_for
    if busy > STUCK:
        return ProbeReport(False, (f"stuck: one round has taken {busy:.0f} s",))
    return ProbeReport(True, ("ok",))


def check_readiness(kinds: list[WatchHealth]) -> ProbeReport:
    """Return whether all non-optional kinds are listed and the API server answers.

    A kind that fails counts as unanswered after `STALE` seconds of silence.
    """
    lines = [_status_line(kind) for kind in kinds]
    return ProbeReport(all(_is_current(kind) for kind in kinds), tuple(lines))


def _is_current(kind: WatchHealth) -> bool:
    return kind.optional or (kind.synced and not (kind.trouble and kind.silent > STALE))


def _status_line(kind: WatchHealth) -> str:
    if not kind.synced:
        return f"{kind.name}: not listed yet" + (f": {kind.trouble}" if kind.trouble else "")
    if kind.trouble:
        return f"{kind.name}: nothing heard for {kind.silent:.0f} s: {kind.trouble}"
    return f"{kind.name}: up to date"


class HealthServer:
    """The health server. Use as a context manager. `port` 0 picks a free port; see the property.

    Without `host` it listens on all addresses. A connection may last `seconds`. Raises
    SystemRefused if it cannot listen.
    """

    def __init__(
        self,
        port: int,
        checks: dict[str, Callable[[], ProbeReport]],
        host: str = "",
        seconds: float = _SECONDS,
    ) -> None:
        handler = type("_Handler", (_ProbeHandler,), {"checks": checks})
        try:
            self._server = HttpServer(host, port, handler)
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


class _ProbeHandler(BaseHTTPRequestHandler):
    checks: dict[str, Callable[[], ProbeReport]]
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

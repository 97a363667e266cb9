"""/metrics over HTTPS for authorized clients. A scraper cannot harm the controller.

The number of concurrent connections is limited; further ones are closed without an answer. The
total time of a connection is limited too, handshake included, so a client that sends slowly cannot
hold it open. Each connection serves one request. Only the head of a GET is read, within the limits
of http.server.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from cluster.manager.metrics_auth import AccessVerdict
from cluster.manager.tls import ServingCertificate
from cluster.model.names import METRICS_PATH as PATH
from nodeside import log
from nodeside.errors import SystemRefused
from nodeside.http.server import HttpServer

_CONNECTIONS = 8  # maximum number of concurrent connections
_SECONDS = 10.0  # for a whole connection
_STEP = 5.0  # seconds to wait for the client's next byte
_SWEEP = 0.5  # seconds between two checks for expired connections

Exposition = Callable[[str], tuple[str, bytes]]
Judge = Callable[[str, str], AccessVerdict]


class _TlsServer(HttpServer):
    """The HTTPS server; the base class enforces the limits."""

    serving: ServingCertificate
    judge: Judge
    exposition: Exposition
    answers: Counter[int]
    connections = _CONNECTIONS
    seconds = _SECONDS

    def __init__(self, host: str, port: int) -> None:
        self._counting = threading.Lock()
        super().__init__(host, port, _MetricsHandler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection. The handshake happens here, in the connection's own thread."""
        request.settimeout(_STEP)
        context = self.serving.current_context()
        with (
            context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as tls,
            self.limit_time(tls),
        ):
            tls.do_handshake()
            super().finish_request(tls, client_address)

    def count_answer(self, status: HTTPStatus) -> None:
        with self._counting:
            self.answers[status.value] += 1


class _MetricsHandler(BaseHTTPRequestHandler):
    server: _TlsServer
    timeout = _STEP
    server_version, sys_version = "nodeside", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path != PATH:
            self._send_answer(
                HTTPStatus.NOT_FOUND, f"not found; the only path is {PATH}\n".encode()
            )
            return
        kind, body = "text/plain; charset=utf-8", b""
        with self.server.keep_open(self.connection):
            verdict = self.server.judge(self.headers.get("Authorization", ""), PATH)
            if verdict.status is HTTPStatus.OK:
                kind, body = self.server.exposition(self.headers.get("Accept", ""))
        if verdict.status is not HTTPStatus.OK:
            body = f"{verdict.message}\n".encode()
        self._send_answer(verdict.status, body, kind)

    def _send_answer(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8"
    ) -> None:
        self.server.count_answer(status)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.detail(format % args, component_part="metrics")


class MetricsServer:
    """The metrics server. Use as a context manager. `port` 0 picks a free port; see the property.

    Without `host` it listens on all addresses. `answers` counts answers by HTTP status. Raises
    SystemRefused if it cannot listen.
    """

    def __init__(
        self,
        port: int,
        *,
        serving: ServingCertificate,
        judge: Judge,
        exposition: Exposition,
        answers: Counter[int],
        host: str = "",
        seconds: float = _SECONDS,
    ) -> None:
        try:
            self._server = _TlsServer(host, port)
        except OSError as exc:
            raise SystemRefused(
                f"cannot listen on port {port} for metrics: {exc.strerror}",
                hint="choose another one with --metrics-port",
            ) from exc
        attributes: Mapping[str, Any] = {
            "serving": serving,
            "judge": judge,
            "exposition": exposition,
            "answers": answers,
            "seconds": seconds,
        }
        for name, value in attributes.items():
            setattr(self._server, name, value)
        serving.current_context()  # logs problems with the certificate at startup
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_SWEEP,), name="metrics", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

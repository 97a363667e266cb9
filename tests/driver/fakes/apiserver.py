"""A small API server over TLS, for the tests of the calls a node makes.

It speaks HTTP for real (sockets, TLS with its own CA, keep-alive, resets) and knows just enough
of Kubernetes: bearer tokens, merge patch of node labels, server-side apply of NodeDrivers with or
without a status subresource, Events. Faults are queued and hit one request each.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from nodeside.kube.client import PodAccess
from nodeside.system import process
from tests.loopback import HttpServer
from tests.refusals import already_exists, not_found, refusal

_METADATA_ONLY = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
TOKEN = "first-token.of_this-pod"


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: Any

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of its answer."""

    status: int = 0
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    reset: bool = False
    silent_until: threading.Event | None = None
    body: bytes = b""
    byte_by_byte: threading.Event | None = None  # the answer goes on, slowly, until it is set


class ApiServer:
    """`credentials` becomes what is mounted into a pod; `certificates` has a CA and a server's."""

    def __init__(self, credentials: Path, certificates: Path) -> None:
        self.status_subresource = False
        self.credentials = credentials
        self.tokens = {TOKEN}
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.labels: dict[str, dict[str, str]] = {}
        self.node_drivers: dict[str, dict[str, Any]] = {}
        self.events: dict[str, dict[str, Any]] = {}
        self.before_answer: Callable[[], None] = lambda: None
        credentials.mkdir()
        (credentials / "token").write_text(TOKEN)
        (credentials / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
        self._http = HttpServer(("127.0.0.1", 0), _Handler)
        self._http.api = self  # type: ignore[attr-defined]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def access(self) -> PodAccess:
        return PodAccess(f"https://127.0.0.1:{self.port}", self.credentials)

    @property
    def lines(self) -> list[str]:
        return [request.line for request in self.seen]

    @contextmanager
    def running(self) -> Iterator[ApiServer]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join(5)

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, seen: Seen) -> tuple[int, dict[str, Any]]:
        if seen.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return 401, refusal(401, "Unauthorized")
        match seen.path.strip("/").split("/"):
            case ["api", "v1", "nodes", name]:
                return self._node(unquote(name), seen)
            case ["apis", "nodeside.io", "v1alpha1", "nodedrivers", name, *rest]:
                return self._node_driver(unquote(name), rest, seen)
            case ["apis", "events.k8s.io", "v1", "namespaces", "default", "events"]:
                return self._event(seen)
        return 404, refusal(404, "the server could not find the requested resource")

    def _node(self, name: str, seen: Seen) -> tuple[int, dict[str, Any]]:
        if seen.method == "PATCH":
            after = self.labels.get(name, {}) | seen.body["metadata"]["labels"]
            self.labels[name] = {key: value for key, value in after.items() if value is not None}
        metadata = {"name": name, "uid": f"uid-of-{name}", "labels": self.labels.get(name, {})}
        return 200, {**_METADATA_ONLY, "metadata": metadata}

    def _node_driver(self, name: str, rest: list[str], seen: Seen) -> tuple[int, dict[str, Any]]:
        old = self.node_drivers.get(name)
        if rest == ["status"]:
            if old is None or not self.status_subresource:
                return 404, not_found("nodedrivers", name, "nodeside.io")
            old["status"] = seen.body["status"]
            return 200, old
        new = dict(seen.body)
        if self.status_subresource:
            new.pop("status", None)
            if old and "status" in old:
                new["status"] = old["status"]
        self.node_drivers[name] = new
        return (200 if old else 201), new

    def _event(self, seen: Seen) -> tuple[int, dict[str, Any]]:
        name = seen.body["metadata"]["name"]
        if name in self.events:
            return 409, already_exists("events", name, "events.k8s.io")
        self.events[name] = seen.body
        return 201, seen.body


def make_certificates(directory: Path) -> Path:
    """A CA and a server certificate for 127.0.0.1, by openssl."""
    san = directory / "san"
    san.write_text("subjectAltName=IP:127.0.0.1\n")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    ca = ["-x509", "-subj", "/CN=test-ca", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt"]
    request = ["-subj", "/CN=kubernetes", "-keyout", "server.key", "-out", "server.csr"]
    sign = ["openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key"]
    sign += ["-CAcreateserial", "-days", "2", "-extfile", "san", "-out", "server.crt"]
    for argv in ([*new, *ca], [*new, *request], sign):
        process.run(argv, timeout=30, cwd=directory)
    return directory


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """The test looks at `seen` instead."""

    def do_GET(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        api: ApiServer = self.server.api  # type: ignore[attr-defined]
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(data) if data else None
        seen = Seen(self.command, parts.path, parts.query, dict(self.headers), body)
        api.seen.append(seen)
        fault = api.faults.pop(0) if api.faults else None
        api.before_answer()
        if fault is None:
            status, document = api.answer(seen)
            self._answer(status, json.dumps(document).encode(), {})
        else:
            self._suffer(fault)

    def _suffer(self, fault: Fault) -> None:
        if fault.silent_until is not None:
            fault.silent_until.wait(30)
            self.close_connection = True
        elif fault.byte_by_byte is not None:
            self.close_connection = True
            self._drip(fault.byte_by_byte)
        elif fault.reset:
            linger = struct.pack("ii", 1, 0)  # close(2) sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            with suppress(OSError):
                socket.socket(fileno=self.connection.detach()).close()
        else:
            body = fault.body or json.dumps(refusal(fault.status, fault.message)).encode()
            self._answer(fault.status, body, fault.headers)

    def _drip(self, done: threading.Event) -> None:
        """An answer whose header never ends: no read of it lasts long."""
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not done.wait(0.01):
                self.wfile.write(b"x")

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        with suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

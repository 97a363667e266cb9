"""The part of a kubelet that the API server asks for logs, in the place of KWOK, which has none.

HTTPS on loopback. A node that `serve`s here has its address and port in its status, as a kubelet
registers itself; what its pods say is decided by `says`, which a test sets.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.components import LOOPBACK
from tests.controlplane.controlplane import ControlPlane
from tests.loopback import HttpServer


class Kubelet:
    """Use as a context manager. `asked` are the logs that were asked for, by pod and container."""

    def __init__(self, control_plane: ControlPlane, says: Callable[[str], str]) -> None:
        self.control_plane = control_plane
        self.says = says
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        handler = type("_Bound", (_Handler,), {"owner": self})
        self._server = HttpServer((LOOPBACK, 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate, key = control_plane.place.certificates.server
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Kubelet:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, node: str) -> None:
        """From now on logs of this node's pods are asked for here."""
        status = {
            "addresses": [{"type": "InternalIP", "address": LOOPBACK}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        path = f"/api/v1/nodes/{node}/status"
        self.control_plane.do("PATCH", path, {"status": status}, content_type=MERGE_PATCH)


class _Handler(BaseHTTPRequestHandler):
    owner: Kubelet

    def do_GET(self) -> None:
        """/containerLogs/<namespace>/<pod>/<container>"""
        asked = urlsplit(self.path)
        _, what, _, pod, container = asked.path.split("/")
        assert what == "containerLogs"
        self.owner.asked.append((pod, container, parse_qs(asked.query)))
        body = self.owner.says(pod).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what matters."""

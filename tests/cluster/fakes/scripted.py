"""An API server that says what a test wrote down: for what a real one does too rarely.

Plain HTTP on loopback, through the same door as a real one. Each answer serves one request, in
order; what was asked is kept. What is asked beyond the script gets 599 and fails the test.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from cluster.kube.client import Api
from cluster.kube.credentials import Access
from cluster.kube.transport import ApiTransport
from nodeside.protocol.labels import API_VERSION
from tests.loopback import HttpServer
from tests.refusals import refusal


@dataclass(frozen=True)
class Said:
    """An answer. `cut`: the connection ends after the body though more was promised.

    `hold`: an event that must be set before the answer goes on after its head.
    """

    status: int = 200
    body: str = "{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    hold: threading.Event | None = None


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str


class ScriptedServer:
    """Use as a context manager."""

    def __init__(self, *script: Said) -> None:
        self.script = list(script)
        self.always: Callable[[Asked], Said] | None = None  # answers what is beyond the script
        self.always_said = dict(_ALWAYS)
        self.asked: list[Asked] = []
        self.date = ""  # what each answer says that it is, "" for the time of this machine
        self._lock = threading.Lock()
        handler = type("_Bound", (_Handler,), {"owner": self})
        self._server = HttpServer(("127.0.0.1", 0), handler)

    def __enter__(self) -> ScriptedServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def next(self, asked: Asked) -> Said:
        with self._lock:
            self.asked.append(asked)
            if self.script:
                return self.script.pop(0)
        return self.always(asked) if self.always else Said(599, "beyond the script")

    def api(self, directory: Path, *, token: str = "secret", deadline: float = 30.0) -> Api:
        """An Api that never really pauses; `pauses` keeps for how long it would have."""
        self.pauses: list[float] = []
        path = directory / "kubeconfig"
        path.write_text(json.dumps(kubeconfig(self.url, token)))
        access = Access(path)
        access.open_pool()  # the first one imports for half a second: no part of a deadline
        exchange = ApiTransport(
            access, deadline=deadline, pause=self.pauses.append, jitter=lambda: 0.0
        )
        return Api(exchange)


def kubeconfig(url: str, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def page(*names: str, version: str = "7", more: str = "") -> str:
    """A list of nodes: it says their kind once, and none of them does."""
    metadata = {"resourceVersion": version, "continue": more}
    items = [{"metadata": {"name": name, "resourceVersion": version}} for name in names]
    kinds = {"apiVersion": "v1", "kind": "NodeList"}
    return json.dumps({**kinds, "metadata": metadata, "items": items})


def event(kind: str, name: str, version: str, **more: Any) -> str:
    """A line of a watch of nodes: each says its kind."""
    metadata = {"name": name, "resourceVersion": version}
    item = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, **more}
    return json.dumps({"type": kind, "object": item}) + "\n"


def gone() -> str:
    status = refusal(410, "too old resource version: 7 (99)")
    return json.dumps({"type": "ERROR", "object": status}) + "\n"


# A command asks first whether anybody is there, and how old the definitions are: in no script.
_ALWAYS = {"/version": Said(body='{"major": "1"}'), f"/openapi/v3/apis/{API_VERSION}": Said(404)}


class _Handler(BaseHTTPRequestHandler):
    owner: ScriptedServer
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        headers = {key.lower(): value for key, value in self.headers.items()}
        asked = Asked(self.command, self.path, headers, body)
        said = self.owner.always_said.get(self.path) or self.owner.next(asked)
        data = said.body.encode()
        self.send_response(said.status)
        for key, value in said.headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data) + (10 if said.cut else 0)))
        self.end_headers()
        if said.hold is not None:
            said.hold.wait(30)
        self.wfile.write(data)
        self.wfile.flush()
        if said.cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return self.owner.date or super().date_time_string(timestamp)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what matters."""

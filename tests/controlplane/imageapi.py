"""An image API behind the API server's aggregation layer, as OpenShift has one.

The definition in imagestreams.py serves image streams and nothing else: the name of an image stream
tag has a colon, which no custom resource may have. Here the whole group is served by a server of
its own, to which the API server passes requests on, once its own RBAC allows them.
https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/apiserver-aggregation/
"""

from __future__ import annotations

import json
import ssl
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.controlplane.api_server import APPLY_PATCH, MERGE_PATCH
from tests.controlplane.components import LOOPBACK
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imagestreams import GROUP
from tests.loopback import HttpServer

_ROOT = f"/apis/{GROUP}/v1"
_TAGS = f"{_ROOT}/namespaces/openshift/imagestreamtags/"
_SERVICE = "/api/v1/namespaces/openshift/services/image-api"
_API_SERVICE = f"/apis/apiregistration.k8s.io/v1/apiservices/v1.{GROUP}"
_RESOURCES = (
    ("imagestreams", "ImageStream", ["list", "watch"]),
    ("imagestreamtags", "ImageStreamTag", ["get"]),
)
_NOT_OURS = {"metadata": {"labels": {"kube-aggregator.kubernetes.io/automanaged": None}}}
_HEARTBEAT = 0.2  # seconds between two looks whether a watch is to end


@dataclass(frozen=True)
class Image:
    """What a tag stands for. Without `labels` it was not imported yet."""

    name: str
    labels: Mapping[str, str] | None = None


@dataclass
class ImageApi:
    """Use as a context manager. `read` counts how often each tag was read."""

    control_plane: ControlPlane
    read: Counter[str] = field(default_factory=Counter)
    _tags: dict[str, Image] = field(default_factory=dict)
    _version: int = 1
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ending: bool = False

    def __enter__(self) -> ImageApi:
        server = HttpServer((LOOPBACK, 0), type("_Bound", (_Handler,), {"owner": self}))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.control_plane.place.certificates.server)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        self._server = server
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._register(server.server_address[1])
        return self

    def __exit__(self, *_: object) -> None:
        plane = self.control_plane
        plane.do("DELETE", _API_SERVICE)
        plane.do("DELETE", _SERVICE)
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        # Whoever defined the group as a custom resource has it back.
        plane.wait_for(
            lambda: plane.request("GET", f"{_ROOT}/imagestreams").status in (200, 404),
            "the image API to be gone",
        )

    def set(self, tags: Mapping[str, Image]) -> None:
        """The image stream openshift/driver-toolkit has these tags."""
        with self._changed:
            self._tags, self._version = dict(tags), self._version + 1
            self._changed.notify_all()

    def stream(self) -> dict[str, Any]:
        tags = [
            {"name": tag, "from": {"kind": "DockerImage", "name": image.name}}
            for tag, image in self._tags.items()
        ]
        metadata = {"name": "driver-toolkit", "namespace": "openshift", "uid": "u"}
        metadata["resourceVersion"] = str(self._version)
        kind = {"apiVersion": f"{GROUP}/v1", "kind": "ImageStream"}
        return {**kind, "metadata": metadata, "spec": {"tags": tags}}

    def tag(self, name: str) -> dict[str, Any] | None:
        """An ImageStreamTag, None if there is none."""
        self.read[name] += 1
        image = self._tags.get(name)
        if image is None or image.labels is None:
            return None
        config = {"Labels": dict(image.labels), "Env": ["PATH=/usr/bin"]}
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ImageStreamTag",
            "metadata": {"name": f"driver-toolkit:{name}", "namespace": "openshift"},
            "generation": 1,
            "tag": {
                "name": name,
                "from": {"kind": "DockerImage", "name": image.name},
                "generation": 1,
            },
            "image": {"dockerImageMetadata": {"kind": "DockerImage", "Config": config}},
        }

    def next_version(self, seen: int) -> int:
        """Another version than this one, or this after a while; 0 at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen or self._ending, _HEARTBEAT)
            return 0 if self._ending else self._version

    def _register(self, port: int) -> None:
        """An external name is the one kind of Service that may lead out of the cluster."""
        plane = self.control_plane
        # The API server puts back what it has registered itself, unless this label is gone.
        plane.request("PATCH", _API_SERVICE, _NOT_OURS, content_type=MERGE_PATCH)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "openshift"}}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "image-api", "namespace": "openshift"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        reference = {"namespace": "openshift", "name": "image-api", "port": port}
        api = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": "v1",
                "groupPriorityMinimum": 1000,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": reference,
            },
        }
        for path, document in (
            ("/api/v1/namespaces/openshift", namespace),
            (_SERVICE, service),
            (_API_SERVICE, api),
        ):
            where = f"{path}?fieldManager=nodeside-tests&force=true"
            plane.do("PATCH", where, document, content_type=APPLY_PATCH)
        plane.wait_for(
            lambda: (
                plane.request("GET", f"{_TAGS}driver-toolkit:none").document.get("message")
                == "there is no such tag"
            ),
            "the image API to be served",
        )


class _Handler(BaseHTTPRequestHandler):
    owner: ImageApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        path, query = unquote(where.path), parse_qs(where.query)
        if path == _ROOT:
            self._say(200, _discovery())
        elif path.startswith(_TAGS):
            found = self.owner.tag(path.removeprefix(_TAGS).partition(":")[2])
            status = {"kind": "Status", "code": 404, "message": "there is no such tag"}
            self._say(200 if found else 404, found or status)
        elif path == f"{_ROOT}/imagestreams" and query.get("watch") == ["true"]:
            self._watch(int(query["resourceVersion"][0]))
        elif path == f"{_ROOT}/imagestreams":
            stream = self.owner.stream()
            version = {"resourceVersion": stream["metadata"]["resourceVersion"]}
            item = {name: stream[name] for name in ("metadata", "spec")}  # no kind in a list
            self._say(200, {"kind": "ImageStreamList", "metadata": version, "items": [item]})
        else:
            self._say(404, {"kind": "Status", "code": 404, "message": f"nothing at {path}"})

    def _watch(self, seen: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while version := self.owner.next_version(seen):
            if version != seen:
                event = {"type": "MODIFIED", "object": self.owner.stream()}
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            seen = version
        self.close_connection = True

    def _say(self, code: int, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _discovery() -> dict[str, Any]:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/v1",
        "resources": [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": verbs}
            for name, kind, verbs in _RESOURCES
        ],
    }

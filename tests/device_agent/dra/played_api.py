"""The API server of the driver's tests, with ResourceSlices and ResourceClaims."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.device_agent.dra.documents import POOL
from tests.driver.fakes.apiserver import ApiServer, Seen
from tests.refusals import already_exists, modified, not_found

GROUP = "resource.k8s.io"
SELECTOR = f"spec.driver={POOL.driver},spec.nodeName={POOL.node}"


class DraApiServer(ApiServer):
    """`claims` are ResourceClaims by namespace/name; `slices` is what was published.

    Without `has_dra` it is one before Kubernetes 1.34.
    """

    def __init__(self, credentials: Path, certificates: Path) -> None:
        super().__init__(credentials, certificates)
        self.has_dra = True
        self.claims: dict[str, dict[str, Any]] = {}
        self.slices: dict[str, dict[str, Any]] = {}
        self.changed = threading.Condition()
        self._version = 0

    @property
    def devices(self) -> list[str]:
        """The names of the devices that are published."""
        slices = list(self.slices.values())
        return sorted(each["name"] for some in slices for each in some["spec"]["devices"])

    def until_published(self, *names: str) -> None:
        with self.changed:
            done = self.changed.wait_for(lambda: self.devices == sorted(names), 60)
            assert done, (self.devices, self.lines)

    def environment(self) -> dict[str, str]:
        """What a pod finds in its environment."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "NODESIDE_TOKEN_DIR": str(self.credentials),
            "NODE_NAME": POOL.node,
        }

    def answer(self, seen: Seen) -> tuple[int, dict[str, Any]]:
        status, document = super().answer(seen)
        if status != 404 or not self.has_dra:
            return status, document
        match seen.path.strip("/").split("/"):
            case ["apis", "resource.k8s.io", "v1", "resourceslices", *name]:
                with self.changed:
                    answer = self._slices(name, seen)
                    self.changed.notify_all()
                return answer
            case ["apis", "resource.k8s.io", "v1", "namespaces", space, "resourceclaims", name]:
                claim = self.claims.get(f"{space}/{name}")
                return (200, claim) if claim else (404, _none("resourceclaims", name))
        return status, document

    def _slices(self, name: list[str], seen: Seen) -> tuple[int, dict[str, Any]]:
        if seen.method == "GET":
            assert parse_qs(seen.query)["fieldSelector"] == [SELECTOR]
            if "as=PartialObjectMetadataList" in seen.headers["Accept"]:
                return 200, _metadata_only(self.slices.values(), str(self._version))
            items = [_as_item(each) for each in self.slices.values()]
            kinds = {"kind": "ResourceSliceList", "apiVersion": f"{GROUP}/v1"}
            metadata = {"resourceVersion": str(self._version)}
            return 200, {**kinds, "metadata": metadata, "items": items}
        if seen.method == "DELETE":
            gone = self.slices.pop(name[0], None)
            return (200, gone) if gone else (404, _none("resourceslices", name[0]))
        wanted = seen.body["metadata"]["name"]
        old = self.slices.get(wanted)
        if seen.method == "POST" and old:
            return 409, already_exists("resourceslices", wanted, GROUP)
        if seen.method == "PUT":
            if old is None:
                return 404, _none("resourceslices", wanted)
            if seen.body["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
                return 409, modified("resourceslices", wanted, GROUP)
        self._version += 1
        metadata = {**seen.body["metadata"], "resourceVersion": str(self._version)}
        self.slices[wanted] = {**seen.body, "metadata": metadata}
        return (200 if old else 201), self.slices[wanted]

    def wipe(self) -> None:
        """As a kubelet does that starts."""
        with self.changed:
            self.slices.clear()


@contextmanager
def dra_api_server(directory: Path, certificates: Path) -> Iterator[DraApiServer]:
    server = DraApiServer(directory / "serviceaccount", certificates)
    with server.running():
        yield server


def _as_item(document: dict[str, Any]) -> dict[str, Any]:
    """An item of a list, where an object does not say its kind."""
    return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}


def _metadata_only(slices: Iterable[dict[str, Any]], version: str) -> dict[str, Any]:
    """A list that was asked for without spec and status: each item says its kind, which is new."""
    kinds = {"apiVersion": "meta.k8s.io/v1"}
    items = [
        {**kinds, "kind": "PartialObjectMetadata", "metadata": each["metadata"]} for each in slices
    ]
    metadata = {"resourceVersion": version}
    return {**kinds, "kind": "PartialObjectMetadataList", "metadata": metadata, "items": items}


def _none(plural: str, name: str) -> dict[str, Any]:
    return not_found(plural, name, GROUP)

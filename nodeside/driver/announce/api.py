"""The four requests that a driver container makes to the Kubernetes API server.

`StatusClient` sends the calls of documents.py. `RecordingClient` records them, so that `nodeside
try` and a manual run can show and check what would be sent to a cluster.

No connection stays open between announcements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nodeside.driver.announce.documents import event_call, node_driver_call
from nodeside.http.status import OLD_DEFINITIONS, KubernetesError
from nodeside.kube.client import ApiCall, Caller, Client, PodAccess
from nodeside.kube.nodes import label_node, read_node
from nodeside.protocol.labels import API_GROUP

_RECORDED = 100  # calls that `RecordingClient` keeps, so that memory stays bounded in a long run


class StatusApi(Protocol):
    """The cluster interface for announcements. Every method raises KubernetesError only."""

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        """Set labels of a node. Return the node's uid, "" if unknown."""

    def get_node(self, name: str) -> str:
        """Return the uid of a node, "" if unknown."""

    def apply_node_driver(self, document: Mapping[str, Any]) -> None:
        """Apply a NodeDriver document, including its status."""

    def create_event(self, event: Mapping[str, Any]) -> None:
        """Create an Event. An existing Event of the same name is not an error."""

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""


class StatusClient:
    """The API server of the cluster that this pod runs in."""

    def __init__(self, access: PodAccess, **timeouts: float) -> None:
        self._client = Client(access, CALLER, **timeouts)
        self._status_apart = False  # whether status is a subresource; learned from responses

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        return _object_uid(self._client.send(label_node(node, labels)))

    def get_node(self, name: str) -> str:
        """Return the uid of a node."""
        return _object_uid(self._client.send(read_node(name)))

    def apply_node_driver(self, document: Mapping[str, Any]) -> None:
        """Apply a NodeDriver in one request; in two if it is new and has a status subresource.

        If the CRD has a status subresource, the API server drops `status` from a write to the
        object itself; otherwise `status` is an ordinary field. The response shows which. (To apply
        the status first would cost a 404 on every node of a first rollout.)
        """
        if self._status_apart and self._apply_status(document):
            return
        stored = self._client.send(node_driver_call(document)).get("status") or {}
        desired = document.get("status", {})
        if any(stored.get(key) != value for key, value in desired.items()):
            self._status_apart = self._apply_status(document)

    def _apply_status(self, document: Mapping[str, Any]) -> bool:
        """Apply the status; return False if the object or the subresource does not exist."""
        only = {key: document[key] for key in ("apiVersion", "kind", "status")}
        only["metadata"] = {"name": document["metadata"]["name"]}
        try:
            self._client.send(node_driver_call(only, "status"))
        except KubernetesError as error:
            if error.status == 404:
                return False
            raise
        return True

    def create_event(self, event: Mapping[str, Any]) -> None:
        try:
            self._client.send(event_call(event))
        except KubernetesError as error:
            if error.status != 409:  # 409: it exists; the first response was lost
                raise

    def close(self) -> None:
        self._client.close()


class RecordingClient:
    """A stand-in for StatusClient that records the calls, newest last."""

    def __init__(self) -> None:
        self.would_write: list[ApiCall] = []

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        self._record_call(label_node(node, labels))
        return ""

    def get_node(self, name: str) -> str:  # noqa: ARG002 - nothing is written, so nothing is kept
        return ""

    def apply_node_driver(self, document: Mapping[str, Any]) -> None:
        self._record_call(node_driver_call(document))

    def create_event(self, event: Mapping[str, Any]) -> None:
        self._record_call(event_call(event))

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _record_call(self, call: ApiCall) -> None:
        self.would_write = [*self.would_write[1 - _RECORDED :], call]


def connect(environ: Mapping[str, str]) -> StatusClient | RecordingClient:
    """Return a client for the cluster of this pod; outside of a pod, a RecordingClient."""
    access = PodAccess.from_environment(environ)
    return RecordingClient() if access is None else StatusClient(access)


def _explain_node_driver_status(call: ApiCall, status: int) -> tuple[str, str] | None:
    """Return the beginning of a message, and a hint, for errors that only NodeDrivers have."""
    if not call.resource.startswith("nodedrivers"):
        return None
    match status:
        case 404:
            return (
                "the API server has no resource NodeDriver: cannot",
                "install the custom resource definitions: kubectl get crd nodedrivers.nodeside.io",
            )
        case 400:
            return "the API server refuses to", OLD_DEFINITIONS
        case _:
            return None


def _object_uid(document: Mapping[str, Any]) -> str:
    return str(document.get("metadata", {}).get("uid", ""))


# A server-side apply needs the verb patch, and also create if it creates the object.
CALLER = Caller(
    "driver",
    {
        "nodes": ("", ("get", "patch")),
        "nodedrivers": (API_GROUP, ("create", "patch")),
        "nodedrivers/status": (API_GROUP, ("patch",)),
        "events": ("events.k8s.io", ("create",)),
    },
    _explain_node_driver_status,
)

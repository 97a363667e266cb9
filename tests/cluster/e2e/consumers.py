"""Pods that use a device, as real Deployments with real budgets, and who watches what happens.

KWOK runs the pods; the scheduler places them, the disruption controller counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from cluster.install.device_classes import class_name, device_classes
from cluster.kube.resources import PODS, Resource
from cluster.model.names import CORDONED, draining_label
from nodeside.spec import parse
from tests.cluster.e2e.watching import Watching
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane
from tests.spec.documents import document as document_of

DEVICE = "example.com/edu"
CLAIMED = {"resource": DEVICE, "discover": {"pci": [{"vendor": "1234"}]}, "expose": "dra"}
NAMESPACE = "default"
_DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
_BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
_DRA = "/apis/resource.k8s.io/v1"
_SLICES = f"{_DRA}/resourceslices"
_BY_KIND = {
    "DeviceClass": f"{_DRA}/deviceclasses",
    "ResourceClaimTemplate": f"{_DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates",
}
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass
class Consumers:
    """Deployments of the test, one for each name."""

    control_plane: ControlPlane

    def offer(self, *nodes: str) -> None:
        """A device plugin offers one device on each of these nodes."""
        for node in nodes:
            status = {"status": {"capacity": {DEVICE: "1"}, "allocatable": {DEVICE: "1"}}}
            path = f"/api/v1/nodes/{node}/status"
            self.control_plane.do("PATCH", path, status, content_type=MERGE_PATCH)

    def publish(self, *nodes: str) -> None:
        """A device agent publishes one device on each of these nodes, and somebody has applied what
        `nodeside-cluster manifests --driver` prints."""
        for document in device_classes(parse(document_of(devices=[CLAIMED]))):
            path = _BY_KIND[document["kind"]]
            self.control_plane.do("POST", path, document)
        for node in nodes:
            device = {"name": "d0", "attributes": {"resource": {"string": DEVICE}}}
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "edu.nodeside.io", "nodeName": node, "pool": pool}
            slice_ = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": node},
                "spec": {**spec, "devices": [device]},
            }
            self.control_plane.do("POST", _SLICES, slice_)

    def deploy(
        self, name: str, replicas: int, *, device: bool = False, claims: bool = False
    ) -> None:
        """Returns when all of them run and are ready."""
        document = _deployment(name, replicas, device=device, claims=claims)
        self.control_plane.do("POST", _DEPLOYMENTS, document)
        self.control_plane.wait_for(
            lambda: self.ready(name) == replicas, f"{replicas} pods of {name} to be ready"
        )

    def ready(self, name: str) -> int:
        found = self.control_plane.do("GET", f"{_DEPLOYMENTS}/{name}")
        return int(found.get("status", {}).get("readyReplicas", 0))

    def budget(self, name: str, spec: Mapping[str, Any]) -> None:
        """The budget of a Deployment; returns when the disruption controller has counted."""
        document = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": name}}, **spec},
        }
        path = f"{_BUDGETS}/{name}"
        self.control_plane.request("DELETE", path)
        self.control_plane.do("POST", _BUDGETS, document)

        def counted() -> bool:
            status = self.control_plane.do("GET", path).get("status", {})
            return bool(status.get("observedGeneration") == 1 and status.get("currentHealthy"))

        self.control_plane.wait_for(counted, f"the budget {name} to be counted")

    def nodes(self, name: str) -> set[str]:
        pods = self.control_plane.do("GET", f"{_PODS}?labelSelector=app%3D{name}")["items"]
        return {str(pod["spec"].get("nodeName", "")) for pod in pods}

    def clear(self) -> None:
        plane = self.control_plane
        for kind in (_DEPLOYMENTS, _BUDGETS):
            for item in plane.do("GET", kind)["items"]:
                path = f"{kind}/{item['metadata']['name']}"
                plane.request("DELETE", path, {"propagationPolicy": "Background"})
        plane.request("DELETE", _PODS, {"gracePeriodSeconds": 0})
        plane.wait_for(lambda: not plane.do("GET", _PODS)["items"], "the pods to be gone")
        for kind in (_SLICES, *_BY_KIND.values()):
            for item in plane.do("GET", kind)["items"]:
                plane.do("DELETE", f"{kind}/{item['metadata']['name']}")


@dataclass
class Guard(Watching):
    """What must never happen while nodes are emptied, seen by watches of the API server."""

    kinds: ClassVar[Mapping[Resource, str]] = {**Watching.kinds, PODS: ""}

    @property
    def evicted(self) -> set[str]:
        """The apps of all pods in the namespace of the tests that were told to go."""
        return {
            str(seen.object["metadata"]["labels"].get("app"))
            for seen in self.events
            if seen.version and seen.kind == "Pod"
            if seen.object["metadata"]["namespace"] == NAMESPACE
            if seen.deleted or "deletionTimestamp" in seen.object["metadata"]
        }

    @property
    def most_out(self) -> int:
        """The largest number of nodes that at one moment were held, or had no working driver."""
        held: set[str] = set()
        most, later = 0, (seen for seen in self.events if seen.version)
        for seen, without in zip(later, self._unavailable(), strict=True):
            if seen.kind == "Node":
                labels = seen.object["metadata"].get("labels", {})
                is_held = draining_label(self.driver) in labels or CORDONED in labels
                held = held | {seen.name} if is_held else held - {seen.name}
            most = max(most, len(held | without))
        return most

    @property
    def cordons(self) -> dict[str, tuple[int, int, int]]:
        """By node: how often it was cordoned, how often uncordoned, and how often by us."""
        found: dict[str, tuple[int, int, int]] = {}
        state: dict[str, bool] = {}
        for seen in (each for each in self.events if each.kind == "Node"):
            name, closed = seen.name, bool(seen.object["spec"].get("unschedulable"))
            before = state.get(name, closed)
            ours = CORDONED in seen.object["metadata"].get("labels", {})
            on, off, mine = found.get(name, (0, 0, 0))
            begun = closed and not before
            found[name] = (on + begun, off + (before and not closed), mine + (begun and ours))
            state[name] = closed
        return found


@contextmanager
def consumers_of(control_plane: ControlPlane) -> Iterator[Consumers]:
    consumers = Consumers(control_plane)
    try:
        yield consumers
    finally:
        consumers.clear()


def _deployment(name: str, replicas: int, *, device: bool, claims: bool) -> dict[str, Any]:
    labels = {"app": name}
    resources: dict[str, Any] = {"limits": {DEVICE: "1"}} if device else {}
    claimed = []
    if claims:
        resources = {"claims": [{"name": "device"}]}
        claimed = [{"name": "device", "resourceClaimTemplateName": class_name(DEVICE)}]
    container = {"name": "main", "image": "registry.example.com/app:1", "resources": resources}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "resourceClaims": claimed,
                    "terminationGracePeriodSeconds": 0,
                    "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
                },
            },
        },
    }

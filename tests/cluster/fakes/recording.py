"""A model whose objects can be given to `StoredObjects`: what a cluster would hold by now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from cluster.model.actions import Delete
from cluster.model.names import (
    ADMITTED_NOTE,
    DRIVER_LABEL,
    MANAGED_BY,
    NAMESPACE,
    STAGE_LABEL,
    STAGE_MANAGER,
)
from cluster.model.snapshot import DriverObject, Node, NodeReport
from cluster.model.stages import StagePod, TemplateSource
from nodeside.protocol.labels import API_VERSION
from tests.cluster.fakes.model import Model, document

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_REPORTED = ("state", "kernel", "revision", "version", "source", "toolkit", "reason", "message")
_Key = tuple[str, str]


@dataclass
class Recording(Model):
    """`applied` has what was applied, `specs` the specs of Drivers, both as they were given."""

    applied: dict[_Key, dict[str, Any]] = field(default_factory=dict)
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def apply_driver(self, name: str = "edu", **spec: Any) -> None:
        super().apply_driver(name, **spec)
        self.specs[name] = spec

    def _apply(self, wanted: dict[str, Any]) -> None:
        super()._apply(wanted)
        metadata = {"generation": 1, **wanted["metadata"]}
        self.applied[wanted["kind"], metadata["name"]] = {**wanted, "metadata": metadata}

    def _delete(self, action: Delete) -> None:
        super()._delete(action)
        self.applied.pop((action.resource.kind, action.name), None)

    def documents(self) -> Iterator[dict[str, Any]]:
        """All objects, as they are read one by one."""
        yield from map(self._with_status, self.applied.values())
        yield from map(_node, self.nodes.values())
        for found in self.drivers.values():
            yield _driver(found, self.specs[found.name])
        yield from map(_node_driver, self.node_drivers.values())
        for source in self.stages.sources.values() if self.stages else ():
            yield _config_map(source)
        for pod in self.stages.pods.values() if self.stages else ():
            yield _stage_pod(pod)

    def _with_status(self, document: dict[str, Any]) -> dict[str, Any]:
        """A Deployment says how far it is, a DaemonSet has nothing that is read here."""
        if document["kind"] != "Deployment":
            return document
        there = int(document["metadata"]["name"] in self.rolled_out)
        counts = {"updatedReplicas": there, "availableReplicas": there}
        return {**document, "status": {"observedGeneration": 1, **counts}}


def lease(holder: str) -> dict[str, Any]:
    """Of a leader that never falls silent."""
    spec = {"holderIdentity": holder, "renewTime": "2100-01-01T00:00:00.000000Z"}
    metadata = {"name": "nodeside-controller", "namespace": NAMESPACE}
    kinds = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return {**kinds, "metadata": metadata, "spec": spec}


def _node(node: Node) -> dict[str, Any]:
    info = {
        "kernelVersion": node.kernel,
        "osImage": node.os_image,
        "architecture": _ARCHITECTURES[node.architecture],
        "bootID": node.boot_id,
    }
    ready = {"type": "Ready", "status": str(node.ready)}
    counted = {name: {k: str(v) for k, v in getattr(node, name).items()} for name in _COUNTED}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "uid": node.uid, "labels": dict(node.labels)},
        "spec": {"unschedulable": True} if node.unschedulable else {},
        "status": {"nodeInfo": info, "conditions": [ready], **counted},
    }


_COUNTED = ("capacity", "allocatable")


def _driver(found: DriverObject, spec: dict[str, Any]) -> dict[str, Any]:
    given = document(found.name, **spec)
    metadata = {"generation": found.generation, "finalizers": list(found.finalizers)}
    return {
        **given,
        "metadata": {**given["metadata"], **metadata},
        "status": dict(found.status),
    }


def _node_driver(found: NodeReport) -> dict[str, Any]:
    fields = asdict(found)
    status = {"bootId": found.boot_id, **{name: fields[name] for name in _REPORTED}}
    kinds = {"apiVersion": API_VERSION, "kind": "NodeDriver"}
    return {**kinds, "metadata": {"name": found.name}, "status": status}


def _config_map(source: TemplateSource) -> dict[str, Any]:
    metadata = {"name": source.name, "namespace": NAMESPACE}
    kinds = {"apiVersion": "v1", "kind": "ConfigMap"}
    return {**kinds, "metadata": metadata, "data": dict(source.files)}


def _stage_pod(pod: StagePod) -> dict[str, Any]:
    labels = {MANAGED_BY: STAGE_MANAGER, DRIVER_LABEL: pod.driver, STAGE_LABEL: pod.stage}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": NAMESPACE,
            "uid": pod.uid,
            "labels": labels,
            "annotations": {ADMITTED_NOTE: pod.admitted} if pod.admitted else {},
            "ownerReferences": [{"kind": "DaemonSet", "name": pod.daemonset}],
        },
        "spec": {"nodeName": pod.node, "containers": [{"name": pod.container}]},
        "status": {"conditions": [{"type": "Ready", "status": str(pod.ready)}]},
    }

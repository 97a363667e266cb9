"""What of nodeside is installed in the control plane: definitions, or everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cluster.install.crds import crd_documents
from cluster.install.manifests import InstallSettings, all_manifests
from cluster.kube.resources import DRIVERS, EVENTS, NODE_DRIVERS, NODES, resource_of
from cluster.model.names import CONTROLLER, DRIVER
from tests.controlplane.api_server import APPLY_PATCH, MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes


def install_crds(control_plane: ControlPlane) -> None:
    """Serve Driver and NodeDriver. Harmless if repeated."""
    apply_all(control_plane, crd_documents())
    for resource in (DRIVERS, NODE_DRIVERS):
        _await(control_plane, resource.path())


def install_all(control_plane: ControlPlane, installation: InstallSettings) -> None:
    """Everything but the controller itself, which the tests run in their own way."""
    wanted = [d for d in all_manifests(installation) if d["kind"] != "Deployment"]
    apply_all(control_plane, wanted)
    for resource in (DRIVERS, NODE_DRIVERS):
        _await(control_plane, resource.path())
    _await_policies(control_plane, installation.namespace)


def apply_all(control_plane: ControlPlane, documents: Iterable[Mapping[str, Any]]) -> None:
    """Server-side apply, in order."""
    for document in documents:
        metadata = document["metadata"]
        path = resource_of(document).path(metadata["name"], namespace=metadata.get("namespace", ""))
        path += "?fieldManager=nodeside-tests&force=true"
        control_plane.do("PATCH", path, document, content_type=APPLY_PATCH)


def _await_policies(control_plane: ControlPlane, namespace: str) -> None:
    """The API server takes a second to heed a policy: try, without a trace, what each refuses."""
    nodes = Nodes(control_plane)
    nodes.create("admission-probe", ready=False)
    driver = control_plane.pod_token(namespace, DRIVER, None)
    controller = control_plane.pod_token(namespace, CONTROLLER, None)
    node, spec = NODES.path("admission-probe"), {"spec": {"unschedulable": True}}
    _await_refusal(control_plane, "PATCH", node, spec, driver)
    _await_refusal(control_plane, "PATCH", node, spec, controller)
    _await_refusal(control_plane, "POST", NODE_DRIVERS.path(), _REPORT, driver)
    _await_refusal(control_plane, "POST", EVENTS.path(namespace="default"), _EVENT, driver)
    nodes.clear()


_REPORT = {
    "apiVersion": NODE_DRIVERS.api_version,
    "kind": NODE_DRIVERS.kind,
    "metadata": {"name": "probe.probe"},
}
_EVENT = {
    "metadata": {"name": "probe", "namespace": "default"},
    "action": "Probe",
    "eventTime": "2026-01-02T03:04:05.000000Z",
    "reason": "Probe",
    "type": "Normal",
    "reportingController": "nodeside.io/probe",
    "reportingInstance": "probe",
    "regarding": {"kind": "Pod", "name": "probe", "namespace": "default"},
}


def _await_refusal(
    control_plane: ControlPlane, method: str, path: str, document: Mapping[str, Any], token: str
) -> None:
    kind = MERGE_PATCH if method == "PATCH" else "application/json"

    def is_refused() -> bool:
        asked = f"{path}?dryRun=All"
        answer = control_plane.request(method, asked, document, content_type=kind, token=token)
        return "ValidatingAdmissionPolicy" in answer.message

    control_plane.wait_for(is_refused, f"the policy on {path} to be heeded")


def _await(control_plane: ControlPlane, path: str) -> None:
    control_plane.wait_for(lambda: control_plane.request("GET", path).status == 200, path)

"""Simulated nodes: a kernel, an operating system and labels, and KWOK does the rest.

KWOK keeps the `status.nodeInfo` that a node was made with, so a reboot is a patch of its status,
which is what a kubelet does too.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.controlplane.api_server import MERGE_PATCH, STRATEGIC_PATCH, ApiServer
from tests.controlplane.stages import OWN_STATUS

DEBIAN = "Debian GNU/Linux 12 (bookworm)"
KERNEL = "6.1.0-50-cloud-amd64"


@dataclass
class Nodes:
    """Makes nodes and remembers them, so that `clear` leaves none."""

    control_plane: ApiServer
    names: list[str] = field(default_factory=list)

    def create(
        self,
        name: str,
        *,
        kernel: str = KERNEL,
        os_image: str = DEBIAN,
        architecture: str = "amd64",
        labels: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> dict[str, Any]:
        """A node as its kubelet would register it; `ready`: wait until KWOK has taken it over."""
        info = node_info(kernel, os_image) | {"architecture": architecture}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": _kubelet_labels(name, architecture, labels)},
            "status": {"nodeInfo": info},
        }
        made = self.control_plane.do("POST", "/api/v1/nodes", node)
        self.names.append(name)
        if ready:
            self.control_plane.wait_for(lambda: self.is_ready(name), f"node {name} to be ready")
        return dict(made)

    def get(self, name: str) -> Mapping[str, Any]:
        return self.control_plane.do("GET", f"/api/v1/nodes/{name}")

    def is_ready(self, name: str) -> bool:
        conditions = self.get(name)["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def down(self, name: str) -> None:
        """The kubelet says for the last time that it goes; KWOK leaves the node alone."""
        key, value = OWN_STATUS
        path = f"/api/v1/nodes/{name}"
        note = {"metadata": {"annotations": {key: value}}}
        self.control_plane.do("PATCH", path, note, content_type=MERGE_PATCH)
        self._set_ready(name, "False", "KubeletNotReady")

    def up(self, name: str) -> None:
        """It is ready again, and KWOK's again."""
        self._set_ready(name, "True", "KubeletReady")
        note = {"metadata": {"annotations": {OWN_STATUS[0]: None}}}
        path = f"/api/v1/nodes/{name}"
        self.control_plane.do("PATCH", path, note, content_type=MERGE_PATCH)

    def _set_ready(self, name: str, status: str, reason: str) -> None:
        ready = {"type": "Ready", "status": status, "reason": reason}
        self.control_plane.do(
            "PATCH",
            f"/api/v1/nodes/{name}/status",
            {"status": {"conditions": [ready]}},
            content_type=STRATEGIC_PATCH,
        )

    def cordon(self, name: str, *, on: bool = True) -> int:
        """What whoever reboots the node does before and undoes after; the resource version."""
        spec = {"spec": {"unschedulable": on or None}}
        path = f"/api/v1/nodes/{name}"
        made = self.control_plane.do("PATCH", path, spec, content_type=MERGE_PATCH)
        return int(made["metadata"]["resourceVersion"])

    def reboot(self, name: str, *, kernel: str = "", os_image: str = "") -> str:
        """Another boot id, and the kernel and system that are given; returns the boot id."""
        info = self.get(name)["status"]["nodeInfo"]
        again = node_info(kernel or info["kernelVersion"], os_image or info["osImage"])
        path, patch = f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": again}}
        self.control_plane.do("PATCH", path, patch, content_type=MERGE_PATCH)
        return again["bootID"]

    def label(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set labels, or remove those that are None: what NFD does."""
        body = {"metadata": {"labels": dict(labels)}}
        self.control_plane.do("PATCH", f"/api/v1/nodes/{name}", body, content_type=MERGE_PATCH)

    def delete(self, name: str) -> None:
        """The node and what runs on it: without a kubelet nobody else would end its pods soon."""
        where = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}"
        for pod in self.control_plane.do("GET", where)["items"]:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            self.control_plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        self.control_plane.request("DELETE", f"/api/v1/nodes/{name}")
        self.names.remove(name)

    def clear(self) -> None:
        for name in list(self.names):
            self.delete(name)


def node_info(kernel: str, os_image: str) -> dict[str, str]:
    """What differs from boot to boot, and what the API server wants besides."""
    return {
        "kernelVersion": kernel,
        "osImage": os_image,
        "bootID": str(uuid.uuid4()),
        "operatingSystem": "linux",
        "containerRuntimeVersion": "kwok",
        "kubeletVersion": "kwok",
        "kubeProxyVersion": "",
        "machineID": "",
        "systemUUID": "",
    }


def _kubelet_labels(
    name: str, architecture: str, others: Mapping[str, str] | None
) -> dict[str, str]:
    """What a kubelet registers with; the beta ones too, else the controller manager adds them."""
    own = {"kubernetes.io/hostname": name}
    for prefix in ("kubernetes.io", "beta.kubernetes.io"):
        own |= {f"{prefix}/arch": architecture, f"{prefix}/os": "linux"}
    return own | dict(others or {})

"""Driver pods as the API server sees them: a pod on a node, its token, its own announcing code.

No container runs. The token is a real one, bound to the pod and so to its node; what is said with
it is said by `nodeside.driver`, as on a node.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.model.names import DRIVER, NAMESPACE
from nodeside.driver.announce.api import StatusClient
from nodeside.kube.client import PodAccess
from tests.controlplane.controlplane import ControlPlane


def make_pod(
    control_plane: ControlPlane,
    node: str,
    *,
    driver: str = "edu",
    name: str = "",
    namespace: str = NAMESPACE,
    account: str = DRIVER,
) -> Mapping[str, Any]:
    """A pod of a service account, bound to a node from its first moment, and called as that of a
    DaemonSet."""
    called = {"name": name} if name else {"generateName": f"{driver}-0123456789ab-"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**called, "namespace": namespace},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "automountServiceAccountToken": False,
            "containers": [{"name": "driver", "image": "registry.example.com/drivers/edu:1.0"}],
        },
    }
    return control_plane.do("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


@dataclass(frozen=True)
class Identity:
    """A token in a directory, as it is projected into a driver container."""

    control_plane: ControlPlane
    directory: Path
    token: str
    url: str = ""

    @property
    def api(self) -> StatusClient:
        """What a driver container announces with."""
        return StatusClient(PodAccess(self.url or self.control_plane.url, self.directory))


def identity(
    control_plane: ControlPlane,
    directory: Path,
    pod: Mapping[str, Any] | None,
    *,
    namespace: str = NAMESPACE,
    account: str = DRIVER,
    url: str = "",
) -> Identity:
    """The identity of a pod; without a pod, the service account's alone.

    `url` is where it finds the API server, "" for the real one.
    """
    token = control_plane.pod_token(namespace, account, pod)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "token").write_text(token)
    shutil.copy(control_plane.ca, directory / "ca.crt")
    return Identity(control_plane, directory, token, url)

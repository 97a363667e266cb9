"""`logs` with a real API server: its field selectors, and what it says without a kubelet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cluster.cli import pod_logs
from cluster.cli.pod_logs import NoLogYet
from cluster.cli.status import NoSuchObject
from cluster.install.manifests import InstallSettings
from cluster.kube.client import Api
from cluster.kube.errors import ApiError, NotFound
from cluster.kube.resources import DRIVERS, PODS
from cluster.model.names import DRIVER_LABEL, MANAGED_BY, MANAGER, NAMESPACE
from tests.cluster.fakes.model import document
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes

pytestmark = pytest.mark.cluster

NAME, NODE, OTHER = "logs", "logs.example.com", "other.example.com"
_RUNNING = {
    "name": "driver",
    "image": "a.example/b:1",
    "imageID": "",
    "ready": True,
    "restartCount": 0,
    "state": {"running": {"startedAt": "2026-11-28T02:41:07Z"}},
}
IMPOSSIBLE = {"nothing.example.com/at-all": "true"}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    labels = {MANAGED_BY: MANAGER, DRIVER_LABEL: NAME}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"containers": [{"name": "driver", "image": "a.example/b:1"}], **spec},
    }


def pinned(node: str) -> dict[str, Any]:
    """The affinity by which the DaemonSet controller pins a pod to a node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.fixture
def driver(api: Api, nodes: Nodes, installed: InstallSettings) -> Iterator[None]:
    nodes.create(NODE)
    nodes.create(OTHER)
    made = document(NAME)
    api.apply({**made, "metadata": {"name": NAME}})
    yield
    api.delete(DRIVERS, NAME)
    for name in ("logs-bound", "logs-waits"):
        with suppress(NotFound):
            api.delete(PODS, name, namespace=NAMESPACE)


def test_a_pod_is_found_by_its_node_whether_it_is_bound_or_not(
    control_plane: ControlPlane, api: Api, driver: None
) -> None:
    with pytest.raises(NoSuchObject, match="has no pod on node"):
        pod_logs.find_log(api, NAMESPACE, NAME, NODE)
    with pytest.raises(NoSuchObject) as caught:
        pod_logs.find_log(api, NAMESPACE, NAME, "logs.example.co")
    assert caught.value.hint == f"did you mean {NODE}? kubectl get nodes"

    api.create(pod("logs-waits", nodeSelector=IMPOSSIBLE, affinity=pinned(OTHER)))

    def says_why() -> bool:
        with pytest.raises(NoLogYet) as caught:
            pod_logs.find_log(api, NAMESPACE, NAME, OTHER)
        return "logs-waits is not scheduled" in str(caught.value)

    control_plane.wait_for(says_why, "the scheduler to refuse the pod")
    with pytest.raises(NoSuchObject, match="has no pod on node"):
        pod_logs.find_log(api, NAMESPACE, NAME, NODE)


def test_without_a_kubelet_the_answer_of_the_api_server_is_shown(
    control_plane: ControlPlane, api: Api, driver: None
) -> None:
    api.create(pod("logs-bound", nodeName=NODE))
    status = {"phase": "Running", "containerStatuses": [_RUNNING]}
    control_plane.kubectl(
        *("-n", NAMESPACE, "patch", "pod", "logs-bound", "--subresource=status"),
        *("--type=merge", "-p", json.dumps({"status": status})),
    )

    log = pod_logs.find_log(api, NAMESPACE, NAME, NODE)

    assert (log.pod, log.container) == ("logs-bound", "driver")
    with pytest.raises(ApiError) as caught:
        list(log.read_lines(api, follow=False))
    assert 'get pods/log "logs-bound" in namespace' in str(caught.value)
    assert caught.value.hint == f"is the node ready? kubectl get node {NODE}"

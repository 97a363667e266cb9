"""Pods that nobody makes, on a real control plane: the times are the API server's own.

The deadline is a minute, which nobody waits for here: what is read from the API server is looked at
as it will be then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.cache.cache import read_once
from cluster.driver.deadlines import NO_POD
from cluster.kube.client import Api
from cluster.kube.conditions import find_condition
from cluster.kube.credentials import Access
from cluster.kube.transport import ApiTransport
from cluster.model.actions import SetStatus
from cluster.model.names import NAMESPACE
from cluster.model.snapshot import Settings
from cluster.plan.planner import plan
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.scene import OLD, Scene
from tests.controlplane.api_server import MERGE_PATCH

pytestmark = pytest.mark.cluster

_ENFORCE = "pod-security.kubernetes.io/enforce"
_PATH = f"/api/v1/namespaces/{NAMESPACE}"


@contextmanager
def pods_refused(scene: Scene) -> Iterator[None]:
    """The namespace admits no privileged pod in the block."""

    def enforce(level: str) -> None:
        body = {"metadata": {"labels": {_ENFORCE: level}}}
        scene.control_plane.do("PATCH", _PATH, body, content_type=MERGE_PATCH)

    enforce("restricted")
    try:
        yield
    finally:
        enforce("privileged")


def test_pods_that_the_namespace_refuses_are_no_longer_on_the_way_after_a_minute(
    scene: Scene, replicas: Replicas
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    replicas.start()
    with pods_refused(scene):
        scene.driver()
        message = scene.until_reason("Ready", "NodesBusy")
        assert message == "works on 0 of 1 node; starting: n0"
        scene.control_plane.wait_for(scene.daemonsets, "the DaemonSet")
        [daemonset] = scene.daemonsets()
        now = time.time()

        snapshot = read_once(Api(ApiTransport(Access(scene.control_plane.kubeconfig))), Settings())
        late = [a for a in plan(snapshot, now + NO_POD + 5).actions if isinstance(a, SetStatus)]

    assert snapshot.nodes["n0"].labelled
    [action] = late
    degraded = find_condition(action.status, "Degraded")
    assert degraded["reason"] == "NodesFailed"
    name = daemonset["metadata"]["name"]
    assert degraded["message"].endswith(
        f"but no pod was created for it: see kubectl -n nodeside describe daemonset {name}"
    )

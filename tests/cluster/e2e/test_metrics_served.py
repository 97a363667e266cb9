"""Metrics of real replicas, asked for with real tokens of the API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.model.names import METRICS_READER
from tests.cluster.e2e.controllers import Replica, Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import OLD, Scene
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

_RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


@pytest.fixture
def tokens(control_plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Of two service accounts, one of which is bound to the role that may read metrics."""
    names = ("prometheus", "stranger")
    for name in names:
        control_plane.do("POST", _ACCOUNTS, {"metadata": {"name": name}})
    binding: dict[str, Any] = {
        "metadata": {"name": "test-metrics-reader"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": METRICS_READER,
        },
        "subjects": [{"kind": "ServiceAccount", "name": names[0], "namespace": "default"}],
    }
    control_plane.do("POST", _RBAC, binding)
    yield {name: control_plane.pod_token("default", name, None) for name in names}
    control_plane.do("DELETE", f"{_RBAC}/test-metrics-reader")
    for name in names:
        control_plane.do("DELETE", f"{_ACCOUNTS}/{name}")


def test_leader_and_follower_tell_whoever_may_read_and_nobody_else(
    scene: Scene, replicas: Replicas, fleet: Fleet, tokens: dict[str, str]
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    leader = replicas.start("controller-0")
    follower = replicas.start("controller-1", lead=False)
    scene.driver()
    scene.until_ready(1)
    scene.control_plane.wait_for(lambda: follower.said("waiting to lead"), "the follower")
    for replica in (leader, follower):
        _check_gate(replica, tokens)

    led = leader.metrics(tokens["prometheus"]).text
    followed = follower.metrics(tokens["prometheus"]).text
    assert "nodeside_leader 1.0" in led
    assert "nodeside_leader 0.0" in followed
    assert 'nodeside_nodes{driver="edu",state="ready"} 1.0' in led
    assert 'link="image-stream"' in led
    assert 'nodeside_driver_condition{condition="Ready",driver="edu"} 1.0' in led
    assert 'code="200",resource="drivers/status",verb="patch"' in led
    assert 'driver="edu"' not in followed
    assert "edu" not in leader.health("/readyz").text


def _check_gate(replica: Replica, tokens: dict[str, str]) -> None:
    good = tokens["prometheus"]
    head, body, mark = good.split(".")
    forged = ".".join((head, body, mark[::-1]))
    assert replica.metrics(good).status_code == 200
    nobody = replica.metrics()
    assert (nobody.status_code, nobody.text) == (401, "a bearer token is required\n")
    for bad in ("garbage", forged):
        answer = replica.metrics(bad)
        assert answer.status_code == 401
        assert "does not know this token" in answer.text
    stranger = replica.metrics(tokens["stranger"])
    assert stranger.status_code == 403
    assert stranger.text.startswith("system:serviceaccount:default:stranger may not get /metrics")


def test_a_token_of_an_account_that_is_gone_opens_nothing(
    scene: Scene, replicas: Replicas, tokens: dict[str, str]
) -> None:
    replica = replicas.start()
    scene.control_plane.do("POST", _ACCOUNTS, {"metadata": {"name": "short-lived"}})
    token = scene.control_plane.pod_token("default", "short-lived", None)
    scene.control_plane.do("DELETE", f"{_ACCOUNTS}/short-lived")

    assert replica.metrics(token).status_code == 401
    assert replica.metrics(tokens["prometheus"]).status_code == 200

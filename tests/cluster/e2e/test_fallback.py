"""Images for one kernel each, on a real control plane: a node that cannot pull its own builds.

KWOK runs every pod; that the kubelet cannot pull an image is patched into the status of one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.model.names import NAMESPACE
from nodeside.protocol.labels import assigned_label
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import OLD, Scene
from tests.controlplane.api_server import MERGE_PATCH

pytestmark = pytest.mark.cluster

REPOSITORY = "registry.example.com/drivers/edu"
IMAGE = f"{REPOSITORY}:1.0.0-{OLD[0]}"
_MESSAGE = f'rpc error: failed to resolve reference "{IMAGE}": not found'
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def images(scene: Scene, node: str) -> list[str]:
    """Of the containers of the pods on a node that are not ending."""
    return [c["image"] for pod in scene.pods(node) for c in pod["spec"]["containers"]]


def cannot_pull(scene: Scene, node: str) -> None:
    [pod] = scene.pods(node)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
    waiting = {"waiting": {"reason": "ErrImagePull", "message": _MESSAGE}}
    status: dict[str, Any] = {
        "name": "driver", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0,
        "state": waiting,
    }  # fmt: skip
    patch = {"status": {"containerStatuses": [status]}}
    scene.control_plane.do("PATCH", path, patch, content_type=MERGE_PATCH)


def until_images(scene: Scene, node: str, wanted: list[str]) -> None:
    scene.control_plane.wait_for(
        lambda: images(scene, node) == wanted, f"the pod on {node} to have {wanted}"
    )


def test_a_node_that_cannot_pull_its_image_builds_and_another_controller_knows_it(
    scene: Scene, replicas: Replicas, tmp_path: Path
) -> None:
    builds = [f"{REPOSITORY}:1.0.0", f"quay.example.com/toolkit:{OLD[0]}"]
    scene.toolkits(OLD)
    everywhere = ("has-it", "lacks-it", "lacks-it-too")
    for name in everywhere:
        scene.node(name)
    first = replicas.start()
    scene.driver(prebuilt={"image": f"{REPOSITORY}:{{version}}-{{kernel}}"}, canary=0)
    for name in everywhere:
        until_images(scene, name, [IMAGE])
    scene.control_plane.wait_for(
        lambda: all(pod["status"].get("phase") == "Running" for pod in scene.pods()),
        "the pods to be what KWOK makes of them",
    )
    before = scene.labels("has-it")[assigned_label("edu")]

    for name in everywhere[1:]:
        cannot_pull(scene, name)
        until_images(scene, name, builds)
    first.terminate()
    replicas.start("controller-1")
    scene.node("late")
    until_images(scene, "late", [IMAGE])
    scene.control_plane.wait_for(
        lambda: scene.pods("late")[0]["status"].get("phase") == "Running", "the pod on late to run"
    )
    cannot_pull(scene, "late")
    until_images(scene, "late", builds)

    assert images(scene, "has-it") == [IMAGE]
    assert scene.labels("has-it")[assigned_label("edu")] == before
    with Fleet(scene.control_plane, tmp_path / "tokens"):
        scene.until_ready(4)
    words = f"image {IMAGE} cannot be pulled (ErrImagePull: {_MESSAGE}); building instead"
    [row] = scene.status()["pools"]
    named = f"lacks-it, lacks-it-too, late: {words}"
    assert (row["reason"], row["message"]) == ("FellBack", named)
    assert scene.condition("Ready")["message"] == f"works on 4 nodes; fell back: {named}"
    told = [event["note"] for event in scene.items(_EVENTS) if event["reason"] == "FellBack"]
    assert words in told

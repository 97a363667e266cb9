"""A toolkit image for another kernel, on a real control plane: labels tell, or a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.model.names import CONTROLLER, EXPLAIN, NAMESPACE, PREFLIGHT
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import UNFIT, Fleet
from tests.cluster.e2e.scene import NODE_DRIVERS, OLD, Scene
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imageapi import Image, ImageApi

pytestmark = pytest.mark.cluster

KERNEL, OS = OLD
WRONG, RIGHT = f"quay.example.com/toolkit:{KERNEL}", f"quay.example.com/right:{KERNEL}"
NEXT_OS = "418.94.202502020000-0"
OTHER = "5.14.0-426.el9.x86_64"
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def toolkits(scene: Scene) -> set[str]:
    """The toolkit images of all pods that are not ending."""
    return {c["image"] for pod in scene.pods() for c in pod["spec"]["containers"][1:]}


def until_toolkit(scene: Scene, image: str, nodes: int) -> None:
    scene.control_plane.wait_for(
        lambda: toolkits(scene) == {image} and len(scene.pods()) == nodes,
        f"{nodes} pods with toolkit {image}",
    )


def until_said_by_nodes(scene: Scene, image: str) -> None:
    scene.control_plane.wait_for(
        lambda: {each["status"]["toolkit"] for each in scene.items(NODE_DRIVERS)} == {image},
        f"every node to say that its toolkit is {image}",
    )


def test_a_node_that_refuses_its_image_says_what_to_add_and_adding_it_resolves_it(
    scene: Scene, replicas: Replicas, tmp_path: Path
) -> None:
    scene.toolkits(OLD)
    for name in ("n1", "n2"):
        scene.node(name)
    replicas.start()
    with Fleet(scene.control_plane, tmp_path / "tokens", unfit=frozenset({WRONG})):
        scene.driver()
        message = scene.until_reason("Degraded", "ToolkitRefused")
        assert f'spec.toolkit.images: {{"{KERNEL}": IMAGE}}' in message
        scene.until_said("Ready", UNFIT)
        [row] = scene.status()["pools"]
        assert (row["reason"], row["toolkit"]) == ("ToolkitRefused", WRONG)
        assert toolkits(scene) == {WRONG}

        scene.change({"toolkit": {"images": {KERNEL: RIGHT}}})
        scene.until_ready(2)
        until_toolkit(scene, RIGHT, 2)
        until_said_by_nodes(scene, RIGHT)
        [row] = scene.status()["pools"]
        assert (row["toolkit"], row["link"]) == (RIGHT, "map")
        told = [e["note"] for e in scene.items(_EVENTS) if e["reason"] == "ToolkitRefused"]
        assert f"toolkit image {WRONG} is not for kernel {KERNEL}" in told[0]


@pytest.fixture
def image_api(control_plane: ControlPlane) -> Iterator[ImageApi]:
    with ImageApi(control_plane) as found:
        yield found


def test_labels_of_the_images_choose_the_tag_before_a_node_pulls_anything(
    image_api: ImageApi, scene: Scene, replicas: Replicas, tmp_path: Path
) -> None:
    image_api.set({OS: Image(WRONG, {"kernel-version": OTHER}), "latest": Image("i")})
    scene.node("n1")
    replicas.start()
    scene.driver()

    message = scene.until_reason("Ready", "ToolkitMissing")
    assert f"has tag {OS}, but its image is for kernel {OTHER}" in message
    assert message.endswith("name the image of this kernel in spec.toolkit.images")
    assert not scene.daemonsets()
    said = scene.cli("resolve", OS, "--kernel", KERNEL)
    assert f"its image is for kernel {OTHER}" in said.output

    image_api.set({OS: Image(WRONG, {"kernel-version": OTHER}), NEXT_OS: _right()})
    until_toolkit(scene, RIGHT, 1)
    with Fleet(scene.control_plane, tmp_path / "tokens"):
        scene.until_ready(1)

    [row] = scene.status()["pools"]
    assert (row["toolkit"], row["link"]) == (RIGHT, "image-labels")
    assert image_api.read[NEXT_OS] == 1
    said = scene.cli("resolve", OS, "--kernel", KERNEL)
    assert said.output.splitlines()[0].split() == ["image", RIGHT]


def test_without_the_rule_the_tag_is_believed(
    image_api: ImageApi, scene: Scene, replicas: Replicas
) -> None:
    image_api.set({OS: Image(WRONG, {"kernel-version": OTHER})})
    scene.node("n1")
    with scene.rule_missing("imagestreamtags", "get"):
        replicas.start()
        scene.driver()

        until_toolkit(scene, WRONG, 1)

    assert not image_api.read[OS]


def test_who_reads_tags_may_read_them(image_api: ImageApi, scene: Scene) -> None:
    account = f"system:serviceaccount:{NAMESPACE}:{CONTROLLER}"
    asked = ["auth", "can-i", "get", "imagestreamtags.image.openshift.io", "-n", "openshift"]
    said = scene.control_plane.kubectl(*asked, "--as", account, check=False).output
    assert said.strip() == "yes"
    for role in (EXPLAIN, PREFLIGHT):
        path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}"
        rules = scene.control_plane.do("GET", path)["rules"]
        [verbs] = [rule["verbs"] for rule in rules if "imagestreamtags" in rule["resources"]]
        assert verbs == ["get"]


def _right() -> Image:
    return Image(RIGHT, {"kernel-version": KERNEL, "kernel-rt-version": f"{KERNEL}+rt"})

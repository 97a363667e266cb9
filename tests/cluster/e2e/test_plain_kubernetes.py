"""A cluster that is no OpenShift: nothing there knows what an ImageStream is."""

from __future__ import annotations

import pytest

from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import NEW, OLD, Scene
from tests.controlplane.imagestreams import install_image_streams, remove_image_streams

pytestmark = pytest.mark.cluster

TEMPLATE = {"imageTemplate": "registry.example.com/toolkit:{kernel}"}


def test_a_template_serves_where_there_are_no_image_streams_and_they_may_come_later(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    remove_image_streams(scene.control_plane)
    stays, moves = scene.some_nodes("n", 2)
    replicas.start()
    scene.driver()
    message = scene.until_reason("Degraded", "ToolkitMissing")
    assert "no toolkit image: this cluster has no image streams" in message
    assert "name an image in spec.toolkit.images, or set spec.toolkit.imageTemplate" in message

    scene.change({"toolkit": TEMPLATE})
    scene.until_ready(2)
    scene.driver("2.0.0", maxUnavailable=2)
    scene.until_complete("2.0.0", 2)
    [row] = scene.status()["pools"]
    assert (row["link"], row["toolkit"]) == ("template", f"registry.example.com/toolkit:{OLD[0]}")

    replicas.clear()
    install_image_streams(scene.control_plane)
    scene.toolkits(NEW)
    replicas.start()
    scene.reboot(moves, NEW)
    scene.until_kernels(OLD[0], NEW[0])
    scene.until_ready(2)
    assert [row["link"] for row in scene.status()["pools"]] == ["template", "image-stream"]
    assert scene.versions() == {stays: "2.0.0", moves: "2.0.0"}

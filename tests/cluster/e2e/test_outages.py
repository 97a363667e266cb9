"""The API server is cut off or gone: what the controller says meanwhile, and that it comes back."""

from __future__ import annotations

import pytest

from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.relay import Relay
from tests.cluster.e2e.scene import NEW, OLD, Scene

pytestmark = pytest.mark.cluster


def test_watches_that_are_cut_are_resumed_and_nothing_is_missed(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD, NEW)
    scene.node("n0")
    with Relay(scene.control_plane.url) as relay:
        controller = replicas.start(url=relay.url)
        scene.driver()
        scene.until_ready(1)
        for system in (NEW, OLD, NEW):
            relay.cut()
            scene.reboot("n0", system)
            scene.until_kernels(system[0])
            scene.until_ready(1)
        assert controller.child.poll() is None


def test_an_api_server_that_is_gone_is_said_and_survived_without_a_restart(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD, NEW)
    scene.node("n0")
    with Relay(scene.control_plane.url) as relay:
        controller = replicas.start(url=relay.url)
        scene.driver()
        scene.until_ready(1)

        relay.close()
        scene.reboot("n0", NEW)
        scene.control_plane.wait_for(
            lambda: controller.said("no longer leading"), "the lead to be given up"
        )
        assert "nothing heard for" in controller.health("/readyz").text
        assert controller.health("/healthz").text == "ok\n"

        relay.open()
        scene.until_kernels(NEW[0])
        scene.until_ready(1)
        assert controller.child.poll() is None
        scene.control_plane.wait_for(
            lambda: "nothing heard" not in controller.health("/readyz").text,
            "all watches to be back",
        )

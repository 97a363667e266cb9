"""The whole product on a real node: nothing is played.

A control plane on this host, with real authorization and admission; a machine with its own kernel,
systemd, containerd, runc and a kubelet that has joined it. The controller, a process with the
rights that are installed, makes the DaemonSet; the kubelet pulls the images and starts our pod as
its manifest says; the module is compiled there and loaded into that kernel; what the cluster is
told comes from the pod, with its own projected token.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.install.manifests import Installation
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.scene import Scene
from tests.cluster.fakes.installed import install_all
from tests.controlplane.binaries import Say
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.node.hungry import apply_hungry_driver, until_given_up
from tests.node.realnode import RealNode, real_node
from tests.node.story import Story

pytestmark = pytest.mark.vm


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Say:
    """Shows what takes long, such as building programs, as it goes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    progress = Progress()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            progress.stream = sys.stderr
            progress.say(text)

    return say


@pytest.fixture
def control_plane(say: Say) -> Iterator[ControlPlane]:
    """Without KWOK: it would take the real node for one of its own."""
    with ControlPlane(say, simulated=False) as control_plane:
        yield control_plane


@pytest.fixture
def node(
    workshop: Workshop, control_plane: ControlPlane, newest: KernelDisk, tmp_path: Path, say: Say
) -> Iterator[RealNode]:
    tmp_path.chmod(0o755)
    with real_node(workshop, control_plane, newest, tmp_path, say) as node:
        yield node
        print(node.machine.last_words())  # noqa: T201 - shown if the test fails


@pytest.fixture
def story(node: RealNode, control_plane: ControlPlane, tmp_path: Path) -> Iterator[Story]:
    install_all(control_plane, Installation())
    replicas = Replicas(control_plane, tmp_path)
    yield Story(node, Scene(control_plane, Nodes(control_plane)), replicas, tmp_path / "drivers")
    for replica in replicas.running:
        print(f"--- {replica.name}\n{replica.last_words}")  # noqa: T201 - shown if the test fails
    replicas.clear()


def test_a_driver_lives_on_a_real_node_from_its_first_build_to_its_deletion(story: Story) -> None:
    story.until_node_ready()
    story.start_controller()
    story.write_stage()
    story.apply_driver("1.0.0", timeout_ms="2000")
    story.until_ready("1.0.0", source="built")
    assert story.timeout_ms == "2000"
    assert story.node_driver()["bootId"] == story.boot_id
    assert story.events("DriverReady") == [
        f"driver edu 1.0.0, kernel {story.kernel}: ready (built), modules edu"
    ]
    first = story.loading

    story.kill_driver_container()
    story.until_ready("1.0.0", source="loaded")
    assert story.loading == first

    story.delete_pod()
    story.until_ready("1.0.0", source="loaded")
    assert story.loading == first

    before = story.relabellings()
    story.apply_driver("1.1.0", timeout_ms="1000")
    story.until_ready("1.1.0", source="cached")
    assert story.timeout_ms == "1000"
    assert story.loading != first
    # What follows leaves, the node is given the revision, what follows may come, and it is there.
    assert story.relabellings() == before + 4

    apply_hungry_driver(story, "1.2.0")
    until_given_up(story, "1.2.0")

    story.delete_driver()
    story.nothing_is_left()

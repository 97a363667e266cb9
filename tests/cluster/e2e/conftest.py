"""What an end-to-end test starts from: everything installed, no Driver, no node, no controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.install.manifests import InstallSettings
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import OLD, Scene
from tests.cluster.e2e.staged import clear, lingering, write
from tests.cluster.fakes.stagedriver import daemonset
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imagestreams import install_image_streams
from tests.controlplane.nodes import Nodes


@pytest.fixture
def replicas(
    control_plane: ControlPlane, installed: InstallSettings, tmp_path: Path
) -> Iterator[Replicas]:
    replicas = Replicas(control_plane, tmp_path)
    yield replicas
    for replica in replicas.running:
        print(f"--- {replica.name}\n{replica.last_words}")  # noqa: T201 - shown if the test fails
    replicas.clear()


@pytest.fixture
def fleet(
    control_plane: ControlPlane, installed: InstallSettings, tmp_path: Path
) -> Iterator[Fleet]:
    with Fleet(control_plane, tmp_path / "tokens") as fleet:
        yield fleet


@pytest.fixture
def scene(control_plane: ControlPlane, installed: InstallSettings, nodes: Nodes) -> Iterator[Scene]:
    install_image_streams(control_plane)
    scene = Scene(control_plane, nodes)
    yield scene
    scene.clear()


@pytest.fixture
def staged(scene: Scene) -> Iterator[Scene]:
    """Two ConfigMaps of two stages; what a test leaves of them is gone after it."""
    scene.toolkits(OLD)
    write(scene, "one", lingering(daemonset("plugin")))
    write(scene, "two", daemonset("monitor"))
    yield scene
    scene.clear()
    clear(scene, "one", "two")

"""`nodeside-cluster uninstall` beside a controller at work, with a driver that is loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.install.manifests import InstallSettings
from cluster.model.names import NAMESPACE
from nodeside.errors import ExitCode
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import OLD, Scene
from tests.cluster.fakes.installed import install_all
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster


@pytest.fixture
def again(control_plane: ControlPlane, installed: InstallSettings) -> Iterator[None]:
    """What the other tests count on is there again afterwards."""
    yield
    path = f"/api/v1/namespaces/{NAMESPACE}"

    def stays() -> bool:
        found = control_plane.request("GET", path).document
        return "deletionTimestamp" not in found.get("metadata", {})

    control_plane.wait_for(stays, "the namespace to be gone")
    install_all(control_plane, installed)


def test_uninstall_unloads_first_and_leaves_nothing_on_the_nodes(
    scene: Scene, replicas: Replicas, fleet: Fleet, again: None
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    replicas.start()
    scene.driver()
    scene.until_ready(1)

    done = scene.cli("uninstall", "--yes")

    assert done.exit_code == ExitCode.OK, done.errors
    lines = done.output.splitlines()
    assert lines[0] == "driver edu: to be deleted; its modules are unloaded first"
    gone = lines.index("driver edu is gone, and none of its modules is loaded any more")
    assert gone < lines.index("ClusterRole nodeside-controller deleted")
    assert lines[-1] == "CustomResourceDefinition drivers.nodeside.io deleted"
    assert not [key for key in scene.labels("n0") if key.startswith("nodeside.io/")]

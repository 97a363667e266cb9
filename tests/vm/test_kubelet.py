"""A real node: a machine with its own kernel, systemd, containerd, runc and a kubelet.

It joins a control plane on this host that has real authorization and admission.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.trial.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.controlplane.binaries import Say
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.node.configuration import NAME
from tests.node.realnode import RealNode, real_node

pytestmark = pytest.mark.vm

_LONG = 300.0  # seconds that only a broken node takes


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


def test_a_real_kubelet_joins_and_tells_of_the_kernel_that_runs_there(
    node: RealNode, control_plane: ControlPlane
) -> None:
    nodes = Nodes(control_plane)
    path = f"/api/v1/nodes/{NAME}"
    control_plane.wait_for(
        lambda: control_plane.request("GET", path).status == 200 and nodes.is_ready(NAME),
        f"node {NAME} to be ready",
        timeout=_LONG,
    )

    told = nodes.get(NAME)["status"]["nodeInfo"]

    assert told["kernelVersion"] == node.kernel.release
    assert told["bootID"] == node.machine.machine.boot_id
    assert told["containerRuntimeVersion"].startswith("containerd://2.")

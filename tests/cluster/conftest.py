"""Fixtures of the tier `cluster`: one control plane for all of it, nodes for each test.

It ends with the last test here: one that has nothing to do uses a twenty-fifth of a processor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from cluster.install.manifests import InstallSettings
from cluster.kube.client import Api, connect
from nodeside.trial.progress import Progress
from tests.cluster.fakes.installed import install_all
from tests.controlplane.binaries import Say
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Say:
    """Shows what takes long, such as building programs, as it goes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    progress = Progress()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            progress.stream = sys.stderr
            progress.print_step(text)

    return say


@pytest.fixture(scope="package")
def control_plane(say: Say) -> Iterator[ControlPlane]:
    """etcd, API server, controller manager, scheduler, KWOK."""
    with ControlPlane(say) as control_plane:
        yield control_plane


@pytest.fixture(scope="package")
def installed(control_plane: ControlPlane) -> InstallSettings:
    """Definitions, accounts, roles and admission policies; no controller runs."""
    installation = InstallSettings()
    install_all(control_plane, installation)
    return installation


@pytest.fixture
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """The controller's own client, with the rights of an administrator."""
    with closing(connect(control_plane.kubeconfig)) as api:
        yield api


@pytest.fixture
def nodes(control_plane: ControlPlane) -> Iterator[Nodes]:
    """A maker of simulated nodes; those that a test made are gone after it."""
    nodes = Nodes(control_plane)
    yield nodes
    nodes.clear()

"""A rollout over a broken way to the API server ends as one over a sound way does.

Both halves go through the proxy: the controller's process and what the nodes' pods say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from cluster.install.manifests import InstallSettings
from nodeside.errors import DeadlinePassed
from tests.cluster.e2e.controllers import Replica, Replicas
from tests.cluster.e2e.endstate import end_state
from tests.cluster.e2e.faults import SEED, Fault, Faults, new_seed
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import OLD, Scene
from tests.controlplane.audit import Audit, Write, counted
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imagestreams import install_image_streams
from tests.controlplane.nodes import Nodes

pytestmark = pytest.mark.cluster

NODES = 20
BUDGET = 5
RATE = 0.15  # of the requests, or of the events
STATUSES = 10  # more of them in a rollout that takes longer: counts are told once a second


@dataclass
class Rollouts:
    """One controller, one Driver, one version after the other."""

    scene: Scene
    faults: Faults
    controller: Replica
    versions: Iterator[int]

    def next(self) -> tuple[str, int]:
        """Apply a new version; the version, and the audit log's mark."""
        version = f"{next(self.versions)}.0.0"
        mark = self.audit.mark()
        self.scene.driver(version, maxUnavailable=BUDGET)
        return version, mark

    def until(self, version: str, expected: dict[str, Any]) -> None:
        """The end state is reached; what is missing of it is shown.

        It takes six requests to see all of it, so the Driver is asked first.
        """
        found: dict[str, Any] = {}

        def reached() -> bool:
            if not self.scene.has_settled():
                return False
            found.update(end_state(self.scene, version))
            return found == expected

        try:
            self.scene.control_plane.wait_for(reached, "the end state")
        except DeadlinePassed:
            print(self.controller.last_words)  # noqa: T201
            assert end_state(self.scene, version) == expected
            raise

    @property
    def audit(self) -> Audit:
        return Audit(self.scene.control_plane.place.directory)


@dataclass
class Sound:
    """A rollout without faults: where it ends, and what the controller wrote."""

    state: dict[str, Any]
    writes: list[Write]


@pytest.fixture(scope="module")
def rollouts(
    control_plane: ControlPlane,
    installed: InstallSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Rollouts]:
    install_image_streams(control_plane)
    scene = Scene(control_plane, Nodes(control_plane))
    replicas = Replicas(control_plane, tmp_path_factory.mktemp("faults"))
    tokens = tmp_path_factory.mktemp("tokens")
    with (
        Faults(control_plane.url, control_plane.place.certificates, new_seed()) as faults,
        Fleet(control_plane, tokens, url=faults.url) as fleet,
    ):
        scene.toolkits(OLD)
        scene.some_nodes("n", NODES)
        yield Rollouts(scene, faults, replicas.start(url=faults.url), count(1))
        replicas.clear()
        scene.clear()
        scene.nodes.clear()
        assert fleet.spells


@pytest.fixture(scope="module")
def sound(rollouts: Rollouts) -> Sound:
    version, _ = rollouts.next()
    rollouts.scene.until_ready(NODES)
    version, mark = rollouts.next()
    rollouts.scene.until_complete(version, NODES)
    return Sound(end_state(rollouts.scene, version), rollouts.audit.writes(mark))


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_rollout_comes_to_the_same_end_through(
    fault: Fault, rollouts: Rollouts, sound: Sound
) -> None:
    faults, scene = rollouts.faults, rollouts.scene
    print(f"{SEED}={faults.seed}: {fault.value}")  # noqa: T201 - shown if the test fails
    with scene.watching() as seen, faults.of(fault, RATE):
        version, mark = rollouts.next()
        rollouts.until(version, sound.state)

    writes = rollouts.audit.writes(mark)
    print(faults.done[fault], "faults,", counted(writes))  # noqa: T201
    assert faults.done[fault] > 5
    assert seen.most_unavailable <= BUDGET
    assert len(writes) <= len(sound.writes) + faults.done[fault] + STATUSES
    assert rollouts.controller.child.poll() is None, "the same process all the time"

"""The leader dies fifty times in the middle of rollouts: nothing of their ends changes.

Two replicas, as processes of their own; what is killed is replaced by a new one, as a Deployment
does. The lease is short, so that the other one need not wait for long.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from tests.cluster.e2e.controllers import Replica, Replicas
from tests.cluster.e2e.endstate import end_state
from tests.cluster.e2e.faults import SEED, new_seed
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import DRIVERS, OLD, Scene
from tests.controlplane.audit import Audit, counted

pytestmark = pytest.mark.cluster

KILLS = 50
NODES = 10
BUDGET = 3
LEASE = 2  # seconds
LATEST = 8  # writes of a leader, at the most, before it is killed
A_FEW = 2  # writes more for each kill


@dataclass
class Pair:
    """Two replicas, one of which leads."""

    replicas: Replicas
    names: Iterator[int] = field(default_factory=count)
    alive: dict[str, Replica] = field(default_factory=dict)

    def add(self) -> None:
        name = f"controller-{next(self.names)}"
        self.alive[name] = self.replicas.start(name, lead=False, lease=LEASE)

    def leader(self) -> Replica:
        """The one that leads, once one does."""
        plane = self.replicas.control_plane
        plane.wait_for(lambda: self.replicas.leader in self.alive, "a replica to lead")
        return self.alive[self.replicas.leader]

    def kill(self, replica: Replica) -> None:
        """And a new one comes up while the other one waits for the lease."""
        del self.alive[replica.name]
        replica.kill()
        self.replicas.running.remove(replica)
        self.add()


@dataclass
class Rollouts:
    """One after the other, each as soon as the one before has come to its end."""

    scene: Scene
    audit: Audit
    versions: Iterator[int] = field(default_factory=lambda: count(1))
    version: str = ""
    begun: int = 0

    def next(self) -> None:
        self.version = f"{next(self.versions)}.0.0"
        self.begun += 1
        self.scene.driver(self.version, maxUnavailable=BUDGET)

    def state(self) -> dict[str, Any]:
        return end_state(self.scene, self.version)

    def ended(self, expected: dict[str, Any]) -> bool:
        """Whether it is where one ends that nobody disturbs; first by the Driver's own word."""
        found = self.scene.control_plane.do("GET", f"{DRIVERS}/edu")
        status = found["status"]
        current = status["observedGeneration"] == found["metadata"]["generation"]
        said = current and status["revision"] == status.get("lastGoodRevision")
        return said and self.state() == expected


def test_a_leader_killed_fifty_times_changes_no_end_and_writes_little_more(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    seed = new_seed()
    print(f"{SEED}={seed}")  # noqa: T201 - shown if the test fails
    fate = random.Random(seed)
    pair = Pair(replicas)
    rollouts = Rollouts(scene, Audit(scene.control_plane.place.directory))
    scene.toolkits(OLD)
    scene.some_nodes("n", NODES)
    pair.add()
    pair.add()
    pair.leader()
    rollouts.next()
    scene.until_ready(NODES)
    undisturbed, expected = _undisturbed(scene, rollouts)

    with scene.watching() as seen:
        mark, rollouts.begun = rollouts.audit.mark(), 0
        rollouts.next()
        for _ in range(KILLS):
            if rollouts.ended(expected):
                rollouts.next()
            leader = pair.leader()
            _until_some_writes(rollouts, fate.randint(0, LATEST), expected)
            pair.kill(leader)
        scene.control_plane.wait_for(lambda: rollouts.ended(expected), "the same end state")

    writes = rollouts.audit.writes(mark)
    print(f"{rollouts.begun} rollouts, undisturbed {undisturbed}: {counted(writes)}")  # noqa: T201
    assert seen.most_unavailable <= BUDGET
    assert len(writes) <= rollouts.begun * undisturbed + KILLS * A_FEW


def _undisturbed(scene: Scene, rollouts: Rollouts) -> tuple[int, dict[str, Any]]:
    """How many writes a rollout takes in which nobody is killed, and its end."""
    mark = rollouts.audit.mark()
    rollouts.next()
    scene.until_complete(rollouts.version, NODES)
    return len(rollouts.audit.writes(mark)), rollouts.state()


def _until_some_writes(rollouts: Rollouts, some: int, expected: dict[str, Any]) -> None:
    """The leader has written so much, or there is nothing to write any more."""
    mark = rollouts.audit.mark()
    rollouts.scene.control_plane.wait_for(
        lambda: len(rollouts.audit.writes(mark)) >= some or rollouts.ended(expected),
        f"{some} writes",
    )

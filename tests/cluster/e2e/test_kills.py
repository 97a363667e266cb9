"""The leader dies again and again, amid builds and rollouts: nothing of their ends changes.

Two replicas, as processes of their own; what is killed is replaced by a new one, as a Deployment
does. The lease is short, so that the other one need not wait for long. Each version is built once
for the kernel of the nodes and once for a coming one, and its builds do not end before a leader
died over them. How often something was built is read from a watch of Jobs and their pods.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

import pytest

from cluster.kube.resources import JOBS, PODS, Resource
from cluster.model.names import BUILDER, MANAGED_BY, OUTCOME_NOTE
from tests.chaos.leaders import KILLS
from tests.cluster.e2e.builders import BUILD_PODS, Builders
from tests.cluster.e2e.controllers import Replica, Replicas
from tests.cluster.e2e.endstate import end_state
from tests.cluster.e2e.faults import SEED, new_seed
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import NEW, OLD, Scene
from tests.cluster.e2e.watching import Watching
from tests.controlplane.audit import Audit, counted

pytestmark = pytest.mark.cluster

OFTEN = (15, pytest.param(KILLS, marks=pytest.mark.long))
NODES = 10
BUDGET = 3
LEASE = 2  # seconds
LATEST = 8  # writes of a leader, at the most, before it is killed
A_FEW = 2  # writes more for each kill
STORE = {"sources": [{"oci": "registry.example.com/bundles/edu", "publish": True}]}
KERNELS = [f"quay.example.com/toolkit:{kernel}" for kernel, _ in (OLD, NEW)]  # toolkit images
BUILT = [(image, "published") for image in KERNELS]


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
    builders: Builders
    audit: Audit
    versions: Iterator[int] = field(default_factory=lambda: count(1))
    version: str = ""
    begun: int = 0

    def next(self) -> None:
        self.version = f"{next(self.versions)}.0.0"
        self.begun += 1
        self.scene.driver(self.version, prebuilt=STORE, maxUnavailable=BUDGET)

    def state(self) -> dict[str, Any]:
        jobs = sorted(_noted(job) for job in self.builders.jobs())
        return {"jobs": jobs, **end_state(self.scene, self.version)}

    def ended(self, expected: dict[str, Any]) -> bool:
        """Whether it is where one ends that nobody disturbs; first by the Driver's own word."""
        return self.scene.has_settled() and self.state() == expected

    def settled(self) -> bool:
        """Whether nothing of older builds is left, and what came of the newest is known."""
        pods = self.scene.items(BUILD_PODS)
        return len(pods) == len(KERNELS) and self.state()["jobs"] == BUILT

    def waits_for_builds(self) -> bool:
        """Whether nothing happens before a build of this version ends, which the test holds."""
        return self.builders.held.is_set() and self.step == "running"

    @property
    def step(self) -> str:
        """How far the builds of this version are."""
        mine = [job for job in self.builders.jobs() if _build(job["spec"])[0] == self.version]
        if len(mine) < len(KERNELS):
            return "wanted"
        return "done" if all("completionTime" in job["status"] for job in mine) else "running"


@dataclass
class BuildsWatched(Watching):
    """Jobs and their pods besides."""

    kinds: ClassVar[Mapping[Resource, str]] = {**Watching.kinds, JOBS: Watching.kinds[PODS]}

    def builds(self, kind: str) -> Counter[tuple[str, str]]:
        """How many Jobs, or pods of Jobs, there ever were for a version and a toolkit image."""
        found: dict[str, tuple[str, str]] = {}
        for event in self.events:
            meta = event.object["metadata"]
            of_job = event.kind == "Job" or meta.get("labels", {}).get(MANAGED_BY) == BUILDER
            if event.kind == kind and of_job:
                spec = event.object["spec"]
                found[meta["uid"]] = _build(spec if kind == "Job" else {"template": event.object})
        return Counter(found.values())


def _build(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Of a Job: the version of the driver and the toolkit image."""
    images = {each["name"]: each["image"] for each in spec["template"]["spec"]["initContainers"]}
    return images["order"].rpartition(":")[2], images["answer"]


def _noted(job: Mapping[str, Any]) -> tuple[str, str]:
    """What a Job built with, and what came of it."""
    note = job["metadata"].get("annotations", {}).get(OUTCOME_NOTE, "{}")
    return _build(job["spec"])[1], str(json.loads(note).get("verdict"))


@pytest.mark.parametrize("kills", OFTEN)
def test_a_leader_killed_often_changes_no_end_builds_nothing_twice_and_writes_little_more(
    scene: Scene, replicas: Replicas, fleet: Fleet, kills: int
) -> None:
    seed = new_seed()
    print(f"{SEED}={seed}")  # noqa: T201 - shown if the test fails
    fate = random.Random(seed)
    scene.toolkits(OLD, NEW)
    scene.some_nodes("n", NODES)
    pair = Pair(replicas)
    pair.add()
    pair.add()
    pair.leader()
    steps: Counter[str] = Counter()
    with Builders(scene.control_plane) as builders:
        audit = Audit(scene.control_plane.place.directory)
        rollouts = Rollouts(scene, builders, audit)
        rollouts.next()
        scene.until_complete(rollouts.version, NODES)
        undisturbed, expected = _undisturbed(scene, rollouts)

        with BuildsWatched(scene.control_plane) as seen:
            mark, rollouts.begun = audit.mark(), 0
            for _ in range(kills):
                latest = LATEST
                if not rollouts.begun or rollouts.ended(expected):
                    builders.held.set()
                    rollouts.next()
                    latest = 1  # its builds are wanted, and perhaps not begun
                leader = pair.leader()
                _until_some_writes(rollouts, fate.randint(0, latest), expected)
                steps[rollouts.step] += 1
                pair.kill(leader)
                if fate.random() < 0.5:
                    builders.held.clear()
            builders.held.clear()
            scene.control_plane.wait_for(lambda: rollouts.ended(expected), "the same end state")

    writes = audit.writes(mark)
    print(f"{rollouts.begun} rollouts, undisturbed {undisturbed}: {counted(writes)}")  # noqa: T201
    print(f"builds at the kills: {dict(steps)}")  # noqa: T201
    assert seen.most_unavailable <= BUDGET
    assert len(writes) <= rollouts.begun * undisturbed + kills * A_FEW
    first = int(rollouts.version.partition(".")[0]) - rollouts.begun  # was there before
    once = {(f"{first + n}.0.0", image): 1 for n in range(rollouts.begun + 1) for image in KERNELS}
    assert seen.builds("Job") == once
    assert seen.builds("Pod") == once


def _undisturbed(scene: Scene, rollouts: Rollouts) -> tuple[int, dict[str, Any]]:
    """How many writes a rollout takes in which nobody is killed, and its end."""
    mark = rollouts.audit.mark()
    rollouts.next()
    scene.until_complete(rollouts.version, NODES)
    scene.control_plane.wait_for(rollouts.settled, "the builds to be all there is")
    return len(rollouts.audit.writes(mark)), rollouts.state()


def _until_some_writes(rollouts: Rollouts, some: int, expected: dict[str, Any]) -> None:
    """The leader has written so much, or there is nothing to write now."""
    mark = rollouts.audit.mark()
    rollouts.scene.control_plane.wait_for(
        lambda: (
            len(rollouts.audit.writes(mark)) >= some
            or rollouts.waits_for_builds()
            or rollouts.ended(expected)
        ),
        f"{some} writes",
    )

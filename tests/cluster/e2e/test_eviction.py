"""Consumers are evicted before a driver is replaced: real Deployments, real budgets, one observer.

What is claimed of the controller is read from watches of the API server, not from its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.model.names import CORDONED, draining_label
from nodeside.protocol.labels import assigned_label
from tests.cluster.e2e.consumers import CLAIMED, DEVICE, Consumers, Guard, consumers_of
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import OLD, Scene
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

EVICT = {"resources": [DEVICE]}
DRAINING, ASSIGNED = draining_label("edu"), assigned_label("edu")


@pytest.fixture
def consumers(control_plane: ControlPlane, scene: Scene) -> Iterator[Consumers]:
    with consumers_of(control_plane) as consumers:
        yield consumers


def test_only_consumers_are_evicted_within_their_pdb(
    scene: Scene, replicas: Replicas, fleet: Fleet, consumers: Consumers
) -> None:
    scene.toolkits(OLD)
    names = scene.some_nodes("n", 4)
    consumers.offer(*names)
    replicas.start()
    scene.driver(maxUnavailable=2, evict=EVICT)
    scene.until_ready(4)
    consumers.deploy("train", 3, device=True)
    consumers.deploy("bystander", 4, device=False)
    consumers.budget("train", {"minAvailable": 3})

    with Guard(scene.control_plane) as seen:
        scene.driver("2.0.0", maxUnavailable=2, canary=0, evict=EVICT)
        message = _until_said(scene, "the disruption budget train needs 3 healthy pods")
        assert "waiting for default/train-" in message
        assert scene.column("STATUS") == "Draining"
        # Of two, one may have no such pod, and be done before it is asked for.
        held = {row["node"]: row["message"] for row in scene.status()["draining"]}
        node = next(name for name, message in held.items() if "default/train-" in message)
        said = scene.cli("explain", "edu", node).output
        assert "held since" in said
        assert "the disruption budget train needs 3 healthy pods and has 3 currently" in said
        assert consumers.ready("train") == 3

        consumers.budget("train", {"maxUnavailable": 1})
        scene.until_complete("2.0.0", 4)
        scene.control_plane.wait_for(lambda: not _marked(scene, names), "no node to be held")

    assert seen.evicted == {"train"}
    assert seen.most_out <= 2
    assert {on == off == mine >= 1 for on, off, mine in seen.cordons.values()} == {True}


def test_a_controller_killed_at_each_step_of_a_drain_leaves_no_trace_of_it(
    scene: Scene, replicas: Replicas, fleet: Fleet, consumers: Consumers
) -> None:
    scene.toolkits(OLD)
    names = scene.some_nodes("n", 3)
    consumers.offer(*names)
    replicas.start()
    scene.driver(evict=EVICT)
    scene.until_ready(3)
    consumers.deploy("train", 2, device=True)
    consumers.budget("train", {"minAvailable": 2})
    kept = names[2]
    scene.nodes.cordon(kept)

    with Guard(scene.control_plane) as seen:
        scene.driver("2.0.0", evict=EVICT)
        _killed_after(scene, replicas, lambda: bool(_held(scene, names)), "a node to be held")
        _until_said(scene, "the disruption budget train needs 2 healthy pods")
        first = scene.status()["draining"][0]["node"]
        before = scene.labels(first)[ASSIGNED]
        consumers.control_plane.kubectl("delete", "pdb", "train")
        _killed_after(scene, replicas, lambda: first not in consumers.nodes("train"), "an eviction")
        moved = lambda: scene.labels(first)[ASSIGNED] != before  # noqa: E731
        _killed_after(scene, replicas, moved, f"{first} to be changed")
        _killed_after(scene, replicas, lambda: first not in _held(scene, names), f"{first} to work")
        scene.until_complete("2.0.0", 3)
        scene.control_plane.wait_for(lambda: not _marked(scene, names), "no node to be held")

    assert seen.evicted == {"train"}
    assert seen.most_out <= 1
    assert scene.nodes.get(kept)["spec"]["unschedulable"] is True
    assert seen.cordons.pop(kept) == (0, 0, 0)
    assert {on == off == mine == 1 for on, off, mine in map(_ours(seen), names[:2])} == {True}


def test_pods_that_use_a_device_by_a_claim_leave_too(
    scene: Scene, replicas: Replicas, fleet: Fleet, consumers: Consumers
) -> None:
    """Its stage `devices` does without an agent here, which it says."""
    scene.toolkits(OLD)
    names = scene.some_nodes("n", 2)
    consumers.publish(*names)
    replicas.start()
    scene.driver(evict=EVICT)
    scene.change({"devices": [CLAIMED]})
    scene.until_ready(2)
    consumers.deploy("train", 1, claims=True)
    consumers.deploy("bystander", 2)
    consumers.budget("train", {"minAvailable": 1})

    with Guard(scene.control_plane) as seen:
        scene.driver("2.0.0", canary=0, maxUnavailable=2, evict=EVICT)
        message = _until_said(scene, "the disruption budget train needs 1 healthy pods")
        assert "waiting for default/train-" in message
        consumers.control_plane.kubectl("delete", "pdb", "train")
        scene.until_complete("2.0.0", 2)
        scene.control_plane.wait_for(lambda: not _marked(scene, names), "no node to be held")

    assert seen.evicted == {"train"}


def _ours(seen: Guard) -> Callable[[str], tuple[int, int, int]]:
    return lambda name: seen.cordons[name]


def _killed_after(scene: Scene, replicas: Replicas, holds: Callable[[], bool], what: str) -> None:
    scene.control_plane.wait_for(holds, what)
    replicas.running[-1].kill()
    replicas.start()


def _until_said(scene: Scene, words: str) -> str:
    """The Driver says so in its condition Progressing."""
    scene.control_plane.wait_for(
        lambda: words in scene.condition("Progressing")["message"], f"the words {words!r}"
    )
    return scene.condition("Progressing")["message"]


def _held(scene: Scene, names: list[str]) -> set[str]:
    return {name for name in names if DRAINING in scene.labels(name)}


def _marked(scene: Scene, names: list[str]) -> set[str]:
    marks = {DRAINING, CORDONED}
    return {name for name in names if marks & scene.labels(name).keys()}

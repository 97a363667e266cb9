"""Several replicas, and what a dying one leaves behind: one acts, the next goes on."""

from __future__ import annotations

import pytest

from nodeside.protocol.labels import assigned_label
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import NEW, OLD, Scene

pytestmark = pytest.mark.cluster


def test_of_two_replicas_one_acts_and_the_other_takes_over_as_soon_as_it_ends(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD, NEW)
    scene.node("n0")
    first = replicas.start("controller-0")
    second = replicas.start("controller-1", lead=False)
    scene.control_plane.wait_for(
        lambda: second.said("waiting to lead") and second.health("/readyz").status_code == 200,
        "the second replica to be warm",
    )
    scene.driver()
    scene.until_ready(1)
    assert not second.said("round")

    assert first.terminate() == 0
    scene.control_plane.wait_for(
        lambda: replicas.leader == "controller-1", "the second replica to lead", timeout=5
    )
    assert first.said("no longer leading")
    scene.reboot("n0", NEW)
    scene.until_kernels(NEW[0])
    scene.until_ready(1)


def test_a_controller_killed_in_the_middle_of_a_rollout_changes_nothing_of_its_end(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    names = [scene.node(f"n{i}") for i in range(4)]
    replicas.start()
    scene.driver()
    scene.until_ready(4)

    with scene.watching() as seen:
        scene.driver("2.0.0")
        for changed in range(1, 4):
            scene.until_versions("2.0.0", changed)
            replicas.running[-1].kill()
            replicas.start()
        scene.control_plane.wait_for(
            lambda: scene.versions() == dict.fromkeys(names, "2.0.0"), "the rollout to end"
        )
        scene.until_ready(4)

    assert seen.most_unavailable <= 1
    scene.control_plane.wait_for(
        lambda: len(scene.daemonsets()) == 1,
        "what is old to be gone",
    )


def test_a_restart_with_nothing_to_do_writes_nothing(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    for i in range(3):
        scene.node(f"n{i}")
    first = replicas.start()
    scene.driver()
    scene.until_ready(3)
    scene.control_plane.wait_for(lambda: _quiet(scene), "the status to be complete")
    first.terminate()

    second = replicas.start()
    scene.control_plane.wait_for(
        lambda: second.said("nothing to do") or second.said("round"),
        "the second one to have made a plan",
    )
    assert not second.said("round")
    assert len({scene.labels(f"n{i}")[assigned_label("edu")] for i in range(3)}) == 1


def _quiet(scene: Scene) -> bool:
    return scene.condition("Progressing")["reason"] == "Complete"

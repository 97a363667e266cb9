"""A z-stream upgrade: the nodes of three pools are rebooted one by one into other kernels.

The tag of the toolkit is there before, comes late, or is missing. What must hold is judged by
watches of the API server: see judging.py. Times are scaled: see upgrade.py.
"""

from __future__ import annotations

import statistics
import time

import pytest

from tests.cluster.e2e import judging
from tests.cluster.e2e.builders import Builders
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import REVISIONS, Scene
from tests.cluster.e2e.upgrade import System, Upgrade
from tests.cluster.e2e.watching import Watching
from tests.patience import patience

pytestmark = pytest.mark.cluster

OLD = "418.94.202501221327-0"
STORE = {"sources": [{"oci": "registry.example.com/bundles/edu", "publish": True}]}
PLAIN, RT, ARM = (f"5.14.0-427.50.1.el9_4.{end}" for end in ("x86_64", "x86_64+rt", "aarch64"))
PRESENT: System = ("5.14.0-427.57.1.el9_4.x86_64", "418.94.202503102036-0")
LATE: System = ("5.14.0-427.62.1.el9_4.x86_64+rt", "418.94.202504211015-0")
MISSING: System = ("5.14.0-427.68.2.el9_4.aarch64", "418.94.202505201234-0")
EACH = (8, pytest.param(20, marks=pytest.mark.long))  # nodes of a pool
TERMINATING = 2.0  # seconds that a pod takes to end
DEAF = 0.5  # seconds of these in which it has not heard of it, and acts when it is woken
BRING_UP = 0.1  # seconds that a pod acts
ALL_BACK = patience(600.0)  # seconds for a pool to be rebooted; 30 are usual
LONG = patience(60.0)  # seconds until a node has its pod; the goal is 5 on a machine of its own


@pytest.mark.parametrize("each", EACH)
def test_a_z_stream_upgrade_keeps_its_promises_at_every_moment(
    scene: Scene, replicas: Replicas, fleet: Fleet, each: int
) -> None:
    fleet.linger, fleet.takes = TERMINATING, BRING_UP
    scene.toolkits((PLAIN, OLD), PRESENT)
    present = scene.some_nodes("plain", each, (PLAIN, OLD))
    late = scene.some_nodes("rt", each, (RT, OLD))
    missing = scene.some_nodes("arm", each, (ARM, OLD), architecture="arm64")
    replicas.start()
    scene.driver()
    scene.until_ready(3 * each)

    with scene.watching() as seen, Upgrade(scene, fleet) as upgrade:
        upgrade.pool(present, PRESENT)
        upgrade.pool(late, LATE)
        upgrade.pool(missing, MISSING)
        message = _until_unserved(scene, upgrade, late)
        scene.toolkits((PLAIN, OLD), PRESENT, LATE)
        tagged = time.monotonic()
        _until_back(scene, upgrade, [*present, *late, *missing])
        scene.control_plane.wait_for(
            lambda: scene.status()["nodes"]["ready"] == 2 * each, "two pools to be ready"
        )
        scene.control_plane.wait_for(
            lambda: _nodes_with_pods(scene) == sorted([*present, *late]),
            "the nodes without a toolkit to have no pod",
        )
        assert MISSING[0] in scene.until_reason("Degraded", "ToolkitMissing")
        named = _name_an_image(scene)
        scene.until_ready(3 * each)
        scene.control_plane.wait_for(lambda: len(scene.daemonsets()) == 3, "the old ones to go")

    assert f"image stream openshift/driver-toolkit has no tag {LATE[1]}" in message
    assert len(scene.items(REVISIONS)) == 1
    since = dict(upgrade.rebooted)
    since |= {node: max(since[node], tagged) for node in late}
    since |= {node: max(since[node], named) for node in missing}
    _judge(seen, fleet, upgrade)
    assert judging.most_taken_down(seen.events) == 0, "there was no rollout"
    _all_settled(seen, since)


def test_an_upgrade_in_the_middle_of_a_paused_rollout_gives_the_last_good_revision(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    """With a store: what is built for a kernel is built once, whatever nodes do meanwhile."""
    fleet.linger, fleet.takes, fleet.deaf = TERMINATING, BRING_UP, DEAF
    scene.toolkits((PLAIN, OLD))
    nodes = scene.some_nodes("n", 12, (PLAIN, OLD))
    replicas.start()
    with scene.watching() as seen, Builders(scene.control_plane), Upgrade(scene, fleet) as upgrade:
        scene.driver(prebuilt=STORE, maxUnavailable=3)
        scene.until_ready(12)
        scene.toolkits((PLAIN, OLD), PRESENT)
        scene.driver("2.0.0", prebuilt=STORE, maxUnavailable=3)
        scene.until_versions("2.0.0", 4)
        scene.change({"rollout": {"paused": True}})
        scene.until_reason("Progressing", "RolloutPaused")
        upgrade.pool(nodes, PRESENT)
        new = scene.some_nodes("new", 2, PRESENT)
        _until_back(scene, upgrade, nodes)
        scene.control_plane.wait_for(
            lambda: (
                scene.versions() == dict.fromkeys([*nodes, *new], "1.0.0")
                and scene.status()["nodes"]["ready"] == 14
            ),
            "all nodes to work with the last good revision",
        )
        assert scene.condition("Progressing")["reason"] == "RolloutPaused"
        settled = judging.settling(seen.events, upgrade.rebooted)
        scene.change({"rollout": {"paused": False}})
        scene.until_complete("2.0.0", 14)

    assert settled.keys() == set(nodes)
    assert max(settled.values()) < LONG
    _judge(seen, fleet, upgrade)
    assert 1 <= judging.most_taken_down(seen.events) <= 3
    assert judging.most_contenders(seen.events) >= 2, "or the lock was not needed"
    made = judging.builds(seen.events)
    assert set(made.values()) == {1}, made
    assert len(made) == 4, "two versions for two kernels"


def _until_unserved(scene: Scene, upgrade: Upgrade, nodes: list[str]) -> str:
    """Some nodes run a kernel whose tag is not there, and the Driver says so."""
    scene.control_plane.wait_for(lambda: upgrade.count(nodes) >= 5, "some nodes to be back")
    row: dict[str, str] = {}

    def said() -> bool:
        row.update(next((r for r in scene.status()["pools"] if r["kernel"] == LATE[0]), {}))
        return row.get("reason") == "ToolkitMissing"

    scene.control_plane.wait_for(said, "the missing tag to be said")
    return row["message"]


def _until_back(scene: Scene, upgrade: Upgrade, nodes: list[str]) -> None:
    scene.control_plane.wait_for(
        lambda: upgrade.count(nodes) == len(nodes), "all nodes to be back", timeout=ALL_BACK
    )


def _nodes_with_pods(scene: Scene) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in scene.pods())


def _name_an_image(scene: Scene) -> float:
    """What an administrator does whose tag does not come."""
    scene.change({"toolkit": {"images": {MISSING[0]: "quay.example.com/toolkit:by-hand"}}})
    return time.monotonic()


def _judge(seen: Watching, fleet: Fleet, upgrade: Upgrade) -> None:
    """What holds in any upgrade."""
    events = seen.events
    assert judging.wrong_acts(fleet.spells, events) == []
    assert judging.taken_back(fleet.spells) == []
    assert judging.made_twice(events, "DaemonSet") == []
    assert judging.wrong_reports(events) == []
    assert judging.wrong_cordons(events, upgrade.cordons) == []
    assert len(upgrade.cordons) == 2 * len(upgrade.rebooted)


def _all_settled(seen: Watching, since: dict[str, float]) -> None:
    """Every node got its one pod in time, and kept it."""
    settled = judging.settling(seen.events, since)
    took = sorted(settled.values())
    print(f"pod after {statistics.median(took):.2f} s, {took[-1]:.2f} s at most")  # noqa: T201
    assert settled.keys() == since.keys()
    assert took[-1] < LONG
    assert judging.relapses(seen.events, since) == []

"""Labels of Node Feature Discovery that come, go and lie, while drivers run."""

from __future__ import annotations

import pytest

from cluster.model.names import OSTREE_LABEL
from nodeside.protocol.labels import assigned_label
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import HARDWARE, NEW, OLD, Scene
from tests.cluster.e2e.watching import Seen

pytestmark = pytest.mark.cluster

GONE = dict.fromkeys(HARDWARE)


def test_labels_that_flap_lag_or_disagree_take_no_driver_away(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD, NEW)
    flaps, lags, disagrees, restarts = scene.some_nodes("n", 4)
    replicas.start()
    scene.driver()
    scene.until_ready(4)

    with scene.watching() as seen:
        for _ in range(3):
            scene.nodes.label(flaps, GONE)
            scene.nodes.label(flaps, HARDWARE)
        scene.nodes.label(flaps, GONE)
        scene.nodes.label(lags, {OSTREE_LABEL: None})
        scene.nodes.label(disagrees, {OSTREE_LABEL: NEW[1]})
        scene.nodes.label(restarts, {**GONE, OSTREE_LABEL: None})
        # What the controller makes of a later change, it makes knowing all of the above.
        last = scene.node("last")
        scene.until_ready(5)
        scene.nodes.label(flaps, HARDWARE)
        scene.nodes.label(restarts, {**HARDWARE, OSTREE_LABEL: OLD[1]})
        scene.change({"rollout": {"paused": True}})
        scene.until_ready(5)

    assert assigned_label("edu") in scene.labels(last)
    assert [e for e in seen.events if e.kind == "Pod" and _is_going(e)] == []
    assert len({e.name for e in seen.events if e.kind == "DaemonSet"}) == 1
    for node in (flaps, lags, disagrees, restarts):
        given = {
            event.object["metadata"]["labels"].get(assigned_label("edu"))
            for event in seen.events
            if event.kind == "Node" and event.name == node
        }
        assert len(given) == 1, node


def _is_going(event: Seen) -> bool:
    return event.deleted or "deletionTimestamp" in event.object["metadata"]

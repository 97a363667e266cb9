"""Budgets that are shares of the nodes, on a real control plane: watches see what is done."""

from __future__ import annotations

from typing import Any

import pytest

from nodeside.protocol.node_status import State
from tests.cluster.e2e import judging
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet, works
from tests.cluster.e2e.scene import OLD, Scene

pytestmark = pytest.mark.cluster


def test_failures_after_the_canary_stop_the_rollout_at_a_share_of_the_nodes(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    """30 % of ten nodes are three at a time, 20 % two failures."""
    names = scene.some_nodes("n", 10)
    scene.toolkits(OLD)
    replicas.start()
    shares: dict[str, Any] = {"maxUnavailable": "30%", "maxFailed": "20%"}
    scene.driver(**shares)
    scene.until_ready(10)
    changed = list[str]()

    def outcome(node: str, version: str) -> State:
        if version == "2.0.0" and node not in changed:
            changed.append(node)
        return State.FAILED if node in changed[2:] and version == "2.0.0" else State.READY

    fleet.outcome = outcome
    with scene.watching() as seen:
        scene.driver("2.0.0", **shares)
        message = scene.until_reason("Degraded", "RolloutStopped")
        new = sorted(node for node, version in scene.versions().items() if version == "2.0.0")

    assert "edu.c:42: error: too few arguments" in message
    assert 2 + 2 <= len(new) <= 2 + 3, "two that work, two that failed, perhaps one on its way"
    assert 1 < judging.most_taken_down(seen.events) <= 3
    fleet.outcome = works
    scene.driver("2.0.1", **shares)
    scene.until_complete("2.0.1", len(names))

"""A node is emptied and its stages end before its driver changes, and both come back after it.

Pods that use the device leave while its device plugin still serves them; then the stages end, the
first of them after a while; then the driver is replaced. All of it is read from watches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from nodeside.protocol.node_status import State
from tests.cluster.e2e.consumers import DEVICE, Consumers, Guard, consumers_of
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import Scene
from tests.cluster.e2e.staged import (
    ASSIGNED,
    CLOSED,
    SECOND,
    TWO,
    Watched,
    stage_pods,
    until_staged,
)
from tests.cluster.e2e.watching import Seen
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

EVICT = {"resources": [DEVICE]}
WITHOUT = ["cordoned", "stages closed", "stages gone", "changed", "works"]
WITH = ["cordoned", "consumer gone", *WITHOUT[1:]]
AFTER = {"uncordoned", "stages back"}


@pytest.fixture
def consumers(control_plane: ControlPlane, staged: Scene) -> Iterator[Consumers]:
    with consumers_of(control_plane) as consumers:
        yield consumers


class Course(Guard, Watched):
    """What happens to nodes, step by step."""

    def steps(self, node: str) -> list[str]:
        """In their order, each where it came first."""
        found: list[str] = []
        before: Mapping[str, Any] = {}
        there: dict[str, set[str]] = {"consumer gone": set(), "stages gone": set()}
        for event in self.events:
            if event.kind == "Node" and event.name == node:
                found += _of_node(before, event.object) if before else ()
                before = event.object
            elif event.kind == "Pod" and event.object["spec"].get("nodeName") == node:
                found += _of_pod(event, there)
            elif event.kind == "NodeDriver" and event.name == f"{self.driver}.{node}":
                status = event.object.get("status", {})
                new = (status.get("version"), status.get("state")) == ("2.0.0", State.READY.value)
                found += ["works"] if new else ()
        return list(dict.fromkeys(found))


def _of_node(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    had, has = before["metadata"]["labels"], after["metadata"]["labels"]
    was, now = (bool(node["spec"].get("unschedulable")) for node in (before, after))
    if was != now:
        yield "cordoned" if now else "uncordoned"
    if CLOSED in has and CLOSED not in had:
        yield "stages closed"
    if had[ASSIGNED] != has[ASSIGNED]:
        yield "changed"
    if SECOND in has and SECOND not in had:
        yield "stages back"


def _of_pod(event: Seen, there: Mapping[str, set[str]]) -> Iterator[str]:
    """The last consumer, or the last pod of a stage, is gone."""
    labels = event.object["metadata"]["labels"]
    of_stage, consumes = "nodeside.io/stage" in labels, labels.get("app") == "train"
    for step, applies in (("stages gone", of_stage), ("consumer gone", consumes)):
        if applies and not event.deleted:
            there[step].add(event.name)
        elif applies:
            there[step].discard(event.name)
            if not there[step]:
                yield step


def test_consumers_leave_then_stages_end_then_the_driver_changes_then_all_is_as_before(
    staged: Scene, replicas: Replicas, fleet: Fleet, consumers: Consumers
) -> None:
    names = staged.some_nodes("n", 3)
    consumers.offer(*names)
    replicas.start()
    staged.driver(evict=EVICT)
    staged.change({"stages": TWO})
    until_staged(staged, 3)
    consumers.deploy("train", 2, device=True)
    consumers.budget("train", {"minAvailable": 2})

    with Course(staged.control_plane) as seen:
        staged.driver("2.0.0", canary=0, evict=EVICT)
        staged.until_said("Progressing", "the disruption budget train needs 2 healthy pods")
        [drained] = (row["node"] for row in staged.status()["draining"])
        served = {f"{app} on {drained}" for app in ("monitor", "plugin")}
        assert served <= set(stage_pods(staged)), "what serves a consumer stays as long as it does"
        assert CLOSED not in staged.labels(drained)
        assert consumers.ready("train") == 2

        consumers.budget("train", {"maxUnavailable": 1})
        staged.until_complete("2.0.0", 3)
        until_staged(staged, 3)
        staged.control_plane.wait_for(
            lambda: not any(staged.nodes.get(name)["spec"].get("unschedulable") for name in names),
            "all nodes to be uncordoned",
        )
        pods = [f"{app} on {name}" for app in ("monitor", "plugin") for name in names]
        staged.control_plane.wait_for(lambda: stage_pods(staged) == pods, "all pods of stages")

    courses = {name: seen.steps(name) for name in names}
    assert all(course[: -len(AFTER)] in (WITH, WITHOUT) for course in courses.values()), courses
    assert all(set(course[-len(AFTER) :]) == AFTER for course in courses.values()), courses
    assert courses[drained][: len(WITH)] == WITH
    assert seen.evicted == {"train"}
    assert seen.most_out <= 1
    seen.check_gates()
    seen.check_ends()

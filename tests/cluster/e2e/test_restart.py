"""A controller that starts on a real control plane where all is as it should be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import OLD, Scene
from tests.cluster.e2e.staged import STAGE_DAEMON_SETS, TWO, until_staged

pytestmark = pytest.mark.cluster

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def warnings(scene: Scene) -> list[Any]:
    """What is said of the Driver that there is, and not of another test's."""
    uids = {each["metadata"]["uid"] for each in scene.items("/apis/nodeside.io/v1alpha1/drivers")}
    return [
        (each["reason"], each["note"])
        for each in scene.items(EVENTS)
        if each["type"] == "Warning" and each["regarding"].get("uid") in uids
    ]


def generations(scene: Scene) -> dict[str, int]:
    found = scene.items(STAGE_DAEMON_SETS) + scene.daemonsets()
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}


def test_a_second_controller_finds_nothing_to_do_and_accuses_nobody(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    for name in ("n0", "n1"):
        staged.node(name, OLD)
    first = replicas.start("first")
    staged.driver()
    staged.change({"stages": TWO})
    until_staged(staged, 2)
    staged.until_complete("1.0.0", 2)
    first.terminate()
    before, changed = generations(staged), staged.condition("StagesReady")["lastTransitionTime"]

    second = replicas.start("second")
    staged.control_plane.wait_for(
        lambda: second.said("nothing to do") or second.said("round"), "its first round"
    )

    assert second.said("round") == []
    assert staged.condition("StagesReady")["lastTransitionTime"] == changed
    for argv in (["edu"], ["edu", "n0"]):
        said = staged.cli("explain", *argv).output
        assert "next    nothing: it is as it should be" in said
    staged.node("n2", OLD)  # once it has done something about this, it has seen all there is
    until_staged(staged, 3)
    assert generations(staged) == before
    assert warnings(staged) == []

"""Drivers and nodes that part: unload pods on a real control plane.

They are made by the controller with the rights that are installed; what they say is said with
their own tokens.
"""

from __future__ import annotations

import json

import pytest

from cluster.model.names import UNLOAD_LABEL
from nodeside.protocol.node_status import State
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import HELD, PERMANENT, Fleet
from tests.cluster.e2e.scene import (
    DRIVERS,
    NODE_DRIVERS,
    OLD,
    PODS,
    POLICIES,
    REVISIONS,
    Scene,
)
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.stages import LINGER

pytestmark = pytest.mark.cluster

SELECTOR = "example.com/edu"


def unload_pods(scene: Scene) -> list[str]:
    """The nodes that have one."""
    pods = [pod for pod in scene.pods() if UNLOAD_LABEL in pod["metadata"]["labels"]]
    return sorted(pod["spec"]["nodeName"] for pod in pods)


def label(scene: Scene, node: str, value: str | None) -> None:
    patch = {"metadata": {"labels": {SELECTOR: value}}}
    path = f"/api/v1/nodes/{node}"
    scene.control_plane.do("PATCH", path, patch, content_type=MERGE_PATCH)


def events(scene: Scene, reason: str) -> list[str]:
    return [each["note"] for each in scene.events(reason)]


def nothing_is_left(scene: Scene, *nodes: str) -> None:
    for kind in (DRIVERS, NODE_DRIVERS, REVISIONS, POLICIES):
        assert scene.items(kind) == []
    assert scene.daemonsets() == []
    assert scene.pods() == []
    for node in nodes:
        assert not [key for key in scene.labels(node) if key.startswith("nodeside.io/")]


def test_a_finalizer_that_is_taken_away_by_hand_leaves_nothing_behind(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    names = [scene.node(f"n{i}") for i in range(2)]
    fleet.unload = lambda _node: State.UNLOADING  # held, so the controller does not come to an end
    replicas.start()
    scene.driver()
    scene.until_ready(2)

    plane = scene.control_plane
    plane.kubectl("delete", "driver", "edu", "--wait=false")
    without = '{"metadata":{"finalizers":null}}'
    plane.kubectl("patch", "driver", "edu", "--type=merge", "-p", without)

    kinds = (NODE_DRIVERS, REVISIONS, POLICIES)
    plane.wait_for(lambda: not any(map(scene.items, kinds)), "all that was written to be gone")
    plane.wait_for(lambda: not scene.pods() and not scene.daemonsets(), "all pods to be gone")
    nothing_is_left(scene, *names)


def test_a_deletion_names_who_holds_a_module_and_ends_when_he_lets_go(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    names = [scene.node(f"n{i}") for i in range(3)]
    fleet.unload = lambda node: {
        "n0": State.WAITING,
        "n1": State.UNLOADING,
        "n2": State.REBOOT_REQUIRED,
    }[node]
    replicas.start()
    scene.driver()
    scene.until_ready(3)

    scene.control_plane.kubectl("delete", "driver", "edu", "--wait=false")
    held = f"modules are held: n1 ({HELD})"
    scene.control_plane.wait_for(
        lambda: (
            held in scene.condition("Degraded")["message"]
            and "modules stay loaded until a reboot: n2" in scene.condition("Ready")["message"]
            and [item["metadata"]["name"] for item in scene.items(NODE_DRIVERS)]
            == ["edu.n1", "edu.n2"]
        ),
        "the holder to be named, and the node without one to be clean",
    )

    assert scene.column("STATUS") == "Deleting"
    said = scene.cli("explain", "edu").output
    assert f"ModulesHeld: {held}" in said
    assert "kubectl annotate driver edu nodeside.io/leave-modules=true" in said
    said = scene.cli("explain", "edu", "n1").output
    assert "wanted  nothing: the driver is being deleted" in said
    assert f"modules are held: {HELD}" in said

    fleet.unload = lambda node: State.WAITING if node != "n2" else State.REBOOT_REQUIRED
    scene.control_plane.kubectl("wait", "--for=delete", "driver/edu", "--timeout=60s")

    nothing_is_left(scene, *names)
    assert events(scene, "ModulesStay")[-1] == (
        f"driver edu: modules stay loaded until a reboot: n2 ({PERMANENT})"
    )


def test_a_node_that_is_down_and_one_that_is_taken_away_hold_up_no_deletion(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    fleet.linger = 600.0  # seconds: on a node that is down no pod ends
    for name in ("down", "taken-away", "stays"):
        scene.node(name)
    replicas.start()
    scene.driver()
    scene.until_ready(3)
    fleet.linger = 0.0
    fleet.unload = lambda node: State.UNLOADING if node == "taken-away" else State.WAITING
    scene.nodes.down("down")
    fleet.power_off("down")
    for name in ("taken-away", "stays"):
        end_soon(scene, name)

    scene.control_plane.kubectl("delete", "driver", "edu", "--wait=false")
    scene.control_plane.wait_for(
        lambda: f"modules are held: taken-away ({HELD})" in scene.condition("Degraded")["message"],
        "the unloading to be in the middle",
    )
    [stuck] = [pod for pod in scene.items(PODS) if pod["spec"]["nodeName"] == "down"]
    assert "deletionTimestamp" in stuck["metadata"]
    scene.nodes.delete("taken-away")
    scene.control_plane.kubectl("wait", "--for=delete", "driver/edu", "--timeout=60s")

    assert scene.items(DRIVERS) == scene.items(REVISIONS) == scene.daemonsets() == []
    # The unload pod of the node that is gone waits for no kubelet, but ends after the Driver.
    scene.control_plane.wait_for(
        lambda: [pod["spec"]["nodeName"] for pod in scene.items(PODS)] == ["down"],
        "only the pod of the node that is down to be left",
    )
    assert not [key for key in scene.labels("stays") if key.startswith("nodeside.io/")]


def end_soon(scene: Scene, node: str) -> None:
    """The pods of this node end as soon as they are deleted."""
    for pod in scene.pods(node):
        path = f"/api/v1/namespaces/nodeside/pods/{pod['metadata']['name']}"
        note = {"metadata": {"annotations": {LINGER: None}}}
        scene.control_plane.do("PATCH", path, note, content_type=MERGE_PATCH)


def test_the_way_out_that_the_message_names_ends_a_deletion(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    fleet.unload = lambda _: State.UNLOADING
    replicas.start()
    scene.driver()
    scene.until_ready(1)
    scene.control_plane.kubectl("delete", "driver", "edu", "--wait=false")
    message = scene.until_reason("Degraded", "ModulesHeld")

    words = message.rpartition("to leave the modules loaded: kubectl ")[2].split()
    scene.control_plane.kubectl(*words)
    scene.control_plane.kubectl("wait", "--for=delete", "driver/edu", "--timeout=60s")

    nothing_is_left(scene, "n0")


def test_a_node_that_leaves_is_unloaded_and_one_that_comes_back_gets_the_driver_again(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    for name in ("goes", "stays"):
        scene.node(name)
        label(scene, name, "yes")
    fleet.unload = lambda _: State.UNLOADING
    replicas.start()
    scene.driver()
    scene.change({"hardware": {"nodeSelector": {SELECTOR: "yes"}}})
    scene.until_ready(2)

    label(scene, "goes", None)
    scene.control_plane.wait_for(
        lambda: HELD in scene.condition("Ready")["message"], "the holder to be named"
    )
    assert scene.condition("Ready")["status"] == "True"
    assert scene.status()["leaving"] == 1
    assert unload_pods(scene) == ["goes"]
    assert scene.labels("goes")["nodeside.io/edu.state"] == "unloading"
    assert "no longer selects 1 node" in scene.cli("explain", "edu").output

    label(scene, "goes", "yes")
    scene.until_ready(2)
    assert unload_pods(scene) == []

    fleet.unload = lambda _: State.WAITING
    label(scene, "goes", None)
    scene.until_ready(1)
    scene.control_plane.wait_for(lambda: scene.status()["leaving"] == 0, "the node to be left")
    assert unload_pods(scene) == []
    assert not [key for key in scene.labels("goes") if key.startswith("nodeside.io/")]


def test_a_controller_that_may_not_make_pods_says_so_and_a_policy_of_never_needs_none(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    replicas.start()
    scene.driver()
    scene.until_ready(1)
    with scene.rule_missing("pods", "create"):
        scene.control_plane.kubectl("delete", "driver", "edu", "--wait=false")
        message = scene.until_reason("Degraded", "Forbidden")
        assert "cannot create Pod edu-unload-" in message
        assert "kubectl auth can-i create pods" in message

        patch = json.dumps({"spec": {"unload": {"policy": "never"}}})
        scene.control_plane.kubectl("patch", "driver", "edu", "--type=merge", "-p", patch)
        scene.control_plane.kubectl("wait", "--for=delete", "driver/edu", "--timeout=60s")

    nothing_is_left(scene, "n0")
    assert "driver edu: modules stay loaded until a reboot: n0 (unload.policy: never)" in events(
        scene, "ModulesStay"
    )

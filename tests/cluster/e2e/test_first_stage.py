"""One Driver on a real control plane: from nothing to ready, through changes, to nothing again.

The nodes are simulated by KWOK; what they say is said by the node side's own announcing code with
tokens of their pods. The controller is a process of its own with the rights it is installed with.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cluster.cli import node_pods
from cluster.kube.client import connect
from cluster.model.names import NAMESPACE, OSTREE_LABEL
from nodeside.errors import ExitCode
from nodeside.protocol.labels import assigned_label, state_label
from nodeside.protocol.node_status import State
from nodeside.protocol.timestamps import rfc3339
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import (
    COREOS,
    DRIVERS,
    HARDWARE,
    NEW,
    NODE_DRIVERS,
    OLD,
    POLICIES,
    REVISIONS,
    Scene,
)

pytestmark = pytest.mark.cluster

IMAGE = "registry.example.com/drivers/edu"
ASSIGNED, STATE = assigned_label("edu"), state_label("edu")


def event_of(pod: dict[str, Any], message: str, moment: float) -> dict[str, Any]:
    """An event about a pod as a kubelet makes it."""
    metadata = pod["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": metadata["name"]},
        "involvedObject": {
            "kind": "Pod",
            **{key: metadata[key] for key in ("name", "namespace", "uid")},
        },
        "reason": "Told",
        "message": message,
        "lastTimestamp": rfc3339(moment),
    }


def test_a_node_with_the_hardware_gets_a_label_a_daemonset_and_a_pod(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("has-it")
    scene.node("lacks-it", hardware=False)
    replicas.start()

    scene.driver()
    scene.until_ready(1)

    [daemonset] = scene.daemonsets()
    assert daemonset["metadata"]["name"] == f"edu-{scene.labels('has-it')[ASSIGNED]}"
    [pod] = scene.pods()
    assert pod["spec"]["nodeName"] == "has-it"
    assert scene.labels("has-it")[STATE] == "ready"
    assert ASSIGNED not in scene.labels("lacks-it")
    assert scene.column("STATUS") == "Ready"
    assert scene.column("WHY") == "works on 1 node"


def test_a_node_that_changes_its_kernel_moves_to_the_daemonset_of_that_kernel(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD, NEW)
    for name in ("stays", "moves"):
        scene.node(name)
    replicas.start()
    scene.driver()
    scene.until_ready(2)
    before = scene.labels("moves")[ASSIGNED]

    scene.reboot("moves", NEW)
    scene.control_plane.wait_for(
        lambda: [row["nodes"]["ready"] for row in scene.status()["pools"]] == [1, 1],
        "both pools to be ready",
    )

    assert scene.labels("moves")[ASSIGNED] != before
    assert scene.labels("stays")[ASSIGNED] == before
    scene.reboot("stays", NEW)
    scene.control_plane.wait_for(
        lambda: len(scene.daemonsets()) == 1, "the DaemonSet of the old kernel to be gone"
    )
    scene.until_ready(2)


def test_a_node_whose_os_version_only_a_late_label_tells_gets_the_right_toolkit_in_the_end(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    def fits(node: str, _version: str) -> State:
        """Whether the toolkit that the node is assigned to is the one for its kernel."""
        kernel = scene.nodes.get(node)["status"]["nodeInfo"]["kernelVersion"]
        wanted, name = f"toolkit:{kernel}", f"edu-{scene.labels(node).get(ASSIGNED)}"
        specs = [d["spec"] for d in scene.daemonsets() if d["metadata"]["name"] == name]
        return State.READY if wanted in json.dumps(specs) else State.FAILED

    fleet.outcome = fits
    scene.toolkits(OLD, NEW)
    labels = {**HARDWARE, OSTREE_LABEL: OLD[1]}
    scene.nodes.create("n0", kernel=OLD[0], os_image=COREOS, labels=labels)
    replicas.start()
    scene.driver()
    scene.until_ready(1)

    scene.nodes.reboot("n0", kernel=NEW[0])
    scene.until_reason("Ready", "NodesFailed")
    scene.nodes.label("n0", {OSTREE_LABEL: NEW[1]})

    scene.until_ready(1)
    [row] = scene.status()["pools"]
    assert (row["kernel"], row["osVersion"]) == NEW
    [daemonset] = scene.daemonsets()
    assert f"toolkit:{NEW[0]}" in json.dumps(daemonset["spec"])


def test_a_missing_toolkit_tag_is_named_with_the_tags_seen_and_heals_when_it_appears(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("new-kernel", NEW)
    replicas.start()
    scene.driver()

    message = scene.until_reason("Degraded", "ToolkitMissing")
    assert NEW[0] in message
    assert f"tags seen: {OLD[1]}" in message
    assert scene.column("STATUS") == "ToolkitMissing"
    assert scene.daemonsets() == []

    with scene.watching() as seen:
        scene.toolkits(OLD, NEW)
        tagged = time.monotonic()
        scene.until_ready(1)
    [made] = [event.at for event in seen.events if event.version and event.kind == "DaemonSet"][:1]
    print(f"tag to DaemonSet: {made - tagged:.2f} s")  # noqa: T201
    assert scene.condition("Degraded")["status"] == "False"


def test_a_new_revision_goes_through_the_nodes_within_its_budget(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    names = [scene.node(f"n{i}") for i in range(6)]
    replicas.start()
    scene.driver(maxUnavailable=2)
    scene.until_ready(6)

    with scene.watching() as seen:
        scene.driver("2.0.0", maxUnavailable=2)
        scene.control_plane.wait_for(
            lambda: (
                scene.versions() == dict.fromkeys(names, "2.0.0")
                and scene.condition("Progressing")["reason"] == "Complete"
            ),
            "all nodes to have the new version",
        )
    scene.until_ready(6)

    assert seen.most_unavailable <= 2
    assert len(scene.daemonsets()) == 1
    assert len(scene.items(REVISIONS)) == 2, "of before and of now"


def test_a_canary_that_fails_stops_the_rollout_and_going_back_heals_it(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    for i in range(4):
        scene.node(f"n{i}")
    replicas.start()
    scene.driver()
    scene.until_ready(4)

    fleet.outcome = lambda _node, version: State.FAILED if version == "2.0.0" else State.READY
    scene.driver("2.0.0")
    message = scene.until_reason("Degraded", "RolloutStopped")
    assert "edu.c:42: error: too few arguments" in message
    assert sorted(scene.versions().values()) == ["1.0.0", "1.0.0", "1.0.0", "2.0.0"]
    [canary] = [node for node, version in scene.versions().items() if version == "2.0.0"]
    [event] = scene.events("BuildFailed", canary)
    assert event["note"] == (
        f"driver edu 2.0.0, kernel {OLD[0]}: failed: edu.c:42: error: too few arguments"
    )

    scene.driver("1.0.0")
    scene.until_ready(4)
    assert set(scene.versions().values()) == {"1.0.0"}


def test_a_paused_rollout_changes_no_node_and_gives_new_ones_the_good_revision(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    for i in range(2):
        scene.node(f"n{i}")
    replicas.start()
    scene.driver()
    scene.until_ready(2)

    scene.driver("2.0.0", paused=True)
    scene.until_reason("Progressing", "RolloutPaused")
    scene.node("late")
    scene.control_plane.wait_for(
        lambda: scene.status()["nodes"]["ready"] == 3, "the new node to be ready"
    )
    assert set(scene.versions().values()) == {"1.0.0"}

    scene.change({"rollout": {"paused": False}})
    scene.until_ready(3)
    scene.control_plane.wait_for(
        lambda: set(scene.versions().values()) == {"2.0.0"}, "all nodes to have the new version"
    )


def test_a_wish_that_nothing_be_touched_reaches_the_nodes_and_replaces_no_pod(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    for i in range(2):
        scene.node(f"n{i}")
    replicas.start()
    scene.driver()
    scene.until_ready(2)
    before = {pod["metadata"]["uid"] for pod in scene.pods()}
    revision = scene.status()["revision"]

    scene.change({"upgrade": "onReboot"})
    scene.control_plane.wait_for(
        lambda: (
            [item["data"]["policy.json"] for item in scene.items(POLICIES)]
            == ['{"upgrade":"onReboot"}\n']
        ),
        "the nodes to be told",
    )
    scene.control_plane.wait_for(
        lambda: scene.status()["observedGeneration"] == 2, "the controller to have planned for it"
    )

    assert {pod["metadata"]["uid"] for pod in scene.pods()} == before
    assert scene.status()["revision"] == revision
    assert scene.condition("Ready")["status"] == "True"


def test_a_deleted_driver_leaves_nothing_over(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    for i in range(3):
        scene.node(f"n{i}")
    replicas.start()
    scene.driver()
    scene.until_ready(3)

    scene.control_plane.kubectl("delete", "driver", "edu", "--wait=true")

    for kind in (DRIVERS, NODE_DRIVERS, REVISIONS, POLICIES):
        assert scene.items(kind) == []
    assert scene.daemonsets() == []
    assert scene.pods() == []
    for i in range(3):
        assert not [key for key in scene.labels(f"n{i}") if key.startswith("nodeside.io/")]


def test_a_driver_with_a_mistake_says_so_and_another_one_goes_on(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    replicas.start()
    scene.driver()
    scene.until_ready(1)

    # The API server cannot try a regular expression; the controller's parser refuses this one.
    waits = {"name": "waits", "manifests": "none", "waitFor": {"log": "("}}
    broken = {
        "apiVersion": "nodeside.io/v1alpha1",
        "kind": "Driver",
        "metadata": {"name": "broken"},
        "spec": {
            "version": "1.0",
            "image": f"{IMAGE}:1.0.0",
            "hardware": {"pci": [{"vendor": "1234"}]},
            "modules": [{"name": "other"}],
            "stages": [waits],
        },
    }
    scene.control_plane.do("POST", DRIVERS, broken)
    message = scene.until_reason("Degraded", "InvalidSpec", "broken")
    assert "$.spec.stages[0].waitFor.log: " in message
    assert scene.column("STATUS", "broken") == "InvalidSpec"
    assert assigned_label("broken") not in scene.labels("n0")

    scene.driver("1.0.1")
    scene.control_plane.wait_for(
        lambda: set(scene.versions().values()) == {"1.0.1"}, "the good driver to go on"
    )
    assert scene.condition("Degraded", "broken")["reason"] == "InvalidSpec"

    scene.change({"stages": None}, "broken")
    scene.until_ready(1, "broken")


def test_a_driver_that_changes_on_reboot_touches_no_running_node(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    for name in ("n0", "n1"):
        scene.node(name)
    replicas.start()
    scene.driver()
    scene.until_ready(2)
    scene.change({"upgrade": "onReboot", "version": "2.0.0", "image": f"{IMAGE}:2.0.0"})

    scene.until_reason("Progressing", "WaitingForReboot")
    assert set(scene.versions().values()) == {"1.0.0"}

    scene.reboot("n1", OLD)
    scene.control_plane.wait_for(
        lambda: scene.versions() == {"n0": "1.0.0", "n1": "2.0.0"}, "the rebooted node to change"
    )


def test_a_daemonset_that_somebody_edited_is_as_before_within_seconds(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    replicas.start()
    scene.driver()
    scene.until_ready(1)
    [daemonset] = scene.daemonsets()
    name = daemonset["metadata"]["name"]

    image = "jsonpath={.spec.template.spec.containers[0].image}"
    edit = '{"spec":{"template":{"spec":{"containers":[{"name":"driver","image":"evil:1"}]}}}}'
    plane = scene.control_plane
    plane.kubectl("patch", "daemonset", name, "-n", "nodeside", "--type=strategic", "-p", edit)
    plane.wait_for(
        lambda: (
            plane.kubectl("get", "daemonset", name, "-n", "nodeside", "-o", image).output
            == f"{IMAGE}:1.0.0"
        ),
        "the edit to be reverted",
    )


def test_two_drivers_for_one_module_are_named_and_the_first_one_keeps_its_nodes(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    replicas.start()
    scene.driver()
    scene.until_ready(1)

    # The API server's clock has seconds; who came first must not be a matter of the name.
    scene.control_plane.wait_for(lambda: scene.age() >= 1, "the second one to be younger")
    scene.driver(name="a-rival")

    message = scene.until_reason("Degraded", "ModuleConflict", "a-rival")
    assert "driver edu came first and has a module of the same name" in message
    assert scene.condition("Ready")["status"] == "True"
    assert assigned_label("a-rival") not in scene.labels("n0")

    scene.change({"modules": [{"name": "other"}]}, "a-rival")
    scene.until_ready(1, "a-rival")
    given = scene.labels("n0")[assigned_label("a-rival")]
    scene.change({"modules": [{"name": "edu"}]}, "a-rival")

    message = scene.until_reason("Degraded", "ModuleConflict", "a-rival")
    assert "driver edu has a module of the same name: nothing changes on n0" in message
    assert scene.condition("Ready")["status"] == "True"
    assert scene.labels("n0")[assigned_label("a-rival")] == given


def test_status_and_explain_tell_the_truth_at_each_step(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits()
    scene.node("n0")
    replicas.start()
    scene.driver()
    scene.until_reason("Degraded", "ToolkitMissing")
    assert scene.cli("status").exit_code == ExitCode.NOT_READY
    assert "ToolkitMissing" in scene.cli("explain", "edu").output
    assert "no toolkit image" in scene.cli("explain", "edu", "n0").output

    scene.toolkits(OLD)
    scene.until_ready(1)
    status = scene.cli("status", "--output", "json")
    assert status.exit_code == ExitCode.OK
    assert json.loads(status.output)["edu"] == scene.status()
    said = scene.cli("explain", "edu", "n0").output
    assert "the node says ready, built: version 1.0.0" in said
    assert "blocks  nothing" in said
    assert scene.cli("resolve", OLD[1]).output.startswith("image      quay.example.com/toolkit:")


def test_explain_says_what_the_kubelet_last_said_of_a_pod_that_starts(
    scene: Scene, replicas: Replicas
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    replicas.start()
    scene.driver()
    scene.control_plane.wait_for(lambda: scene.pods("n0"), "its pod")
    [pod] = scene.pods("n0")
    path = f"/api/v1/namespaces/{NAMESPACE}/events"
    told = ((-60, "Old"), (60, 'Pulling image "edu:1.0.0"'))  # the scheduler's lies in between
    for seconds, message in told:
        scene.control_plane.do("POST", path, event_of(pod, message, time.time() + seconds))

    said = scene.cli("explain", "edu", "n0").output

    name = pod["metadata"]["name"]
    assert re.search(rf'pod {name}: Pulling image "edu:1.0.0" \(0s ago\)', said)
    assert "Old" not in said

    holder = f"1 open file of factorial (pid 7, pod {pod['metadata']['uid'][:8]}…)"
    other = "pod 00000000… of another node"
    with closing(connect(scene.control_plane.kubeconfig)) as api:
        lines = node_pods.with_names(api, "n0", [holder, other, "nothing"])
    assert lines == (f"1 open file of factorial (pid 7, pod {NAMESPACE}/{name})", other, "nothing")


def test_a_controller_that_is_gone_is_what_status_and_explain_begin_with(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    replica = replicas.start()
    scene.driver()
    scene.until_ready(1)
    assert replica.terminate() == ExitCode.OK
    scene.node("n1")

    status, said = scene.cli("status"), scene.cli("explain", "edu", "n1").output

    assert status.exit_code == ExitCode.NOT_READY
    assert status.output.startswith("no controller leads since ")
    assert "edu 1.0.0 1 1 1 0 Ready" in " ".join(status.output.split()), "what is there"
    assert said.startswith("no controller leads since ")
    assert "blocks  no controller leads" in said
    assert "next    once a controller leads:" in said


def test_a_namespace_without_nodeside_is_refused_with_the_right_one(
    scene: Scene, replicas: Replicas
) -> None:
    replicas.start()

    for words in (["status"], ["explain", "edu"]):
        done = scene.cli(*words, "--namespace", "elsewhere")
        assert done.exit_code == ExitCode.USAGE
        assert "nodeside is not installed in namespace elsewhere" in done.errors
        assert "hint: it is in namespace nodeside: add --namespace nodeside" in done.errors


def test_status_watch_shows_what_changes_as_it_changes(
    scene: Scene, replicas: Replicas, fleet: Fleet, tmp_path: Path
) -> None:
    scene.toolkits()
    scene.node("n0")
    replicas.start()
    scene.driver()
    shown = tmp_path / "status"

    def rows() -> list[str]:
        return [" ".join(line.split()) for line in shown.read_text().splitlines()]

    with scene.status_watched(shown):
        scene.control_plane.wait_for(
            lambda: any(row.startswith("edu 1.0.0 1 0 0 0 ToolkitMissing") for row in rows()),
            "the missing toolkit to be shown",
        )
        scene.toolkits(OLD)
        scene.control_plane.wait_for(
            lambda: "edu 1.0.0 1 1 1 0 Ready" in rows(), "the driver to be shown as ready"
        )

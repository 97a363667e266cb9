"""What follows a driver, on a real control plane: in order, on each node, and out of the way.

Pods of stages are KWOK's: they are ready as soon as they run, and have no logs. Who creates and
ends them is the real DaemonSet controller, by the labels and selectors that it would have on any
cluster. What happened is read from watches of the API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cluster.manifests import NAMESPACE
from cluster.stage import closed_label, stage_label
from nodeside.contract import State, assigned_label, state_label
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.kubelet import Kubelet
from tests.cluster.e2e.scene import DRIVERS, OLD, Scene
from tests.cluster.e2e.watching import Watching
from tests.cluster.stagedriver import daemonset
from tests.controlplane.controlplane import APPLY_PATCH
from tests.controlplane.stages import LINGER

pytestmark = pytest.mark.cluster

ASSIGNED, STATE = assigned_label("edu"), state_label("edu")
FIRST, SECOND, CLOSED = (
    stage_label("edu", "first"),
    stage_label("edu", "second"),
    closed_label("edu"),
)
TWO = [{"name": "first", "manifests": "one"}, {"name": "second", "manifests": "two"}]
_IN = f"namespaces/{NAMESPACE}"
STAGE_DAEMON_SETS = f"/apis/apps/v1/{_IN}/daemonsets?labelSelector=nodeside.io/stage"
STAGE_PODS = f"/api/v1/{_IN}/pods?labelSelector=nodeside.io/stage"


@pytest.fixture
def staged(scene: Scene) -> Iterator[Scene]:
    """Two ConfigMaps of two stages; what a test leaves of them is gone after it."""
    scene.toolkits(OLD)
    write(scene, "one", lingering(daemonset("plugin")))
    write(scene, "two", daemonset("monitor"))
    yield scene
    scene.clear()
    for path in (STAGE_DAEMON_SETS, STAGE_PODS):
        for item in scene.items(path):
            where = f"{path.partition('?')[0]}/{item['metadata']['name']}"
            scene.control_plane.request("DELETE", where, {"gracePeriodSeconds": 0})
    for name in ("one", "two"):
        scene.control_plane.request("DELETE", f"/api/v1/{_IN}/configmaps/{name}")


def lingering(text: str) -> str:
    """Its pods take a while to end, as one that has a device open may."""
    return text.replace(
        "    metadata:\n      labels:",
        f"    metadata:\n      annotations: {{{LINGER}: 700ms}}\n      labels:",
    )


def write(scene: Scene, name: str, text: str) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"daemonset.yaml": text},
    }
    path = f"/api/v1/{_IN}/configmaps/{name}?fieldManager=tests&force=true"
    scene.control_plane.do("PATCH", path, document, content_type=APPLY_PATCH)


def until_staged(scene: Scene, nodes: int) -> None:
    """The last stage is ready on so many nodes."""

    def holds() -> bool:
        rows = scene.status().get("stages", [])
        return scene.condition("StagesReady")["status"] == "True" and rows[-1]["nodes"] == {
            "wanted": nodes,
            "ready": nodes,
        }

    scene.control_plane.wait_for(holds, f"all stages to be ready on {nodes} nodes")


def stage_pods(scene: Scene) -> list[str]:
    return sorted(
        f"{p['metadata']['labels']['app']} on {p['spec'].get('nodeName')}"
        for p in scene.items(STAGE_PODS)
        if "deletionTimestamp" not in p["metadata"]
    )


class Watched(Watching):
    """What was true at each moment of the nodes and of the pods on them."""

    def _births(self) -> Iterator[tuple[str, str, Mapping[str, str], set[tuple[str, str]]]]:
        """Each pod of a stage as it came: its stage, its node, that node's labels then, and which
        stages had a ready pod on which node."""
        labels: dict[str, Mapping[str, str]] = {}
        ready: dict[str, tuple[str, str]] = {}
        born: set[str] = set()
        for event in self.events:
            item, meta = event.object, event.object["metadata"]
            if event.kind == "Node":
                labels[meta["name"]] = meta.get("labels", {})
            elif event.kind == "Pod" and "nodeside.io/stage" in meta.get("labels", {}):
                stage, node = meta["labels"]["nodeside.io/stage"], _node_of(item)
                if meta["uid"] not in born:
                    born.add(meta["uid"])
                    yield stage, node, labels.get(node, {}), set(ready.values())
                if event.deleted or not _is_ready(item):
                    ready.pop(meta["name"], None)
                else:
                    ready[meta["name"]] = (stage, node)

    def check_gates(self) -> None:
        """No pod of a stage ever came to a node where what it rests on was not ready."""
        births = list(self._births())
        assert births
        for stage, node, labels, ready in births:
            assert labels.get(STATE) == State.READY.value, (stage, node, labels)
            assert labels.get(CLOSED) is None, (stage, node, labels)
            if stage == "second":
                assert labels.get(FIRST) == "ready", (stage, node, labels)
                assert ("first", node) in ready, (stage, node, ready)

    def check_ends(self) -> None:
        """No node changed its assignment while a pod of a stage was there, ending or not."""
        there: dict[str, str] = {}
        assigned: dict[str, str] = {}
        for event in self.events:
            item, meta = event.object, event.object["metadata"]
            if event.kind == "Pod" and "nodeside.io/stage" in meta.get("labels", {}):
                if event.deleted:
                    there.pop(meta["name"], None)
                else:
                    there[meta["name"]] = _node_of(item)
            elif event.kind == "Node":
                before, now = assigned.get(meta["name"]), meta.get("labels", {}).get(ASSIGNED)
                if event.version and before and now != before:
                    assert meta["name"] not in there.values(), (meta["name"], there)
                assigned[meta["name"]] = now or ""


def _node_of(pod: Mapping[str, Any]) -> str:
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_stages_go_through_the_nodes_in_order_and_make_way_for_a_new_driver(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    for i in range(3):
        staged.node(f"n{i}")
    fleet.outcome = lambda node, _: State.FAILED if node == "n2" else State.READY
    replicas.start()
    with Watched(staged.control_plane) as seen:
        staged.driver()
        staged.change({"stages": TWO})
        until_staged(staged, 2)
        expected = [f"{app} on n{i}" for app in ("monitor", "plugin") for i in range(2)]
        assert stage_pods(staged) == expected, "and none where the driver failed"

        fleet.outcome = lambda _node, _: State.READY
        staged.driver("2.0.0", maxUnavailable=2)
        staged.change({"stages": TWO})
        staged.control_plane.wait_for(
            lambda: set(staged.versions().values()) == {"2.0.0"}, "all nodes to have the new one"
        )
        until_staged(staged, 3)

    seen.check_gates()
    seen.check_ends()
    for i in range(3):
        labels = staged.labels(f"n{i}")
        assert (labels[FIRST], labels[SECOND]) == ("ready", "ready")
        assert CLOSED not in labels
    said = staged.cli("explain", "edu", "n0").output
    assert "stage first: ready" in said
    assert "blocks  nothing" in said
    assert staged.column("STATUS") == "Ready"
    assert {gate_image(staged, name) for name in ("plugin", "monitor")} == {
        "registry.example.com/drivers/edu:2.0.0"
    }


def gate_image(scene: Scene, name: str) -> str:
    path = f"{STAGE_DAEMON_SETS.partition('?')[0]}/{name}"
    spec = scene.control_plane.do("GET", path)["spec"]["template"]["spec"]
    return str(spec["initContainers"][0]["image"])


def test_a_stage_that_is_wrong_changed_edited_and_removed(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    staged.node("n0")
    replicas.start()
    staged.driver()
    staged.change({"stages": TWO})
    until_staged(staged, 1)
    plane = staged.control_plane

    write(staged, "two", daemonset("monitor") + "# {{ no.such }}\n")
    message = staged.until_reason("StagesReady", "StageInvalid")
    assert message == "stage second: ConfigMap two, daemonset.yaml, line 17: 'no' is undefined"
    assert staged.column("STATUS") == "StageInvalid"
    assert staged.condition("Ready")["status"] == "True"
    assert stage_pods(staged) == ["monitor on n0", "plugin on n0"], "what runs stays"

    write(staged, "two", daemonset("monitor").replace("monitor:1", "monitor:2"))
    until_staged(staged, 1)
    plane.wait_for(lambda: image(staged) == "registry.example.com/monitor:2", "the change")

    edit = '{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"evil:1"}]}}}}'
    words = ("patch", "daemonset", "monitor", "-n", NAMESPACE, "--type=strategic", "-p", edit)
    plane.kubectl(*words)
    plane.wait_for(lambda: image(staged) == "registry.example.com/monitor:2", "the edit to go")

    write(staged, "two", daemonset("monitor").replace("image:", "imagee: x\n          image:"))
    plane.wait_for(lambda: "imagee" in staged.condition("StagesReady")["message"], "the refusal")
    said = staged.condition("StagesReady")
    assert said["message"].startswith("cannot apply DaemonSet monitor: the API server refuses to")
    assert staged.condition("Ready")["status"] == "True"

    role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: mine}\n"
    write(staged, "two", role)
    assert "apply it yourself, once, beside the Driver" in staged.until_reason(
        "StagesReady", "StageInvalid"
    )

    staged.change({"stages": TWO[:1]})
    plane.wait_for(lambda: stage_pods(staged) == ["plugin on n0"], "the second stage to be gone")
    plane.wait_for(lambda: SECOND not in staged.labels("n0"), "its label to be gone")
    until_staged(staged, 1)


def image(scene: Scene) -> str:
    path = f"{STAGE_DAEMON_SETS.partition('?')[0]}/monitor"
    spec = scene.control_plane.do("GET", path)["spec"]["template"]["spec"]
    return str(spec["containers"][0]["image"])


def test_a_driver_ends_after_its_stages_and_they_from_the_last_to_the_first(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    staged.node("n0")
    replicas.start()
    staged.driver()
    staged.change({"stages": TWO})
    until_staged(staged, 1)

    with Watched(staged.control_plane) as seen:
        staged.control_plane.kubectl("delete", "driver", "edu", "--wait=true")

    gone = [event.name for event in seen.events if event.kind == "DaemonSet" and event.deleted]
    assert gone[:2] == ["monitor", "plugin"]
    assert gone[2].startswith("edu-")
    seen.check_ends()
    assert staged.items(DRIVERS) == []
    assert stage_pods(staged) == []
    assert not [key for key in staged.labels("n0") if "nodeside.io/" in key]


def test_a_stage_that_waits_for_a_line_goes_on_when_the_pod_says_it(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    staged.node("n0")
    said = ["starting\n"]
    wait = {"log": "registered [0-9]+ device", "timeoutSeconds": 1}
    with Kubelet(staged.control_plane, lambda _: "".join(said)) as kubelet:
        kubelet.serve("n0")
        replicas.start()
        staged.driver()
        staged.change({"stages": [{**TWO[0], "waitFor": wait}, TWO[1]]})

        message = staged.until_reason("StagesReady", "StageFailed")
        assert message.startswith("stage first: n0: no line in the log of pod plugin-")
        assert message.endswith("matches 'registered [0-9]+ device' after 1 s")
        assert stage_pods(staged) == ["plugin on n0"]
        assert "stage first: no line" in staged.cli("explain", "edu", "n0").output

        said.append("registered 3 devices\n")
        until_staged(staged, 1)

    _, container, query = kubelet.asked[0]
    assert (container, query) == ("main", {"limitBytes": ["1048576"]})
    assert stage_pods(staged) == ["monitor on n0", "plugin on n0"]

"""What follows a driver, on a real control plane: in order, on each node, and out of the way.

Pods of stages are KWOK's: they are ready as soon as they run, and have no logs. Who creates and
ends them is the real DaemonSet controller, by the labels and selectors that it would have on any
cluster. What happened is read from watches of the API server.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cluster.model.names import NAMESPACE
from nodeside.protocol.node_status import State
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.kubelet import Kubelet
from tests.cluster.e2e.scene import DRIVERS, OLD, Scene
from tests.cluster.e2e.staged import (
    CLOSED,
    FIRST,
    SECOND,
    STAGE_DAEMON_SETS,
    STATE,
    TWO,
    Watched,
    clear,
    stage_pods,
    told,
    until_staged,
    write,
)
from tests.cluster.fakes.stagedriver import daemonset
from tests.controlplane.api_server import MERGE_PATCH

pytestmark = pytest.mark.cluster

STACK = Path("examples/edu/stack")
ROWS = (
    "jsonpath={range .status.stages[*]}{.name} {.state} {.nodes.ready}/{.nodes.wanted} "
    '{.message}{"\\n"}{end}'
)
_DAEMON_SETS = STAGE_DAEMON_SETS.partition("?")[0]
_PINNED = f"registry.example.com/drivers/edu@sha256:{'0' * 64}"


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
        boots = {
            node["metadata"]["name"]: node["status"]["nodeInfo"]["bootID"]
            for node in staged.items("/api/v1/nodes")
        }
        assert told(staged) == {
            "monitor on n0": boots["n0"],
            "monitor on n1": boots["n1"],
            "plugin on n0": None,
            "plugin on n1": None,
        }

        fleet.outcome = lambda _node, _: State.READY
        staged.driver("2.0.0", maxUnavailable=2)
        staged.change({"stages": TWO})
        staged.control_plane.wait_for(
            lambda: set(staged.versions().values()) == {"2.0.0"}, "all nodes to have the new one"
        )
        until_staged(staged, 3)
        new = "registry.example.com/drivers/edu:2.0.0"  # the new good one: pods are made anew
        staged.control_plane.wait_for(
            lambda: {gate_image(staged, name) for name in ("plugin", "monitor")} == {new}, new
        )
        staged.control_plane.wait_for(
            lambda: "blocks  nothing" in staged.cli("explain", "edu", "n0").output, "n0 to be done"
        )

    seen.check_gates()
    seen.check_ends()
    for i in range(3):
        labels = staged.labels(f"n{i}")
        assert (labels[FIRST], labels[SECOND]) == ("ready", "ready")
        assert CLOSED not in labels
    assert "stage first: ready" in staged.cli("explain", "edu", "n0").output
    until_staged(staged, 3)
    staged.control_plane.wait_for(lambda: staged.column("STATUS") == "Ready", "STATUS Ready")


def gate_image(scene: Scene, name: str) -> str:
    spec = scene.control_plane.do("GET", f"{_DAEMON_SETS}/{name}")["spec"]["template"]["spec"]
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


def test_templates_read_a_service_and_a_secret_as_far_as_the_administrator_allows(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    plane, where = staged.control_plane, f"/api/v1/namespaces/{NAMESPACE}"
    staged.node("n0")
    replicas.start()
    staged.driver()
    named = "registry.example.com/{{ reads.services['collector'].ports.web }}:{{ %s }}"
    text = daemonset("plugin").replace(
        "registry.example.com/plugin:1", named % "reads.secrets['token'].tag"
    )
    write(staged, "one", text)
    reads = [{"service": "collector"}, {"secret": "token"}]
    staged.change({"stages": [{"name": "first", "manifests": "one", "reads": reads}]})

    staged.until_said("StagesReady", "there is no Service collector in nodeside")
    ports = [{"name": "web", "port": 9090}]
    service = {"kind": "Service", "metadata": {"name": "collector"}, "spec": {"ports": ports}}
    plane.do("POST", f"{where}/services", {"apiVersion": "v1", **service})
    staged.until_said("StagesReady", "the controller may not read Secret token; to let it: ")
    said = staged.condition("StagesReady")["message"].partition("to let it: ")[2]
    commands = [words.split() for words in said.split(" && ")]
    try:
        for program, *words in commands:
            assert program == "kubectl"
            plane.kubectl(*words)
        staged.until_said("StagesReady", "there is no Secret token in nodeside")
        secret = {"kind": "Secret", "metadata": {"name": "token"}, "stringData": {"tag": "one"}}
        plane.do("POST", f"{where}/secrets", {"apiVersion": "v1", **secret})
        until_staged(staged, 1)
        assert image(staged, "plugin") == "registry.example.com/9090:one"
        change = {"stringData": {"tag": "two"}}
        plane.do("PATCH", f"{where}/secrets/token", change, content_type=MERGE_PATCH)
        plane.wait_for(
            lambda: image(staged, "plugin") == "registry.example.com/9090:two", "the change"
        )
    finally:
        rights = "/apis/rbac.authorization.k8s.io/v1/namespaces/nodeside"
        name = "nodeside-controller-reads-token"
        for path in (
            *(f"{rights}/{kind}/{name}" for kind in ("roles", "rolebindings")),
            *(f"{where}/{what}" for what in ("services/collector", "secrets/token")),
        ):
            plane.request("DELETE", path)


def image(scene: Scene, name: str = "monitor") -> str:
    spec = scene.control_plane.do("GET", f"{_DAEMON_SETS}/{name}")["spec"]["template"]["spec"]
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


def test_the_first_stage_of_the_example_is_applied_as_the_documentation_says(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    plane, name = scene.control_plane, "edu-runtime"
    documents = list(yaml.safe_load_all(plane.kubectl("kustomize", STACK).output))
    by_name = {each["metadata"]["name"]: each for each in documents}
    stages = by_name["edu"]["spec"]["stages"][:1]
    text = yaml.safe_dump(by_name[name])
    scene.toolkits(OLD)
    names = scene.some_nodes("worker-", 3)
    replicas.start()
    try:
        plane.kubectl("apply", "-f", "-", input=text)
        scene.driver()
        scene.change({"stages": stages})
        plane.kubectl("wait", "--for=condition=StagesReady", "driver/edu", "--timeout=50s")
        scene.until_ready(3)
        until_staged(scene, 3)
        rows = plane.kubectl("get", "driver", "edu", "-o", ROWS).output
        pod = plane.do("GET", f"{_DAEMON_SETS}/{name}")["spec"]["template"]["spec"]
        explained = scene.cli("explain", "edu", names[0]).output

        pinned = text.replace("{{ driver.image }}", _PINNED)
        plane.kubectl("apply", "-f", "-", input=pinned)
        plane.wait_for(lambda: image(scene, name) == _PINNED, "the digest")
        plane.kubectl("delete", "driver", "edu", "--timeout=50s")
    finally:
        clear(scene, name)

    assert rows.strip() == "runtime Ready 3/3"
    assert "stage runtime: ready" in explained
    assert pod["nodeSelector"] == {STATE: State.READY.value}
    [wait], [hook] = pod["initContainers"], pod["containers"]
    assert wait["name"] == "nodeside-wait"
    assert wait["image"] == hook["image"] == "registry.example.com/drivers/edu:1.0.0"

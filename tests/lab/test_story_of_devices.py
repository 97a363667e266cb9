"""Devices in a real cluster: a kubelet gives them to pods, which compute with them.

Each test goes on where the one before ended. The node has two edu devices, and no driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.model.names import DRIVER_LABEL, NAMESPACE, STAGE_LABEL, stage_label
from cluster.plan.objects.device_agent import METRICS_PORT
from nodeside.spec.fleet import DEVICES_STAGE
from tests.lab.content import EDU_IMAGE
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import Story
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails")]

EDU = "example.com/edu"
_COMPUTE = """\
import os, sys, time
sys.path.insert(0, "/driver-image")
from factorial import factorial
nodes = os.environ["EDU_NODES"].split(",")
held = [os.open(node, os.O_RDWR) for node in nodes]
count = 0
while True:
    for node in nodes:
        assert factorial(node, 10) == 3628800
    count += 1
    print(",".join(nodes), flush=True) if count == 1 else None
    print(count, flush=True)
    time.sleep(0.5)
"""


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        yield Story(lab, tmp_path_factory.mktemp("drivers"), builds)


@pytest.fixture
def node(story: Story) -> LabNode:
    [node] = story.lab.nodes.values()
    return node


def start(story: Story, name: str, devices: int) -> None:
    """A pod that asks for devices and has no privilege; a ReplicaSet makes another if it fails."""
    labels = {"app": name}
    container = {
        "name": "main",
        "image": EDU_IMAGE,
        "command": ["python3", "-c", _COMPUTE],
        "resources": {"limits": {EDU: str(devices)}},
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    document = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    story.plane.do("POST", "/apis/apps/v1/namespaces/default/replicasets", document)


def end(story: Story, name: str) -> None:
    story.plane.kubectl("delete", "replicaset", name, "--cascade=foreground", "--wait=false")
    story.wait_for(lambda: not pods(story, name), f"{name} to be gone")


def pods(story: Story, name: str) -> list[dict[str, Any]]:
    return story.scene.items(f"/api/v1/namespaces/default/pods?labelSelector=app%3D{name}")


def said(story: Story, name: str) -> list[str]:
    """The lines of the pod that runs: its nodes, and how often it has computed."""
    running = [
        pod["metadata"]["name"] for pod in pods(story, name) if pod["status"]["phase"] == "Running"
    ]
    if len(running) != 1:
        return []
    return story.plane.kubectl("logs", running[0], check=False).output.split()


def until_computes(story: Story, name: str) -> list[str]:
    """It does, now: three more times. Returns its device nodes."""

    def count() -> int:
        lines = said(story, name)
        return int(lines[-1]) if lines and lines[-1].isdigit() else 0

    story.wait_for(count, f"{name} to compute")
    first = count()
    story.wait_for(lambda: count() >= first + 3, f"{name} to go on")
    return said(story, name)[0].split(",")


def until_devices(story: Story, node: LabNode, capacity: int, allocatable: int) -> None:
    """The kubelet says so many of the node."""

    def holds() -> bool:
        status = story.scene.nodes.get(node.name)["status"]
        found = [status[each].get(EDU, "none") for each in ("capacity", "allocatable")]
        return found == [str(capacity), str(allocatable)]

    story.wait_for(holds, f"{allocatable} of {capacity} devices")


def held(story: Story, node: LabNode) -> dict[str, str]:
    """Which pod has which device, as the agent's metrics say; each device has computed."""
    labels = f"{DRIVER_LABEL}=edu,{STAGE_LABEL}={DEVICES_STAGE}"
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={quote(labels)}"
    [address] = [pod["status"]["podIP"] for pod in story.scene.items(path)]
    ask = r"printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3"
    text = node.type(f"exec 3<>/dev/tcp/{address}/{METRICS_PORT}; {ask}; cat <&3").output
    families = list(text_string_to_metric_families(text.partition("\r\n\r\n")[2]))
    samples = [sample for family in families for sample in family.samples]
    interrupts = {s.labels["device"]: s.value for s in samples if s.name == "edu_interrupts_total"}
    healthy = {s.labels["device"] for s in samples if s.name == "nodeside_device_healthy"}
    assert interrupts.keys() == healthy
    assert min(interrupts.values()) > 0
    allocated = [s.labels for s in samples if s.name == "nodeside_device_allocated"]
    return {labels["device"]: labels["pod"] for labels in allocated}


def until_offered(story: Story, node: LabNode) -> None:
    """The stage of the device agent is ready there."""
    mark = stage_label("edu", DEVICES_STAGE)
    story.wait_for(lambda: mark in story.scene.labels(node.name), "the stage `devices`")


def agent_pid(node: LabNode) -> str:
    """The main process's."""
    found = node.run("pgrep", "--full", "--oldest", "nodeside device-agent", check=False)
    return found.output.strip()


def kill_agent(story: Story, node: LabNode) -> None:
    before = agent_pid(node)
    node.run("kill", "-KILL", before)
    story.wait_for(lambda: agent_pid(node) not in ("", before), "another agent")


def test_a_pod_that_asks_for_devices_computes_with_them_and_another_waits(
    story: Story, node: LabNode
) -> None:
    story.apply("1.0.0")
    story.until_ready("1.0.0")
    until_offered(story, node)
    until_devices(story, node, 2, 2)

    start(story, "both", 2)
    assert until_computes(story, "both") == ["/dev/edu0", "/dev/edu1"]
    [both] = pods(story, "both")
    assert sorted(held(story, node).values()) == [both["metadata"]["name"]] * 2
    start(story, "third", 1)
    story.until_event("Insufficient example.com/edu")
    end(story, "both")
    assert until_computes(story, "third") in (["/dev/edu0"], ["/dev/edu1"])
    [third] = pods(story, "third")
    assert list(held(story, node).values()) == [third["metadata"]["name"]]
    [row] = story.scene.status()["stages"]
    assert (row["name"], row["state"]) == (DEVICES_STAGE, "Ready")


def test_a_device_that_disappears_is_not_given_until_it_is_back(
    story: Story, node: LabNode
) -> None:
    end(story, "third")
    node.type("echo 1 > /sys/class/misc/edu1/device/remove")
    until_devices(story, node, 2, 1)
    start(story, "left", 1)
    assert until_computes(story, "left") == ["/dev/edu0"]
    node.type("echo 1 > /sys/bus/pci/rescan")
    until_devices(story, node, 2, 2)


def test_a_kubelet_that_restarts_knows_the_devices_again(story: Story, node: LabNode) -> None:
    for service in ("kubelet", "containerd"):
        node.run("systemctl", "restart", service)
        until_devices(story, node, 2, 2)
    start(story, "after", 1)
    assert until_computes(story, "after") == ["/dev/edu1"]
    assert until_computes(story, "left") == ["/dev/edu0"]
    end(story, "after")


def test_an_agent_that_is_killed_offers_them_again(story: Story, node: LabNode) -> None:
    for _ in range(3):
        kill_agent(story, node)
        until_devices(story, node, 2, 2)
    start(story, "after", 1)
    assert until_computes(story, "after") == ["/dev/edu1"]
    end(story, "after")


def test_after_a_reboot_pods_compute_again(story: Story, node: LabNode) -> None:
    story.reboot(node)
    story.until_ready("1.0.0", node_1="cached")
    until_devices(story, node, 2, 2)
    assert until_computes(story, "left") in (["/dev/edu0"], ["/dev/edu1"])


def test_a_driver_that_is_deleted_offers_nothing(story: Story, node: LabNode) -> None:
    end(story, "left")
    story.plane.kubectl("delete", "driver", "edu", "--wait=false")
    story.until_gone()
    story.nothing_is_left()
    assert story.scene.nodes.get(node.name)["status"]["allocatable"].get(EDU, "0") == "0"
    found = node.run("sh", "-c", "ls /var/lib/kubelet/device-plugins").output.split()
    assert not [name for name in found if name.endswith(".sock") and name.startswith("nodeside")]

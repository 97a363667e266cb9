"""Devices of the driver `edu` in the lab: what its agent offers, and pods that ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.model.names import DRIVER_LABEL, NAMESPACE, STAGE_LABEL
from cluster.options.devices.agent_manifests import METRICS_PORT
from nodeside.protocol.labels import feature_prefix
from nodeside.spec.fleet import DEVICES_STAGE
from tests.cluster.e2e.scene import EDU as EXAMPLE
from tests.lab.content import EDU_IMAGE
from tests.lab.node import LabNode
from tests.lab.story import Story

EDU = "example.com/edu"
BOTH = {"/dev/edu0", "/dev/edu1"}  # of a node of the lab
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
MOUNTS = [{"hostPath": "/etc/os-release", "containerPath": "/mnt/os-release"}]
_COMPUTE = """\
import os, sys, time
sys.path.insert(0, "/driver-image")
from factorial import factorial
nodes = os.environ["EDU_NODES"].split(",")
held = [os.open(node, os.O_RDWR) for node in nodes]
assert "a node of the lab" in open("/mnt/os-release").read()
try:
    open("/mnt/os-release", "a")
    raise SystemExit("the node's file can be written")
except OSError:
    pass
count = 0
while True:
    for node in nodes:
        assert factorial(node, 10) == 3628800
    count += 1
    print(",".join(nodes), flush=True) if count == 1 else None
    print(count, flush=True)
    time.sleep(0.5)
"""


def entry() -> dict[str, Any]:
    """The example's entry of `spec.devices`, with a mount."""
    [edu] = yaml.safe_load(EXAMPLE.read_text())["spec"]["devices"]
    edu["give"]["mounts"] = MOUNTS
    return dict(edu)


def start(
    story: Story,
    name: str,
    devices: int,
    resource: str = EDU,
    program: str = _COMPUTE,
    *,
    claims: Sequence[Mapping[str, str]] = (),
) -> None:
    """A pod that asks for devices and has no privilege; a ReplicaSet makes another if it fails.

    With `claims`, those of the pod, it asks for nothing else.
    """
    asked = {"claims": [{"name": each["name"]} for each in claims]}
    labels = {"app": name}
    container = {
        "name": "main",
        "image": EDU_IMAGE,
        "command": ["python3", "-c", program],
        "resources": asked if claims else {"limits": {resource: str(devices)}},
    }
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    spec |= {"resourceClaims": list(claims)} if claims else {}
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


def until_devices(
    story: Story, node: LabNode, capacity: int, allocatable: int, resource: str = EDU
) -> None:
    """The kubelet says so many of the node."""

    def holds() -> bool:
        status = story.scene.nodes.get(node.name)["status"]
        found = [status[each].get(resource, "none") for each in ("capacity", "allocatable")]
        return found == [str(capacity), str(allocatable)]

    story.wait_for(holds, f"{allocatable} of {capacity} devices")


def until_labelled(story: Story, node: LabNode, **features: str) -> None:
    """The node's feature labels of the driver are these, and no others."""
    prefix = feature_prefix("edu")

    def holds() -> bool:
        labels = story.scene.labels(node.name).items()
        return features == {
            key.removeprefix(prefix): value for key, value in labels if key.startswith(prefix)
        }

    story.wait_for(holds, f"the feature labels {features}")


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


def address_of(node: LabNode, device_node: str) -> str:
    """The PCI address of the device of a device node."""
    link = f"/sys/class/misc/{device_node.removeprefix('/dev/')}/device"
    return node.run("readlink", "--canonicalize", link).output.strip().rpartition("/")[2]


def slot_of(node: LabNode, device_node: str) -> int:
    """Which of the machine's devices, by their order, a device node belongs to."""
    address = address_of(node, device_node)
    found = node.type("cd /sys/bus/pci/devices; grep -lx 0x11e8 */device | cut -d/ -f1 | sort")
    return found.output.split().index(address)


def agent_pid(node: LabNode) -> str:
    """The main process's."""
    found = node.run("pgrep", "--full", "--oldest", "nodeside device-agent", check=False)
    return found.output.strip()


def sockets(node: LabNode) -> list[str]:
    """What agents have left for the kubelet."""
    names = node.run("ls", "/var/lib/kubelet/device-plugins").output.split()
    return [name for name in names if name.startswith("nodeside-") and name.endswith(".sock")]


def kill_agent(story: Story, node: LabNode) -> None:
    before = agent_pid(node)
    node.run("kill", "-KILL", before)
    story.wait_for(lambda: agent_pid(node) not in ("", before), "another agent")

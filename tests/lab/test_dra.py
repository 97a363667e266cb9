"""Devices for claims in a real cluster: DRA with a kubelet, a scheduler and containerd of its own.

Each test goes on where the one before ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from nodeside.contract import dra_driver
from tests.cluster.e2e.scene import EDU
from tests.lab import devices
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import Story
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails")]

BOTH = {"/dev/edu0", "/dev/edu1"}
DRIVER = dra_driver("edu")
API = "/apis/resource.k8s.io/v1"
REQUESTS = {"requests": [{"name": "main", "exactly": {"deviceClassName": "edu"}}]}
FROM_TEMPLATE = {"resourceClaimTemplateName": "one"}
OF_DRIVER = f"fieldSelector=spec.driver%3D{DRIVER}"


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The node has two edu devices, which are offered to claims."""
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        [edu] = yaml.safe_load(EDU.read_text())["spec"]["devices"]
        edu["give"]["mounts"] = devices.MOUNTS
        changes = {"devices": [edu | {"expose": "dra"}]}
        yield Story(lab, tmp_path_factory.mktemp("drivers"), builds, changes)


@pytest.fixture
def node(story: Story) -> LabNode:
    [node] = story.lab.nodes.values()
    return node


def apply(story: Story, kind: str, name: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    story.plane.kubectl("apply", "-f", "-", input=json.dumps({**document, "spec": spec}))


def published(story: Story) -> set[str]:
    """The PCI addresses of the devices in ResourceSlices."""
    slices = story.scene.items(f"{API}/resourceslices?{OF_DRIVER}")
    attributes = [
        each["attributes"] for some in slices for each in some["spec"].get("devices") or ()
    ]
    return {each["resource.kubernetes.io/pciBusID"]["string"] for each in attributes}


def cdi_files(node: LabNode) -> list[str]:
    names = node.run("ls", "/var/run/cdi", check=False).output.split()
    return [name for name in names if name.startswith("nodeside.io-edu_")]


def until_cdi_files(story: Story, node: LabNode, count: int) -> None:
    story.wait_for(lambda: len(cdi_files(node)) == count, f"{count} CDI files")


def start(story: Story, name: str, claim: dict[str, str]) -> None:
    """A pod without privilege that uses a claim; a ReplicaSet makes another if it fails."""
    devices.start(story, name, 0, claims=[{"name": "edu", **claim}])


def test_a_pod_computes_on_the_device_of_its_claim(story: Story, node: LabNode) -> None:
    story.apply("1.0.0")
    story.until_ready("1.0.0")
    story.wait_for(lambda: len(published(story)) == 2, "both devices in ResourceSlices")
    expression = (
        f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].resource == "{devices.EDU}"'
    )
    selectors = [{"cel": {"expression": expression}}]
    apply(story, "DeviceClass", "edu", {"selectors": selectors})
    apply(story, "ResourceClaimTemplate", "one", {"spec": {"devices": REQUESTS}})

    start(story, "first", FROM_TEMPLATE)

    [held] = devices.until_computes(story, "first")
    assert held in BOTH
    until_cdi_files(story, node, 1)


def test_pods_share_a_claim_and_a_third_waits_for_a_device(story: Story, node: LabNode) -> None:
    apply(story, "ResourceClaim", "shared", {"devices": REQUESTS})
    [first] = devices.until_computes(story, "first")
    for name in ("left", "right"):
        start(story, name, {"resourceClaimName": "shared"})
    found = [devices.until_computes(story, name) for name in ("left", "right")]
    assert found[0] == found[1]
    assert {first, *found[0]} == BOTH
    until_cdi_files(story, node, 2)

    start(story, "late", FROM_TEMPLATE)
    story.until_event("cannot allocate all claims")
    devices.end(story, "left")
    devices.until_computes(story, "right")
    devices.end(story, "right")
    story.plane.kubectl("delete", "resourceclaim", "shared")
    assert devices.until_computes(story, "late") == found[0]
    devices.end(story, "late")
    until_cdi_files(story, node, 1)


def test_claims_outlive_killed_agents_and_a_kubelet_that_restarts(
    story: Story, node: LabNode
) -> None:
    [held] = devices.until_computes(story, "first")
    for _ in range(3):
        devices.kill_agent(story, node)
    node.run("systemctl", "restart", "kubelet")  # it deletes the ResourceSlices of its node
    devices.kill_agent(story, node)

    story.wait_for(lambda: len(published(story)) == 2, "both devices in ResourceSlices again")
    start(story, "after", FROM_TEMPLATE)
    assert set(devices.until_computes(story, "after")) == BOTH - {held}
    assert devices.until_computes(story, "first") == [held]
    devices.end(story, "after")
    until_cdi_files(story, node, 1)


def test_a_claim_that_ends_while_there_is_no_agent_is_unprepared_by_the_next(
    story: Story, node: LabNode
) -> None:
    pid = devices.agent_pid(node)
    node.run("kill", "-STOP", pid)
    story.plane.kubectl("delete", "replicaset", "first", "--wait=false")
    node.run("kill", "-KILL", pid)
    story.wait_for(lambda: not devices.pods(story, "first"), "first to be gone")
    until_cdi_files(story, node, 0)


def test_a_device_that_disappears_is_published_no_more_until_it_is_back(
    story: Story, node: LabNode
) -> None:
    node.type("echo 1 > /sys/class/misc/edu1/device/remove")
    story.wait_for(lambda: len(published(story)) == 1, "one device less")
    node.type("echo 1 > /sys/bus/pci/rescan")
    story.wait_for(lambda: len(published(story)) == 2, "both devices")


def test_the_resource_of_a_device_plugin_is_served_by_dra(story: Story, node: LabNode) -> None:
    """A pod that was written for the device plugin runs unchanged (KEP-5004)."""
    story.plane.kubectl(
        "patch",
        "deviceclass",
        "edu",
        "--type=merge",
        f'--patch={{"spec": {{"extendedResourceName": "{devices.EDU}"}}}}',
    )
    devices.start(story, "plain", 2)
    assert set(devices.until_computes(story, "plain")) == BOTH
    devices.end(story, "plain")
    until_cdi_files(story, node, 0)


def test_after_a_power_cut_a_pod_computes_as_soon_as_the_driver_is_ready(
    story: Story, node: LabNode
) -> None:
    start(story, "again", FROM_TEMPLATE)
    devices.until_computes(story, "again")
    node.cut_power()
    story.boot(node)
    devices.until_computes(story, "again")
    devices.end(story, "again")
    until_cdi_files(story, node, 0)


def test_a_driver_that_is_deleted_leaves_nothing(story: Story, node: LabNode) -> None:
    story.plane.kubectl("delete", "driver", "edu", "--wait=false")
    story.until_gone()
    story.wait_for(lambda: published(story) == set(), "the ResourceSlices to be gone")
    registry = node.run("ls", "/var/lib/kubelet/plugins_registry").output
    assert DRIVER not in registry
    assert cdi_files(node) == []
    for kind, name in (("deviceclass", "edu"), ("resourceclaimtemplate", "one")):
        story.plane.kubectl("delete", kind, name)

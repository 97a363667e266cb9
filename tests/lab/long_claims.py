"""What befalls claims in a cluster of two real nodes: more chapters of `make lab-story`.

Each chapter begins where the driver is ready on both nodes and offers its devices to claims, and
ends so, without claims.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import claims, devices
from tests.lab.devices import BOTH
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import Story
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails", "told")]

NAMES = ("first", "second")  # of pods


@pytest.fixture(scope="module")
def lab(pair: Lab) -> Lab:
    return pair


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Each node has two edu devices."""
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        drivers = tmp_path_factory.mktemp("drivers")
        story = Story(lab, drivers, builds, claims.changes(), series="1.1")
        claims.apply_manifests(story, story.directory)
        yield story


@pytest.fixture
def version(story: Story) -> Iterator[str]:
    """Of the driver that is ready on both nodes."""
    story.lab.offer_toolkits(story.lab.kernels[0])
    version = story.begin()
    for node in story.lab.nodes.values():
        claims.until_published(story, node, 2)
    yield version
    for name in NAMES:
        if devices.pods(story, name):
            devices.end(story, name)
    for node in story.lab.nodes.values():
        claims.until_prepared(story, node, 0)


def node_of(story: Story, name: str) -> LabNode:
    """Where a pod runs."""
    [pod] = devices.pods(story, name)
    return story.lab.node(pod["spec"]["nodeName"])


def healths(story: Story, name: str) -> set[str]:
    """Of the devices of a pod, as the kubelet writes it (KEP-4680)."""
    [pod] = devices.pods(story, name)
    return {
        device["health"]
        for container in pod["status"].get("containerStatuses", ())
        for resource in container.get("allocatedResourcesStatus", ())
        for device in resource["resources"]
    }


def test_claims_outlive_killed_agents_and_a_kubelet_that_restarts(
    story: Story, version: str
) -> None:
    claims.start(story, "first")
    [held] = devices.until_computes(story, "first")
    node = node_of(story, "first")
    for _ in range(3):
        devices.kill_agent(story, node)
    node.run("systemctl", "restart", "kubelet")  # it deletes the ResourceSlices of its node
    devices.kill_agent(story, node)
    claims.until_published(story, node, 2)
    assert devices.until_computes(story, "first") == [held]
    claims.until_prepared(story, node, 1)


def test_a_device_that_disappears_is_offered_to_no_claim(
    story: Story, version: str, one: LabNode
) -> None:
    """The kernel removes it, and finds it again."""
    one.type("echo 1 > /sys/class/misc/edu1/device/remove")
    claims.until_published(story, one, 1)
    one.type("echo 1 > /sys/bus/pci/rescan")
    claims.until_published(story, one, 2)


def test_the_status_of_a_pod_says_that_the_device_of_its_claim_does_not_work(
    story: Story, version: str
) -> None:
    """It is unbound from its driver; where it is bound again, the same pod goes on."""
    claims.start(story, "first")
    [held] = devices.until_computes(story, "first")
    node = node_of(story, "first")
    story.wait_for(lambda: healths(story, "first") == {"Healthy"}, "its status to say it works")
    address = devices.address_of(node, held)
    node.type(f"echo {address} > /sys/bus/pci/drivers/edu/unbind")
    story.wait_for(lambda: healths(story, "first") == {"Unhealthy"}, "the pod's status to say so")
    claims.until_published(story, node, 1)
    node.type(f"echo {address} > /sys/bus/pci/drivers/edu/bind")
    story.wait_for(lambda: healths(story, "first") == {"Healthy"}, "it to say otherwise")
    devices.until_computes(story, "first")


def test_a_pod_for_the_device_plugin_is_served_by_claims(story: Story, version: str) -> None:
    """It runs unchanged (KEP-5004): the DeviceClass has an `extendedResourceName`."""
    devices.start(story, "first", 2)
    assert set(devices.until_computes(story, "first")) == BOTH


def test_a_power_cut_of_a_node_with_a_claim(story: Story, version: str) -> None:
    """The same pod computes there again as soon as the driver of that boot is ready."""
    claims.start(story, "first")
    devices.until_computes(story, "first")
    node = node_of(story, "first")
    node.cut_power()
    story.boot(node)
    story.until_node_ready(node, version)
    devices.until_computes(story, "first")
    claims.until_prepared(story, node, 1)


def test_a_claim_whose_node_dies(story: Story, version: str) -> None:
    """The pod is deleted by force, another one gets a device elsewhere; the dead node forgets."""
    claims.start(story, "first")
    devices.until_computes(story, "first")
    dead = node_of(story, "first")
    [other] = [node for node in story.lab.nodes.values() if node is not dead]
    dead.cut_power()
    story.until_not_ready(dead)
    [pod] = devices.pods(story, "first")
    story.plane.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
    devices.until_computes(story, "first")
    assert node_of(story, "first") is other
    story.boot(dead)
    story.until_ready(version)
    claims.until_published(story, dead, 2)
    claims.until_prepared(story, dead, 0)


def test_a_new_version_of_a_driver_whose_device_a_claim_has(story: Story, version: str) -> None:
    """The pod holds the device, so the module stays until it ends."""
    claims.start(story, "first")
    devices.until_computes(story, "first")
    node = node_of(story, "first")
    loading = story.loading(node)
    version = story.roll_out()
    story.until_node(node, reason="InUse")
    devices.until_computes(story, "first")
    assert story.loading(node) == loading
    devices.end(story, "first")
    story.until_ready(version)
    for each in story.lab.nodes.values():
        claims.until_published(story, each, 2)


def test_pods_with_claims_leave_a_node_before_its_driver_changes(
    story: Story, version: str
) -> None:
    """`rollout.evict` without a word more: who has the declared devices goes, and comes back."""
    for name in NAMES:
        claims.start(story, name)
        devices.until_computes(story, name)
    version = story.roll_out(rollout={"evict": {}})
    story.until_ready(version)
    for name in NAMES:
        devices.until_computes(story, name)
    nodes = [story.scene.nodes.get(node.name)["spec"] for node in story.lab.nodes.values()]
    assert not [spec for spec in nodes if spec.get("unschedulable")]
    for name in NAMES:
        devices.end(story, name)
    story.apply_again(version)  # with the rollout of the other chapters

"""The whole product in a real cluster: nothing is played.

The images are built by an engine; the controller is a Deployment of two replicas; pods run on nodes
with a kernel, systemd, containerd and a kubelet of their own. Each test goes on where the one
before ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from nodeside.spec.fleet import DEVICES_STAGE
from tests import TOP
from tests.cluster.e2e.scene import DRIVERS
from tests.lab import devices
from tests.lab.content import EDU_IMAGE
from tests.lab.devices import BOTH
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import FOR_KERNELS, STAGES, Story
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails")]


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The node has two edu devices, which are offered to pods."""
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        changes = {"stages": STAGES, "devices": [devices.entry()]}
        story = Story(lab, tmp_path_factory.mktemp("drivers"), builds, changes)
        story.write_stages()
        yield story


@pytest.fixture
def node(story: Story) -> LabNode:
    [node] = story.lab.nodes.values()
    return node


def test_a_driver_is_built_in_its_pod_and_another_pod_computes_with_both_devices(
    story: Story, node: LabNode
) -> None:
    story.apply("1.0.0")
    story.until_ready("1.0.0", node_1="built")

    words = f"driver edu 1.0.0, kernel {node.kernel.release}: ready (built), modules edu"
    assert story.events("DriverReady") == [words]
    devices.until_devices(story, node, 2, 2)
    devices.start(story, "both", 2)
    assert set(devices.until_computes(story, "both")) == BOTH
    [both] = devices.pods(story, "both")
    assert sorted(devices.held(story, node).values()) == [both["metadata"]["name"]] * 2


def test_labels_say_what_the_nodes_devices_are(story: Story, node: LabNode) -> None:
    devices.until_labelled(story, node, count="2", revision="0x10", version="1.0.0")


def test_where_node_feature_discovery_reads_files_the_agent_writes_one(
    story: Story, node: LabNode
) -> None:
    """Its directory is all that there is of it here."""
    node.run("mkdir", "-p", devices.FEATURES)
    words = f"cat {devices.FEATURES}/nodeside-edu"

    def lines() -> list[str]:
        return node.run("sh", "-c", words, check=False).output.splitlines()

    story.wait_for(lambda: "feature.nodeside.io/edu.count=2" in lines(), "the feature file")
    assert "feature.nodeside.io/edu.revision=0x10" in lines()
    node.run("rm", "-r", devices.FEATURES)
    devices.until_labelled(story, node, count="2", revision="0x10", version="1.0.0")


def test_a_pod_that_asks_for_a_device_waits_until_one_is_free(story: Story, node: LabNode) -> None:
    devices.start(story, "consumer", 1)
    story.until_event("Insufficient example.com/edu")
    devices.end(story, "both")
    devices.until_computes(story, "consumer")
    [consumer] = devices.pods(story, "consumer")
    assert list(devices.held(story, node).values()) == [consumer["metadata"]["name"]]


def test_stages_follow_the_driver_and_their_log_is_read_through_the_kubelet(
    story: Story, node: LabNode
) -> None:
    story.until_stages()

    names = [DEVICES_STAGE, *(stage["name"] for stage in STAGES)]
    rows = [(row["name"], row["state"]) for row in story.scene.status()["stages"]]
    assert rows == [(name, "Ready") for name in names]
    gates = story.gates(node)
    assert [gate["reason"] for gate in gates] == ["Completed"] * len(names)
    assert min(gate["finishedAt"] for gate in gates) >= story.ready_since(node)


def test_a_device_in_use_computes_on_whatever_happens_to_pods_and_services(
    story: Story, node: LabNode, request: pytest.FixtureRequest
) -> None:
    """The kubelet waits longer each time before it starts an agent again."""
    loading = story.loading(node)

    story.kill_driver_container(node)
    story.until_ready("1.0.0", node_1="loaded")
    story.delete_driver_pod(node)
    for service in ("containerd", "kubelet"):
        node.run("systemctl", "restart", service)
    story.until_ready("1.0.0", node_1="loaded")
    for _ in range(3 if request.config.getoption("--every-chapter") else 1):
        devices.kill_agent(story, node)

    devices.until_devices(story, node, 2, 2)
    [held] = devices.until_computes(story, "consumer")
    assert story.loading(node) == loading
    devices.start(story, "after", 1)
    assert set(devices.until_computes(story, "after")) == BOTH - {held}
    devices.end(story, "after")


def test_a_device_that_disappears_is_not_given_until_it_is_back(
    story: Story, node: LabNode
) -> None:
    [held] = devices.until_computes(story, "consumer")
    [free] = BOTH - {held}
    node.type(f"echo 1 > /sys/class/misc/{free.removeprefix('/dev/')}/device/remove")
    devices.until_devices(story, node, 2, 1)
    devices.start(story, "late", 1)
    node.type("echo 1 > /sys/bus/pci/rescan")
    devices.until_devices(story, node, 2, 2)
    assert devices.until_computes(story, "late") == [free]
    devices.end(story, "late")


@pytest.mark.long
def test_a_card_that_is_pulled_is_given_to_nobody_until_it_is_plugged_in_again(
    story: Story, node: LabNode
) -> None:
    """QEMU takes it away and gives it back, as a slot that can be hot-plugged does."""
    [held] = devices.until_computes(story, "consumer")
    free = devices.slot_of(node, *(BOTH - {held}))
    node.computer.unplug(free)
    devices.until_devices(story, node, 2, 1)
    devices.start(story, "waiting", 1)
    devices.until_computes(story, "consumer")
    node.computer.plug_in(free)
    devices.until_devices(story, node, 2, 2)
    assert set(devices.until_computes(story, "waiting")) == BOTH - {held}
    devices.end(story, "waiting")


def test_a_version_that_does_not_compile_is_named_and_leaves_the_device_to_its_users(
    story: Story, node: LabNode
) -> None:
    loading = story.loading(node)
    version = story.roll_out("echo '#error no more' > broken.c && gcc -c broken.c || exit")
    story.until_node(node, state="failed", version=version, reason="Compile")

    assert "no more" in story.node_driver(node)["message"]
    story.wait_for(  # what the controller says of it comes a moment after the node's own word
        lambda: "no more" in story.scene.cli("explain", "edu").output, "explain to name the error"
    )
    assert story.loading(node) == loading
    devices.until_computes(story, "consumer")
    devices.end(story, "consumer")


def test_images_that_are_missing_are_named_and_done_without_or_waited_for(
    story: Story, node: LabNode
) -> None:
    late = story.late_toolkit(node)
    version = story.roll_out(prebuilt={"image": FOR_KERNELS}, toolkit=late)
    story.until_pull_fails(f"drivers/edu:{version}-{node.kernel.release}")
    story.until_pull_fails("late/toolkit:")
    story.until_explained(node, "the registry has no such image: push it, or correct its name")
    explained = story.until_explained(node, "late/toolkit:")
    event = r"pod edu-\S+: .+\(\d+s\s+ago\)"
    assert re.search(event, explained, re.DOTALL), explained
    story.push_late_toolkit(node)
    story.until_ready(version, node_1="built")


def test_after_a_power_cut_stages_and_pods_wait_for_the_driver_of_that_boot(
    story: Story, node: LabNode
) -> None:
    version = story.node_driver(node)["version"]
    devices.start(story, "again", 1)
    devices.until_computes(story, "again")
    node.cut_power()
    story.boot(node)
    story.until_ready(version, node_1="cached")
    story.until_stages()
    devices.until_labelled(story, node, count="2", revision="0x10", version=version)
    assert min(gate["finishedAt"] for gate in story.gates(node)) >= story.ready_since(node)
    devices.until_devices(story, node, 2, 2)
    devices.until_computes(story, "again")
    devices.end(story, "again")


def test_a_driver_that_is_deleted_leaves_nothing(story: Story, node: LabNode) -> None:
    story.plane.kubectl("delete", "driver", "edu", "--wait=false")
    story.until_gone()
    story.nothing_is_left()
    assert story.scene.nodes.get(node.name)["status"]["allocatable"].get(devices.EDU, "0") == "0"
    assert devices.sockets(node) == []


@pytest.mark.long
def test_units_that_are_counted_need_neither_driver_nor_controller(
    story: Story, node: LabNode
) -> None:
    """As the page of the example has it."""
    units = "b-com.com/accelerator"
    says = "import os, time; print(os.environ['ACCELERATOR_UNITS'], flush=True); time.sleep(1e6)"
    story.plane.kubectl("label", "node", node.name, "example.com/accelerator=aws")
    story.plane.kubectl("apply", "-k", str(TOP / "examples/fpga/aws"))
    devices.until_devices(story, node, 40, 40, units)

    devices.start(story, "units", 2, units, says)
    story.wait_for(lambda: devices.said(story, "units"), "a container to name its units")
    [named] = devices.said(story, "units")
    assert len(set(named.split(",")) & set(map(str, range(40)))) == 2
    devices.end(story, "units")
    story.plane.kubectl("delete", "-k", str(TOP / "examples/fpga/aws"))
    devices.until_devices(story, node, 40, 0, units)


@pytest.mark.long
def test_under_the_controller_a_driver_without_modules_offers_them_too(
    story: Story, node: LabNode
) -> None:
    """In the image of any driver: the example names nodeside's own, which is its base."""
    document = yaml.safe_load((TOP / "examples/fpga/aws/driver.yaml").read_text())
    document["spec"]["image"] = EDU_IMAGE
    story.plane.kubectl("apply", "-f", "-", input=json.dumps(document))
    path = f"{DRIVERS}/accelerator"

    def is_ready() -> bool:
        status = story.plane.do("GET", path).get("status", {})
        conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
        return conditions.get("Ready") == conditions.get("StagesReady") == "True"

    story.wait_for(is_ready, "a driver without modules to be ready with its devices")
    devices.until_devices(story, node, 40, 40, "b-com.com/accelerator")
    story.plane.kubectl("delete", "driver", "accelerator", "--wait=false")
    story.wait_for(lambda: story.plane.request("GET", path).status == 404, "it to be gone")
    devices.until_devices(story, node, 40, 0, "b-com.com/accelerator")

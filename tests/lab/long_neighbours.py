"""A driver that comes after another one, in a cluster of two real nodes: chapters of `make
lab-story`.

`edu` has a daemon and publishes its modules; `edu-peer` imports a symbol of `edu`'s. Each chapter
begins where both are ready on both nodes, and ends so.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from cluster.model.names import DRIVER_LABEL, NAMESPACE
from nodeside.protocol.labels import node_driver_name
from nodeside.protocol.node_status import WAITS_FOR_DRIVER
from tests import TOP, daemon
from tests.cluster.e2e.scene import DRIVERS, JOBS, NODE_DRIVERS
from tests.images.built import engine
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import Story, driver_pods
from tests.node.configuration import REGISTRY
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails", "told")]

PEER = "edu-peer"
_EXAMPLE = TOP / "examples" / PEER
_IMAGE = f"drivers/{PEER}:1.0.0"
_SUM = "/sys/class/misc/edu-peer/sum"
_COMPUTE = "int edu_compute(u32 n, u32 *result)"
_OTHER = "int edu_compute(u64 n, u32 *result)"  # another signature has another CRC
_HOLD = "exec 3</dev/edu-peer; echo held; while :; do sleep 1; done"


@pytest.fixture(scope="module")
def lab(pair: Lab) -> Lab:
    return pair


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        story = Story(lab, tmp_path_factory.mktemp("drivers"), builds, daemon.SPEC, series="1.3")
        story.changes |= {"prebuilt": story.store}
        yield story


@dataclass(frozen=True)
class Peer:
    """The driver after `edu`."""

    story: Story

    def apply(self, **changes: Any) -> None:
        document = yaml.safe_load((_EXAMPLE / "driver.yaml").read_text())
        bundles = f"{self.story.lab.registry}/bundles/{PEER}"
        source = {"oci": bundles, "publish": True, "insecure": True}
        document["spec"] |= {
            "image": f"{REGISTRY}/{_IMAGE}",
            "prebuilt": {"sources": [source]},
            "rollout": {"evict": {"selector": {"app": PEER}}},
            **changes,
        }
        self.story.plane.kubectl("apply", "-f", "-", input=json.dumps(document))

    def push(self) -> None:
        """Its image."""
        content = self.story.directory / PEER
        shutil.copytree(_EXAMPLE, content)
        with engine(self.story.lab.workshop.cache) as builder:
            tag = builder.assemble(f"localhost/{PEER}:1.0.0", content)
            builder.push(tag, f"{self.story.lab.registry}/{_IMAGE}")

    def said(self, node: LabNode) -> Mapping[str, Any]:
        """The status that its pod wrote."""
        path = f"{NODE_DRIVERS}/{node_driver_name(PEER, node.name)}"
        answer = self.story.plane.request("GET", path)
        return answer.document.get("status", {}) if answer.status == 200 else {}

    def until(self, node: LabNode, **wanted: str) -> None:
        wanted = {"bootId": node.boot_id, **wanted}
        what = f"{PEER} to report {wanted.get('state')} on {node.name}"
        self.story.wait_for(lambda: wanted.items() <= self.said(node).items(), what)

    def until_ready(self) -> None:
        for node in self.story.lab.nodes.values():
            self.until(node, state="ready")
            node.run("sh", "-c", f"echo 5 > {_SUM}")
            assert node.run("cat", _SUM).output.strip() == "154"

    def condition(self, kind: str) -> Mapping[str, str]:
        return self.story.scene.condition(kind, PEER)

    def log(self, node: LabNode) -> str:
        [pod] = driver_pods(self.story.scene, node, PEER)
        name = pod["metadata"]["name"]
        return self.story.plane.kubectl("logs", name, "-n", NAMESPACE, "-c", "driver").output

    def loading(self, node: LabNode) -> str:
        """Another one for each loading."""
        return node.run("stat", "--format=%i", "/sys/module/edu_peer").output.strip()

    def start_consumer(self, node: LabNode) -> None:
        """A pod that holds its device."""
        container = {
            "name": "main",
            "image": f"{REGISTRY}/{_IMAGE}",
            "command": ["sh", "-c", _HOLD],
            "securityContext": {"privileged": True},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "consumer", "namespace": "default", "labels": {"app": PEER}},
            "spec": {
                "nodeName": node.name,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        }
        self.story.plane.kubectl("apply", "-f", "-", input=json.dumps(pod))
        self.story.wait_for(
            lambda: "held" in self.story.plane.kubectl("logs", "consumer", check=False).output,
            "the consumer to hold the device",
        )


@pytest.fixture(scope="module")
def peer(story: Story) -> Peer:
    peer = Peer(story)
    peer.push()
    return peer


@pytest.fixture
def version(story: Story, peer: Peer) -> str:
    """Of `edu`, while both drivers are ready on both nodes."""
    story.lab.offer_toolkits(story.lab.kernels[0])
    version = story.begin()
    if not any(each["metadata"]["name"] == PEER for each in story.scene.items(DRIVERS)):
        peer.apply()
    peer.until_ready()
    return version


def jobs(story: Story) -> dict[str, int]:
    """How many build Jobs there are, by driver."""
    names = [each["metadata"]["labels"][DRIVER_LABEL] for each in story.scene.items(JOBS)]
    return {name: names.count(name) for name in set(names)}


def test_a_driver_after_another_is_built_and_loaded_after_it(
    story: Story, peer: Peer, one: LabNode, two: LabNode
) -> None:
    peer.apply()
    story.wait_for(
        lambda: peer.condition("Degraded")["reason"] == "DriverMissing", "the missing driver named"
    )
    version = story.begin()
    peer.until_ready()
    story.until_ready(version)
    for node in (one, two):
        assert peer.said(node)["source"] == "fetched"
    assert jobs(story).keys() == {"edu", PEER}
    story.wait_for(lambda: peer.condition("Ready")["status"] == "True", f"{PEER} to be Ready")


def test_pods_of_both_drivers_are_killed_and_no_module_is_touched(
    story: Story, peer: Peer, version: str, one: LabNode
) -> None:
    before = story.loading(one), peer.loading(one)
    for pattern in (daemon.WORDS, "nodeside driver run"):
        one.run("pkill", "--signal", "KILL", "--full", pattern)
    story.until_node_ready(one, version)
    story.wait_for(lambda: "NODESIDE_READY" in peer.log(one), f"{PEER} to say that it is ready")
    assert (story.loading(one), peer.loading(one)) == before


def test_a_version_with_another_symbol_takes_the_driver_after_it_along(
    story: Story, peer: Peer, version: str, one: LabNode, two: LabNode
) -> None:
    built = jobs(story)[PEER]
    before = {node.name: peer.said(node)["key"] for node in (one, two)}
    peer.start_consumer(one)
    story.edits |= {_COMPUTE: _OTHER} if _COMPUTE not in story.edits else {}

    after = story.roll_out()

    story.until_consumer_is_gone()
    story.until_ready(after)
    peer.until_ready()
    for node in (one, two):
        assert peer.said(node)["key"] != before[node.name]
        assert peer.said(node)["source"] == "fetched"
        said = peer.log(node)
        assert said.rindex("waits until edu is ready") < said.rindex("NODESIDE_READY")
    assert jobs(story)[PEER] >= built
    assert version != after


def test_a_power_cut_brings_both_back_in_order(
    story: Story, peer: Peer, version: str, one: LabNode, two: LabNode
) -> None:
    untouched = story.loading(two), peer.loading(two)
    one.cut_power()
    story.boot(one)
    story.until_node_ready(one, version)
    peer.until(one, state="ready", source="cached")
    assert (story.loading(two), peer.loading(two)) == untouched


def test_the_driver_before_is_deleted_first(
    story: Story, peer: Peer, version: str, one: LabNode, two: LabNode
) -> None:
    story.plane.kubectl("delete", "driver", "edu", "--wait=false")
    for node in (one, two):
        peer.until(node, state="waiting", reason=WAITS_FOR_DRIVER)
    story.wait_for(
        lambda: not any(d["metadata"]["name"] == "edu" for d in story.scene.items(DRIVERS)),
        "edu to be gone",
    )
    for node in (one, two):
        for module in ("edu", "edu_peer"):
            assert node.run("test", "-e", f"/sys/module/{module}", check=False).exit_code == 1
    story.wait_for(
        lambda: peer.condition("Degraded")["reason"] == "DriverMissing", "the missing driver named"
    )
    story.apply_again(version)
    story.until_ready(version)
    peer.until_ready()


def test_both_are_deleted_at_once(story: Story, version: str) -> None:
    story.plane.kubectl("delete", "driver", "edu", PEER, "--wait=false")
    story.until_gone()
    story.nothing_is_left()
    for node in story.lab.nodes.values():
        assert node.run("test", "-e", "/sys/module/edu_peer", check=False).exit_code == 1

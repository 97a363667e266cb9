"""Devices for claims in a real cluster: DRA with a kubelet, a scheduler and containerd of its own.

Each test goes on where the one before ended. `long_claims.py` tells what else befalls claims.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import claims, devices
from tests.lab.claims import DRIVER, NAME
from tests.lab.devices import BOTH
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import Story
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.usefixtures("shown_if_it_fails")]

REQUESTS = {"requests": [{"name": "main", "exactly": {"deviceClassName": NAME}}]}


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The node has two edu devices, which are offered to claims."""
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        yield Story(lab, tmp_path_factory.mktemp("drivers"), builds, claims.changes())


@pytest.fixture
def node(story: Story) -> LabNode:
    [node] = story.lab.nodes.values()
    return node


def test_a_pod_computes_on_the_device_of_its_claim(
    story: Story, node: LabNode, tmp_path: Path
) -> None:
    story.apply("1.0.0")
    story.until_ready("1.0.0")
    claims.until_published(story, node, 2)
    claims.apply_manifests(story, tmp_path)

    claims.start(story, "first")

    [held] = devices.until_computes(story, "first")
    assert held in BOTH
    claims.until_prepared(story, node, 1)


def test_pods_share_a_claim_and_a_third_waits_for_a_device(story: Story, node: LabNode) -> None:
    shared = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "shared"},
        "spec": {"devices": REQUESTS},
    }
    story.plane.kubectl("apply", "-f", "-", input=json.dumps(shared))
    [first] = devices.until_computes(story, "first")
    for name in ("left", "right"):
        claims.start(story, name, {"resourceClaimName": "shared"})
    found = [devices.until_computes(story, name) for name in ("left", "right")]
    assert found[0] == found[1]
    assert {first, *found[0]} == BOTH
    claims.until_prepared(story, node, 2)

    claims.start(story, "late")
    story.until_event("cannot allocate all claims")
    devices.end(story, "left")
    devices.until_computes(story, "right")
    devices.end(story, "right")
    story.plane.kubectl("delete", "resourceclaim", "shared")
    assert devices.until_computes(story, "late") == found[0]
    devices.end(story, "late")
    claims.until_prepared(story, node, 1)


def test_a_claim_that_ends_while_there_is_no_agent_is_unprepared_by_the_next(
    story: Story, node: LabNode
) -> None:
    pid = devices.agent_pid(node)
    node.run("kill", "-STOP", pid)
    story.plane.kubectl("delete", "replicaset", "first", "--wait=false")
    node.run("kill", "-KILL", pid)
    story.wait_for(lambda: not devices.pods(story, "first"), "first to be gone")
    claims.until_prepared(story, node, 0)


def test_a_driver_that_is_deleted_leaves_nothing(story: Story, node: LabNode) -> None:
    story.plane.kubectl("delete", "driver", "edu", "--wait=false")
    story.until_gone()
    claims.until_published(story, node, 0)
    registry = node.run("ls", "/var/lib/kubelet/plugins_registry").output
    assert DRIVER not in registry
    assert claims.prepared(node) == []
    for kind in ("deviceclass", "resourceclaimtemplate"):
        story.plane.kubectl("delete", kind, NAME)

"""Chapters of the long story that nobody has seen told from beginning to end.

`make lab-story` leaves them out. A chapter moves to long_story.py when it was seen:

    .venv/bin/python -m pytest tests/lab/untold.py -k api_server
"""

# ruff: noqa: F811 - fixtures are imported by name
from __future__ import annotations

import re
import shutil
import time
from functools import partial

import pytest

from tests import TOP
from tests.images.built import engine
from tests.lab import before
from tests.lab.long_story import (  # noqa: F401 - fixtures
    chapters,
    kernels,
    nodes,
    one,
    outage,
    told,
    two,
    version,
)
from tests.lab.node import LabNode
from tests.lab.story import Story

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails")]


def test_a_toolkit_image_that_comes_late(story: Story, version: str, one: LabNode) -> None:
    """The nodes wait for the toolkit image, and build as soon as it can be pulled."""
    version = story.roll_out(toolkit=story.late_toolkit(one))
    story.until_pull_fails("late/toolkit")
    story.push_late_toolkit(one)
    story.until_ready(version)


def test_a_build_that_eats_memory_is_named(story: Story, version: str) -> None:
    """The kernel kills the build, not the sidecar, nor the other version's driver."""
    build = {"kind": "command", "command": ["bash", "build.sh"], "memoryLimitMib": 256}
    greedy = story.roll_out("tail /dev/zero", build=build)
    story.until_some_node("to fail", state="failed", version=greedy, reason="OutOfMemory")
    assert "256 MiB" in story.until_reason("Progressing", "RolloutStopped")
    story.apply_again(version)
    story.until_ready(version)


def test_a_node_without_network(story: Story, version: str, one: LabNode, outage: float) -> None:
    """Its pods compute on; when the cable is back, all is as before."""
    story.start_consumer(one, "one")
    loading, start = story.loading(one), story.counted("one")
    one.plug(into=False)
    try:
        story.until_not_ready(one)
        time.sleep(outage)
    finally:
        one.plug(into=True)
    story.until_ready(version)
    assert story.counted("one") > start + outage / 10
    assert story.loading(one) == loading


def test_an_api_server_that_is_down(
    story: Story, version: str, one: LabNode, two: LabNode, outage: float
) -> None:
    """A driver's container is killed meanwhile; nothing is unloaded, and labels are as before."""
    story.start_consumer(two, "two")
    story.until_stages()
    loading = [story.loading(node) for node in (one, two)]
    labels = [story.scene.labels(node.name) for node in (one, two)]
    with story.plane.without("kube-apiserver"):
        one.run("pkill", "--signal", "KILL", "--full", "nodeside driver run")
        time.sleep(outage)
    story.until_ready(version, node_1="loaded")
    story.until_counts("two")
    story.until_stages()
    assert [story.loading(node) for node in (one, two)] == loading
    assert [story.scene.labels(node.name) for node in (one, two)] == labels


def test_a_node_that_is_deleted_and_joins_under_its_name(
    story: Story, version: str, two: LabNode
) -> None:
    """Its disk is new: it gets the driver like any new node."""
    story.lab.delete_node(two)
    story.wait_for(lambda: story.scene.status()["nodes"]["wanted"] == 1, "one node to be left")
    again = story.lab.new_node(story.lab.kernels[0])
    assert again.name == two.name
    story.boot(again)
    story.until_ready(version)


def test_a_disk_that_is_full(story: Story, version: str, one: LabNode) -> None:
    """The kubelet is short of space and evicts; the module stays, and all comes back."""
    loading = story.loading(one)
    free = int(one.run("stat", "--file-system", "--format=%a", "/var").output)
    size = int(one.run("stat", "--file-system", "--format=%S", "/var").output)
    one.run("fallocate", "--length", str(free * size - (64 << 20)), "/var/fill")
    try:
        story.until_node_condition(one, "DiskPressure", "True")
    finally:
        one.run("rm", "/var/fill")
    story.until_node_condition(one, "DiskPressure", "False")
    story.until_ready(version)
    assert story.loading(one) == loading


def test_a_clock_that_is_an_hour_ahead(story: Story, version: str, one: LabNode) -> None:
    """Its driver's pod is made again meanwhile: it says ready, and is believed."""
    one.run("date", "--set", "+1 hour")
    try:
        story.delete_driver_pod(one)
        story.until_ready(version, node_1="loaded")
    finally:
        one.run("date", "--set", "-1 hour")
    story.delete_driver_pod(one)
    story.until_ready(version, node_1="loaded")


def test_an_etcd_that_is_restored(story: Story, version: str) -> None:
    """Its data are those from before a new version, which leaves the nodes again.

    Kubelets and controllers of Kubernetes are restarted, as etcd's manual says; ours are not.
    https://etcd.io/docs/v3.6/op-guide/recovery/
    """
    data = story.plane.place.directory / "etcd"
    kept = story.lab.directory / "etcd"
    with story.plane.without("kube-apiserver"), story.plane.without("etcd"):
        shutil.copytree(data, kept)
    story.until_ready(version)
    story.until_ready(story.roll_out())
    with story.plane.without("kube-apiserver"), story.plane.without("etcd"):
        shutil.rmtree(data)
        kept.rename(data)
    for name in ("kube-controller-manager", "kube-scheduler"):
        with story.plane.without(name):
            pass
    for node in story.lab.nodes.values():
        node.run("systemctl", "restart", "kubelet")
    story.until_ready(version)


def test_nodeside_itself_is_replaced_and_comes_back(story: Story, version: str) -> None:
    """Controller and base image become those of the version before, and these again."""
    version = story.roll_out()
    story.until_ready(version)
    story.until_stages()
    loading = [story.loading(node) for node in story.lab.nodes.values()]
    with before.before() as earlier:
        with engine(story.lab.workshop.cache) as builder:
            earlier.build(builder, story.lab.registry)
        for install in (partial(earlier.install, story.plane), story.lab.install):
            writes, leader = story.relabellings(), story.lab.leader
            install()
            story.until_leader_is_not(leader)
            story.touch()
            story.until_ready(version)
            assert story.relabellings() == writes
    image = story.push_on(before.DRIVER, version)
    story.apply_again(version, image=image)
    story.until_ready(version, node_1="loaded", node_2="loaded")
    story.apply_again(version)
    story.until_ready(version, node_1="loaded", node_2="loaded")
    assert [story.loading(node) for node in story.lab.nodes.values()] == loading


def test_an_engineer_works_by_hand(story: Story, version: str, one: LabNode) -> None:
    """The lines of on-a-node.md, in the driver's pod and beside it."""
    loading = story.loading(one)
    text = (TOP / "tests" / "lab" / "on-a-node.md").read_text()
    lines = "".join(re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert f"node={one.name}\n" in lines
    story.shell(lines)
    story.until_ready(version)
    assert story.loading(one) == loading

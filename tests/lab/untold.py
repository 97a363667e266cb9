"""Chapters of the long story that nobody has seen told from beginning to end.

`make lab-story` leaves them out. A chapter moves to long_story.py when it was seen:

    .venv/bin/python -m pytest tests/lab/untold.py -k api_server
"""

# ruff: noqa: F811 - fixtures are imported by name
from __future__ import annotations

import shutil
from functools import partial

import pytest

from tests.images.built import engine
from tests.lab import before
from tests.lab.long_story import (  # noqa: F401 - fixtures
    BY_HAND,
    FAILS,
    WITHOUT_KUBERNETES,
    blocks,
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


def test_stages_end_before_their_driver_changes(story: Story, version: str, one: LabNode) -> None:
    """No pod of a stage is left when the pod of the new version appears; they follow it again."""
    story.until_stages()
    version = story.roll_out()
    story.until_pod_of(one, version)
    assert story.stage_pods(one) == []
    story.until_ready(version)
    story.until_stages()


def test_a_build_that_eats_memory_is_named(story: Story, version: str) -> None:
    """The kernel kills the build, not the sidecar, nor the other version's driver."""
    build = {"kind": "command", "command": ["bash", "build.sh"], "memoryLimitMib": 256}
    greedy = story.roll_out("tail /dev/zero || exit", build=build)
    story.until_some_node("to fail", state="failed", version=greedy, reason="OutOfMemory")
    story.until_said("Progressing", "256 MiB")
    story.apply_again(version)
    story.until_ready(version)


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

"""A driver with a daemon and hooks in a cluster of two real nodes: chapters of `make lab-story`.

Each chapter begins where the driver is ready on both nodes, and ends so.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.model.names import NAMESPACE
from tests import daemon
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import Story
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails", "told")]


@pytest.fixture(scope="module")
def lab(pair: Lab) -> Lab:
    return pair


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        yield Story(lab, tmp_path_factory.mktemp("drivers"), builds, daemon.SPEC, series="1.2")


@pytest.fixture
def version(story: Story) -> str:
    """Of the driver that is ready on both nodes."""
    story.lab.offer_toolkits(story.lab.kernels[0])
    return story.begin()


def pids(node: LabNode) -> list[str]:
    """The processes of the daemon, as the node numbers them."""
    return node.run("pgrep", "--full", daemon.WORDS, check=False).output.split()


def log(story: Story, node: LabNode) -> str:
    """Of the driver container of now."""
    name = story.pod(node)["metadata"]["name"]
    return story.plane.kubectl("logs", name, "-n", NAMESPACE, "-c", "driver").output


def test_a_daemon_that_is_killed_is_missed_and_comes_back(
    story: Story, version: str, one: LabNode
) -> None:
    [row] = story.node_driver(one)["services"]
    assert (row["name"], row["ready"]) == ("monitor", True)
    loading, before = story.loading(one), pids(one)
    assert len(before) == 2

    one.run("kill", "-KILL", before[1])

    story.until_event("service monitor ended after", daemon.WORDS)
    story.wait_for(lambda: set(pids(one)).isdisjoint(before), "other processes of the daemon")
    story.until_node_ready(one, version)
    [row] = story.node_driver(one)["services"]
    assert row["restarts"] == 1
    explained = story.scene.cli("explain", "edu", one.name).output
    assert "service monitor: ready, started again once" in explained
    assert story.loading(one) == loading


def test_a_driver_container_that_is_killed_takes_its_daemon_with_it(
    story: Story, version: str, one: LabNode
) -> None:
    loading, before = story.loading(one), pids(one)

    story.kill_driver_container(one)

    story.until_node_ready(one, version, source="loaded")
    assert len(pids(one)) == 2
    assert set(pids(one)).isdisjoint(before)
    assert story.loading(one) == loading
    assert "hook=" not in log(story, one)


def test_a_new_version_stops_the_daemon_that_holds_the_device(
    story: Story, version: str, one: LabNode, two: LabNode
) -> None:
    before = {node.name: pids(node) for node in (one, two)}

    after = story.roll_out()

    story.until_ready(after)
    for node in (one, two):
        assert len(pids(node)) == 2
        assert set(pids(node)).isdisjoint(before[node.name])
        said = log(story, node)
        places = [
            said.index(f"hooks.{moment}[0]: done") for moment in ("beforeUnload", "afterLoad")
        ]
        assert places == sorted(places)


def test_work_by_hand_in_the_pod_of_a_driver_with_a_daemon(
    story: Story, version: str, one: LabNode
) -> None:
    def by_hand(*words: str) -> str:
        name = story.pod(one)["metadata"]["name"]
        into = ("exec", name, "-n", NAMESPACE, "-c", "driver", "--")
        return story.plane.kubectl(*into, "nodeside", "driver", *words).output

    before = pids(one)
    assert "running" in by_hand("services")
    assert "monitor" in by_hand("status")

    assert by_hand("services", "--stop").split() == ["stopped", "monitor"]
    story.wait_for(lambda: len(set(pids(one)) - set(before)) == 2, "the daemon to be there again")

    story.until_node_ready(one, version)
    loading = story.loading(one)
    assert by_hand("unload").split() == ["unloaded", "edu"]
    inode = ("stat", "--format=%i", "/sys/module/edu")
    story.wait_for(
        lambda: one.run(*inode, check=False).output.strip() not in ("", loading),
        "the module to be loaded again",
    )
    story.until_node_ready(one, version)


def test_a_driver_with_a_daemon_is_deleted(story: Story, version: str) -> None:
    story.plane.kubectl("delete", "driver", "edu", "--wait=false")
    story.until_gone()
    story.nothing_is_left()
    for node in story.lab.nodes.values():
        assert pids(node) == []

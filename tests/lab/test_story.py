"""The whole product in a real cluster: nothing is played.

The images are built by an engine; the controller is a Deployment of two replicas; pods run on nodes
with a kernel, systemd, containerd and a kubelet of their own. Each test goes on where the one
before ended.
"""

from __future__ import annotations

import pytest

from tests.lab.story import FOR_KERNELS, STAGES, Story

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails")]


def test_a_driver_is_built_in_its_pod_and_another_pod_computes(story: Story) -> None:
    [node] = story.lab.nodes.values()
    story.apply("1.0.0")
    story.until_ready("1.0.0", node_1="built")

    words = f"driver edu 1.0.0, kernel {node.kernel.release}: ready (built), modules edu"
    assert story.events("DriverReady") == [words]
    story.start_consumer(node)


def test_stages_follow_the_driver_and_their_log_is_read_through_the_kubelet(story: Story) -> None:
    [node] = story.lab.nodes.values()
    story.until_stages()

    gates = story.gates(node)
    assert [gate["reason"] for gate in gates] == ["Completed"] * len(STAGES)
    assert min(gate["finishedAt"] for gate in gates) >= story.ready_since(node)


def test_a_device_in_use_computes_on_whatever_happens_to_pods_and_services(story: Story) -> None:
    [node] = story.lab.nodes.values()
    loading = story.loading(node)

    story.kill_driver_container(node)
    story.until_ready("1.0.0", node_1="loaded")
    story.delete_driver_pod(node)
    for service in ("containerd", "kubelet"):
        node.run("systemctl", "restart", service)
    story.until_ready("1.0.0", node_1="loaded")

    story.until_counts()
    assert story.loading(node) == loading


def test_a_version_that_does_not_compile_is_named_and_leaves_the_device_to_its_users(
    story: Story,
) -> None:
    [node] = story.lab.nodes.values()
    loading = story.loading(node)
    version = story.roll_out("echo '#error no more' > broken.c && gcc -c broken.c || exit")
    story.until_node(node, state="failed", version=version, reason="Compile")

    assert "no more" in story.node_driver(node)["message"]
    words = story.scene.cli("explain", "edu").output
    assert "no more" in words, words
    assert story.loading(node) == loading
    story.until_counts()
    story.end_consumer()


def test_images_that_are_missing_are_named_and_done_without_or_waited_for(story: Story) -> None:
    [node] = story.lab.nodes.values()
    late = story.late_toolkit(node)
    version = story.roll_out(prebuilt={"image": FOR_KERNELS}, toolkit=late)
    story.until_pull_fails(f"drivers/edu:{version}-{node.kernel.release}")
    story.until_pull_fails("late/toolkit:")
    story.push_late_toolkit(node)
    story.until_ready(version, node_1="built")


def test_after_a_power_cut_the_stages_wait_for_the_driver_of_that_boot(story: Story) -> None:
    [node] = story.lab.nodes.values()
    version = story.node_driver(node)["version"]
    node.cut_power()
    story.boot(node)
    story.until_ready(version, node_1="cached")
    story.until_stages()
    assert min(gate["finishedAt"] for gate in story.gates(node)) >= story.ready_since(node)


def test_a_driver_that_is_deleted_leaves_nothing(story: Story) -> None:
    story.plane.kubectl("delete", "driver", "edu", "--wait=false")
    story.until_gone()
    story.nothing_is_left()

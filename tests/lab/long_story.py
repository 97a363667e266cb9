"""What befalls a driver in a cluster of two real nodes: `make lab-story`.

Each chapter begins where the driver is ready on both nodes, and ends so; `ARGS="-k registry"` runs
one alone. Outages last `--outage` seconds.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from cluster.model.names import NAMESPACE, stage_label
from tests import TOP
from tests.cluster.e2e.scene import JOBS
from tests.images.built import engine
from tests.lab import before
from tests.lab.content import toolkit_image
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import FOR_KERNELS, JOB_STAGE, LONG, SELFTEST, STAGES, Story
from tests.lab.system import ostree_version
from tests.node.configuration import REGISTRY
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("shown_if_it_fails", "told")]

BY_HAND, WITHOUT_KUBERNETES = TOP / "docs" / "on-a-node.md", "\n## Without Kubernetes\n"
UNKNOWN_BEFORE: dict[str, Any] = {"devices": None}  # parts of `spec` that the version before drops
FAILS = "echo '#error no more' > broken.c && gcc -c broken.c || exit"


def blocks(markdown: str) -> list[str]:
    """The lines that a page has its reader type, a text for each block."""
    return re.findall(r"^```\n(.*?)^```$", markdown, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def lab(pair: Lab) -> Lab:
    return pair


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        # The short story has devices: one stage more takes each chapter longer.
        changes = {"stages": STAGES, "devices": None}
        story = Story(lab, tmp_path_factory.mktemp("drivers"), builds, changes)
        story.write_stages()
        yield story


@pytest.fixture
def version(story: Story) -> Iterator[str]:
    """Of the driver that is ready on both nodes."""
    story.lab.offer_toolkits(story.lab.kernels[0])
    yield story.begin()
    for name in ("one", "two"):
        story.end_consumer(name)


def test_both_nodes_build_in_their_sidecars_and_compute(
    story: Story, one: LabNode, two: LabNode
) -> None:
    """The first driver: kbuild in the toolkit container of each node; stages follow."""
    story.lab.offer_toolkits(story.lab.kernels[0])
    story.apply("1.0.0")
    story.until_ready("1.0.0", node_1="built", node_2="built")
    story.until_stages()
    for node, name in ((one, "one"), (two, "two")):
        story.start_consumer(node, name)
        story.end_consumer(name)


def test_a_reboot_opens_no_gate_before_the_driver_of_that_boot(
    story: Story, version: str, one: LabNode
) -> None:
    """A node reboots: its stages wait until the driver is ready again, from the cache."""
    story.until_stages()
    story.reboot(one)
    story.until_node_ready(one, version, "cached")
    story.until_stages()
    assert min(gate["finishedAt"] for gate in story.gates(one)) >= story.ready_since(one)


def test_a_power_cut_while_a_node_builds(story: Story, version: str) -> None:
    """A new version is being built on a node when its power is cut; it comes back and builds."""
    version = story.roll_out("sleep 30")
    node = story.until_some_node("to build", state="building", version=version)
    node.cut_power()
    story.boot(node)
    story.until_ready(version)


def test_stages_end_before_their_driver_changes(story: Story, version: str, one: LabNode) -> None:
    """No pod of a stage is left when the pod of the new version appears; they follow it again."""
    story.until_stages()
    version = story.roll_out()
    story.until_pod_of(one, version)
    assert story.stage_pods(one) == []
    story.until_ready(version)
    story.until_stages()


def test_a_job_tests_each_node_and_the_stages_wait_where_it_fails(
    story: Story, version: str, one: LabNode, two: LabNode
) -> None:
    """A stage of one Job: it fails on a node, which is repaired, and it runs again in each boot."""
    two.type(f"mkdir -p {SELFTEST} && touch {SELFTEST}/dark")
    story.write_job()
    story.apply_again(version, stages=[JOB_STAGE, *STAGES])
    message = story.until_reason("StagesReady", "StageFailed")
    first = story.jobs()
    assert f"stage selftest: {two.name}: Job selftest failed there: " in message
    said = "main: Error, exit code 3: LED 2 is dark"
    assert f"{said}: kubectl -n nodeside logs job/{first[two.name]}" in message
    story.wait_for(
        lambda: stage_label("edu", "second") in story.scene.labels(one.name),
        "the stages on the node that passed",
    )
    story.wait_for(lambda: story.stages_at(two) == {"selftest"}, "the stages to leave the other")

    two.type(f"rm {SELFTEST}/dark")
    story.plane.kubectl("delete", "job", first[two.name], "-n", NAMESPACE)
    story.until_stages()
    story.reboot(one)
    story.until_node_ready(one, version, "cached")
    story.wait_for(lambda: story.jobs().get(one.name) not in (None, first[one.name]), "a new run")
    story.until_stages()
    assert story.jobs()[two.name] == first[two.name]
    assert min(gate["finishedAt"] for gate in story.gates(one)) >= story.ready_since(one)

    story.apply_again(version)
    story.wait_for(lambda: not story.jobs(), "the Jobs to go with their stage")
    story.until_stages()


def test_a_power_cut_between_unload_and_load(story: Story, version: str, one: LabNode) -> None:
    """The power goes when the old module is unloaded, and the new one not yet loaded."""
    _cut_power_of(story, one, "[ ! -e /sys/module/edu ]")


def test_a_power_cut_while_the_cache_is_written(story: Story, version: str, one: LabNode) -> None:
    """The power goes when a bundle is half in the node's cache."""
    _cut_power_of(story, one, 'set -- /var/lib/nodeside/cache/.tmp-*/*; [ -e "$1" ]')


def _cut_power_of(story: Story, node: LabNode, moment: str) -> None:
    """While a version is rolled out, as soon as this shell line is true on the node."""
    version = story.push_next()
    with node.power_cut_when(moment):
        story.apply_again(version)
    story.boot(node)
    story.until_ready(version)


def test_a_power_cut_of_a_node_that_waits_for_its_turn(story: Story, version: str) -> None:
    """In a rollout, while another node builds: the rollout goes on, and it comes back to it."""
    version = story.roll_out("sleep 60")
    building = story.until_some_node("to build", state="building", version=version)
    [waiting] = [node for node in story.lab.nodes.values() if node is not building]
    waiting.cut_power()
    story.until_node_ready(building, version)
    story.boot(waiting)
    story.until_ready(version)


def test_a_new_version_waits_for_who_holds_the_device(
    story: Story, version: str, one: LabNode
) -> None:
    """A pod holds the device: the module stays until it lets go."""
    story.start_consumer(one, "one")
    loading = story.loading(one)
    version = story.roll_out()
    story.until_node(one, reason="InUse")
    story.until_explained(one, "pod default/one)")
    story.until_counts("one")
    assert story.loading(one) == loading
    story.end_consumer("one")
    story.until_ready(version)


def test_pods_leave_a_node_before_its_driver_changes(
    story: Story, version: str, one: LabNode
) -> None:
    """The Driver evicts: the consumer goes, and the node is open again afterwards."""
    story.start_consumer(one, "one")
    version = story.roll_out(rollout={"evict": {"selector": {"app": "one"}}})
    story.until_consumer_is_gone("one")
    story.until_ready(version)
    assert not story.scene.nodes.get(one.name)["spec"].get("unschedulable")


def test_a_version_that_does_not_compile_stops_at_one_node(story: Story, version: str) -> None:
    """The canary fails; the other node keeps its driver; the old version is applied again."""
    broken = story.roll_out(FAILS)
    failed = story.until_some_node("to fail", state="failed", version=broken, reason="Compile")
    known = time.time()
    story.until_event(f"edu {broken}", "no more")
    told, said = time.time(), story.build_said(failed, "no more")
    story.remarks.append(
        f"{known - said:.1f} s after the compiler's error the NodeDriver had it, after "
        f"{told - said:.1f} s an Event."
    )
    message = story.until_reason("Progressing", "RolloutStopped")
    assert "no more" in message
    for node in story.lab.nodes.values():
        if node is not failed:
            assert story.node_driver(node)["version"] == version
    story.apply_again(version)
    story.until_ready(version)


def test_a_build_that_eats_memory_is_named(story: Story, version: str) -> None:
    """The kernel kills the build, not the sidecar, nor the other version's driver."""
    build = {"kind": "command", "command": ["bash", "build.sh"], "memoryLimitMib": 256}
    greedy = story.roll_out("tail /dev/zero || exit", build=build)
    story.until_some_node("to fail", state="failed", version=greedy, reason="OutOfMemory")
    story.until_said("Progressing", "256 MiB")
    story.apply_again(version)
    story.until_ready(version)


def test_a_paused_rollout_outlasts_a_reboot(story: Story, version: str, one: LabNode) -> None:
    """A node that reboots meanwhile gets the version before, not the paused one."""
    paused = story.roll_out(rollout={"paused": True})
    story.until_reason("Progressing", "RolloutPaused")
    story.reboot(one)
    story.until_node_ready(one, version, "cached")
    story.apply_again(paused)
    story.until_ready(paused)


def test_a_registry_that_is_down_takes_no_driver_away(
    story: Story, version: str, one: LabNode, outage: float
) -> None:
    """One Job builds for both nodes; the registry is killed, a pod is deleted, a node reboots."""
    version = story.roll_out(prebuilt=story.store)
    story.until_ready(version, node_1="fetched", node_2="fetched")
    story.until_built_for(1)
    with story.lab.without_registry():
        time.sleep(outage)
        story.delete_driver_pod(one)
        story.until_node_ready(one, version, "loaded")
        story.reboot(one)
        story.until_node_ready(one, version, "cached")
    story.until_ready(version)


def test_a_build_is_tried_for_a_kernel_that_no_node_has(story: Story, version: str) -> None:
    """`nodeside-cluster preflight` runs a Job, shows its output, and leaves nothing."""
    _, coming, _ = story.lab.own_kernels
    story.lab.offer_toolkits(*story.lab.kernels[:2])
    asked = ("preflight", "edu", "--os-version", ostree_version(coming.release))
    said = story.lab.cluster(*asked, timeout=LONG).output
    assert re.search(r"^verdict +it builds$", said, re.MULTILINE), said
    names = [job["metadata"]["name"] for job in story.scene.items(JOBS)]
    assert [name for name in names if name.startswith("edu-preflight-")] == []


def test_a_kernel_upgrade_finds_its_driver_built(
    story: Story, version: str, one: LabNode, two: LabNode
) -> None:
    """The image stream gets a tag, a Job builds, node after node reboots into the new kernel."""
    before, coming, _ = story.lab.own_kernels
    version = story.roll_out(prebuilt=story.store)
    story.until_ready(version)
    story.until_built_for(1)
    story.lab.offer_toolkits(before, coming)
    story.until_built_for(2)

    loading, uid = story.loading(two), story.uid(two)
    story.reboot(one, coming)
    story.until_node_ready(one, version, "fetched")
    assert (story.loading(two), story.uid(two)) == (loading, uid)
    assert len(story.scene.daemonsets()) == 2
    story.reboot(two, coming)
    story.until_ready(version, node_2="fetched")
    story.wait_for(lambda: len(story.scene.daemonsets()) == 1, "the pool of before to go")
    for node in (one, two):  # as the other chapters have them
        story.reboot(node, before)
    story.until_ready(version)


def test_a_real_time_kernel_is_a_pool_of_its_own(story: Story, version: str, two: LabNode) -> None:
    """One node runs Debian's real-time kernel, then the kernel of before again."""
    before, _, rt = story.lab.own_kernels
    story.lab.offer_toolkits(before, rt)
    story.reboot(two, rt)
    story.until_ready(version)
    assert "PREEMPT_RT" in two.run("uname", "-v").output
    assert len(story.scene.status()["pools"]) == 2
    story.reboot(two, before)
    story.until_ready(version)


def test_an_image_for_a_kernel_that_is_missing(story: Story, version: str) -> None:
    """ErrImagePull: nodes build instead. With the next version the image is there."""
    image = {"image": FOR_KERNELS}
    version = story.roll_out(prebuilt=image)
    story.until_pull_fails(f"edu:{version}-")
    story.until_ready(version, node_1="built", node_2="built")
    version = story.push_next()
    story.push_for_kernels(version)
    story.apply_again(version, prebuilt=image)
    story.until_ready(version)
    for node in story.lab.nodes.values():
        assert [each["name"] for each in story.pod(node)["spec"]["containers"]] == ["driver"]


def test_a_toolkit_image_that_comes_late(story: Story, version: str, one: LabNode) -> None:
    """The nodes wait for the toolkit image, and build as soon as it can be pulled."""
    version = story.roll_out(toolkit=story.late_toolkit(one))
    story.until_pull_fails("late/toolkit")
    story.push_late_toolkit(one)
    story.until_ready(version)


def test_controllers_that_are_killed(story: Story, version: str) -> None:
    """Both at once, in the middle of a rollout; the next leader finishes it."""
    version = story.roll_out("sleep 10")
    story.until_some_node("to build", state="building", version=version)
    assert story.kill_controllers() == 2
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
    now = [story.scene.labels(node.name) for node in (one, two)]
    assert [set(a.items()) ^ set(b.items()) for a, b in zip(now, labels, strict=True)] == [
        set(),
        set(),
    ]


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


def test_a_node_of_another_architecture(story: Story, version: str) -> None:
    """An arm64 node lacks a toolkit, and says so; with one, a Job builds for it, and it fetches."""
    kernel = story.lab.kernel("cloud-arm64")
    story.lab.offer_toolkits(story.lab.kernels[0])
    node = story.lab.new_node(kernel)
    story.boot(node)
    story.apply("1.0.0")
    assert kernel.release in story.until_reason("Degraded", "ToolkitMissing")
    toolkit = {"images": {kernel.release: toolkit_image(kernel.release)}}
    story.apply("1.0.0", toolkit=toolkit, prebuilt=story.store)
    story.until_ready("1.0.0", node_3="fetched")
    pools = story.scene.status()["pools"]
    assert sorted(pool["architecture"] for pool in pools) == ["aarch64", "x86_64"]
    story.lab.delete_node(node)
    story.lab.kernels.remove(kernel)
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
    version = story.roll_out(**UNKNOWN_BEFORE)
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
    story.apply_again(version, image=image, **UNKNOWN_BEFORE)
    story.until_ready(version, node_1="loaded", node_2="loaded")
    story.apply_again(version, **UNKNOWN_BEFORE)
    story.until_ready(version, node_1="loaded", node_2="loaded")
    assert [story.loading(node) for node in story.lab.nodes.values()] == loading


def test_a_token_that_was_stolen_from_a_node(
    story: Story, version: str, one: LabNode, two: LabNode
) -> None:
    """What docs/cluster.md#security says that a driver pod's token may do, and nothing else."""
    token = story.token(one)
    node, other = f"/api/v1/nodes/{one.name}", f"/api/v1/nodes/{two.name}"
    pods, secrets = (f"/api/v1/namespaces/{NAMESPACE}/{what}" for what in ("pods", "secrets"))
    theirs = f"/apis/nodeside.io/v1alpha1/nodedrivers/edu.{two.name}"
    state = {"metadata": {"labels": {"nodeside.io/edu.state": "ready"}}}
    role = {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "stolen", "namespace": "default"},
        "eventTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        "action": "Bringup",
        "type": "Warning",
        "reason": "DriverFailed",
        "note": "forged",
        "reportingController": "nodeside.io/driver",
        "reportingInstance": "stolen",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": two.name, "uid": two.name},
    }
    refused = [
        ("PATCH", other, state),
        ("PATCH", node, role),
        ("PATCH", node, {"spec": {"unschedulable": True}}),
        ("PATCH", f"{node}/status", {"status": {"phase": "Running"}}),
        ("PATCH", theirs, {"status": {"state": "failed"}}),
        ("DELETE", theirs, None),
        ("DELETE", node, None),
        ("GET", pods, None),
        ("GET", secrets, None),
        ("GET", "/api/v1/secrets", None),
        ("GET", "/apis/nodeside.io/v1alpha1/drivers", None),
        ("POST", pods, {"metadata": {"name": "stolen"}, "spec": {"containers": []}}),
        ("POST", f"{pods}/{story.pod(two)['metadata']['name']}/exec", None),
        ("DELETE", f"{pods}/{story.pod(two)['metadata']['name']}", None),
        ("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event),
    ]
    answers = [(*each, story.ask(token, *each).status) for each in refused]
    assert [each for each in answers if each[-1] != 403] == []
    assert story.ask(token, "PATCH", node, state).status == 200
    assert story.ask(token, "GET", other, None).status == 200
    story.until_ready(version)


def test_an_engineer_works_by_hand(story: Story, version: str, one: LabNode) -> None:
    """The lines of docs/on-a-node.md, in the driver's pod and beside it."""
    loading = story.loading(one)
    lines = blocks(BY_HAND.read_text().partition(WITHOUT_KUBERNETES)[0])
    assert f"node={one.name}\n" in lines[0]
    story.shell("".join(lines))
    story.until_ready(version)
    assert story.loading(one) == loading


def test_an_engineer_has_podman_and_no_kubernetes(story: Story, version: str, two: LabNode) -> None:
    """On a node whose kubelet, containerd, pods and Python are off: build, repeat, load, unload."""
    broken = story.push_next(FAILS)
    begin, end = blocks(BY_HAND.read_text().partition(WITHOUT_KUBERNETES)[2])
    names = "".join(begin.splitlines(keepends=True)[:3])
    python = two.run("readlink", "-f", "/usr/bin/python3").output.strip()
    two.run("systemctl", "stop", "kubelet", "containerd")
    two.run("sh", "-c", "echo 1 >/sys/fs/cgroup/kubepods.slice/cgroup.kill")
    two.run("chmod", "a-x", python)
    try:
        two.type(begin)
        failed = two.type(
            f"{names}driver={REGISTRY}/drivers/edu:{broken}\non_node build", check=False
        )
        assert failed.exit_code == 10, failed
        [repeat] = re.findall("to repeat it, in the toolkit container:\n(.*)", failed.errors)
        again = two.run("podman", "exec", "toolkit", "bash", "-c", repeat, check=False)
        assert again.exit_code != 0
        assert "no more" in again.errors
        in_use = two.type(names + end)
        assert "sleep" in in_use.errors
        assert two.run("test", "-e", "/sys/module/edu", check=False).exit_code == 1
    finally:
        two.run("chmod", "a+x", python)
        two.run("systemctl", "start", "containerd", "kubelet")
    story.until_ready(version)


def test_the_driver_is_deleted_while_a_node_is_down(
    story: Story, version: str, two: LabNode
) -> None:
    """Modules are unloaded where a node is up; the other loses its own with its power."""
    two.cut_power()
    story.plane.kubectl("delete", "driver", "edu", "--wait=false")
    story.until_gone()
    story.boot(two)
    story.nothing_is_left()

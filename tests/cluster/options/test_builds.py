"""Built once for each kernel, by a Job; nodes wait, fetch, or build for themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.cli.explain import explain_driver, explain_node
from cluster.driver.pod_policy import rebuilt_pods_of
from cluster.model.retries import REBUILD_NOTE, parse_rebuild
from cluster.model.snapshot import (
    BuildJob,
    BuildPod,
    DaemonSetObject,
    DriverPod,
    ImageStream,
    Snapshot,
    ToolkitLabels,
)
from cluster.model.waiting import Waiting
from cluster.options.build_once.builds import outcome_of
from cluster.options.build_once.job_manifest import ORDER, SharedBuild, build_job
from cluster.plan import plan_driver
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict
from nodeside.protocol.node_status import NOTHING_SERVED, State
from nodeside.spec.pods import Pods, PullPolicy
from tests.cluster.fakes.model import EDU, KERNEL, Model

STORE = {"oci": "registry.example.com/bundles/edu", "publish": True}
PREBUILT = {"sources": [STORE]}
NEW_KERNEL = "6.1.0-51-amd64"
STREAM = "openshift/driver-toolkit"
BY_TAG: dict[str, Any] = {"toolkit": {"imageStream": STREAM}}
OLD_OS, NEW_OS = "418.94.202501221327-0", "418.94.202503102036-0"
COREOS = "Red Hat Enterprise Linux CoreOS"


@pytest.fixture
def model() -> Model:
    made = Model()
    made.add(["n1", "n2", "n3"])
    made.apply_driver(prebuilt=PREBUILT)
    return made


def tags(*versions: str) -> dict[str, ImageStream]:
    return {STREAM: ImageStream(STREAM, {v: f"quay.example.com/dtk:{v}" for v in versions})}


def only(model: Model) -> DaemonSetObject:
    [found] = model.daemonsets.values()
    return found


def row(model: Model, index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = model.drivers["edu"].status["pools"][index]
    return found


# --- the way it goes ------------------------------------------------------------------------------


def test_three_nodes_of_one_kernel_are_one_build_and_three_that_fetch(model: Model) -> None:
    model.settle()
    assert len(model.jobs) == 1
    assert model.daemonsets == {}
    assert model.condition("Ready")["reason"] == "Building"
    assert row(model)["reason"] == "Building"

    model.end_build()
    model.settle_ready()

    assert only(model).toolkit == ""
    assert model.condition("Ready")["status"] == "True"
    assert len(model.made) == 1
    assert [say.reason for say in model.said] == ["RolloutStarted", "Built", "Ready"]


def test_without_publish_every_node_builds_as_ever() -> None:
    model = Model()
    model.add(["n1"])
    model.apply_driver(prebuilt={"sources": [{"oci": STORE["oci"]}]})
    model.settle_ready()
    assert model.jobs == {}
    assert only(model).toolkit


def test_to_turn_building_once_on_disturbs_no_node(model: Model) -> None:
    model.apply_driver(prebuilt={"sources": [{"oci": STORE["oci"]}]})
    model.settle_ready()
    before = dict(model.daemonsets)

    model.apply_driver(prebuilt=PREBUILT)
    model.settle()
    model.end_build()
    model.settle()

    assert {name: d.applied for name, d in model.daemonsets.items()} == {
        name: d.applied for name, d in before.items()
    }
    assert model.condition("Ready")["status"] == "True"


def test_a_driver_that_does_not_compile_touches_no_node_and_says_the_first_error(
    model: Model,
) -> None:
    model.settle()
    model.end_build(BuildVerdict.REFUSED, reason="Compile", first_error="edu.c:42: error: x")
    model.settle()

    assert model.daemonsets == {}
    degraded = model.condition("Degraded")
    assert degraded["reason"] == "BuildFailed"
    assert degraded["message"] == (
        f"version 1.0.0 does not build for kernel {KERNEL}: edu.c:42: error: x; "
        "no node was changed for it"
    )
    [warning] = [event for event in model.said if event.warning][:1]
    assert "edu.c:42: error: x" in warning.note
    [job] = model.snapshot.build_jobs
    for said in (explain_node(model.snapshot, "edu", "n1"), explain_driver(model.snapshot, "edu")):
        assert any("edu.c:42" in line for line in said.blocks)
        commands = [each.command for each in said.do]
        assert commands[0] == f"kubectl logs -n nodeside job/{job} -c answer"
        assert commands[1].startswith("nodeside-cluster preflight edu --toolkit ")
        assert f"kubectl delete job -n nodeside {job}" in commands


def test_a_new_version_that_does_not_compile_leaves_the_old_one_working(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    good = model.revision("n1")

    model.apply_driver(prebuilt=PREBUILT, version="2.0.0")
    model.settle()
    assert model.condition("Ready")["reason"] == "Building"
    model.add(["n4"])
    model.settle_ready()
    assert model.revision("n4") == good  # a new node does not wait for the newest
    model.end_build(BuildVerdict.REFUSED, first_error="no")
    model.settle_ready()

    assert {model.revision(name) for name in model.nodes} == {good}
    assert model.condition("Degraded")["reason"] == "BuildFailed"
    assert model.drivers["edu"].status["nodes"]["ready"] == 4


def test_a_new_version_rolls_out_once_it_is_built(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    model.apply_driver(prebuilt=PREBUILT, version="2.0.0")
    model.settle()
    model.end_build()
    model.settle_ready()

    assert {model.serving(name).toolkit for name in model.nodes} == {""}  # type: ignore[union-attr]
    assert model.condition("Progressing")["reason"] == "Complete"
    assert len(model.jobs) == 1  # that of the old version is retired
    assert len(model.made) == 2


def test_revisions_that_build_the_same_are_built_once(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    model.apply_driver(prebuilt=PREBUILT, modules=[{"name": "edu", "parameters": {"debug": "1"}}])
    model.settle_ready()
    assert len(model.made) == 1
    assert model.condition("Progressing")["reason"] == "Complete"


def test_a_job_keeps_the_revision_that_its_pods_mount(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_driver, "KEPT_REVISIONS", 0)
    model.settle()
    [job], first = model.jobs.values(), set(model.revisions)
    model.apply_driver(prebuilt=PREBUILT, modules=[{"name": "edu", "parameters": {"debug": "1"}}])
    model.settle()
    assert first < set(model.revisions)

    model.end_build()
    model.jobs[job.name] = replace(model.jobs[job.name], finished=True)
    model.settle_ready()

    assert not first & set(model.revisions)


# --- when it cannot be built once -----------------------------------------------------------------


def test_a_push_that_is_refused_has_the_nodes_build_and_says_so(model: Model) -> None:
    model.settle()
    model.end_build(BuildVerdict.BROKEN, reason="FetchFailed", message="push refused: 403")
    model.settle_ready()

    assert only(model).toolkit
    assert model.condition("Ready")["status"] == "True"
    assert row(model)["reason"] == "BuildingOnNodes"
    assert row(model)["message"] == (
        "the build failed: FetchFailed: push refused: 403; its nodes build for themselves"
    )


def test_a_build_whose_image_cannot_be_pulled_keeps_no_node_waiting(model: Model) -> None:
    model.settle()
    [job] = model.jobs.values()
    waiting = {"kernels": Waiting("ErrImagePull", "manifest unknown")}
    model.build_pods["p"] = BuildPod("p", job=job.name, driver="edu", waiting=waiting)
    model.settle_ready()
    assert only(model).toolkit
    assert "kernels: ErrImagePull: manifest unknown" in row(model)["message"]

    del model.build_pods["p"]  # it could be pulled at last
    model.end_build()
    model.settle_ready()
    assert only(model).toolkit  # what has a sidecar keeps it


# As kube-scheduler 1.34 writes it.
NO_PLACE = (
    "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). no new "
    "claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for "
    "scheduling."
)


def find_no_place(model: Model) -> BuildJob:
    """The scheduler finds no node for the pod of the only build."""
    [job] = model.snapshot.build_jobs.values()
    waiting = {"pod": Waiting("Unschedulable", NO_PLACE)}
    model.build_pods["p"] = BuildPod("p", job=job.name, driver="edu", waiting=waiting)
    return job


def test_a_build_that_waits_for_a_place_is_waited_for_and_says_so_at_once(model: Model) -> None:
    model.settle()
    job = find_no_place(model)
    model.settle()

    words = f"no node for the pod of Job {job.name}: {NO_PLACE}; spec.pods.buildJobs says "
    assert model.daemonsets == {}
    assert model.condition("Ready")["reason"] == "Unschedulable"
    assert words + "where builds run" in model.condition("Ready")["message"]
    assert model.condition("Progressing")["reason"] == "Unschedulable"
    assert row(model)["reason"] == "Unschedulable"
    for said in (explain_node(model.snapshot, "edu", "n1"), explain_driver(model.snapshot, "edu")):
        assert any(words in line for line in said.blocks)
        assert said.do[0].command == f"kubectl describe pods -n nodeside -l job-name={job.name}"

    del model.build_pods["p"]  # it was scheduled at last
    model.settle()
    assert model.condition("Ready")["reason"] == "Building"


def test_a_preflight_that_waits_for_a_place_says_so(model: Model) -> None:
    model.apply_driver(preflight=[{"toolkit": "quay.example.com/dtk:503"}])
    model.settle()
    find_no_place(model)
    model.settle()
    [answer] = model.drivers["edu"].status["preflight"]
    assert NO_PLACE in answer["message"]


def test_a_build_that_waits_for_a_place_follows_what_is_asked_of_its_pods(model: Model) -> None:
    model.settle()
    job = find_no_place(model)
    model.settle()
    assert model.made == [job.name], "it is not made anew while nothing has changed"

    nowhere: dict[str, Any] = {
        "pods": {"buildJobs": {"nodeSelector": {"example.com/pool": "builders"}}}
    }
    model.apply_driver(prebuilt=PREBUILT, **nowhere)
    model.carry_out(model.plan().actions)
    assert model.jobs == {}
    model.settle()
    assert model.made == [job.name, job.name]

    del model.build_pods["p"]  # it has a place now
    model.apply_driver(prebuilt=PREBUILT)
    model.settle()
    assert model.made == [job.name, job.name], "what builds goes on"


def test_a_driver_pod_without_a_place_says_so_at_once() -> None:
    model = Model()
    model.add(["n1"])
    model.apply_driver()
    model.settle()
    waiting = {"pod": Waiting("Unschedulable", NO_PLACE)}
    daemonset = only(model).name
    model.pods["p"] = DriverPod("p", driver="edu", node="n1", daemonset=daemonset, waiting=waiting)
    model.settle()
    assert NO_PLACE in model.condition("Ready")["message"]


def test_a_toolkit_with_another_kernel_than_the_nodes_have_them_build(model: Model) -> None:
    model.settle()
    model.end_build(kernel="6.1.0-49-amd64")
    model.settle_ready()
    assert only(model).toolkit
    assert "has kernel 6.1.0-49-amd64, not 6.1.0-50-amd64" in row(model)["message"]


USELESS: dict[str, Any] = {"reason": NOTHING_SERVED, "message": "no bundle of this kernel"}


def without_bundle(model: Model, *names: str) -> None:
    """Nodes report that their pods, which have no toolkit container, found no modules."""
    for name in names:
        model.report(name, State.FAILED, **USELESS)


def test_a_node_that_cannot_use_the_bundle_builds_and_the_others_stay(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    kept = model.serving("n2")
    assert kept is not None
    without_bundle(model, "n1")
    model.settle()

    built = model.serving("n1")
    assert built is not None
    assert built.toolkit
    assert built.revision == kept.revision
    assert [model.serving(name) for name in ("n2", "n3")] == [kept, kept]
    assert model.condition("Degraded")["status"] == "False", "its next pod can build"
    model.report("n1")
    model.settle_ready()
    assert row(model)["reason"] == "FellBack"
    assert row(model)["message"] == (
        "n1: the bundle built for all nodes cannot be used (n1: no bundle of this kernel); "
        "building instead"
    )
    assert [say.reason for say in model.said if say.warning] == ["FellBack"]


def test_a_node_that_comes_up_while_its_registry_is_away_asks_again_before_it_builds(
    model: Model,
) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    kept = model.serving("n1")
    assert kept is not None
    pod = DriverPod("p", driver="edu", node="n1", daemonset=kept.name, created=1000.0)
    model.pods["p"] = pod
    model.reboot("n1", ready_since=5000.0)
    without_bundle(model, "n1")

    made = model.plan(now=5010.0)
    model.carry_out(made.actions)

    assert model.serving("n1") == kept
    assert made.requeue_after == pytest.approx(290.0)
    assert model.condition("Degraded")["status"] == "False"
    assert "trying again: n1" in model.condition("Ready")["message"]

    model.carry_out(model.plan(now=5301.0).actions)
    built = model.serving("n1")
    assert built is not None
    assert built.toolkit


def test_though_no_node_can_use_the_bundle_a_new_one_tries_it_first(model: Model) -> None:
    model.apply_driver(prebuilt=PREBUILT, rollout={"canary": 0})
    model.settle()
    model.end_build()
    model.settle()
    without_bundle(model, "n1", "n2", "n3")
    model.settle()
    model.report_all()
    model.settle()
    model.add(["late"])
    model.settle()

    found = [model.serving(name) for name in ("n1", "n2", "n3", "late")]
    assert [each is not None and bool(each.toolkit) for each in found] == [True, True, True, False]
    without_bundle(model, "late")
    model.settle()
    model.report("late")
    model.settle_ready()
    assert model.serving("late") == model.serving("n1")
    assert only(model).toolkit, "nobody needs the other any more"


def test_where_a_node_cannot_build_either_it_fails(model: Model) -> None:
    model.apply_driver(prebuilt=PREBUILT, rollout={"canary": 0})
    model.settle()
    model.end_build()
    model.settle()
    without_bundle(model, "n1")
    model.settle()
    image = model.serving("n1")
    assert image is not None
    model.report("n1", State.FAILED, reason="Compile", message="edu.c:42: error")
    model.settle()

    assert model.condition("Degraded")["reason"] == "NodesFailed"
    assert row(model)["message"] == "n1: Compile: edu.c:42: error"


def test_a_canary_that_cannot_use_the_bundle_is_no_failure_of_the_rollout(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    model.apply_driver(version="2.0.0", prebuilt=PREBUILT)
    model.settle()
    model.end_build()
    model.settle()
    [canary] = {name for name in model.nodes if model.revision(name) != model.revision("n3")}
    without_bundle(model, canary)
    model.settle()
    assert model.condition("Progressing")["reason"] == "Canary"
    model.settle_ready()
    model.report_all()
    model.settle_ready()

    assert model.condition("Progressing")["reason"] == "Complete"
    assert [name for name in model.nodes if model.serving(name).toolkit] == [canary]  # type: ignore[union-attr]


def test_a_daemonset_that_builds_is_made_again_if_somebody_deletes_it(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle()
    without_bundle(model, "n1")
    model.settle()
    model.report_all()
    model.settle()
    found = model.serving("n1")
    assert found is not None
    del model.daemonsets[found.name]
    model.settle_ready()

    again = model.serving("n1")
    assert again is not None
    assert (again.name, again.toolkit) == (found.name, found.toolkit)


def test_a_note_that_somebody_removes_again_and_again_is_put_back(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    without_bundle(model, "n1")
    model.settle_ready()

    for _ in range(2):
        found = model.serving("n1")
        assert found is not None
        model.daemonsets[found.name] = replace(found, fell_back="")
        model.settle()

    found = model.serving("n1")
    assert found is not None
    assert found.fell_back


@pytest.mark.parametrize("lies", [False, True])
def test_a_node_that_builds_for_itself_holds_no_image_for_its_pool(lies: bool) -> None:
    model = Model(image_streams=tags(OLD_OS))
    image = f"quay.example.com/dtk:{OLD_OS}"
    model.add(["n1", "n2"], os_image=f"{COREOS} {OLD_OS}")
    model.apply_driver(prebuilt=PREBUILT, **BY_TAG)
    model.settle()
    model.end_build(kernel=KERNEL)
    model.settle_ready()
    if lies:
        without_bundle(model, "n1")
        model.settle_ready()

    model.image_streams = {STREAM: ImageStream(STREAM, {})}
    model.settle_ready()

    assert row(model)["toolkit"] == ""
    found = model.serving("n1")
    assert found is not None
    assert found.toolkit == (image if lies else ""), "what a node builds with it keeps"


def test_an_outcome_outlives_the_pod_that_said_it(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    model.build_pods.clear()
    model.settle()
    assert only(model).toolkit == ""


def test_a_job_that_somebody_deletes_is_made_again_and_no_node_is_touched(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    before = only(model).applied
    model.jobs.clear()
    model.build_pods.clear()
    model.settle()
    assert len(model.made) == 2
    assert only(model).applied == before


def order_rebuild(model: Model, time: str) -> None:
    model.drivers["edu"] = replace(model.drivers["edu"], rebuild=parse_rebuild(time))


def test_an_order_to_rebuild_repeats_a_failed_build_and_is_carried_out_once(model: Model) -> None:
    model.settle()
    model.end_build(BuildVerdict.BROKEN, reason="Toolchain", message="gcc is not there")
    model.settle()
    [first] = model.made

    order_rebuild(model, "2026-11-28T12:00:00Z")
    model.settle()
    model.end_build()
    model.settle_ready()

    assert len(model.made) == 2
    assert list(model.jobs) != [first]
    assert model.condition("Ready")["status"] == "True"

    order_rebuild(model, "yesterday, please")
    assert model.drivers["edu"].rebuild == "", "what is no time is no order"


def test_an_order_to_rebuild_touches_no_module(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    assigned = {name: node.labels for name, node in model.nodes.items()}
    before = only(model)

    order_rebuild(model, "2026-11-28T12:00:00Z")
    model.settle()
    model.end_build()
    model.settle_ready()

    assert len(model.made) == 2
    assert {name: node.labels for name, node in model.nodes.items()} == assigned
    after = only(model)
    assert (after.name, after.revision) == (before.name, before.revision)
    pod = after.spec["template"]
    assert pod["metadata"]["annotations"][REBUILD_NOTE] == "2026-11-28T12:00:00Z"
    assert {each["imagePullPolicy"] for each in pod["spec"]["containers"]} == {"Always"}


@pytest.mark.parametrize(
    ("job", "pod", "words"),
    [
        ({}, {"ended": "answer: OOMKilled, exit code 137"}, "answer: OOMKilled, exit code 137"),
        ({"why": "DeadlineExceeded: too long"}, {}, "DeadlineExceeded: too long"),
        ({}, None, "its pod reported nothing"),
    ],
)
def test_a_job_that_ends_without_a_word_says_what_kubernetes_knows(
    job: dict[str, Any], pod: dict[str, Any] | None, words: str
) -> None:
    pods = {"p": BuildPod("p", job="j", **pod)} if pod is not None else {}
    found = outcome_of(BuildJob("j", finished=True, **job), Snapshot(build_pods=pods))
    assert found == BuildOutcome(BuildVerdict.BROKEN, reason="BuildLost", message=words)


def test_the_last_try_counts_and_a_try_that_failed_ends_nothing() -> None:
    said = BuildOutcome(BuildVerdict.BROKEN, reason="FetchFailed")
    pods = {
        "a": BuildPod("a", job="j", created=1.0, outcome=said),
        "b": BuildPod("b", job="j", created=2.0, outcome=replace(said, reason="Later")),
    }
    snapshot = Snapshot(build_pods=pods)
    assert outcome_of(BuildJob("j"), snapshot) is None
    last = outcome_of(BuildJob("j", finished=True), snapshot)
    assert last is not None
    assert last.reason == "Later"


# --- the coming kernel ----------------------------------------------------------------------------


def test_the_kernel_to_come_is_built_before_the_reboot_and_not_again_after_it() -> None:
    model = Model(image_streams=tags(OLD_OS))
    model.add(["n1", "n2"], os_image=f"{COREOS} {OLD_OS}")
    model.apply_driver(prebuilt=PREBUILT, **BY_TAG)
    model.settle()
    model.end_build()
    model.settle_ready()

    model.image_streams = tags(OLD_OS, NEW_OS)
    model.settle()
    assert len(model.made) == 2
    model.end_build(kernel=NEW_KERNEL)
    model.settle()
    model.reboot("n1", kernel=NEW_KERNEL, os_image=f"{COREOS} {NEW_OS}")
    model.settle_ready()

    assert len(model.made) == 2
    moved = model.serving("n1")
    assert moved is not None
    assert (moved.pool.kernel, moved.toolkit) == (NEW_KERNEL, "")
    model.reboot("n2", kernel=NEW_KERNEL, os_image=f"{COREOS} {NEW_OS}")
    model.settle_ready()
    assert len(model.made) == 2
    assert len(model.jobs) == 1  # the old kernel's is retired with its last node


def test_the_good_revision_is_not_built_twice_for_a_kernel_that_comes_during_a_rollout() -> None:
    model = Model(image_streams=tags(OLD_OS))
    model.add(["n1", "n2"], os_image=f"{COREOS} {OLD_OS}")
    model.apply_driver(prebuilt=PREBUILT, **BY_TAG)
    model.settle()
    model.end_build()
    model.image_streams = tags(OLD_OS, NEW_OS)
    model.settle()
    model.end_build(kernel=NEW_KERNEL)
    model.settle_ready()
    assert len(model.made) == 2

    paused = {"paused": True}
    model.apply_driver(version="2.0.0", prebuilt=PREBUILT, rollout=paused, **BY_TAG)
    model.settle()
    assert len(model.made) == 4, "the newest one for both kernels"
    model.reboot("n1", kernel=NEW_KERNEL, os_image=f"{COREOS} {NEW_OS}")
    model.settle_ready()

    assert len(model.made) == 4
    moved = model.serving("n1")
    assert moved is not None
    assert moved.revision == model.drivers["edu"].status["lastGoodRevision"]


def test_tags_without_a_version_are_no_coming_kernels_and_other_systems_hide_none() -> None:
    rhel = "5.14.0-427.13.1.el9_4.x86_64"
    model = Model(image_streams=tags(OLD_OS, NEW_OS, "latest", "latest-rhel-10"))
    model.add(["n1"], os_image=f"{COREOS} {OLD_OS}", kernel=rhel)
    model.add(["n2"], os_image="Red Hat Enterprise Linux 9.4 (Plow)", kernel=rhel)
    model.toolkit_labels[f"quay.example.com/dtk:{OLD_OS}"] = ToolkitLabels(rhel)
    model.apply_driver(prebuilt=PREBUILT, **BY_TAG)
    model.settle()

    assert {row(model, 0)["link"], row(model, 1)["link"]} == {"image-stream", "image-labels"}
    assert len(model.jobs) == 2  # both nodes' kernels are the plain one of their image


def test_realtime_nodes_have_the_realtime_kernel_of_the_coming_toolkit_built() -> None:
    model = Model(image_streams=tags(OLD_OS, NEW_OS))
    model.add(["plain"], os_image=f"{COREOS} {OLD_OS}", kernel="5.14.0-427.el9.x86_64")
    model.add(["rt"], os_image=f"{COREOS} {OLD_OS}", kernel="5.14.0-427.el9.x86_64+rt")
    model.apply_driver(prebuilt=PREBUILT, **BY_TAG)
    model.settle()
    assert len(model.jobs) == 4


# --- questions ------------------------------------------------------------------------------------


def decisions(model: Model) -> list[tuple[str, str]]:
    rows = model.drivers["edu"].status["preflight"]
    return [(row["verdict"], row["message"]) for row in rows]


def test_a_question_is_built_without_publishing_and_answered_in_the_status() -> None:
    model = Model()
    model.add(["n1"])
    model.apply_driver()
    model.settle_ready()
    model.apply_driver(preflight=[{"kernel": NEW_KERNEL}])
    model.settle()
    [(decision, message)] = decisions(model)
    assert decision == "Building"
    assert f"builds for {NEW_KERNEL} with" in message
    assert model.condition("Ready")["status"] == "True"

    model.end_build(BuildVerdict.REFUSED, kernel=NEW_KERNEL, first_error="edu.c:1: error: no")
    model.settle()
    assert decisions(model) == [("DoesNotBuild", "edu.c:1: error: no")]
    assert model.condition("Degraded")["status"] == "False"

    model.apply_driver()
    model.settle()
    assert model.jobs == {}
    assert decisions(model) == []


def test_a_question_that_a_coming_build_answers_is_not_built_twice() -> None:
    model = Model(image_streams=tags(OLD_OS, NEW_OS))
    model.add(["n1"], os_image=f"{COREOS} {OLD_OS}")
    model.apply_driver(prebuilt=PREBUILT, preflight=[{"osVersion": NEW_OS}], **BY_TAG)
    model.settle()
    assert len(model.jobs) == 2


def test_a_question_without_a_toolkit_says_what_is_missing() -> None:
    model = Model(image_streams=tags(OLD_OS))
    model.add(["n1"], os_image=f"{COREOS} {OLD_OS}")
    model.apply_driver(preflight=[{"osVersion": NEW_OS}], **BY_TAG)
    model.settle()
    [(decision, message)] = decisions(model)
    assert decision == "Unknown"
    assert message.startswith(
        f"no toolkit image: image stream {STREAM} has no tag {NEW_OS}; wait for the tag"
    )


# --- the end --------------------------------------------------------------------------------------


def test_a_driver_that_is_deleted_takes_its_jobs_with_it(model: Model) -> None:
    model.settle()
    model.drivers["edu"] = replace(model.drivers["edu"], deleting=True)
    for _ in range(8):
        model.settle_deleting()
    assert model.jobs == {}
    assert model.drivers == {}


def test_explain_says_that_a_build_goes_on(model: Model) -> None:
    model.settle()
    said = explain_driver(model.snapshot, "edu")
    [job] = model.jobs
    words = f"Job {job} builds for {KERNEL} with {EDU['toolkit']['imageTemplate']}"
    assert any(words.replace("{kernel}", KERNEL) in line for line in said.next), said.next


def test_an_order_to_rebuild_asks_a_question_anew() -> None:
    model = Model()
    model.add(["n1"])
    model.apply_driver(preflight=[{"kernel": NEW_KERNEL}])
    model.settle()
    model.end_build(BuildVerdict.REFUSED, kernel=NEW_KERNEL, first_error="edu.c:1: error: no")
    model.settle()
    assert decisions(model)[0][0] == "DoesNotBuild"

    order_rebuild(model, "2026-11-28T12:00:00Z")
    model.settle()

    assert decisions(model)[0][0] == "Building"


def test_after_an_order_to_rebuild_a_question_and_a_coming_build_are_one_still() -> None:
    model = Model(image_streams=tags(OLD_OS, NEW_OS))
    model.add(["n1"], os_image=f"{COREOS} {OLD_OS}")
    model.apply_driver(prebuilt=PREBUILT, preflight=[{"osVersion": NEW_OS}], **BY_TAG)
    model.settle()
    order_rebuild(model, "2026-11-28T12:00:00Z")
    model.settle()

    assert len(model.jobs) == 2, "for the kernel that runs, and for the coming one"


def test_a_rebuild_that_a_store_refuses_leaves_the_nodes_as_they_are(model: Model) -> None:
    model.settle()
    model.end_build()
    model.settle_ready()
    before = only(model).name

    order_rebuild(model, "2026-11-28T12:00:00Z")
    model.settle()
    model.end_build(BuildVerdict.BROKEN, reason="FetchFailed", message="403: tag is immutable")
    model.settle()

    assert (only(model).name, only(model).toolkit) == (before, ""), "the store has the former one"


def test_a_rebuild_pulls_what_the_policy_of_the_driver_would_not(model: Model) -> None:
    order_rebuild(model, "2026-11-28T12:00:00Z")
    found = model.drivers["edu"]
    for asked, of_pods, of_jobs in (
        (None, "Always", "Always"),
        (PullPolicy.IF_NOT_PRESENT, "IfNotPresent", "Always"),
        (PullPolicy.NEVER, "Never", "Never"),
    ):
        assert found.driver is not None
        spec = replace(found.driver.spec, pods=Pods(image_pull_policy=asked))
        each = replace(found, driver=replace(found.driver, spec=spec))
        policy = rebuilt_pods_of(each).image_pull_policy
        assert policy is not None
        assert policy.value == of_pods
        assert each.driver is not None
        build = SharedBuild(each.driver, "0123456789ab", "toolkit", "x86_64", rebuild=found.rebuild)
        [container] = build_job(build, each, model.snapshot.settings)["spec"]["template"]["spec"][
            "containers"
        ]
        assert container["imagePullPolicy"] == of_jobs


def test_a_rebuild_is_no_option_that_an_older_driver_image_would_refuse(model: Model) -> None:
    order_rebuild(model, "2026-11-28T12:00:00Z")
    found = model.drivers["edu"]
    assert found.driver is not None
    build = SharedBuild(found.driver, "0123456789ab", "toolkit", "x86_64", rebuild=found.rebuild)

    pod = build_job(build, found, model.snapshot.settings)["spec"]["template"]["spec"]

    [order] = [each for each in pod["initContainers"] if each["name"] == ORDER]
    assert {"name": "NODESIDE_REBUILD", "value": "1"} in order["env"]
    assert "--rebuild" not in order["command"]

"""Plans, from what a cluster looks like to what is done, and what people are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.driver.revisions import read_revision, revision_of
from cluster.model.actions import Apply, Delete, EmitEvent, LabelNode, SetStatus
from cluster.model.names import FINALIZER, OSTREE_LABEL, before_label
from cluster.model.problems import Problem, ProblemKind
from cluster.model.snapshot import DriverPod, ImageStream, NodeReport, assignment_name
from cluster.model.waiting import Waiting
from cluster.plan import plan_driver
from cluster.plan.planner import plan
from nodeside.protocol.labels import assigned_label, state_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import EDU, KERNEL, PCI, Model
from tests.cluster.fakes.problems import with_problems

ASSIGNED = assigned_label("edu")
BEFORE = before_label("edu")
NEXT_KERNEL = "6.1.0-51-amd64"
STREAM = "openshift/driver-toolkit"
RHCOS = "Red Hat Enterprise Linux CoreOS 418.94.202501221327-0"


def running(count: int = 3, **spec: Any) -> Model:
    """A driver that works everywhere, its first revision good."""
    model = Model()
    model.add(f"n{number}" for number in range(count))
    model.apply_driver(**spec)
    model.settle_ready()
    return model


def labelled(model: Model) -> set[str]:
    """Nodes that the next plan relabels."""
    return {a.node for a in model.plan().actions if isinstance(a, LabelNode)}


def words(actions: Any) -> list[str]:
    return [action.words for action in actions]


def on_coreos(*tags: str) -> Model:
    model = Model(image_streams={STREAM: stream(*tags)})
    model.add(["n0"], os_image=RHCOS)
    model.apply_driver(toolkit={})
    return model


def stream(*tags: str) -> ImageStream:
    return ImageStream(STREAM, {tag: f"quay.io/dtk:{tag}" for tag in tags})


# --- the first rollout -------------------------------------------------------------------------


def test_a_new_driver_gets_its_revision_its_daemonset_and_then_its_nodes() -> None:
    model = Model()
    model.add(["n0", "n1"])
    model.apply_driver(rollout={"canary": 0})

    actions = model.settle()

    found = next(iter(model.daemonsets.values()))
    assert words(actions) == [
        f"set the finalizers of driver edu: {FINALIZER}",
        f"apply ConfigMap edu-revision-{found.revision}",
        "apply ConfigMap edu-node-policy",
        f"apply DaemonSet {found.name}",
        f"label node n0 {ASSIGNED}={found.assignment}",
        f"label node n1 {ASSIGNED}={found.assignment}",
        "set the status of driver edu",
        "create Event RolloutStarted of driver edu",
    ]
    assert model.condition("Ready")["message"] == "works on 0 of 2 nodes; starting: n0, n1"


def test_what_nodes_do_is_told_by_their_own_reports() -> None:
    model = Model()
    model.add(f"n{number}" for number in range(7))
    model.apply_driver(rollout={"canary": 0})
    model.settle()
    for node in ("n0", "n1", "n2", "n3"):
        model.report(node, State.BUILDING)
    model.report("n4", State.LOADING)
    model.report("n5", State.READY)
    model.settle()

    doing = "building: n0, n1, n2 and 1 more node; loading: n4; starting: n6"
    assert model.condition("Ready")["message"] == f"works on 1 of 7 nodes; {doing}"
    [pool] = model.drivers["edu"].status["pools"]
    assert (pool["reason"], pool["message"]) == ("NodesBusy", doing)


@pytest.mark.parametrize("canary", [0, 1, 3])
def test_a_first_rollout_goes_to_its_canaries_and_then_to_every_node_with_one_call_each(
    canary: int,
) -> None:
    model = Model()
    model.add(f"n{number}" for number in range(300))
    model.apply_driver(rollout={"maxUnavailable": "1", "canary": canary})

    labelled = []
    for _ in range(3):
        labelled.append(sum(isinstance(action, LabelNode) for action in model.settle()))
        model.report_all()
    model.settle()

    assert labelled == ([canary, 300 - canary, 0] if canary else [300, 0, 0])
    assert model.condition("Ready")["message"] == "works on 300 nodes"


def test_each_kernel_has_a_daemonset_of_its_own() -> None:
    model = Model()
    model.add(["n0", "n1"])
    model.add(["n2"], kernel=f"{KERNEL}+rt")
    model.add(["n3"], architecture="aarch64")
    model.apply_driver()

    model.settle_ready()

    assert {found.pool.kernel for found in model.daemonsets.values()} == {KERNEL, f"{KERNEL}+rt"}
    assert len(model.daemonsets) == 3
    assert {row["nodes"]["ready"] for row in model.drivers["edu"].status["pools"]} == {1, 2}


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (
            {"node-role.kubernetes.io/workr": ""},
            "no node has node-role.kubernetes.io/workr=; there is node-role.kubernetes.io/worker",
        ),
        ({"rack": "b"}, "no node has rack=b; there is rack=a"),
        ({"gpu": "yes"}, "no node has gpu=yes"),
        (
            {"rack": "a", "gpu": "yes"},
            "no node has rack=a, gpu=yes",
        ),
    ],
)
def test_a_mistyped_label_is_told_with_the_one_that_nodes_have(
    selector: dict[str, str], words: str
) -> None:
    model = Model()
    model.add(["n0"], labels={"node-role.kubernetes.io/worker": "", "rack": "a"})
    model.apply_driver(hardware={"nodeSelector": selector})

    model.settle()

    assert model.condition("Ready")["reason"] == "NoNodes"
    assert model.condition("Ready")["message"] == words


def test_a_mistyped_device_is_told_with_the_one_of_the_vendor_that_nodes_have() -> None:
    model = Model()
    there = "feature.node.kubernetes.io/pci-0300_1234_11e8.present"
    other = "feature.node.kubernetes.io/pci-0300_8086_11e9.present"
    model.add(["n0"], labels={other: "true", there: "true"})
    model.apply_driver(hardware={"pci": [{"vendor": "1234", "device": "11e9"}]})

    model.settle()

    assert model.condition("Ready")["message"].endswith(f"; there is {there}")
    model.change("n0", labels={other: "true"})
    model.settle()
    assert "there is" not in model.condition("Ready")["message"]


def test_nodes_without_the_hardware_get_nothing() -> None:
    model = Model()
    model.add(["n0"], labels={})
    model.apply_driver()

    model.settle()

    assert not model.daemonsets
    assert model.condition("Ready")["reason"] == "NoNodes"
    assert model.condition("Ready")["message"] == (
        "no node has PCI device 1234:11e8, by the labels of Node Feature Discovery "
        "(is its class in deviceClassWhitelist?)"
    )


def test_what_is_already_so_is_not_done_again_by_a_new_controller() -> None:
    model = running()

    assert model.plan(now=1e9).actions == ()


# --- toolkits ----------------------------------------------------------------------------------


def test_a_node_without_a_toolkit_waits_and_the_tags_seen_are_named() -> None:
    model = on_coreos("417.94.202401010000-0", "latest")

    model.settle()

    assert not model.daemonsets
    assert model.condition("Degraded")["reason"] == "ToolkitMissing"
    message = model.condition("Degraded")["message"]
    assert f"kernel {KERNEL} on n0: no toolkit image" in message
    assert "has no tag 418.94.202501221327-0" in message
    assert "tags seen: 417.94.202401010000-0, latest" in message


def test_it_recovers_when_the_tag_appears() -> None:
    model = on_coreos()
    model.settle()

    model.image_streams = {STREAM: stream("418.94.202501221327-0")}
    model.settle_ready()

    (found,) = model.daemonsets.values()
    assert (found.toolkit, found.link) == ("quay.io/dtk:418.94.202501221327-0", "image-stream")
    assert model.condition("Ready")["status"] == "True"
    assert model.condition("Degraded")["status"] == "False"


def test_a_tag_that_vanishes_leaves_what_runs_alone() -> None:
    model = on_coreos("418.94.202501221327-0")
    model.settle_ready()
    before = next(iter(model.daemonsets.values())).spec

    model.image_streams = {}
    model.settle()

    assert next(iter(model.daemonsets.values())).spec == before
    assert model.condition("Ready")["status"] == "True"
    assert model.drivers["edu"].status["pools"][0]["link"] == "kept"


def test_a_node_that_moves_to_a_kernel_without_toolkit_is_released() -> None:
    model = on_coreos("418.94.202501221327-0")
    model.settle_ready()

    newer = RHCOS.replace("202501221327", "202502020000")
    model.reboot("n0", kernel=NEXT_KERNEL, os_image=newer)
    model.settle()

    assert ASSIGNED not in model.nodes["n0"].labels
    assert not model.daemonsets
    assert model.condition("Ready")["reason"] == "ToolkitMissing"


def test_a_late_label_that_alone_tells_the_os_version_is_corrected_when_it_comes() -> None:
    old, new = "418.94.202501221327-0", "419.96.202507011200-0"
    model = Model(image_streams={STREAM: stream(old, new)})
    model.add(["n0"], os_image="Red Hat Enterprise Linux CoreOS")
    model.relabel("n0", {OSTREE_LABEL: old})
    model.apply_driver(toolkit={})
    model.settle_ready()

    model.reboot("n0", kernel=NEXT_KERNEL)
    model.settle()
    model.report("n0", State.FAILED, reason="NoHeaders", message="headers of another kernel")
    model.settle()
    assert model.condition("Ready")["reason"] == "ToolkitRefused"

    model.relabel("n0", {OSTREE_LABEL: new})
    model.settle_ready()

    (found,) = model.daemonsets.values()
    assert (found.pool.os_version, found.toolkit) == (new, f"quay.io/dtk:{new}")
    assert model.condition("Ready")["status"] == "True"


def test_a_label_that_alone_tells_the_os_version_and_vanishes_takes_no_pod_away() -> None:
    model = on_coreos("418.94.202501221327-0")
    model.change("n0", os_image="Red Hat Enterprise Linux CoreOS")
    model.relabel("n0", {OSTREE_LABEL: "418.94.202501221327-0"})
    model.settle_ready()
    before = model.nodes["n0"].labels[ASSIGNED]

    model.relabel("n0", {OSTREE_LABEL: None})
    for state in (State.READY, State.BUILDING, State.FAILED):
        model.reboot("n0")
        model.settle()
        model.report("n0", state)
        model.settle()
        assert model.nodes["n0"].labels[ASSIGNED] == before


def test_the_state_of_a_node_that_moved_is_not_that_of_its_old_kernel() -> None:
    model = running(2)
    model.relabel("n0", {state_label("edu"): "ready"})
    model.reboot("n0", kernel=NEXT_KERNEL)

    model.settle()

    assert model.nodes["n0"].labels[state_label("edu")] == "waiting"
    assert state_label("edu") not in model.nodes["n1"].labels


def test_prebuilt_modules_need_no_toolkit() -> None:
    model = Model()
    model.add(["n0"])
    sources = [{"http": "https://example.com/drivers"}]
    model.apply_driver(toolkit={}, prebuilt={"sources": sources})

    model.settle()

    (found,) = model.daemonsets.values()
    assert found.toolkit == ""
    assert len(found.spec["template"]["spec"]["containers"]) == 1
    model.report_all()
    model.settle()
    assert model.condition("Ready")["status"] == "True"
    assert model.drivers["edu"].status["pools"][0]["reason"] == "PrebuiltOnly"


@pytest.mark.parametrize("toolkit", [{}, EDU["toolkit"]])
def test_a_driver_without_modules_needs_no_toolkit(toolkit: dict[str, Any]) -> None:
    model = Model()
    model.add(["n0"])
    devices = [{"resource": "example.com/unit", "discover": {"count": 40}}]
    model.apply_driver(toolkit=toolkit, modules=[], devices=devices)

    model.settle()

    (found,) = model.daemonsets.values()
    assert [each["name"] for each in found.spec["template"]["spec"]["containers"]] == ["driver"]
    model.report_all()
    model.settle()
    assert model.condition("Ready")["status"] == "True"
    assert model.drivers["edu"].status["pools"][0].get("reason", "") in ("", "Ready")


# --- rollouts ----------------------------------------------------------------------------------


def test_a_new_revision_goes_to_a_canary_first_and_then_by_the_budget() -> None:
    model = running(6, rollout={"maxUnavailable": "2"})
    model.apply_driver(version="2", rollout={"maxUnavailable": "2"})

    assert labelled(model) == {"n0"}
    model.settle()
    assert model.condition("Progressing")["reason"] == "Canary"
    model.report_all()
    assert labelled(model) == {"n1", "n2"}
    model.settle()
    assert model.condition("Progressing")["reason"] == "RollingOut"
    model.report("n1")
    assert labelled(model) == {"n3"}
    model.settle_ready()

    status = model.drivers["edu"].status
    assert status["lastGoodRevision"] == status["revision"]
    assert status["nodes"] == {"wanted": 6, "assigned": 6, "updated": 6, "ready": 6, "failed": 0}
    assert len(model.daemonsets) == 1
    assert len(model.revisions) == 2, "nodeside-cluster undo can go back"


def test_of_the_revisions_that_nothing_needs_the_three_youngest_stay() -> None:
    model, versions = running(), [str(number) for number in range(2, 8)]
    for version in versions:
        model.apply_driver(version=version)
        model.settle_ready()

    stored = [read_revision(each) for each in model.revisions.values()]
    assert sorted(each.spec.version for each in stored if each) == versions[-4:]


@pytest.mark.parametrize("done", range(4))
def test_the_rollout_after_a_leader_that_was_killed_has_a_canary(
    done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it did of the plan that ends a rollout: which revision is good is in the status."""
    monkeypatch.setattr(plan_driver, "KEPT_REVISIONS", 0)
    model = running(4, rollout={"maxUnavailable": "2"})
    model.apply_driver(version="2", rollout={"maxUnavailable": "2"})
    while labelled(model) or model.drivers["edu"].status["nodes"]["updated"] < 4:
        model.settle()
        model.report_all()
    last = model.plan().actions
    assert len(last) == 3

    model.carry_out(last[:done])
    model.apply_driver(version="3", rollout={"maxUnavailable": "2"})

    assert labelled(model) == {"n0"}


def test_the_failure_of_a_canary_stops_the_rollout_and_says_why() -> None:
    model = running(rollout={"maxUnavailable": "3"})
    old = model.drivers["edu"].status["revision"]
    model.apply_driver(version="2", rollout={"maxUnavailable": "3"})
    model.settle()

    model.report("n0", State.FAILED, reason="BuildFailed", message="edu.c:7: error")
    model.settle()

    new = model.drivers["edu"].status["revision"]
    degraded = model.condition("Degraded")
    assert degraded["reason"] == "RolloutStopped"
    assert degraded["message"] == (
        f"version 2 ({new}) failed on n0, where 1.0.0 ({old}) worked: BuildFailed: edu.c:7: error; "
        "correct the spec or go back to the old one: nodeside-cluster undo edu; "
        "to try this one again: nodeside-cluster retry edu"
    )
    assert model.condition("Progressing")["status"] == "False"
    assert {model.revision("n1"), model.revision("n2")} == {old}


def test_a_good_revision_of_a_newer_controller_is_good_for_an_older_one() -> None:
    model = running(4)
    [found] = model.revisions.values()
    text = found.document.replace('"version":', '"ofTheNextRelease":true,"version":')
    newer = revision_of(text)
    model.revisions = {f"edu-revision-{newer}": replace(found, revision=newer, document=text)}
    [served] = model.daemonsets.values()
    given = assignment_name("edu", served.pool, newer)
    model.daemonsets = {given: replace(served, name=given, assignment=given, revision=newer)}
    for name in model.nodes:
        model.relabel(name, {ASSIGNED: given})
        model.report(name)
    status = {**model.drivers["edu"].status, "lastGoodRevision": newer}
    model.drivers["edu"] = replace(model.drivers["edu"], status=status)

    model.apply_driver(version="2", rollout={"maxUnavailable": "100%", "canary": 1})

    assert len(labelled(model)) == 1


def test_going_back_takes_the_failed_node_at_once() -> None:
    model = running()
    old = model.drivers["edu"].status["revision"]
    model.apply_driver(version="2")
    model.settle()
    model.report("n0", State.FAILED)
    model.settle()

    model.apply_driver()
    model.settle_ready()

    assert {model.revision(name) for name in model.nodes} == {old}
    assert model.condition("Ready")["status"] == "True"
    assert len(model.daemonsets) == 1


def test_a_correction_goes_first_to_the_node_that_was_harmed() -> None:
    model = running()
    model.apply_driver(version="2")
    model.settle()
    model.report("n0", State.FAILED)
    model.settle()

    model.apply_driver(version="3")

    assert labelled(model) == {"n0"}
    model.settle()
    assert BEFORE in model.nodes["n0"].labels
    model.report("n0")
    assert labelled(model) == {"n1"}


def test_too_many_failures_stop_an_open_rollout() -> None:
    rollout = {"maxUnavailable": "5", "maxFailed": "2", "canary": 1}
    model = running(10, rollout=rollout)
    model.apply_driver(version="2", rollout=rollout)
    model.settle()
    model.report("n0")
    model.settle()
    model.report("n1", State.FAILED)
    model.settle()
    assert model.condition("Progressing")["reason"] == "RollingOut"

    model.report("n2", State.FAILED)
    model.settle()

    assert model.condition("Degraded")["reason"] == "RolloutStopped"
    assert model.condition("Degraded")["message"].startswith("version 2 (")
    assert "failed on n1, n2" in model.condition("Degraded")["message"]


def test_failures_within_the_limit_use_up_the_budget_and_that_is_said() -> None:
    rollout = {"maxUnavailable": "1", "maxFailed": "5", "canary": 0}
    model = running(rollout=rollout)
    model.apply_driver(version="2", rollout=rollout)
    model.settle()

    model.report("n0", State.FAILED)
    model.settle()

    assert labelled(model) == set()
    assert model.condition("Progressing")["reason"] == "RolloutBlocked"
    assert "n0 failed, and maxUnavailable is 1" in model.condition("Progressing")["message"]


def test_a_budget_of_nothing_blocks_a_rollout_and_that_is_said() -> None:
    model = running(2)
    for canary in (0, 1):
        model.apply_driver(version="2", rollout={"maxUnavailable": 0, "canary": canary})
        model.settle()

        said = model.condition("Progressing")
        assert (said["status"], said["reason"]) == ("False", "RolloutBlocked")
        assert said["message"].endswith(
            "; maxUnavailable is 0, so no node where it works is changed"
        )
        assert model.condition("Ready")["reason"] == "RolloutBlocked"


def test_a_node_that_did_not_work_before_is_no_failure_of_the_rollout() -> None:
    model = running()
    model.report("n2", State.FAILED)
    model.apply_driver(version="2")
    model.settle()
    model.report("n0")
    model.settle()
    model.report("n1")
    model.report("n2", State.FAILED)
    model.settle()

    status = model.drivers["edu"].status
    assert status["lastGoodRevision"] == status["revision"]
    assert model.condition("Degraded")["reason"] == "NodesFailed"


def test_a_paused_rollout_gives_new_and_moved_nodes_the_good_revision() -> None:
    model = running()
    good = model.drivers["edu"].status["revision"]
    model.apply_driver(version="2", rollout={"paused": True})
    model.settle()
    assert model.condition("Progressing")["reason"] == "RolloutPaused"

    model.add(["n9"])
    model.reboot("n0", kernel=NEXT_KERNEL)
    model.settle()

    assert {model.revision(name) for name in model.nodes} == {good}
    moved = model.serving("n0")
    assert moved is not None
    assert moved.pool.kernel == NEXT_KERNEL


def test_a_moved_node_gets_the_good_revision_in_the_middle_of_a_rollout() -> None:
    model = running()
    good = model.drivers["edu"].status["revision"]
    model.apply_driver(version="2")
    model.settle()
    model.report("n0")

    model.reboot("n0", kernel=NEXT_KERNEL)
    model.settle()

    assert model.revision("n0") == good


def test_an_image_that_cannot_be_pulled_is_a_failure_with_its_words() -> None:
    model = running()
    model.apply_driver(version="2", image="registry.example.com/drivers/edu:typo")
    model.settle()

    broken = model.serving("n0")
    assert broken is not None
    waiting = {"driver": Waiting("ImagePullBackOff", "manifest unknown")}
    model.pods["p"] = DriverPod(
        "p", driver="edu", node="n0", daemonset=broken.name, waiting=waiting
    )
    model.settle()

    assert model.condition("Degraded")["reason"] == "RolloutStopped"
    assert (
        "its pod cannot start: driver: ImagePullBackOff" in model.condition("Degraded")["message"]
    )


def test_report_of_previous_pod_is_ignored() -> None:
    model = running()
    model.apply_driver(version="2")
    model.settle()

    model.plan()

    assert model.drivers["edu"].status["nodes"]["ready"] == 2


def test_a_report_of_an_older_boot_is_void() -> None:
    model = running()

    model.reboot("n1")
    model.settle()

    assert model.drivers["edu"].status["nodes"]["ready"] == 2
    assert model.condition("Ready")["message"] == "works on 2 of 3 nodes; starting: n1"


def test_going_back_waits_for_the_word_of_a_node_that_was_just_changed() -> None:
    """Its last report is of the old revision: given that back, it would seem to work at once."""
    model = running()
    model.apply_driver(version="2")
    model.settle()
    assert BEFORE in model.nodes["n0"].labels

    model.apply_driver()
    assert "n0" not in labelled(model)
    model.settle()
    model.report("n0", State.LOADING)

    assert labelled(model) == {"n0"}


def test_a_rollout_is_not_complete_while_a_node_has_not_said_how_it_went() -> None:
    model = running(2)
    good = model.drivers["edu"].status["revision"]
    model.apply_driver(version="2")
    model.settle()
    model.report("n0")
    model.settle()
    model.report("n1", State.BUILDING)
    model.settle()

    assert model.drivers["edu"].status["nodes"]["updated"] == 2
    assert model.drivers["edu"].status["lastGoodRevision"] == good


def test_a_rollout_is_over_with_the_plan_that_assigns_the_last_node() -> None:
    """A node that was down comes back while another one fails: one plan does for both."""
    rollout = {"maxUnavailable": "2"}
    model = running(rollout=rollout)
    model.apply_driver(version="2", rollout=rollout)
    model.change("n2", ready=False)
    for name in ("n0", "n1"):
        model.settle()
        model.report(name)
    model.settle()
    assert BEFORE in model.nodes["n1"].labels

    model.report("n1", State.FAILED)
    model.change("n2", ready=True)

    assert labelled(model) == {"n1", "n2"}
    model.settle()
    assert BEFORE not in model.nodes["n1"].labels
    assert len(set(map(model.revision, model.nodes))) == 1


def test_a_node_of_a_rollout_that_is_over_is_forgiven_with_the_plan_that_assigns_it() -> None:
    """It is down, has another kernel, and somebody deleted the DaemonSet that it had."""
    model = running(rollout={"maxUnavailable": "1"})
    model.apply_driver(version="2", rollout={"maxUnavailable": "1"})
    model.settle()
    model.report("n0", State.FAILED)
    model.change("n0", ready=False)
    model.apply_driver(rollout={"maxUnavailable": "1"})
    model.settle()
    assert BEFORE in model.nodes["n0"].labels

    there = model.serving("n0")
    assert there is not None
    del model.daemonsets[there.name]
    model.reboot("n0", kernel=NEXT_KERNEL)

    model.settle()
    assert len(set(map(model.revision, model.nodes))) == 1
    assert BEFORE not in model.nodes["n0"].labels


def test_a_failure_of_a_rollout_that_is_over_does_not_hold_up_the_next_way_back() -> None:
    rollout = {"maxUnavailable": "1", "maxFailed": "2"}
    model = running(rollout=rollout)
    model.apply_driver(version="2", rollout=rollout)
    for name in ("n0", "n1"):
        model.settle()
        model.report(name)
    model.settle()
    model.report("n2", State.FAILED)
    model.settle()
    assert BEFORE not in model.nodes["n2"].labels
    assert BEFORE in model.nodes["n1"].labels

    model.apply_driver(version="3", rollout=rollout)
    model.settle()
    model.report("n0")
    model.apply_driver(version="2", rollout=rollout)

    assert labelled(model) == {"n0"}


def test_a_node_that_is_down_holds_no_rollout_up() -> None:
    model = running()
    model.change("n2", ready=False)
    model.apply_driver(version="2")

    model.settle()
    model.report("n0")
    model.settle()
    model.report("n1")
    model.settle()

    status = model.drivers["edu"].status
    assert status["lastGoodRevision"] == status["revision"]
    ready = model.condition("Ready")
    assert (ready["status"], ready["message"]) == (
        "True",
        "works on 2 nodes; nodes not ready: n2",
    )


def test_with_every_node_down_it_is_not_ready() -> None:
    model = running(1)
    model.change("n0", ready=False)
    model.settle()

    assert model.condition("Ready")["reason"] == "NodesNotReady"


def test_on_reboot_waits_for_the_reboot_of_each_node() -> None:
    model = running(upgrade="onReboot")
    model.apply_driver(version="2", upgrade="onReboot")
    model.settle()
    assert labelled(model) == set()
    assert model.condition("Progressing")["reason"] == "WaitingForReboot"

    for name in ("n1", "n0", "n2"):
        model.reboot(name)
        assert labelled(model) == {name}
        model.settle()
        model.report(name)
        model.settle()

    assert model.condition("Ready")["status"] == "True"
    assert len(model.daemonsets) == 1


def test_on_reboot_into_another_kernel_is_the_moment_too() -> None:
    model = running(upgrade="onReboot")
    model.apply_driver(version="2", upgrade="onReboot")
    model.settle()

    model.reboot("n1", kernel=NEXT_KERNEL)
    model.settle()

    assert model.revision("n1") == model.drivers["edu"].status["revision"]


# --- what others do ----------------------------------------------------------------------------


def test_labels_of_node_feature_discovery_that_vanish_change_nothing() -> None:
    model = running()

    for name in model.nodes:
        model.relabel(name, {PCI: None})

    assert model.plan().actions == ()


def test_a_hand_edited_daemonset_is_put_right() -> None:
    model = running()
    (found,) = model.daemonsets.values()
    whole = found.spec
    spec = {**whole, "template": {**whole["template"], "spec": {"containers": []}}}
    model.daemonsets[found.name] = replace(found, spec=spec)

    assert words(model.settle()) == [f"apply DaemonSet {found.name}"]
    assert model.daemonsets[found.name].spec == whole


def test_hand_edited_annotations_are_put_right() -> None:
    model = running()
    (found,) = model.daemonsets.values()
    other = replace(found.pool, kernel="6.6.6")
    model.daemonsets[found.name] = replace(found, pool=other)

    assert words(model.settle()) == [f"apply DaemonSet {found.name}"]


def test_a_daemonset_deleted_by_hand_comes_back_under_its_nodes() -> None:
    model = running()
    (found,) = model.daemonsets.values()
    del model.daemonsets[found.name]

    assert words(model.settle()) == [f"apply DaemonSet {found.name}"]


def test_a_daemonset_that_is_just_being_deleted_is_waited_for() -> None:
    model = running()
    (found,) = model.daemonsets.values()
    model.daemonsets[found.name] = replace(found, deleting=True)

    plan = model.plan()

    assert plan.actions == ()
    assert plan.requeue_after == 1.0


def test_a_label_taken_away_by_hand_comes_back() -> None:
    model = running()
    model.relabel("n1", {ASSIGNED: None})

    model.settle()

    assert model.revision("n1") == model.drivers["edu"].status["revision"]


def test_a_node_that_leaves_the_selector_is_cleaned_once_its_pod_is_gone() -> None:
    hardware = {"nodeSelector": {"example.com/edu": "yes"}}
    model = Model()
    model.add(["n0", "n1"], labels={"example.com/edu": "yes", state_label("edu"): "ready"})
    model.apply_driver(hardware=hardware)
    model.settle_ready()
    (found,) = model.daemonsets.values()
    model.pods["p"] = DriverPod("p", driver="edu", node="n1", daemonset=found.name)

    model.relabel("n1", {"example.com/edu": None})
    model.settle()
    assert ASSIGNED not in model.nodes["n1"].labels
    assert state_label("edu") in model.nodes["n1"].labels

    del model.pods["p"]
    model.settle_deleting()
    assert set(model.unloads()) == {"n1"}
    assert state_label("edu") in model.nodes["n1"].labels

    model.end_unload("n1")
    model.settle()
    assert model.nodes["n1"].labels == {}
    assert not model.pods
    assert set(model.node_drivers) == {"edu.n0"}


# --- drivers that are wrong, rival, or going ----------------------------------------------------


def test_a_driver_with_a_mistake_says_so_and_what_runs_stays() -> None:
    model = running()
    available = model.condition("Available")
    assert available["status"] == "True"
    model.apply_driver(modules=[{"name": "edu", "parameters": {"debug": 3}}])

    actions = model.settle()

    assert [type(action) for action in actions] == [SetStatus, EmitEvent]
    assert model.condition("Ready")["reason"] == "InvalidSpec"
    message = model.condition("Degraded")["message"]
    assert "$.spec.modules[0].parameters.debug: expected a string, got 3" in message
    assert "what runs on the nodes stays as it is" in message
    assert model.condition("Available") == available
    model.apply_driver()
    model.settle()
    assert model.condition("Ready")["status"] == "True"


def test_an_invalid_driver_knows_where_it_works_again_when_nodes_can_be_read_again() -> None:
    model = running()
    available = model.condition("Available")
    model.apply_driver(modules=[])
    unreadable = Problem(ProblemKind.UNREADABLE, "NodesUnreadable", "cannot watch nodes")
    model.carry_out(plan(with_problems(model.snapshot, ("edu", unreadable)), 0.0).actions)
    assert model.condition("Available")["status"] == "Unknown"

    model.settle()

    assert model.condition("Ready")["reason"] == "InvalidSpec"
    assert model.condition("Available") == available | {"observedGeneration": 2}


def test_invalid_driver_does_not_affect_others() -> None:
    model = Model()
    model.add(["n0"])
    model.apply_driver("bad", modules=[])
    model.apply_driver("good")

    model.settle()
    model.report_all(driver="good")
    model.settle()

    assert model.condition("Ready", "good")["status"] == "True"
    assert model.condition("Ready", "bad")["reason"] == "InvalidSpec"


def test_two_drivers_for_one_module_do_not_fight() -> None:
    model = running()
    model.drivers["edu"] = replace(model.drivers["edu"], created="2026-01-01T00:00:00Z")
    model.apply_driver("second", modules=[{"name": "edu"}, {"name": "more"}])
    model.drivers["second"] = replace(model.drivers["second"], created="2026-02-01T00:00:00Z")

    model.settle()

    assert {found.driver for found in model.daemonsets.values()} == {"edu"}
    assert model.condition("Degraded", "second")["reason"] == "ModuleConflict"
    assert model.condition("Degraded", "second")["message"] == (
        "driver edu came first and has a module of the same name: this one is not assigned to "
        "n0, n1, n2; delete one of the two drivers, or give them different nodes with "
        "hardware.nodeSelector"
    )
    assert model.condition("Ready")["status"] == "True"


def test_daemonsets_of_a_driver_that_is_gone_go_too() -> None:
    model = running(1)
    del model.drivers["edu"]

    (action,) = model.plan().actions

    assert isinstance(action, Delete)
    assert action.name in model.daemonsets


def test_what_nodes_said_of_a_driver_that_is_gone_goes_once_its_pods_are() -> None:
    model = running(3)
    for name in model.nodes:
        model.relabel(name, {state_label("edu"): "ready"})
    model.apply_driver("other", modules=[{"name": "other"}])
    model.settle()
    model.report_all(driver="other")
    model.settle()
    ending = DriverPod("edu-x", driver="edu", node="n2", deleting=True)
    model.pods["edu-x"] = ending
    del model.drivers["edu"]

    for _ in range(2):
        model.carry_out(model.plan().actions)

    left = [name for name in model.nodes if ASSIGNED in model.nodes[name].labels]
    assert left == ["n2"], "its pod may still speak"
    del model.pods["edu-x"]
    model.settle()
    assert {report.driver for report in model.node_drivers.values()} == {"other"}
    for node in model.nodes.values():
        assert set(node.labels) == {PCI, assigned_label("other")}


def test_a_driver_that_is_made_again_is_not_ready_by_what_was_said_before() -> None:
    model = running(1)
    del model.drivers["edu"]
    for _ in range(3):
        model.carry_out(model.plan().actions)
    assert model.plan().actions == ()

    model.apply_driver()
    model.settle()

    assert model.condition("Ready")["reason"] == "NodesBusy"


# --- what is told ------------------------------------------------------------------------------


def test_an_event_is_told_once() -> None:
    model = running()
    assert [say.reason for say in model.said] == ["RolloutStarted", "Ready"]
    model.said.clear()
    model.apply_driver(version="2")
    model.settle()
    model.report("n0", State.FAILED)
    model.settle()
    model.settle()

    assert [say.reason for say in model.said] == ["RolloutStarted", "RolloutStopped"]
    assert model.said[1].warning


def test_the_time_of_a_condition_is_that_of_its_last_change() -> None:
    model = Model()
    model.add(["n0"])
    model.apply_driver(rollout={"canary": 0})
    model.carry_out(model.plan(now=1000.0).actions)
    first = model.condition("Ready")["lastTransitionTime"]
    model.add(["n1"])
    model.carry_out(model.plan(now=2000.0).actions)
    assert model.condition("Ready")["lastTransitionTime"] == first
    model.report_all()
    model.carry_out(model.plan(now=3000.0).actions)

    assert first == "1970-01-01T00:16:40Z"
    assert model.condition("Ready")["lastTransitionTime"] == "1970-01-01T00:50:00Z"


@pytest.mark.parametrize(
    ("rollout", "first"),
    [
        ({"maxUnavailable": "50%", "canary": 0}, 5),
        ({"maxUnavailable": "1%", "canary": 0}, 1),
        ({"maxUnavailable": "0", "canary": 0}, 0),
        ({"maxUnavailable": "4", "canary": 3}, 3),
        ({"maxUnavailable": "2", "canary": 3}, 2),
        ({"maxUnavailable": 100, "canary": 0}, 10),
    ],
)
def test_amounts_are_numbers_or_percentages(rollout: dict[str, Any], first: int) -> None:
    model = running(10)
    model.apply_driver(version="2", rollout=rollout)

    assert len(labelled(model)) == first


def test_every_document_is_applied_with_its_kind_and_name() -> None:
    model = Model()
    model.add(["n0"])
    model.apply_driver(**EDU)

    applied = [a.document for a in model.plan().actions if isinstance(a, Apply)]

    assert [document["kind"] for document in applied] == ["ConfigMap", "ConfigMap", "DaemonSet"]


def test_of_many_reports_without_a_driver_some_are_deleted_at_a_time() -> None:
    model = running(1)
    for number in range(300):
        name = f"gone{number}.n0"
        model.node_drivers[name] = NodeReport(name, driver=f"gone{number}", node="n0")

    counts = []
    while deleted := [each for each in model.plan().actions if isinstance(each, Delete)]:
        counts.append(len(deleted))
        model.carry_out(deleted)

    assert counts == [200, 100]
    assert set(model.node_drivers) == {"edu.n0"}


def test_the_good_revision_before_the_present_one_stays_whatever_was_tried_since() -> None:
    model = running()
    good = model.drivers["edu"].status["lastGoodRevision"]
    for version in ("1.1", "1.2", "1.3", "1.4"):
        model.apply_driver(version=version)
        model.settle()
        for name in model.nodes:
            if model.revision(name) != good:
                model.report(name, State.FAILED)
        model.settle()

    model.apply_driver(version="2.0.0")
    model.settle_ready()

    status = model.drivers["edu"].status
    assert status["previousGoodRevision"] == good != status["lastGoodRevision"]
    assert f"edu-revision-{good}" in model.revisions
    assert len(model.revisions) == 4

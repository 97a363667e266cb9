"""A toolkit image that is for another kernel: labels tell, or a node finds out for itself alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.cli.explain import explain_node
from cluster.model.actions import Apply, LabelNode
from cluster.model.snapshot import DriverPod, ImageStream, ToolkitLabels
from cluster.model.waiting import Waiting
from nodeside.protocol.labels import node_driver_name
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import KERNEL, Model

STREAM = "openshift/driver-toolkit"
OS, NEXT_OS = "418.94.202501221327-0", "418.94.202502020000-0"
WRONG, RIGHT = "quay.io/dtk:wrong", "quay.io/dtk:right"
RHCOS = "Red Hat Enterprise Linux CoreOS"
SAYS = {"reason": "NoHeaders", "message": "toolkit has headers for 6.1.0-49-amd64"}
LINE = f'spec.toolkit.images: {{"{KERNEL}": IMAGE}}'
WORDS = (
    f"toolkit image {WRONG} is not for kernel {KERNEL}; put the image of this kernel in the "
    f"Driver, {LINE}; n0 reports: {SAYS['message']}"
)
AT_ONCE = {"canary": 0}
TEMPLATE = {"imageTemplate": "example.com/toolkit:{kernel}"}
ADDED = {"images": {KERNEL: RIGHT}}


def cluster(count: int = 2) -> Model:
    """Nodes of CoreOS, and an image stream whose tag of their version is for another kernel."""
    model = Model(image_streams={STREAM: ImageStream(STREAM, {OS: WRONG})})
    model.add([f"n{i}" for i in range(count)], os_image=f"{RHCOS} {OS}")
    return model


def refused(model: Model) -> None:
    """No sidecar has headers of its node's kernel."""
    model.settle()
    for node in model.nodes:
        model.report(node, State.FAILED, **SAYS)


def toolkits(model: Model) -> list[str]:
    return [found.toolkit for found in model.daemonsets.values()]


def row(model: Model) -> dict[str, Any]:
    [found] = model.drivers["edu"].status["pools"]
    return dict(found)


def test_a_node_that_refuses_its_toolkit_is_told_what_to_add_and_no_other_is_touched() -> None:
    model = cluster(3)
    model.apply_driver(toolkit=TEMPLATE)
    model.settle_ready()
    model.report("n0", State.FAILED, **SAYS)

    actions = model.settle()

    assert not any(isinstance(each, (Apply, LabelNode)) for each in actions)
    assert toolkits(model) == [WRONG]
    for condition in ("Degraded", "Ready"):
        assert model.condition(condition)["reason"] == "ToolkitRefused"
        assert model.condition(condition)["message"] == f"n0: {WORDS}"
    assert (row(model)["reason"], row(model)["message"]) == ("ToolkitRefused", f"n0: {WORDS}")
    assert model.drivers["edu"].status["nodes"]["ready"] == 2
    [event] = [said for said in model.said if said.reason == "ToolkitRefused"]
    assert (event.warning, event.note) == (True, f"n0: {WORDS}")


def test_explain_says_of_a_node_that_refuses_its_toolkit_what_to_add() -> None:
    model = cluster(2)
    model.apply_driver(toolkit=TEMPLATE)
    model.settle_ready()
    model.report("n0", State.FAILED, **SAYS)
    model.settle()

    assert explain_node(model.snapshot, "edu", "n0").blocks == (
        f"NoHeaders: {SAYS['message']}",
        WORDS.partition("; n0 reports")[0],
    )
    assert explain_node(model.snapshot, "edu", "n1").blocks == ()


def test_though_all_refuse_it_the_image_stays_until_somebody_adds_the_line() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE, rollout=AT_ONCE)
    refused(model)
    model.settle()

    assert toolkits(model) == [WRONG]
    assert model.condition("Degraded")["message"] == f"n0, n1: {WORDS}"
    assert model.plan().actions == ()

    model.apply_driver(toolkit=TEMPLATE | ADDED, rollout=AT_ONCE)
    model.settle()
    assert toolkits(model) == [RIGHT]
    assert model.condition("Degraded")["status"] == "False"
    assert model.condition("Ready")["reason"] == "NodesBusy", "their next pods have the right one"
    model.report_all()
    model.settle()
    assert model.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("image", [WRONG, RIGHT, "example.com/of-nobody:1", "x" * 32_000])
def test_what_nodes_lie_about_images_changes_the_image_of_no_node(image: str) -> None:
    model = cluster(3)
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: RIGHT})}
    model.apply_driver(toolkit=TEMPLATE)
    model.settle_ready()

    for liar in ("n0", "n1"):
        said = replace(model.node_drivers[f"edu.{liar}"], state="failed", reason="NoHeaders")
        model.node_drivers[f"edu.{liar}"] = replace(said, toolkit=image)
        model.settle()
        model.add([f"late-of-{liar}"], os_image=f"{RHCOS} {OS}")
        model.settle()

        assert toolkits(model) == [RIGHT]
    assert model.drivers["edu"].status["nodes"]["failed"] <= 2
    assert "of-nobody" not in str(model.drivers["edu"].status), "nobody gave it that image"


def test_who_refuses_the_toolkit_hides_no_other_failure() -> None:
    model = cluster(3)
    model.apply_driver(toolkit={}, rollout=AT_ONCE)
    model.settle()
    model.report("n0", State.FAILED, **SAYS)
    model.report("n1", State.FAILED, reason="Compile", message="edu.c:42: error")
    model.settle()

    for message in (model.condition("Degraded")["message"], row(model)["message"]):
        assert message == f"n0: {WORDS}; n1: Compile: edu.c:42: error"


def test_a_canary_that_refuses_its_toolkit_stops_the_rollout_and_the_line_resumes_it() -> None:
    model = cluster(3)
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: RIGHT})}
    model.apply_driver(toolkit={})
    model.settle_ready()
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: WRONG})}
    model.settle()
    model.apply_driver(version="2.0.0", toolkit={})
    model.settle()
    canary = next(n for n in model.nodes if model.revision(n) != model.revision("n2"))
    model.report(canary, State.FAILED, **SAYS)
    model.settle()
    assert model.condition("Degraded")["reason"] == "RolloutStopped"
    assert LINE in row(model)["message"]

    model.apply_driver(version="2.0.0", toolkit=ADDED)
    model.settle_ready()

    assert toolkits(model) == [RIGHT]
    assert model.condition("Progressing")["reason"] == "Complete"


def test_a_node_that_builds_with_it_after_all_refuses_it_no_more() -> None:
    model = cluster()
    model.apply_driver(toolkit={}, rollout=AT_ONCE)
    refused(model)
    model.settle()

    model.report_all()
    model.settle()

    assert model.condition("Ready")["status"] == "True"
    assert row(model)["reason"] == "Ready"


LABELLED = "5.14.0-427.50.1.el9_4.x86_64"
SECOND = "quay.io/dtk:second"


def test_an_image_whose_labels_say_yes_stays_though_nodes_say_no() -> None:
    model = cluster()
    tags = {OS: WRONG, NEXT_OS: RIGHT, "418.94.202503030000-0": SECOND}
    model.image_streams = {STREAM: ImageStream(STREAM, tags)}
    for name in model.nodes:
        model.change(name, kernel=LABELLED)
    model.toolkit_labels = {
        WRONG: ToolkitLabels("5.14.0-427.49.1.el9_4.x86_64"),
        RIGHT: ToolkitLabels(LABELLED),
        SECOND: ToolkitLabels(LABELLED),
    }
    model.apply_driver(toolkit={})
    refused(model)
    model.settle()

    assert toolkits(model) == [SECOND]
    assert model.condition("Degraded")["reason"] == "ToolkitRefused"


@pytest.mark.parametrize("canary", [True, False])
def test_a_correction_after_which_nothing_comes_is_a_failure_in_the_end(canary: bool) -> None:
    model = cluster()
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: RIGHT})}
    model.apply_driver(toolkit={})
    if canary:
        model.settle_ready()
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: WRONG})}
    model.apply_driver(version="2.0.0", toolkit={}, rollout={} if canary else AT_ONCE)
    model.settle()
    for node in ["n0"] if canary else ["n0", "n1"]:
        model.report(node, State.FAILED, **SAYS)
        key = node_driver_name("edu", node)
        model.node_drivers[key] = replace(model.node_drivers[key], time=1000.0)
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: RIGHT})}
    model.carry_out(model.plan(now=1001.0).actions)

    made = model.plan(now=1100.0)
    assert model.condition("Degraded")["status"] == "False"
    assert made.requeue_after is not None
    model.carry_out(model.plan(now=1100.0 + made.requeue_after + 1).actions)

    assert toolkits(model)[-1] == RIGHT
    assert model.condition("Degraded")["status"] == "True"
    assert f"with toolkit image {RIGHT}, has not reported" in model.condition("Degraded")["message"]


def test_a_line_that_is_added_hours_later_gives_the_next_pod_its_time() -> None:
    model = cluster()
    model.apply_driver(toolkit={}, rollout=AT_ONCE)
    refused(model)
    for node in model.nodes:
        said = model.node_drivers[f"edu.{node}"]
        model.node_drivers[f"edu.{node}"] = replace(said, time=1000.0)
    model.carry_out(model.plan(now=1001.0).actions)
    assert model.condition("Degraded")["reason"] == "ToolkitRefused"

    model.apply_driver(toolkit=ADDED, rollout=AT_ONCE)
    model.carry_out(model.plan(now=20_000.0).actions)
    assert model.condition("Degraded")["status"] == "False", "before the new image is given"
    assert model.condition("Ready")["message"].endswith("trying again: n0, n1")
    assert row(model)["message"] == "trying again: n0, n1"
    [(name, found)] = model.daemonsets.items()
    model.daemonsets[name] = replace(found, applied_at=20_000.0)
    made = model.plan(now=20_001.0)
    model.carry_out(made.actions)

    assert model.condition("Degraded")["status"] == "False"
    assert made.requeue_after == pytest.approx(599.0)
    model.carry_out(model.plan(now=20_700.0).actions)
    assert model.condition("Degraded")["reason"] == "NodesFailed"


def test_what_a_node_said_before_its_reboot_excuses_nothing() -> None:
    model = cluster()
    model.apply_driver(toolkit={}, rollout=AT_ONCE)
    refused(model)
    model.apply_driver(toolkit=ADDED, rollout=AT_ONCE)
    model.settle()
    model.report("n1")
    model.reboot("n0")
    model.settle()
    [found] = model.daemonsets.values()
    pod = DriverPod(
        "p", driver="edu", node="n0", daemonset=found.name, waiting={"driver": Waiting("no")}
    )
    model.pods["p"] = pod
    model.settle()

    assert model.condition("Ready")["reason"] == "NodesFailed"
    assert "its pod cannot start" in model.condition("Ready")["message"]


def test_a_report_of_another_kernel_refuses_nothing() -> None:
    model = cluster()
    model.apply_driver(toolkit={})
    model.settle_ready()
    model.report("n0", State.FAILED, **SAYS)
    said = model.node_drivers["edu.n0"]
    model.node_drivers["edu.n0"] = replace(said, kernel="6.1.0-51-amd64")
    model.settle()

    assert model.condition("Degraded")["reason"] == "NodesFailed"


@pytest.mark.parametrize(
    "said",
    [{"reason": "Compile"}, {"reason": "KernelChanged"}, {"toolkit": ""}, {"state": "building"}],
)
def test_other_failures_are_not_the_toolkits(said: dict[str, Any]) -> None:
    model = cluster(1)
    model.apply_driver(toolkit={})
    refused(model)
    model.node_drivers["edu.n0"] = replace(model.node_drivers["edu.n0"], **said)
    model.settle()

    assert model.condition("Degraded")["reason"] in ("NodesFailed", "AsExpected")


def test_labels_are_asked_for_and_spare_the_nodes_a_wrong_image() -> None:
    model = cluster()
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: WRONG, NEXT_OS: RIGHT})}
    kernel = "5.14.0-427.50.1.el9_4.x86_64"
    for name in model.nodes:
        model.change(name, kernel=kernel)
    model.apply_driver(toolkit={})
    assert {tag.image for tag in model.plan().tags} == {WRONG}

    model.toolkit_labels[WRONG] = ToolkitLabels("5.14.0-427.49.1.el9_4.x86_64")
    assert {tag.image for tag in model.plan().tags} == {WRONG, RIGHT}
    model.settle()
    assert model.condition("Ready")["reason"] == "ToolkitMissing"
    assert "its image is for kernel 5.14.0-427.49.1" in model.condition("Ready")["message"]
    assert not model.daemonsets

    model.toolkit_labels[RIGHT] = ToolkitLabels(kernel)
    model.settle_ready()

    assert [(found.toolkit, found.link) for found in model.daemonsets.values()] == [
        (RIGHT, "image-labels")
    ]
    assert model.condition("Ready")["status"] == "True"


def test_a_label_of_another_kernel_answers_no_preflight() -> None:
    model = cluster()
    kernel = "5.14.0-427.50.1.el9_4.x86_64"
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: WRONG, NEXT_OS: RIGHT})}
    model.apply_driver(toolkit={}, preflight=[{"kernel": kernel}])
    assert {tag.image for tag in model.plan().tags} >= {WRONG, RIGHT}

    model.toolkit_labels = {WRONG: ToolkitLabels("5.14.0-1.el9"), RIGHT: ToolkitLabels(kernel)}
    model.settle()

    [row] = model.drivers["edu"].status["preflight"]
    assert row["toolkit"] == RIGHT

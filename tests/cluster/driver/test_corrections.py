"""A toolkit image that is for another kernel: found out by a node, and not tried again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.model.snapshot import DriverPod, ImageStream, NotListed, ToolkitLabels
from cluster.model.waiting import Waiting
from cluster.plan.planner import Planner
from nodeside.protocol.labels import assigned_label, node_driver_name
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import KERNEL, Model

STREAM = "openshift/driver-toolkit"
OS, NEXT_OS = "418.94.202501221327-0", "418.94.202502020000-0"
WRONG, RIGHT = "quay.io/dtk:wrong", "quay.io/dtk:right"
RHCOS = "Red Hat Enterprise Linux CoreOS"
SAYS = {"reason": "NoHeaders", "message": "toolkit has headers for 6.1.0-49-amd64"}
WHY = f"2 nodes refuse it, n0 among them: {SAYS['message']}"
TEMPLATE = {"imageTemplate": "example.com/toolkit:{kernel}"}
FILLED = f"example.com/toolkit:{KERNEL}"


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


def events(model: Model, reason: str = "ToolkitRefused") -> list[str]:
    return [said.note for said in model.said if said.reason == reason]


def test_the_next_link_serves_and_the_node_is_on_its_way_meanwhile() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE)
    refused(model)
    assert toolkits(model) == [WRONG]

    model.settle()

    assert toolkits(model) == [FILLED]
    assert model.condition("Ready")["reason"] == "NodesBusy"
    assert model.condition("Degraded")["status"] == "False"
    assert events(model) == [
        f"toolkit image {WRONG} is not for kernel {KERNEL}: {WHY}; {FILLED} instead"
    ]


def test_one_node_of_several_moves_no_other_to_another_toolkit() -> None:
    model = cluster(3)
    model.apply_driver(toolkit=TEMPLATE)
    model.settle_ready()
    for key, said in model.node_drivers.items():  # their pods were restarted since
        model.node_drivers[key] = replace(said, source="loaded")

    for image in (WRONG, "x" * 32_000):
        said = replace(model.node_drivers["edu.n0"], state="failed", reason="NoHeaders")
        model.node_drivers["edu.n0"] = replace(said, toolkit=image)
        model.settle()

        assert toolkits(model) == [WRONG]
        assert [dict(found.refused) for found in model.daemonsets.values()] == [{}]


def test_a_refusal_outlives_the_daemonset_that_gave_the_image() -> None:
    model = cluster(1)
    model.apply_driver(toolkit={})
    model.settle_ready()
    refused(model)
    model.settle()

    model.daemonsets.clear()  # by hand
    model.settle()

    [found] = model.daemonsets.values()
    assert (found.toolkit, [*found.refused]) == (WRONG, [WRONG]), "nothing else serves"


def test_what_the_first_node_of_a_kernel_refused_is_tried_again_where_nothing_else_serves() -> None:
    model = cluster(1)
    model.apply_driver(toolkit=TEMPLATE)
    refused(model)
    model.settle()
    assert toolkits(model) == [FILLED]

    model.add(["n1", "n2"], os_image=f"{RHCOS} {OS}")
    refused(model)  # now the other image, and by all
    model.settle()
    assert toolkits(model) == [WRONG]
    for node in ("n1", "n2"):
        model.report(node)
    model.settle()

    assert toolkits(model) == [WRONG]


def test_it_is_remembered_when_the_node_says_otherwise_and_by_another_controller() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE)
    refused(model)
    model.settle()
    model.planner = Planner()

    for state in (State.BUILDING, State.READY):
        model.report_all(state)
        model.settle()
        assert toolkits(model) == [FILLED]
    model.add(["n2"], os_image=f"{RHCOS} {OS}")
    model.settle_ready()

    assert toolkits(model) == [FILLED]
    assert len(events(model)) == 1


def test_the_next_revision_does_not_try_it_again() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE)
    refused(model)
    model.settle_ready()

    model.apply_driver(version="2.0.0", toolkit=TEMPLATE)
    model.settle_ready()

    assert toolkits(model) == [FILLED]
    assert [dict(found.refused) for found in model.daemonsets.values()] == [{WRONG: WHY}]


def test_a_rollout_goes_on_after_its_canary_has_shown_that_the_toolkit_is_wrong() -> None:
    model = cluster(3)
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: RIGHT})}
    model.apply_driver(toolkit=TEMPLATE)
    model.settle_ready()
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: WRONG})}
    model.settle()

    model.apply_driver(version="2.0.0", toolkit=TEMPLATE)
    model.settle()
    canary = next(n for n in model.nodes if model.revision(n) != model.revision("n2"))
    model.report(canary, State.FAILED, **SAYS)
    model.settle_ready()

    assert toolkits(model) == [FILLED]
    assert model.condition("Ready")["status"] == "True"


def test_with_nothing_else_it_stays_and_the_nodes_own_words_are_told() -> None:
    model = cluster()
    model.apply_driver(toolkit={})
    refused(model)
    model.settle()

    assert toolkits(model) == [WRONG]
    assert model.condition("Ready")["reason"] == "NodesFailed"
    assert SAYS["message"] in model.condition("Ready")["message"]
    assert model.plan().actions == ()


def test_with_nothing_else_it_stays_though_somebody_deletes_the_daemonset() -> None:
    model = cluster()
    model.apply_driver(toolkit={})
    refused(model)
    model.settle()

    model.daemonsets.clear()
    model.carry_out(model.plan().actions)  # a node's refusal counts once it is given the image
    model.settle()

    assert toolkits(model) == [WRONG]
    model.report_all()  # the node was at fault: with the same image it builds after all
    model.add(["late"], os_image=f"{RHCOS} {OS}")
    model.settle_ready()
    assert [dict(found.refused) for found in model.daemonsets.values()] == [{}]
    assert model.condition("Ready")["status"] == "True"
    assert assigned_label("edu") in model.nodes["late"].labels


def test_a_new_pool_of_that_kernel_waits_for_one_that_serves() -> None:
    model = cluster()
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: WRONG, NEXT_OS: WRONG})}
    model.apply_driver(toolkit={})
    refused(model)
    model.settle()

    model.add(["late"], os_image=f"{RHCOS} {NEXT_OS}")
    model.settle()
    assert model.condition("Ready")["reason"] == "NodesFailed"
    assert assigned_label("edu") not in model.nodes["late"].labels

    model.image_streams = {STREAM: ImageStream(STREAM, {OS: RIGHT, NEXT_OS: RIGHT})}
    model.settle_ready()
    assert set(toolkits(model)) == {RIGHT}
    assert model.condition("Ready")["status"] == "True"


def test_an_image_that_was_mended_under_its_name_is_believed_again() -> None:
    model = cluster()
    model.apply_driver(toolkit={})
    refused(model)
    model.settle()
    assert [dict(found.refused) for found in model.daemonsets.values()] == [{WRONG: WHY}]

    model.report("n0")
    model.settle()

    assert [dict(found.refused) for found in model.daemonsets.values()] == [{}]


LABELLED = "5.14.0-427.50.1.el9_4.x86_64"
SECOND = "quay.io/dtk:second"


def labelled(**spec: Any) -> Model:
    """The tag of the OS version is for another kernel, and two others are for that of the nodes."""
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
    model.apply_driver(toolkit={}, **spec)
    return model


def test_images_whose_labels_say_yes_and_nodes_say_no_are_each_tried_once() -> None:
    model = labelled()
    tried = []
    for _ in range(6):
        model.settle()
        tried += toolkits(model)
        model.report_all(State.BUILDING)
        model.settle()
        assert toolkits(model) == tried[-1:]
        for name in model.nodes:
            model.report(name, State.FAILED, **SAYS)

    assert tried[:2] == [SECOND, RIGHT]
    assert set(tried[2:]) == {RIGHT}, "in use, and nothing else serves"
    assert len(events(model)) == 2
    model.settle()
    assert model.condition("Ready")["reason"] == "NodesFailed"


def test_it_is_remembered_while_the_image_streams_are_not_known() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE)
    refused(model)
    model.settle_ready()
    streams = model.image_streams

    model.image_streams = NotListed("503")
    model.settle()
    model.image_streams = streams
    model.settle()

    assert toolkits(model) == [FILLED]
    assert len(events(model)) == 1


@pytest.mark.parametrize("canary", [True, False])
def test_a_correction_after_which_nothing_comes_is_a_failure_in_the_end(canary: bool) -> None:
    model = cluster()
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: RIGHT})}
    model.apply_driver(toolkit=TEMPLATE)
    if canary:
        model.settle_ready()
    model.image_streams = {STREAM: ImageStream(STREAM, {OS: WRONG})}
    model.apply_driver(version="2.0.0", toolkit=TEMPLATE)
    model.settle()
    for node in ["n0"] if canary else ["n0", "n1"]:
        model.report(node, State.FAILED, **SAYS)
        key = node_driver_name("edu", node)
        model.node_drivers[key] = replace(model.node_drivers[key], time=1000.0)
    model.carry_out(model.plan(now=1001.0).actions)

    made = model.plan(now=1100.0)
    assert model.condition("Degraded")["status"] == "False"
    assert made.again_in is not None
    model.carry_out(model.plan(now=1100.0 + made.again_in + 1).actions)

    assert toolkits(model)[-1] == FILLED
    assert model.condition("Degraded")["status"] == "True"
    assert "with another toolkit image, has not reported" in model.condition("Degraded")["message"]


def test_what_a_node_said_before_its_reboot_excuses_nothing() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE)
    refused(model)
    model.settle()
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


def test_each_driver_believes_its_own_nodes() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE)
    model.apply_driver("other", toolkit=TEMPLATE, modules=[{"name": "other"}])
    model.settle()
    for node in model.nodes:
        model.report(node, State.FAILED, driver="other", **SAYS)
    model.report("n0", State.READY)
    model.settle()

    found = {each.driver: each.toolkit for each in model.daemonsets.values()}
    assert found == {"edu": WRONG, "other": FILLED}
    assert len(events(model)) == 1


def test_an_annotation_that_is_taken_away_while_a_node_refuses_comes_back() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE)
    refused(model)
    model.settle()
    [found] = model.daemonsets.values()
    model.daemonsets[found.name] = replace(found, refused={})
    model.settle()

    model.report_all(State.BUILDING)
    model.settle()
    assert toolkits(model) == [FILLED]


def test_a_report_of_another_kernel_proves_nothing_for_the_pool_of_today() -> None:
    model = cluster(1)
    model.apply_driver(toolkit={})
    model.settle_ready()
    model.image_streams = {STREAM: ImageStream(STREAM, {NEXT_OS: RIGHT})}
    model.reboot("n0", kernel="6.1.0-51-amd64", os_image=f"{RHCOS} {NEXT_OS}")
    model.settle()
    model.add(["late"], kernel="6.1.0-51-amd64", os_image=f"{RHCOS} 419.96.202507011200-0")
    model.settle()

    assert assigned_label("edu") not in model.nodes["late"].labels


def test_a_node_refuses_for_its_own_kernel_alone() -> None:
    model = cluster()
    model.apply_driver(toolkit=TEMPLATE)
    model.settle()
    model.report("n0", State.FAILED, **SAYS)
    [said] = model.node_drivers.values()
    model.node_drivers[said.name] = replace(said, kernel="6.1.0-51-amd64")
    model.settle()

    assert toolkits(model) == [WRONG]


def test_one_node_remembers_through_a_rollout_of_its_own() -> None:
    model = cluster(1)
    model.apply_driver(toolkit=TEMPLATE)
    refused(model)
    model.settle_ready()

    for version in ("2.0.0", "3.0.0", "4.0.0"):
        model.apply_driver(version=version, toolkit=TEMPLATE)
        model.settle_ready()
        assert toolkits(model) == [FILLED]

    assert len(events(model)) == 1


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

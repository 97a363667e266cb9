"""`explain`: the truth in a person's words, by the controller's own functions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.cli.explain import explain_driver, explain_node
from cluster.cli.leader_status import LeaderStatus
from cluster.cli.status import NoSuchObject
from cluster.model.names import CORDONED
from cluster.model.snapshot import DriverPod, ImageStream
from cluster.model.waiting import Waiting
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model

COREOS = "Red Hat Enterprise Linux CoreOS 418.94.202501221327-0"
KERNEL = "5.14.0-427.el9.x86_64"


def ready() -> Model:
    made = Model()
    made.add(["n1", "n2"])
    made.apply_driver()
    made.settle_ready()
    return made


def without_toolkit() -> Model:
    made = Model(image_streams={"openshift/driver-toolkit": ImageStream("x", {"410.84": "old"})})
    made.add(["n1"], kernel=KERNEL, os_image=COREOS)
    made.apply_driver(toolkit={})
    made.settle()
    return made


def test_a_ready_driver_is_explained_without_blocks_and_without_a_next_step() -> None:
    said = explain_driver(ready().snapshot, "edu")

    assert said.blocks == ()
    assert said.next == ()
    assert "next    nothing: it is as it should be" in said.text()
    assert "on 2 nodes; hardware: PCI 1234:11e8" in said.text()


def test_what_blocks_a_driver_is_named_with_what_was_looked_for() -> None:
    said = explain_driver(without_toolkit().snapshot, "edu")

    [block] = said.blocks
    assert block.startswith(f"ToolkitMissing: kernel {KERNEL} on n1: no toolkit image")
    assert "next    nothing, until that changes" in said.text()


def test_what_happens_next_are_the_actions_of_a_plan_made_now() -> None:
    made = ready()
    made.apply_driver(version="2.0.0")

    said = explain_driver(made.snapshot, "edu")

    assert [line for line in said.next if line.startswith("relabel 1 node:")]
    assert [line for line in said.next if line.startswith("apply DaemonSet edu-")]


def test_a_node_is_explained_with_what_it_said_itself() -> None:
    made = ready()
    made.report("n1", State.FAILED, reason="BuildFailed", message="edu.c:42: error", hint="fix it")

    said = explain_node(made.snapshot, "edu", "n1")

    assert said.blocks == ("BuildFailed: edu.c:42: error (fix it)",)
    assert "BuildFailed: edu.c:42: error" in said.there


def test_a_report_of_an_earlier_boot_is_said_to_be_void() -> None:
    made = ready()
    made.reboot("n1")

    said = explain_node(made.snapshot, "edu", "n1")

    assert [line for line in said.there if "void: reported before the last reboot" in line]


def test_a_pod_that_cannot_start_is_named_with_its_reason() -> None:
    made = ready()
    made.reboot("n1")
    daemonset = f"edu-{made.nodes['n1'].labels['nodeside.io/edu.assigned']}"
    made.pods["p"] = DriverPod(
        "p", driver="edu", node="n1", daemonset=daemonset,
        waiting={"toolkit": Waiting("ErrImagePull", "not found")},
    )  # fmt: skip

    said = explain_node(made.snapshot, "edu", "n1")

    assert "its pod cannot start: toolkit: ErrImagePull: not found" in said.blocks
    assert "pod p: toolkit: ErrImagePull: not found" in said.there
    made.pods["p"] = replace(
        made.pods["p"], waiting={"provide": Waiting("ErrImagePull", "x: not found")}
    )
    remedy = "the registry has no such image: push it, or correct its name"
    assert remedy in explain_node(made.snapshot, "edu", "n1").blocks


def test_what_a_node_said_of_the_version_before_blocks_nothing() -> None:
    made = ready()
    old = made.revision("n1")
    made.apply_driver(version="2.0.0")
    made.settle()
    [moved] = [node for node in made.nodes if made.revision(node) != old]
    daemonset = f"edu-{made.nodes[moved].labels['nodeside.io/edu.assigned']}"
    made.pods["p"] = DriverPod(
        "p", driver="edu", node=moved, daemonset=daemonset,
        waiting={"toolkit": Waiting("ErrImagePull", "not found")},
    )  # fmt: skip

    blocks = explain_node(made.snapshot, "edu", moved).blocks

    assert blocks == (
        "its pod cannot start: toolkit: ErrImagePull: not found",
        "the registry has no such image: push it, or correct its name",
    )


def test_a_cordoned_node_is_said_to_be_one() -> None:
    made = ready()
    assert not [line for line in explain_node(made.snapshot, "edu", "n1").there if "cord" in line]
    made.change("n1", unschedulable=True)

    [line] = [line for line in explain_node(made.snapshot, "edu", "n1").there if "cord" in line]
    assert line.startswith("the node is cordoned")


def test_a_node_that_a_driver_is_not_for_says_why() -> None:
    made = ready()
    made.add(["bare"], labels={})

    said = explain_node(made.snapshot, "edu", "bare")

    assert said.wanted == ("nothing: the node lacks a label of the hardware",)
    [block] = said.blocks
    label = "feature.node.kubernetes.io/pci-1234_11e8.present=true"
    assert block.startswith(f"the node needs the label {label}, with or without a class")
    assert "next    nothing, until that changes" in said.text()


def test_a_message_of_a_node_that_has_not_failed_stands_alone() -> None:
    made = ready()
    made.report("n1", State.BUILDING, message="waiting for the toolkit container")

    assert "waiting for the toolkit container" in explain_node(made.snapshot, "edu", "n1").there


def test_a_label_of_the_selector_that_is_absent_or_different_is_named() -> None:
    made = Model()
    made.apply_driver(hardware={"nodeSelector": {"example.com/card": "yes", "tier": "gpu"}})
    made.add(["bare"], labels={"tier": "web"})

    assert explain_node(made.snapshot, "edu", "bare").blocks == (
        "the node needs the label example.com/card=yes",
        "the node needs the label tier=gpu (it has web)",
    )


def test_a_node_that_works_has_nothing_to_wait_for() -> None:
    said = explain_node(ready().snapshot, "edu", "n1")

    assert (said.blocks, said.next) == ((), ())
    assert "next    nothing: it is as it should be" in said.text()


def test_a_node_whose_pod_said_nothing_yet_waits_for_it() -> None:
    made = Model()
    made.add(["n1"])
    made.apply_driver()
    made.settle()

    said = explain_node(made.snapshot, "edu", "n1")

    assert said.blocks == ()
    assert said.next == ("its pod starts and reports the state of the driver",)


def test_a_pause_is_what_blocks_a_node() -> None:
    made = ready()
    made.apply_driver(version="2.0.0", rollout={"paused": True})
    made.settle()

    said = explain_node(made.snapshot, "edu", "n1")

    assert said.blocks == ("the rollout is paused",)
    assert "next    nothing, until that changes" in said.text()


def test_a_node_that_waits_for_its_turn_says_for_what() -> None:
    made = ready()
    made.add(["n3", "n4"])
    made.settle_ready()
    made.apply_driver(version="2.0.0", rollout={"canary": 1, "maxUnavailable": 1})
    made.settle()
    [canary] = [node for node in made.nodes if made.revision(node) != made.revision("n4")]

    assert explain_node(made.snapshot, "edu", "n4").next == (
        "it changes when its turn comes",
        "the canary is first",
    )

    made.report_all()
    made.settle()

    [changing] = [
        n for n in ("n1", "n2", "n3") if n != canary and made.revision(n) == made.revision(canary)
    ]
    assert explain_node(made.snapshot, "edu", "n4").next == (
        "it changes when its turn comes",
        f"maxUnavailable is 1, and unavailable: {changing}",
    )


def test_a_stopped_rollout_blocks_the_nodes_that_are_left_with_what_failed() -> None:
    made = ready()
    made.apply_driver(version="2.0.0")
    made.settle()
    [changed] = [node for node in made.nodes if made.revision(node) != made.revision("n2")] or [
        "n2"
    ]
    [left] = {"n1", "n2"} - {changed}
    made.report(changed, State.FAILED, reason="BuildFailed", message="edu.c:42: error")
    made.settle()

    said = explain_node(made.snapshot, "edu", left)
    failed = explain_node(made.snapshot, "edu", changed)

    [block] = said.blocks
    assert block.startswith("the rollout is stopped by failures: ")
    assert f"failed on {changed}" in block
    assert failed.blocks == ("BuildFailed: edu.c:42: error",)
    assert failed.next == ()


def test_a_cordon_that_is_about_to_end_is_what_comes_next() -> None:
    made = ready()
    made.relabel("n1", {CORDONED: "true"})
    made.change("n1", unschedulable=True)

    said = explain_node(made.snapshot, "edu", "n1")

    assert said.next == ("uncordon node n1",)


def test_a_node_without_a_toolkit_image_has_nothing_next() -> None:
    said = explain_node(without_toolkit().snapshot, "edu", "n1")

    assert said.blocks[0].startswith("no toolkit image: ")
    assert said.next == ()


def test_what_is_there_is_not_the_status_of_a_future() -> None:
    made = ready()
    made.add(["n3"])

    said = explain_driver(made.snapshot, "edu")

    assert said.wanted[1].startswith("on 3 nodes; ")
    assert said.there[0] == "2 assigned, 2 updated, 2 ready, 0 failed"
    assert [line for line in said.next if line.startswith("relabel 1 node: ")]


def test_without_a_controller_that_is_said_first_and_the_next_step_waits_for_one() -> None:
    made = ready()
    made.add(["n3"])
    nobody = LeaderStatus(False, "no controller leads; see kubectl -n nodeside get pods")

    said = explain_driver(made.snapshot, "edu").with_presence(nobody)

    assert said.text().startswith("no controller leads; see kubectl -n nodeside get pods\n\n")
    assert said.blocks[0] == "no controller leads"
    assert said.next[0] == "once a controller leads:"


def test_a_driver_with_mistakes_is_explained_by_them() -> None:
    made = ready()
    made.apply_driver("typo", modules=[{"name": "x", "parametres": {}}])

    said = explain_node(made.snapshot, "typo", "n1")

    assert said.wanted == ("nothing: its document has mistakes",)
    assert "parametres" in said.blocks[0]


@pytest.mark.parametrize(("driver", "node"), [("none", ""), ("edu", "none")])
def test_what_is_not_there_is_said_with_what_is(driver: str, node: str) -> None:
    snapshot = ready().snapshot
    with pytest.raises(NoSuchObject, match="none") as caught:
        explain_node(snapshot, driver, node) if node else explain_driver(snapshot, driver)
    assert caught.value.hint


def test_who_else_works_on_the_node_is_named_where_it_concerns_the_driver() -> None:
    made = Model()
    made.apply_driver(devices=[{"resource": "example.com/edu", "discover": {"count": 2}}])
    kmm, gpu = "kmm.node.kubernetes.io/a.edu.ready", "nvidia.com/gpu.deploy.driver"
    made.add(["n1"], labels={kmm: "", gpu: "true"}, allocatable={"example.com/edu": 2})

    there = explain_node(made.snapshot, "edu", "n1").there

    kmm_line, plugin_line = [line for line in there if "works there" in line]
    assert kmm_line == (
        f"Kernel Module Management (Module a/edu) works there too: {kmm}; to end that: "
        "kubectl delete modules.kmm.sigs.x-k8s.io -n a edu"
    )
    assert plugin_line.startswith("another device plugin works there too: 2 of example.com/edu, ")


def test_the_way_out_of_another_operator_names_the_node() -> None:
    made = Model()
    made.apply_driver(hardware={"pci": [{"vendor": "10de"}]})
    made.add(["n1"], labels={"nvidia.com/gpu.deploy.driver": "true"})
    there = explain_node(made.snapshot, "edu", "n1").there
    way_out = "kubectl label --overwrite node n1 nvidia.com/gpu.deploy.driver=false"
    assert any(line.endswith(f"to end that: {way_out}") for line in there)


def test_a_parameter_that_the_node_was_booted_with_is_shown() -> None:
    made = ready()
    name = "edu.n1"
    said = "edu: timeout_ms=7 (the kernel's command line)"
    reports = dict(made.snapshot.node_drivers)
    reports[name] = replace(reports[name], parameters=(said,))
    found = explain_node(replace(made.snapshot, node_drivers=reports), "edu", "n1")
    assert f"parameter of {said}" in found.there

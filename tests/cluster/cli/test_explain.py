"""`explain`: the truth in a person's words, by the controller's own functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cluster.cli.explain import Explanation, explain_driver, explain_node
from cluster.cli.leader_status import LeaderStatus
from cluster.cli.status import NoSuchObject
from cluster.model.names import CORDONED
from cluster.model.snapshot import DriverPod, ImageStream, Settings
from cluster.model.waiting import Crash, Waiting
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


def with_pod(made: Model, node: str, waiting: Mapping[str, Waiting] | None = None) -> None:
    assigned = made.nodes[node].labels["nodeside.io/edu.assigned"]
    made.pods["edu-p"] = DriverPod(
        "edu-p", driver="edu", node=node, daemonset=f"edu-{assigned}", waiting=waiting or {}
    )


def stopped() -> tuple[Model, str, str]:
    """A rollout that has stopped; where it failed, and a node that is left."""
    made = ready()
    made.apply_driver(version="2.0.0")
    made.settle()
    [failed] = [
        node for node in made.nodes if made.revision(node) == made.drivers["edu"].status["revision"]
    ]
    [left] = {"n1", "n2"} - {failed}
    made.report(failed, State.FAILED, reason="LoadFailed", message="edu: ENODEV")
    with_pod(made, failed)
    made.settle()
    return made, failed, left


def commands(said: Explanation) -> list[str]:
    return [each.command for each in said.do if each.command]


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
        f"waits for the canary {canary}",
        f"what the canary does: nodeside-cluster explain edu {canary}",
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


# --- what to type ---------------------------------------------------------------------------------


def test_where_all_is_well_there_is_nothing_to_type() -> None:
    for said in (
        explain_driver(ready().snapshot, "edu"),
        explain_node(ready().snapshot, "edu", "n1"),
    ):
        assert said.do == ()
        assert "\ndo " not in said.text()
        assert json.loads(said.json())["do"] == []


def test_a_node_that_waits_for_nothing_but_time_has_nothing_to_type() -> None:
    made = Model()
    made.add(["n1"])
    made.apply_driver()
    made.settle()
    assert explain_node(made.snapshot, "edu", "n1").do == ()
    assert explain_driver(made.snapshot, "edu").do == ()


def test_a_crash_loop_ends_with_the_log_of_just_that_container() -> None:
    made = ready()
    made.reboot("n1")
    crash = Crash(22, "Error", restarts=7, is_ours=True)
    with_pod(made, "n1", {"driver": Waiting("CrashLoopBackOff", "back-off 5m0s", crash)})

    said = explain_node(made.snapshot, "edu", "n1")

    [block] = said.blocks
    assert block.startswith("its pod cannot start: driver: Crashed: exit code 22 (the toolkit")
    assert block.endswith("restarted 7 times")
    assert commands(said) == [
        "kubectl logs -n nodeside edu-p -c driver --previous",
        "kubectl describe pod -n nodeside edu-p",
        "nodeside-cluster restart edu n1",
    ]
    assert said.do[-1].page == "docs/cluster.md#when-nothing-moves"


def test_of_several_containers_the_log_is_of_the_one_that_crashes() -> None:
    made = ready()
    made.reboot("n1")
    waiting = {
        "toolkit": Waiting("ContainerCannotRun"),
        "driver": Waiting("CrashLoopBackOff", crash=Crash(1, restarts=2)),
    }
    with_pod(made, "n1", waiting)
    first, *_ = commands(explain_node(made.snapshot, "edu", "n1"))
    assert first == "kubectl logs -n nodeside edu-p -c driver --previous"


def test_a_pod_without_a_node_has_no_log() -> None:
    made = ready()
    made.reboot("n1")
    with_pod(made, "n1", {"pod": Waiting("Unschedulable", "0/2 nodes are available")})
    assert commands(explain_node(made.snapshot, "edu", "n1")) == [
        "kubectl describe pod -n nodeside edu-p",
        "kubectl describe node n1",
    ]


def test_a_build_that_fails_on_a_node_ends_with_its_log_and_its_repeat() -> None:
    made = ready()
    with_pod(made, "n1")
    made.report("n1", State.FAILED, reason="Compile", message="edu.c:42: error")
    assert commands(explain_node(made.snapshot, "edu", "n1")) == [
        "kubectl logs -n nodeside edu-p -c toolkit",
        "nodeside-cluster preflight edu --toolkit registry.example.com/toolkits:6.1.0-50-amd64",
        "nodeside-cluster restart edu n1",
    ]


def test_a_stopped_rollout_ends_with_the_way_back_and_another_try() -> None:
    made, failed, left = stopped()

    assert commands(explain_driver(made.snapshot, "edu")) == [
        f"nodeside-cluster explain edu {failed}",
        "kubectl logs -n nodeside edu-p -c driver",
        "nodeside-cluster retry edu",
        "nodeside-cluster undo edu",
    ]
    assert commands(explain_node(made.snapshot, "edu", left))[-2:] == [
        "nodeside-cluster retry edu",
        "nodeside-cluster undo edu",
    ]
    assert "nodeside-cluster undo edu" in commands(explain_node(made.snapshot, "edu", failed))


def test_commands_name_a_namespace_that_is_not_the_usual_one() -> None:
    made, _, left = stopped()
    made.settings = Settings(namespace="drivers-a")
    made.settle()

    said = commands(explain_driver(made.snapshot, "edu"))

    assert "kubectl logs -n drivers-a edu-p -c driver" in said
    assert "nodeside-cluster undo edu --namespace drivers-a" in said
    [block] = explain_driver(made.snapshot, "edu").blocks
    assert block.endswith(
        "go back to the old one: nodeside-cluster undo edu --namespace drivers-a; "
        "to try this one again: nodeside-cluster retry edu --namespace drivers-a"
    )
    assert all("drivers-a" in each for each in commands(explain_node(made.snapshot, "edu", left)))


def test_a_pause_ends_with_the_command_that_ends_it() -> None:
    made = ready()
    made.apply_driver(version="2.0.0", rollout={"paused": True})
    made.settle()
    for said in (explain_driver(made.snapshot, "edu"), explain_node(made.snapshot, "edu", "n1")):
        assert commands(said) == ["nodeside-cluster resume edu"]


def test_a_node_without_a_toolkit_image_ends_with_where_it_is_looked_for() -> None:
    resolve, edit = commands(explain_node(without_toolkit().snapshot, "edu", "n1"))
    assert resolve == (
        f"nodeside-cluster resolve 418.94.202501221327-0 --kernel={KERNEL} --driver edu"
    )
    assert edit == "kubectl edit driver edu"


def test_a_driver_with_mistakes_ends_with_its_correction() -> None:
    made = ready()
    made.apply_driver("typo", modules=[{"name": "x", "parametres": {}}])
    assert commands(explain_node(made.snapshot, "typo", "n1")) == ["kubectl edit driver typo"]
    good = made.drivers["edu"].status["revision"]
    made.apply_driver(modules=[{"name": "x", "parametres": {}}])
    made.settle()
    assert made.drivers["edu"].status["lastGoodRevision"] == good
    assert commands(explain_driver(made.snapshot, "edu")) == [
        "kubectl edit driver edu",
        "nodeside-cluster undo edu",
    ]


def test_a_node_that_is_down_or_lacks_a_label_ends_with_a_look_at_it() -> None:
    made = ready()
    made.change("n1", ready=False)
    made.add(["bare"], labels={})
    assert commands(explain_node(made.snapshot, "edu", "n1")) == ["kubectl describe node n1"]
    bare = commands(explain_node(made.snapshot, "edu", "bare"))
    assert bare == ["kubectl get node bare --show-labels"]


def test_without_a_leader_the_first_look_is_at_the_controller() -> None:
    made, failed, _ = stopped()
    nobody = LeaderStatus(False, "no controller leads")

    said = explain_node(made.snapshot, "edu", failed).with_presence(nobody, "drivers-a")

    assert commands(said)[:2] == [
        "kubectl get -n drivers-a pods,leases",
        "kubectl logs -n drivers-a deployment/nodeside-controller",
    ]
    assert [bool(each.page) for each in said.do] == sorted(bool(each.page) for each in said.do)


def test_what_to_type_is_the_last_section_with_each_command_on_one_line() -> None:
    made = ready()
    made.apply_driver(version="2.0.0", rollout={"paused": True})
    made.settle()

    said = explain_node(made.snapshot, "edu", "n1")

    assert said.text().endswith(
        "next    nothing, until that changes\n"
        "do      let the rollout go on:\n"
        "            nodeside-cluster resume edu\n"
        "        read: docs/cluster.md#orders-in-a-rollout"
    )
    assert json.loads(said.json())["do"] == [
        {"why": "let the rollout go on", "command": "nodeside-cluster resume edu", "page": ""},
        {"why": "read", "command": "", "page": "docs/cluster.md#orders-in-a-rollout"},
    ]


def test_a_long_command_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = explain_node(without_toolkit().snapshot, "edu", "n1")
    assert set(map(str.strip, said.text().splitlines())) >= set(commands(said))
    assert max(map(len, commands(said))) > 60


# --- near misses ----------------------------------------------------------------------------------


def test_a_label_that_may_be_meant_is_named() -> None:
    made = Model()
    made.apply_driver(hardware={"nodeSelector": {"example.com/crad": "yes"}})
    made.add(["n1"], labels={"example.com/card": "yes"})
    assert explain_node(made.snapshot, "edu", "n1").blocks == (
        "the node needs the label example.com/crad=yes (it has example.com/card)",
    )


def test_a_driver_or_a_node_that_may_be_meant_is_named() -> None:
    snapshot = ready().snapshot
    with pytest.raises(NoSuchObject) as caught:
        explain_driver(snapshot, "eddu")
    assert caught.value.hint == "did you mean edu? there is: edu"
    made = ready()
    made.add(["worker-10"])
    with pytest.raises(NoSuchObject) as caught:
        explain_node(made.snapshot, "edu", "wroker-10")
    assert caught.value.hint == "did you mean worker-10? kubectl get nodes"

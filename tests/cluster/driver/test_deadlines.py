"""Nodes from which nothing is heard: waited for, and then named. Time is an argument."""

from __future__ import annotations

from dataclasses import replace

from cluster.driver.deadlines import LAST_REPORT, NO_POD, NO_REPORT
from cluster.model.names import before_label
from cluster.model.snapshot import DriverPod
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.silent_nodes import BUILD, THEN, assigned, at, touch, with_pods


def test_a_node_whose_name_leaves_none_for_its_node_driver_is_named_at_once() -> None:
    model = Model()
    model.add([long := "n" * 250])
    model.apply_driver()
    model.settle()
    touch(model, THEN)
    model.change(long, labelled=THEN)

    reason, message = at(model, THEN)

    assert reason == "NodesFailed"
    assert "its NodeDriver would have a name of 254 characters" in message
    assert "the API server accepts 253: give the Driver or the node a shorter name" in message


def test_a_node_for_which_nobody_makes_a_pod_is_waited_for_and_then_named() -> None:
    model = assigned()
    [name] = model.daemonsets

    assert at(model, THEN + NO_POD - 1) == (
        "NodesBusy",
        "works on 0 of 2 nodes; starting: n0, n1",
    )
    assert model.plan(THEN + NO_POD - 1).requeue_after == 1
    reason, message = at(model, THEN + NO_POD)
    assert reason == "NodesFailed"
    assert message == (
        "n0, n1: assigned at 2027-01-15T08:00:00Z, but no pod was created for it: "
        f"see kubectl -n nodeside describe daemonset {name}"
    )
    assert model.plan(THEN + NO_POD).requeue_after is None


def test_while_pods_are_made_for_others_a_node_waits_its_turn_but_not_for_ever() -> None:
    model = assigned()
    model.add(["other"], kernel="6.1.0-51-amd64")
    model.settle()
    other = next(d for d in model.daemonsets.values() if d.pool.kernel == "6.1.0-51-amd64")
    model.daemonsets[other.name] = replace(other, touched=THEN + 5000)

    assert at(model, THEN + 900 + NO_POD - 1)[0] == "NodesBusy"
    assert at(model, THEN + 900 + NO_POD)[0] == "NodesFailed"


def test_a_pod_of_another_node_that_keeps_changing_its_daemonset_holds_none_for_ever() -> None:
    model = assigned()
    touch(model, THEN + 5000)

    assert at(model, THEN + 2 * 900 + NO_POD - 1)[0] == "NodesBusy"
    assert at(model, THEN + 2 * 900 + NO_POD)[0] == "NodesFailed"


def test_a_pod_that_is_there_and_says_nothing_has_ten_minutes() -> None:
    model = assigned()
    with_pods(model)

    assert at(model, THEN + NO_REPORT - 1)[0] == "NodesBusy"
    reason, message = at(model, THEN + NO_REPORT)
    assert reason == "NodesFailed"
    assert message.startswith(
        "n0, n1: its pod has not reported: see kubectl -n nodeside describe pod "
    )


def test_after_a_reboot_the_same_pod_has_its_time_again() -> None:
    model = assigned()
    with_pods(model)
    model.report_all()
    model.settle()
    model.reboot("n0", ready_since=THEN + 50_000)

    assert at(model, THEN + 50_000 + NO_REPORT - 1)[0] == "NodesBusy"
    assert at(model, THEN + 50_000 + NO_REPORT)[0] == "NodesFailed"


def test_long_build_with_reports_does_not_time_out() -> None:
    model = assigned()
    with_pods(model)
    for name in model.nodes:
        model.report(name, State.BUILDING, time=THEN)

    assert at(model, THEN + BUILD + LAST_REPORT - 1)[0] == "NodesBusy"
    reason, message = at(model, THEN + BUILD + LAST_REPORT)
    assert reason == "NodesFailed"
    assert message == "n0, n1: it reported building at 2027-01-15T08:00:00Z, and nothing since"


def test_a_longer_build_is_a_matter_of_the_spec() -> None:
    model = assigned()
    model.apply_driver(build={"timeoutSeconds": 7200}, rollout={"canary": 0})
    model.settle()
    for name in model.nodes:
        model.change(name, labelled=THEN)
        model.report(name, State.BUILDING, time=THEN)

    assert at(model, THEN + 7200 + LAST_REPORT - 1)[0] == "NodesBusy"


def test_a_node_that_is_heard_again_works_as_if_nothing_had_been() -> None:
    model = assigned()
    assert at(model, THEN + NO_POD)[0] == "NodesFailed"

    model.report_all()

    assert at(model, THEN + NO_POD + 1) == ("Ready", "works on 2 nodes")


def test_a_node_that_was_just_given_another_revision_is_not_late_by_its_old_label() -> None:
    model = assigned()
    model.report_all()
    model.settle()

    model.apply_driver(version="2.0.0")
    model.carry_out(model.plan(THEN + 99_999).actions)

    changed = [node for node in model.nodes.values() if before_label("edu") in node.labels]
    assert [node.name for node in changed] == ["n0"]
    assert model.condition("Ready")["reason"] == "Canary"


def test_a_daemonset_that_is_still_to_be_made_keeps_no_node_waiting() -> None:
    model = assigned()
    model.daemonsets.clear()

    plan = model.plan(THEN + 99_999)

    assert "apply DaemonSet" in plan.actions[0].words
    assert plan.actions[1:] == ()


def test_a_silent_node_in_an_open_rollout_fails_it_instead_of_holding_it_for_ever() -> None:
    model = assigned()
    model.report_all()
    model.settle()
    model.apply_driver(version="2.0.0", rollout={"canary": 0, "maxFailed": "2"})
    model.carry_out(model.plan(THEN).actions)
    first = next(node for node in model.nodes.values() if before_label("edu") in node.labels)
    model.change(first.name, labelled=THEN)
    label = first.labels[assigned_label("edu")]
    model.daemonsets[f"edu-{label}"] = replace(model.daemonsets[f"edu-{label}"], touched=THEN)

    model.carry_out(model.plan(THEN + NO_POD).actions)

    assert model.condition("Progressing")["reason"] == "RolloutBlocked"
    assert "no pod was created for it" in model.condition("Degraded")["message"]


def test_a_node_that_waits_for_its_reboot_may_wait_for_ever() -> None:
    model = Model()
    model.add(["n0", "n1"], ready_since=THEN)
    model.apply_driver(upgrade="onReboot")
    model.settle_ready()
    model.apply_driver(upgrade="onReboot", version="2.0.0")
    model.settle()
    model.reboot("n0")
    model.carry_out(model.plan(THEN).actions)
    model.report("n0", State.REBOOT_REQUIRED, time=THEN)

    assert at(model, THEN + 30 * 24 * 3600)[0] == "WaitingForReboot"
    assert model.condition("Degraded")["status"] == "False"


def test_what_a_silent_node_said_of_a_revision_before_is_no_word_once_it_is_given_back() -> None:
    model = assigned()
    model.report_all()
    at(model, THEN)
    model.apply_driver(version="2")
    at(model, THEN)
    [changed] = [name for name in model.nodes if before_label("edu") in model.nodes[name].labels]
    serving = model.serving(changed)
    assert serving is not None
    pod = DriverPod("p", driver="edu", node=changed, daemonset=serving.name, created=THEN)
    model.pods["p"] = pod  # it took the first version out, and hangs in the load of the second
    assert at(model, THEN + NO_REPORT + 1)[0] == "RolloutStopped"

    model.apply_driver()
    at(model, THEN + NO_REPORT + 2)
    model.change(changed, labelled=THEN + NO_REPORT + 2)
    model.pods["p"] = replace(pod, deleting=True)
    reason, message = at(model, THEN + NO_REPORT + 3)

    assert model.revision(changed) == model.drivers["edu"].status["revision"]
    assert model.condition("Ready")["status"] == "False"
    assert (reason, message) == ("NodesBusy", f"works on 1 of 2 nodes; starting: {changed}")
    model.report_all()
    assert at(model, THEN + 2 * NO_REPORT)[0] == "Ready"

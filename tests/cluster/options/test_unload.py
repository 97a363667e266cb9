"""Nodes that a Driver goes away from: who needs an unload, what is waited for, and what is said."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cluster.cli.explain import explain_driver, explain_node
from cluster.model.actions import Action, Create, EmitEvent, LabelNode
from cluster.model.parse_pods import pod_from
from cluster.model.snapshot import DriverPod, UnloadPod
from cluster.model.waiting import Waiting
from cluster.options.unload import deletion
from cluster.options.unload.nodes import (
    RECREATE_AFTER,
    SILENT_AFTER,
    DriverUnload,
    UnloadPhase,
    UnloadPodState,
    phase_of,
)
from cluster.plan import plan_driver
from nodeside.errors import ExitCode
from nodeside.protocol.labels import assigned_label, state_label
from nodeside.protocol.node_status import NOT_RESTORED, UNLOADED, State
from tests.cluster.fakes.model import PCI, Model

ASSIGNED, STATE = assigned_label("edu"), state_label("edu")
HELD = "cannot unload edu: edu is held by 1 open file of dd (pid 4711)"
WAY_OUT = "to leave the modules loaded: kubectl annotate driver edu nodeside.io/leave-modules=true"
SELECTED = {"example.com/edu": "yes"}


def running(count: int = 1, **spec: Any) -> Model:
    """So many nodes where the driver works; the label is as the node wrote it."""
    model = Model()
    model.add([f"n{number}" for number in range(count)], labels={PCI: "true", **SELECTED})
    model.apply_driver(hardware={"nodeSelector": SELECTED}, **spec)
    model.settle_ready()
    for name in model.nodes:
        model.relabel(name, {STATE: "ready"})
    return model


def deleting(count: int = 1, **spec: Any) -> Model:
    """The same, deleted; the DaemonSet is gone, and its pods too."""
    model = running(count, **spec)
    model.delete_driver()
    model.settle_deleting()
    return model


def going(model: Model, rounds: int = 10) -> list[Action]:
    """Plans until nothing is left to do."""
    done: list[Action] = []
    for _ in range(rounds):
        actions = model.settle_deleting()
        done += actions
        if not actions:
            return done
    raise AssertionError("never at rest")


def message(model: Model, kind: str = "Ready") -> str:
    return str(model.condition(kind)["message"])


def leaver(model: Model, name: str = "n0", now: float = 0.0) -> UnloadPhase:
    found = DriverUnload(model.snapshot, model.drivers["edu"], (), now)
    return next((each.phase for each in found.leavers if each.node.name == name), UnloadPhase.GONE)


# --- the table -----------------------------------------------------------------------------------


def test_the_table_knows_every_situation_and_never_waits_for_a_node_that_is_down() -> None:
    both = (False, True)
    for up, ending, loaded, kept, run in itertools.product(both, both, both, both, UnloadPodState):
        found = phase_of(up=up, ending=ending, loaded=loaded, kept=kept, run=run)
        assert isinstance(found, UnloadPhase)
        if not up:
            assert found.is_last
        if kept and not ending:
            assert found.is_last
        if found is UnloadPhase.NEXT:
            assert (up, ending, loaded, kept) == (True, False, True, False)


def rebooted(model: Model) -> None:
    model.reboot("n0")


def unloaded(model: Model) -> None:
    model.say("n0", State.WAITING, UNLOADED, "unloaded")


def silent(model: Model) -> None:
    """Nothing was ever said there."""
    model.node_drivers.clear()
    model.relabel("n0", {STATE: None})


def label_only(model: Model) -> None:
    model.node_drivers.clear()


def down(model: Model) -> None:
    model.change("n0", ready=False)


def building(model: Model) -> None:
    """The version before may be loaded."""
    model.say("n0", State.BUILDING)


def failed(model: Model) -> None:
    model.say("n0", State.FAILED, "BuildFailed", "edu.c:42")


def never(model: Model) -> None:
    model.apply_driver(unload={"policy": "never"})
    model.delete_driver()


def annotated(model: Model) -> None:
    model.drivers["edu"] = replace(model.drivers["edu"], leave_modules=True)


def driver_pod(model: Model) -> None:
    model.pods["p"] = DriverPod("p", driver="edu", node="n0", daemonset="edu-1")


def rival(model: Model) -> None:
    """Another Driver has the module there now."""
    model.apply_driver("other")
    model.relabel("n0", {assigned_label("other"): "123456789abc"})


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        (lambda _: None, UnloadPhase.NEXT),
        (rebooted, UnloadPhase.GONE),
        (unloaded, UnloadPhase.GONE),
        (silent, UnloadPhase.GONE),
        (label_only, UnloadPhase.NEXT),
        (down, UnloadPhase.DOWN),
        (building, UnloadPhase.NEXT),
        (failed, UnloadPhase.NEXT),
        (never, UnloadPhase.STAYS),
        (annotated, UnloadPhase.STAYS),
        (driver_pod, UnloadPhase.ENDING),
        (rival, UnloadPhase.GONE),
    ],
)
def test_a_node_needs_an_unload_if_the_driver_may_be_loaded_in_its_boot(
    happened: Callable[[Model], None], expected: UnloadPhase
) -> None:
    model = deleting()
    for name in list(model.unloads()):
        model.pods.pop(model.unloads()[name].name)

    happened(model)

    assert leaver(model) is expected


# --- a Driver that is deleted --------------------------------------------------------------------


def test_a_deleted_driver_is_unloaded_on_every_node_and_leaves_nothing() -> None:
    model = running(2)
    model.pods["p0"] = DriverPod("p0", driver="edu", node="n0", daemonset="edu-1")
    model.delete_driver()
    model.settle_deleting()
    assert not model.daemonsets

    going(model)
    assert set(model.unloads()) == {"n1"}, "a driver pod is still on n0"
    assert message(model) == "pods are terminating: n0; unload pods are starting: n1"
    assert ASSIGNED in model.nodes["n0"].labels

    del model.pods["p0"]
    going(model)
    assert set(model.unloads()) == {"n0", "n1"}
    for name in ("n0", "n1"):
        model.end_unload(name)
    going(model)

    assert not model.drivers
    assert not model.revisions
    assert not model.node_drivers
    assert not model.pods
    assert all(set(node.labels) == {PCI, *SELECTED} for node in model.nodes.values())
    assert [(say.warning, say.reason, say.note) for say in model.said[-1:]] == [
        (False, "Deleted", "driver edu is gone, and none of its modules is loaded any more")
    ]


def test_a_held_module_is_named_with_its_holder_and_the_way_out() -> None:
    model = deleting(2)
    going(model)
    model.say("n0", State.UNLOADING, "InUse", HELD)
    model.end_unload("n1")

    going(model)

    assert message(model) == f"modules are held: n0 ({HELD}); {WAY_OUT}"
    assert model.condition("Degraded")["reason"] == "ModulesHeld"
    assert [say.reason for say in model.said].count("ModulesHeld") == 1
    leave = "kubectl annotate driver edu nodeside.io/leave-modules=true"
    said = explain_driver(model.snapshot, "edu").do
    assert [each.command for each in said[:2]] == ["nodeside-cluster explain edu n0", leave]
    said = explain_node(model.snapshot, "edu", "n0").do
    assert [each.command for each in said[:3]] == [
        f"kubectl logs -n nodeside {model.unloads()['n0'].name}",
        "kubectl get pods -A -o wide --field-selector spec.nodeName=n0",
        leave,
    ]
    assert set(model.node_drivers) == {"edu.n0"}, "n1 is clean already"
    assert model.drivers["edu"].status["leaving"] == 1

    annotated(model)
    going(model)

    assert not model.drivers
    assert not model.pods
    assert model.said[-1].note == (
        "driver edu: modules stay loaded until a reboot: n0 (annotation nodeside.io/leave-modules)"
    )


def test_a_reboot_ends_the_wait_for_whoever_holds_a_module() -> None:
    model = deleting()
    going(model)
    model.say("n0", State.UNLOADING, "InUse", HELD)
    going(model)
    assert model.drivers

    model.reboot("n0")
    going(model)

    assert not model.drivers
    assert not model.pods


def test_where_only_a_reboot_helps_the_last_word_names_the_node_and_nothing_waits() -> None:
    model = deleting(3)
    going(model)
    for name in ("n0", "n2"):
        model.end_unload(name)
    why = "cannot unload edu: it is permanent, that is, it has no exit function"
    model.say("n1", State.REBOOT_REQUIRED, "RebootRequired", why)
    model.end_unload("n1", ExitCode.REBOOT_REQUIRED)

    going(model)

    assert not model.drivers
    assert not model.pods
    assert not model.node_drivers
    (said,) = [say for say in model.said if say.reason == "ModulesStay"]
    assert said.warning
    assert said.note == f"driver edu: modules stay loaded until a reboot: n1 ({why})"
    assert model.said[-1] is said


def test_a_policy_of_never_makes_no_pod_and_says_that_modules_stay() -> None:
    model = deleting(2, unload={"policy": "never"})

    done = going(model)

    assert not [action for action in done if isinstance(action, Create)]
    assert not model.drivers
    assert model.said[-1].note == (
        "driver edu: modules stay loaded until a reboot: n0, n1 (unload.policy: never)"
    )


def test_a_node_that_is_down_or_deleted_blocks_nothing() -> None:
    model = deleting(3)
    going(model)
    assert set(model.unloads()) == {"n0", "n1", "n2"}
    model.change("n0", ready=False)
    del model.nodes["n1"]
    model.end_unload("n2")

    going(model)

    assert not model.drivers
    assert not model.pods
    assert model.said[-1].note == (
        "driver edu: nodes are down, and keep their modules until a reboot: n0"
    )


@pytest.mark.parametrize("steps", range(6))
def test_a_controller_killed_at_any_step_of_the_end_leaves_a_last_word(steps: int) -> None:
    model = deleting(2, unload={"policy": "never"})
    model.carry_out(model.plan().actions[:steps])

    going(model)

    assert not model.drivers
    assert "n0, n1" in model.said[-1].note


def test_a_pod_that_never_ends_on_a_node_that_is_down_blocks_nothing() -> None:
    model = running(2)
    [found] = model.daemonsets
    model.change("n0", ready=False)
    stuck = DriverPod("stuck", "nodeside", "uid-stuck", "edu", "n0", daemonset=found, deleting=True)
    model.pods["stuck"] = stuck
    model.delete_driver()

    going(model)
    model.end_unload("n1")
    going(model)

    assert not model.drivers


def test_a_pod_that_cannot_start_is_named_with_the_reason() -> None:
    model = deleting()
    going(model)
    pod = model.unloads()["n0"]
    model.pods[pod.name] = replace(
        pod, waiting={"driver": Waiting("ImagePullBackOff", "not found")}
    )

    going(model)

    assert message(model) == (
        f"unload pods do not run: n0 (driver: ImagePullBackOff: not found); {WAY_OUT}"
    )


def test_a_pod_that_says_nothing_is_named_after_a_while() -> None:
    model = deleting()
    going(model)
    pod = model.unloads()["n0"]

    assert model.plan(now=1.0).requeue_after == SILENT_AFTER - 1.0
    assert leaver(model, now=SILENT_AFTER + 1) is UnloadPhase.STUCK
    model.carry_out(model.plan(now=SILENT_AFTER + 1).actions)
    assert message(model).startswith(
        f"unload pods do not run: n0 (pod {pod.name} has not reported: "
        f"kubectl -n nodeside describe pod {pod.name})"
    )


def test_a_pod_that_failed_is_made_again_after_a_rest() -> None:
    model = deleting()
    going(model)
    model.end_unload("n0", 52, "exit code 52")

    going(model)
    assert message(model).startswith(
        "unload pods failed and are recreated: n0 (exit code 52); to leave"
    )
    assert model.plan(now=10.0).requeue_after == RECREATE_AFTER - 10.0

    model.carry_out(model.plan(now=RECREATE_AFTER).actions)
    assert not model.unloads()
    model.carry_out(model.plan(now=RECREATE_AFTER).actions)
    assert leaver(model) is UnloadPhase.STARTING


def test_a_pod_that_is_slow_and_has_spoken_keeps_nobody_busy() -> None:
    model = deleting()
    going(model)
    model.say("n0", State.UNLOADING)

    assert leaver(model, now=SILENT_AFTER + 1) is UnloadPhase.UNLOADING
    assert model.plan(now=SILENT_AFTER + 1).requeue_after is None


def test_so_many_pods_are_at_work_at_once_and_those_that_wait_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "LIMIT", 2)
    model = deleting(5)

    going(model)
    assert len(model.unloads()) == 2
    assert message(model) == "to be unloaded: n2, n3, n4; unload pods are starting: n0, n1"
    model.say("n0", State.UNLOADING, "InUse", HELD)
    model.end_unload("n1")
    going(model)

    assert set(model.unloads()) == {"n0", "n2", "n3"}


def test_a_revision_that_went_with_a_deletion_in_the_foreground_is_made_again() -> None:
    model = running()
    model.delete_driver()
    model.settle_deleting()
    model.revisions.clear()

    going(model)

    (revision,) = model.revisions.values()
    assert model.unloads()["n0"].revision == revision.revision


def test_a_node_is_unloaded_with_the_revision_that_it_had() -> None:
    model = running(2)
    had = model.revision("n0")
    model.apply_driver(hardware={"nodeSelector": SELECTED}, version="2.0", rollout={"paused": True})
    model.settle()
    model.delete_driver()

    going(model)

    for pod in model.unloads().values():
        assert pod.revision == had


def test_unload_pods_of_a_driver_that_was_let_go_by_hand_go_too() -> None:
    model = deleting()
    going(model)
    del model.drivers["edu"]

    model.carry_out(model.plan().actions)

    assert not model.pods


# --- a node that a Driver is not for any more ----------------------------------------------------


def left(count: int = 3) -> Model:
    """n0 is out of the selector, and its driver pod is gone."""
    model = running(count)
    model.relabel("n0", {"example.com/edu": None})
    model.settle_deleting()
    assert ASSIGNED not in model.nodes["n0"].labels
    return model


def test_in_tree_drivers_that_are_still_away_are_told_before_the_report_goes() -> None:
    model = left()
    going(model)
    problem = "unloaded; could not be brought back: cannot load rival: ENODEV"
    model.say("n0", State.WAITING, NOT_RESTORED, problem)
    model.end_unload("n0")
    going(model)

    told = [event for event in model.said if event.reason == NOT_RESTORED]
    assert [(each.warning, each.note) for each in told] == [(True, f"driver edu on n0: {problem}")]
    assert "edu.n0" not in model.node_drivers
    assert set(model.nodes["n0"].labels) == {PCI}


def test_a_node_that_left_is_unloaded_while_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_driver, "KEPT_REVISIONS", 0)
    model = left()
    model.apply_driver(hardware={"nodeSelector": SELECTED}, version="2.0")
    going(model)
    model.say("n0", State.UNLOADING, "InUse", HELD)
    for _ in range(10):
        for name in ("n1", "n2"):
            model.report(name)
        going(model)

    status = model.drivers["edu"].status
    assert status["nodes"]["updated"] == 2, "the rollout is not held up"
    assert status["leaving"] == 1
    assert len(model.revisions) == 2, "the one of before is still needed on n0"
    words = f"no longer selects 1 node: modules are held: n0 ({HELD}); {WAY_OUT}"
    assert message(model) == f"works on 2 nodes; {words}"
    assert model.condition("Progressing")["reason"] == "NodesLeaving"

    model.end_unload("n0")
    going(model)

    assert set(model.nodes["n0"].labels) == {PCI}
    assert "edu.n0" not in model.node_drivers
    assert not model.pods
    assert len(model.revisions) == 1
    assert message(model) == "works on 2 nodes"


def test_a_node_leaves_whose_device_the_spec_names_no_more() -> None:
    model = Model()
    for name, device in (("n0", "9999"), ("n1", "11e8"), ("n2", "9999")):
        label = f"feature.node.kubernetes.io/pci-1234_{device}.present"
        model.add([name], labels={label: "true"})
    model.apply_driver(hardware={"pci": [{"vendor": "1234"}]})
    model.settle_ready()
    model.relabel("n2", {label: None})  # Node Feature Discovery is away, there

    model.apply_driver(hardware={"pci": [{"vendor": "1234", "device": "11e8"}]})
    going(model)

    assert set(model.unloads()) == {"n0"}
    assert ASSIGNED in model.nodes["n1"].labels
    assert ASSIGNED in model.nodes["n2"].labels
    model.end_unload("n0")
    model.relabel("n2", {label: "true"})
    going(model)
    assert set(model.unloads()) == {"n2"}


def test_a_node_that_comes_back_in_the_middle_gets_the_driver_again() -> None:
    model = left()
    going(model)
    assert set(model.unloads()) == {"n0"}
    model.say("n0", State.UNLOADING)

    model.relabel("n0", SELECTED)  # type: ignore[arg-type]
    going(model)

    assert not model.pods
    assert ASSIGNED in model.nodes["n0"].labels
    assert model.drivers["edu"].status["leaving"] == 0
    model.report_all()
    going(model)
    assert model.condition("Ready")["status"] == "True"


def test_a_node_that_left_and_is_down_is_unloaded_when_it_comes_up() -> None:
    model = running(2)
    model.change("n0", ready=False)
    model.relabel("n0", {"example.com/edu": None})

    going(model)
    assert not model.unloads()
    assert "nodes are down, and keep their modules until a reboot: n0" in message(model)

    model.change("n0", ready=True)
    going(model)
    assert set(model.unloads()) == {"n0"}


def test_where_modules_stay_the_label_says_so_until_the_reboot() -> None:
    model = running(2, unload={"policy": "never"})
    model.relabel("n0", {"example.com/edu": None})

    done = going(model)

    assert not [action for action in done if isinstance(action, Create)]
    assert model.nodes["n0"].labels == {PCI: "true", STATE: "reboot-required"}
    assert "modules stay loaded until a reboot: n0 (unload.policy: never)" in message(model)
    model.reboot("n0")
    going(model)
    assert model.nodes["n0"].labels == {PCI: "true"}
    assert set(model.node_drivers) == {"edu.n1"}


def test_a_node_that_another_driver_has_is_not_unloaded_under_it() -> None:
    model = left()
    rival(model)

    going(model)

    assert not model.unloads()
    assert STATE not in model.nodes["n0"].labels


# --- the pod, as it is read ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "ended"),
    [
        ({"phase": "Running"}, None, ""),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 44}}}],
            },
            44,
            f"exit code 44 ({ExitCode.REBOOT_REQUIRED.meaning})",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            None,
            "Evicted: low on memory",
        ),
        (
            {"phase": "Failed", "message": "\x1b]52;c;eA==\x07"},
            None,
            "\ufffd]52;c;eA==\ufffd",
        ),
        ({"phase": "Failed"}, None, "no reason was given"),
    ],
)
def test_what_became_of_a_pod_is_read_from_its_status(
    status: dict[str, Any], code: int | None, ended: str
) -> None:
    model = deleting()
    (created,) = [a for a in model.plan().actions if isinstance(a, Create)]
    read = pod_from({**created.document, "status": status})

    assert isinstance(read, UnloadPod)
    assert (read.phase, read.code, read.ended) == (status["phase"], code, ended)


def test_labels_of_all_nodes_go_out_together() -> None:
    """The lane does neighbours of one kind in parallel."""
    model = deleting(3)
    going(model)
    for name in list(model.unloads()):
        model.end_unload(name)

    kinds = [type(action).__name__ for action in model.plan().actions]

    first = kinds.index(LabelNode.__name__)
    assert kinds[first : first + 3] == [LabelNode.__name__] * 3
    assert EmitEvent.__name__ not in kinds


# --- feature labels ------------------------------------------------------------------------------

FEATURES: dict[str, str | None] = {
    "feature.nodeside.io/edu.version": "1.0.0",
    "feature.nodeside.io/edu2.version": "7",
}


def features(model: Model) -> set[str]:
    return FEATURES.keys() & model.nodes["n0"].labels.keys()


def test_a_drivers_feature_labels_go_with_it_and_no_other_drivers() -> None:
    model = running()
    model.relabel("n0", FEATURES)
    model.delete_driver()
    model.settle_deleting()
    assert features(model) == FEATURES.keys(), "its modules are loaded still"

    unloaded(model)
    going(model)
    assert features(model) == {"feature.nodeside.io/edu2.version"}


def test_feature_labels_of_a_driver_that_went_without_cleanup_are_removed() -> None:
    model = running()
    model.relabel("n0", FEATURES)
    for gone in (model.drivers, model.daemonsets, model.pods):
        gone.clear()

    going(model)

    assert features(model) == {"feature.nodeside.io/edu2.version"}


def test_the_modules_of_an_earlier_revision_are_no_reason_to_leave_those_of_this_one() -> None:
    model = running(1, modules=[{"name": "edu"}, {"name": "common"}])
    model.apply_driver(
        hardware={"nodeSelector": SELECTED}, version="2.0.0", modules=[{"name": "edu"}]
    )
    model.settle_ready()
    model.relabel("n0", {STATE: "ready"})
    model.apply_driver("other", modules=[{"name": "common"}])
    model.relabel("n0", {assigned_label("other"): "123456789abc"})
    assert len(model.revisions) == 2, "nodeside-cluster undo can go back"

    model.delete_driver()
    model.settle_deleting()

    assert leaver(model) is UnloadPhase.NEXT or model.unloads()

"""What people are told of a Driver: conditions, Events, and the names of revisions."""

from __future__ import annotations

from typing import Any

from cluster.model.snapshot import DriverPod
from cluster.model.waiting import Waiting
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model


def running(**spec: Any) -> Model:
    """Three nodes on which the first version works since 1970-01-01T00:01:40Z."""
    model = Model()
    model.add(["n0", "n1", "n2"])
    model.apply_driver(**spec)
    for moment in (0.0, 100.0):
        model.carry_out(model.plan(moment).actions)
        model.report_all()
    model.carry_out(model.plan(100.0).actions)
    return model


def reasons(model: Model) -> list[str]:
    return [say.reason for say in model.said]


def test_a_node_that_joins_is_no_event() -> None:
    model = running()
    assert reasons(model) == ["RolloutStarted", "Ready"]

    model.add(["late"])
    model.carry_out(model.plan(500.0).actions)
    assert model.condition("Ready")["reason"] == "NodesBusy"
    model.report("late")
    model.carry_out(model.plan(501.0).actions)

    assert model.condition("Ready")["message"] == "works on 4 nodes"
    assert reasons(model) == ["RolloutStarted", "Ready"]


def test_that_it_works_again_after_a_failure_is_an_event_though_it_was_on_its_way_between() -> None:
    model = running()
    model.reboot("n0")
    for moment, state in ((500.0, State.FAILED), (502.0, State.BUILDING), (504.0, State.READY)):
        model.report("n0", state)
        model.carry_out(model.plan(moment).actions)

    assert reasons(model) == ["RolloutStarted", "Ready", "NodesFailed", "Ready"]


def test_a_rollout_that_is_complete_is_an_event() -> None:
    model = running(rollout={"canary": 0, "maxUnavailable": "3"})
    model.apply_driver(version="2", rollout={"canary": 0, "maxUnavailable": "3"})
    model.carry_out(model.plan(500.0).actions)
    model.report_all()
    model.carry_out(model.plan(510.0).actions)

    assert reasons(model) == ["RolloutStarted", "Ready", "RolloutStarted", "Ready"]


def test_paused_it_is_not_ready_and_yet_available_where_the_old_version_works() -> None:
    model = running()
    model.apply_driver(version="2.0.0", rollout={"paused": True})
    model.carry_out(model.plan(500.0).actions)

    newest = model.drivers["edu"].status["revision"]
    ready, available = model.condition("Ready"), model.condition("Available")
    assert (ready["status"], ready["reason"]) == ("False", "RolloutPaused")
    assert ready["message"] == (
        f"paused by spec.rollout.paused; 0 of 3 nodes have 2.0.0 ({newest}); works on 3 of 3 "
        "nodes; to go on: nodeside-cluster resume edu"
    )
    assert (available["status"], available["message"]) == ("True", "works on 3 of 3 nodes")


def test_it_is_not_available_where_it_does_not_work_and_a_node_that_is_down_does_not_count() -> (
    None
):
    model = running()
    model.change("n0", ready=False)
    model.report("n1", State.FAILED)
    model.carry_out(model.plan(500.0).actions)

    available = model.condition("Available")
    assert available["status"] == "False"
    assert available["message"] == "works on 1 of 2 nodes; not on n1"


def test_a_pod_that_cannot_start_where_the_driver_works_is_mentioned() -> None:
    model = running()
    [name] = model.daemonsets
    waiting = {"toolkit": Waiting("ImagePullBackOff", "not found")}
    pod = DriverPod("p", driver="edu", node="n1", daemonset=name, waiting=waiting)
    model.pods["p"] = pod
    model.carry_out(model.plan(500.0).actions)

    ready = model.condition("Ready")
    assert ready["status"] == "True"
    assert ready["message"] == (
        "works on 3 nodes; but on n1 its pod cannot start: toolkit: ImagePullBackOff: not found"
    )

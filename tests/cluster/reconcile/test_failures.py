"""A Driver in trouble says so, rests, and hurts nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cluster.kube.errors import Forbidden
from cluster.model.actions import Apply, Create, EmitEvent, LabelNode, Plan, SetStatus
from cluster.model.lanes import STATUS, Lane, stages_part
from cluster.plan.planner import report_problems
from cluster.reconcile.failures import (
    Failure,
    drop_blocked_actions,
    failure_of,
    is_backing_off,
    problems_of,
    with_next_retry,
)
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.problems import with_problems

EDU = Lane("edu")
REFUSED = Failure("Forbidden", "cannot apply DaemonSet edu-1: no rule", generation=1, again_at=50)
READY: dict[str, Any] = {
    "type": "Ready",
    "status": "True",
    "reason": "Ready",
    "message": "works on 3 nodes",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}


def model() -> Model:
    made = Model()
    made.apply_driver("edu")
    made.apply_driver("other", modules=[{"name": "other"}])
    return made


def reports(
    made: Model, failures: Mapping[Lane, Failure], wall: float = 0.0
) -> list[Mapping[str, Any]]:
    """The statuses that are set to report failures."""
    plan = report_problems(with_problems(made.snapshot, *problems_of(failures)), wall)
    return [action.status for action in plan.actions if isinstance(action, SetStatus)]


def test_what_failed_and_what_to_do_stand_in_the_condition() -> None:
    error = Forbidden('no permission to patch nodes "n1"', hint="kubectl auth can-i patch nodes")

    trouble = failure_of(error, "label node n1")

    assert trouble.reason == "Forbidden"
    assert trouble.message == (
        'cannot label node n1: no permission to patch nodes "n1" (kubectl auth can-i patch nodes)'
    )


def test_a_bug_of_ours_says_that_it_is_one() -> None:
    assert failure_of(KeyError("x"), "plan driver edu").message == (
        "a bug in nodeside, please report it with the controller's log: "
        "cannot plan driver edu: KeyError('x')"
    )


def test_failure_is_in_ready_message_and_running_nodes_stay() -> None:
    made = model()
    made.drivers["edu"] = replace(made.drivers["edu"], status={"conditions": [READY], "pools": [1]})

    [status] = reports(made, {EDU: REFUSED})

    ready, degraded = status["conditions"]
    assert ready == READY | {"reason": "Forbidden", "message": REFUSED.message}
    assert (degraded["type"], degraded["status"]) == ("Degraded", "True")
    assert degraded["lastTransitionTime"] == "1970-01-01T00:00:00Z"
    assert status["pools"] == [1]


def test_a_driver_that_rests_has_no_action_but_its_status() -> None:
    made = model()
    labels = (LabelNode("edu", "n1", {}), LabelNode("other", "n1", {}))
    status = SetStatus("edu", {})

    plan = drop_blocked_actions(Plan((*labels, status)), made.snapshot, {EDU: REFUSED}, now=49)

    assert plan.actions_by_lane()[EDU] == [status]
    assert plan.actions_by_lane()[Lane("other")] == [*labels[1:]]
    assert plan.requeue_after == 1


def test_what_is_refused_of_a_stage_is_said_and_the_driver_goes_on() -> None:
    made = model()
    label = LabelNode("edu", "n1", {})
    lane = Lane("edu", stages_part("0123"))
    apply = Apply("edu", {"kind": "DaemonSet", "metadata": {"name": "plugin"}}, part=lane.part)

    refused = replace(REFUSED, generation=0)  # a lane has no generation: its name changes instead
    plan = drop_blocked_actions(Plan((label, apply)), made.snapshot, {lane: refused}, now=49)

    assert plan.actions == (label,)
    [status] = reports(made, {lane: refused})
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert conditions["StagesReady"] == ("False", "Forbidden")
    assert conditions["Degraded"] == ("True", "Forbidden")


def test_what_is_refused_of_a_stage_on_some_nodes_is_said_of_the_stages_too() -> None:
    lane = Lane("edu", stages_part("0123"))
    job = {"kind": "Job", "metadata": {"name": "selftest"}}
    creates = tuple(Create("edu", job, node, lane.part) for node in ("n1", "n2", "n3"))
    refused = {lane.on_node(node): replace(REFUSED, generation=0) for node in ("n1", "n2")}

    plan = drop_blocked_actions(Plan(creates), model().snapshot, refused, now=49)

    assert plan.actions_by_lane()[lane] == [creates[2]], "others have nothing to do with it"
    [status] = reports(model(), refused)
    conditions = {c["type"]: (c["status"], c["message"]) for c in status["conditions"]}
    assert conditions["StagesReady"] == ("False", f"{REFUSED.message}; the same for n2")


def test_a_status_that_says_it_already_is_not_written_again() -> None:
    made = model()
    [status] = reports(made, {EDU: REFUSED})
    made.carry_out([SetStatus("edu", status)])

    assert reports(made, {EDU: REFUSED}, wall=999) == []


def test_a_status_that_cannot_be_written_is_not_tried_again_before_its_time() -> None:
    made = model()
    mute = Failure("Forbidden", "cannot set the status", generation=1, again_at=50, mute=True)
    wanted = Plan((SetStatus("edu", {"revision": "r"}), SetStatus("other", {"revision": "r"})))
    failures = {Lane("edu", STATUS): mute}

    early = drop_blocked_actions(wanted, made.snapshot, failures, now=49)
    later = drop_blocked_actions(wanted, made.snapshot, failures, now=50)

    assert early.actions == wanted.actions[1:]
    assert later.actions == wanted.actions
    assert reports(made, failures) == []


def test_a_status_that_cannot_be_written_delays_itself_and_what_is_told_with_it() -> None:
    mute = Failure("Forbidden", "cannot set the status", generation=1, again_at=50, mute=True)
    label = LabelNode("edu", "n1", {})
    told = EmitEvent("edu", "u", True, "NodesFailed", "n1", of_status=True)
    other = EmitEvent("edu", "u", True, "FellBack", "n1")
    wanted = Plan((label, SetStatus("edu", {"revision": "r"}), told, other))

    plan = drop_blocked_actions(wanted, model().snapshot, {Lane("edu", STATUS): mute}, now=49)

    assert plan.actions == (label, other)


def test_each_failure_in_a_row_rests_longer_up_to_a_minute() -> None:
    waits, before = [], None
    for _ in range(9):
        before = with_next_retry(before, REFUSED, generation=1, now=0, jitter=1)
        waits.append(before.again_at)

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_driver_that_was_changed_is_tried_at_once() -> None:
    assert is_backing_off(REFUSED, generation=1, now=49)
    assert not is_backing_off(REFUSED, generation=2, now=49)
    assert not is_backing_off(REFUSED, generation=1, now=50)
    assert with_next_retry(REFUSED, REFUSED, generation=2, now=0, jitter=1).failures == 1

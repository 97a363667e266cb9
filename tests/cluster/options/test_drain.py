"""Nodes that are emptied before their driver is replaced: the table, and what plans make of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from cluster.model.actions import Action, Cordon, EvictPod, LabelNode, Uncordon, lane_of
from cluster.model.lanes import CORDONS, Lane
from cluster.model.names import CORDONED
from cluster.model.snapshot import Occupancy
from cluster.options.drain.labels import timestamp_value
from cluster.options.drain.table import (
    DRAIN_TABLE,
    Change,
    DrainSituation,
    DrainStep,
    DriverState,
    Eviction,
    Hold,
    Occupants,
    Time,
    decide_drain,
)
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.drains import (
    DRAINING,
    EVICT,
    UNDRAINED,
    cordoned,
    held,
    is_over,
    rolling,
    step,
)
from tests.cluster.fakes.model import Model
from tests.tries import sampled

EVERY = [
    DrainSituation(*parts)
    for parts in product(Eviction, Change, Hold, Occupants, DriverState, Time)
]
ASSIGNED = assigned_label("edu")
BUDGET = "the disruption budget train needs 1 healthy pods and has 1 currently"


def to_the_end(model: Model, rounds: int = 60) -> list[Action]:
    """Plans, and nodes that work with what they get, until nothing is left to do."""
    every: list[Action] = []
    for _ in range(rounds):
        actions = model.plan().actions
        model.carry_out(actions)
        model.report_all()
        if not actions and not model.plan().actions:
            return every
        every += actions
    raise AssertionError(f"not settled after {rounds} rounds: {[a.words for a in every[-9:]]}")


# --- the table -----------------------------------------------------------------------------------


def test_every_situation_has_exactly_one_row() -> None:
    rows = Counter(situation for row in DRAIN_TABLE for situation in row.situations())

    assert {situation: rows[tuple(situation)] for situation in EVERY} == dict.fromkeys(EVERY, 1)


def test_nobody_is_evicted_who_was_not_asked_for_or_before_the_node_is_held() -> None:
    evicting = [s for s in EVERY if decide_drain(s).step is DrainStep.EVICT]

    assert {(s.eviction, s.change, s.hold, s.occupants) for s in evicting} == {
        (Eviction.YES, Change.REPLACE, Hold.HELD, Occupants.SOMEBODY)
    }


def test_a_working_driver_is_replaced_on_a_held_and_empty_node_only() -> None:
    going = [
        s
        for s in EVERY
        if decide_drain(s).step is DrainStep.GO
        and (s.eviction, s.change, s.state) == (Eviction.YES, Change.REPLACE, DriverState.WORKS)
    ]

    assert {(s.hold, s.occupants) for s in going} == {(Hold.HELD, Occupants.NOBODY)}


def test_without_eviction_a_node_is_held_only_while_stages_are_in_the_way_of_its_change() -> None:
    held = [s for s in EVERY if s.eviction is Eviction.NO and s.hold is not Hold.FREE]
    kept = {
        (s.change, s.occupants, s.time)
        for s in held
        if decide_drain(s).step not in (DrainStep.RELEASE, DrainStep.GIVE_UP)
    }

    assert kept == {
        (Change.REPLACE, Occupants.STAGES, Time.LEFT),
        (Change.REPLACE, Occupants.UNKNOWN, Time.LEFT),
    }


@pytest.mark.parametrize("step", DrainStep)
def test_every_step_is_taken_somewhere(step: DrainStep) -> None:
    assert any(row.step is step and row.why for row in DRAIN_TABLE)


# --- one node ------------------------------------------------------------------------------------


def test_a_node_is_cordoned_emptied_changed_and_uncordoned_in_this_order() -> None:
    model = rolling(1)
    model.consume("n0")

    said = [step(model)]
    said.append(step(model))
    assert model.condition("Progressing")["reason"] == "Draining"
    said.append(step(model))
    model.report_all()
    said.append(step(model))
    said.append(step(model))

    newest = model.nodes["n0"].labels[ASSIGNED]
    assert said[:2] == [["cordon node n0"], ["evict pod default/train-0 from node n0"]]
    assert [words for words in said[2] if f"{ASSIGNED}={newest}" in words]
    assert said[3:] == [[f"label node n0 {DRAINING}-"], ["uncordon node n0"]]
    assert to_the_end(model) == []
    assert is_over(model)


def test_without_eviction_nobody_is_cordoned() -> None:
    model = rolling(2)
    model.consume("n0")
    model.apply_driver(version="2.0.0", rollout={})

    actions = to_the_end(model)

    assert not [a for a in actions if isinstance(a, Cordon | Uncordon | EvictPod)]
    assert model.consumers


def test_an_empty_node_is_cordoned_for_the_short_while_of_its_change() -> None:
    model = rolling(2)

    actions = to_the_end(model)

    assert [a.node for a in actions if isinstance(a, Cordon)] == ["n0", "n1"]
    assert [a.node for a in actions if isinstance(a, Uncordon)] == ["n0", "n1"]
    assert not [a for a in actions if isinstance(a, EvictPod)]
    assert is_over(model)


def test_a_budget_that_refuses_is_named_and_asked_again_when_it_is_time() -> None:
    model = rolling(2)
    model.consume("n0")
    model.refused["default/train-0"] = BUDGET
    step(model)
    step(model)

    assert step(model) == [], "it was asked a moment ago"
    message = model.condition("Progressing")["message"]
    assert message.endswith(f"draining n0: waiting for default/train-0 ({BUDGET})")
    assert model.condition("Ready")["reason"] == "Draining"
    [row] = model.drivers["edu"].status["draining"]
    assert (row["node"], row["message"]) == ("n0", f"waiting for default/train-0 ({BUDGET})")

    model.refused.clear()
    model.answers = {uid: replace(a, resting=False) for uid, a in model.answers.items()}
    assert step(model) == ["evict pod default/train-0 from node n0"]
    to_the_end(model)
    assert is_over(model)


def test_a_pod_that_is_leaving_is_waited_for_and_not_asked_again() -> None:
    model = rolling(1)
    model.consume("n0", deleting=True)
    step(model)

    assert step(model) == []
    assert "waiting for default/train-0 to end" in model.condition("Progressing")["message"]


def test_a_node_whose_pods_are_kept_by_a_budget_is_named_before_others() -> None:
    model = rolling(3, maxUnavailable="2", canary=0)
    model.consume("n0", "default/leaving", deleting=True)
    model.consume("n1", "default/train-0")
    model.refused["default/train-0"] = BUDGET
    for _ in range(3):
        step(model)

    assert held(model) == {"n0", "n1"}
    draining = f"draining n1: waiting for default/train-0 ({BUDGET}) and 1 more node"
    assert model.condition("Progressing")["message"].endswith(draining)


def test_nothing_is_changed_while_the_pods_of_the_cluster_are_not_known() -> None:
    model = rolling(1)
    model.known = False

    assert step(model) == []
    assert model.plan().demand is not None
    assert "the pods of the cluster are not known yet" in model.condition("Progressing")["message"]


def test_what_keeps_the_pods_from_being_known_is_said() -> None:
    model = rolling(1)
    trouble = Occupancy(trouble="no permission to list pods")
    snapshot = replace(model.snapshot, occupancy=trouble)

    from cluster.plan.planner import plan

    model.carry_out(plan(snapshot, 0.0).actions)

    assert model.condition("Progressing")["message"].endswith(
        "draining n0: the pods of the cluster are not known yet: no permission to list pods"
    )


def test_pods_are_asked_for_only_while_something_changes() -> None:
    model = rolling(1)
    model.apply_driver(version="1.0.0", rollout={"evict": EVICT})
    model.settle_ready()
    assert model.plan().demand is None

    model.apply_driver(version="2.0.0", rollout={"evict": EVICT, "paused": True})
    assert model.plan().demand is None
    model.apply_driver(version="2.0.0", rollout={"evict": EVICT})
    demand = model.plan().demand
    assert demand is not None
    assert demand.resources == {"example.com/edu"}
    to_the_end(model)
    assert model.plan().demand is None


# --- whose cordon --------------------------------------------------------------------------------


def test_a_node_that_somebody_else_cordoned_stays_cordoned() -> None:
    model = rolling(2)
    model.consume("n0")
    model.change("n0", unschedulable=True)

    actions = to_the_end(model)

    assert [a.node for a in actions if isinstance(a, Uncordon)] == ["n1"]
    assert cordoned(model) == {"n0"}
    assert not model.consumers
    assert is_over(model)


def test_a_node_that_somebody_uncordons_before_its_turn_is_over_is_cordoned_again() -> None:
    model = rolling(1)
    model.consume("n0")
    model.refused["default/train-0"] = BUDGET
    step(model)
    model.change("n0", unschedulable=False)

    step(model)

    assert cordoned(model) == {"n0"}


def test_a_cordon_that_somebody_ended_and_somebody_made_anew_is_not_ours_any_more() -> None:
    model = rolling(1)
    for _ in range(3):
        step(model)
    assert CORDONED in model.nodes["n0"].labels
    model.change("n0", unschedulable=False)
    step(model)
    model.change("n0", unschedulable=True)

    to_the_end(model)

    assert cordoned(model) == {"n0"}


def test_two_drivers_that_drain_one_node_do_not_uncordon_each_others() -> None:
    model = rolling(1)
    other: dict[str, Any] = {"modules": [{"name": "other"}]}
    model.apply_driver("other", **other)
    model.apply_driver(version="1.0.0", rollout={"evict": EVICT})
    for _ in range(4):
        model.settle()
        model.report_all()
        model.report_all(driver="other")
    model.apply_driver(version="3.0.0", rollout={"evict": EVICT})
    model.apply_driver("other", version="3.0.0", rollout={"evict": EVICT}, **other)
    step(model)
    assert held(model) == held(model, "other") == {"n0"}

    step(model)
    model.report("n0")
    step(model)
    assert held(model) == set()
    assert step(model) == []
    assert cordoned(model) == {"n0"}, "the other one is not done"

    model.report("n0", driver="other")
    step(model)
    assert step(model) == ["uncordon node n0"]


def test_failed_uncordon_is_reported_on_a_driver() -> None:
    model = rolling(1)
    ended = [action for action in to_the_end(model) if isinstance(action, Uncordon)]

    assert [lane_of(action) for action in ended] == [Lane("edu", CORDONS)]


def test_a_cordon_of_a_driver_that_is_gone_for_good_is_ended() -> None:
    model = rolling(1)
    step(model)
    del model.drivers["edu"]

    step(model)

    assert cordoned(model) == set()
    assert held(model) == set()


# --- ways out ------------------------------------------------------------------------------------


def stuck(**rollout: Any) -> Model:
    """n0 is held, and its consumer does not leave."""
    model = rolling(3, **rollout)
    model.consume("n0")
    model.refused["default/train-0"] = BUDGET
    step(model)
    step(model)
    assert (held(model), cordoned(model)) == ({"n0"}, {"n0"})
    return model


@pytest.mark.parametrize(
    "spec",
    [
        {"version": "2.0.0", "rollout": {"evict": EVICT, "paused": True}},
        {"version": "1.0.0", "rollout": {"evict": EVICT}},
        {"version": "2.0.0", "rollout": {"paused": True}},
        {"version": "2.0.0", "upgrade": "onReboot", "rollout": {"evict": EVICT}},
    ],
    ids=["paused", "back", "no eviction", "on reboot"],
)
def test_a_change_that_is_called_off_uncordons_at_once(spec: dict[str, Any]) -> None:
    model = stuck()

    model.apply_driver(**spec)
    said = [*step(model), *step(model)]

    assert said == [f"label node n0 {DRAINING}-", "uncordon node n0"]
    assert model.consumers, "nobody was forced"


def test_a_driver_that_cannot_be_read_any_more_keeps_no_node_cordoned() -> None:
    model = stuck()

    model.apply_driver(version="2.0.0", rollout={"evict": EVICT}, image="")
    step(model)
    step(model)

    assert (held(model), cordoned(model)) == (set(), set())


def test_a_driver_that_is_deleted_uncordons_before_anything_else() -> None:
    model = stuck()
    model.drivers["edu"] = replace(model.drivers["edu"], deleting=True)

    assert step(model)[0] == f"label node n0 {DRAINING}-"
    assert "uncordon node n0" in step(model)
    for _ in range(5):
        model.node_drivers.clear()
        step(model)
    assert not model.drivers
    assert not [key for key in model.nodes["n0"].labels if key.startswith("nodeside.io/")]


def test_a_node_that_the_driver_is_not_for_any_more_is_uncordoned() -> None:
    model = stuck()
    model.apply_driver(
        version="2.0.0", hardware={"nodeSelector": {"a": "b"}}, rollout={"evict": EVICT}
    )

    step(model)
    step(model)

    assert (held(model), cordoned(model)) == (set(), set())


def test_a_node_that_goes_down_while_it_is_emptied_is_let_go() -> None:
    model = stuck()
    model.change("n0", ready=False)

    said = [*step(model), *step(model)]

    assert f"label node n0 {DRAINING}-" in said
    assert "uncordon node n0" in said


def test_a_node_where_the_new_revision_fails_stays_cordoned_until_it_works() -> None:
    model = rolling(2)
    for _ in range(2):
        step(model)
    model.report("n0", State.FAILED)
    for _ in range(3):
        step(model)
    assert cordoned(model) == {"n0"}
    assert model.condition("Degraded")["reason"] == "RolloutStopped"
    [row] = model.drivers["edu"].status["draining"]
    assert row["message"] == "stays cordoned until the driver works"

    model.apply_driver(version="1.0.0", rollout={"evict": EVICT})
    to_the_end(model)
    assert is_over(model)


def test_a_node_whose_pods_do_not_leave_in_time_is_let_go_and_others_have_their_turn() -> None:
    model = rolling(3, evict={**EVICT, "timeoutSeconds": 60})
    model.consume("n0")
    model.refused["default/train-0"] = BUDGET
    step(model, now=1000.0)
    step(model, now=1000.0)
    assert model.plan(1030.0).requeue_after == 30.0

    said = [words for _ in range(3) for words in step(model, now=1060.0)]

    newest = model.drivers["edu"].status["revision"]
    assert f"label node n0 {DRAINING}- {UNDRAINED}={newest}" in said
    assert "uncordon node n0" in said
    assert "cordon node n1" in said, "the next one is the canary"
    to_the_end(model)
    assert model.condition("Ready")["reason"] == "NodesOccupied"
    assert model.condition("Progressing")["status"] == "False"
    assert model.condition("Ready")["message"].endswith(
        "not drained in time: n0 (default/train-0); it changes when its pods are gone"
    )
    assert cordoned(model) == set()

    model.consumers.clear()
    to_the_end(model)
    assert is_over(model)


def test_another_version_gives_a_node_another_chance() -> None:
    model = rolling(1, evict={**EVICT, "timeoutSeconds": 60})
    model.consume("n0")
    model.refused["default/train-0"] = BUDGET
    for now in (1000.0, 1000.0, 1060.0, 1060.0):
        step(model, now)
    assert held(model) == set()

    model.apply_driver(version="3.0.0", rollout={"evict": EVICT})
    step(model, 1061.0)

    assert held(model) == {"n0"}
    assert UNDRAINED not in model.nodes["n0"].labels


# --- how many at once ----------------------------------------------------------------------------


def test_a_node_counts_from_the_moment_it_is_cordoned() -> None:
    model = rolling(5, maxUnavailable="2", canary=0)
    for name in model.nodes:
        model.consume(name, f"default/{name}")
        model.refused[f"default/{name}"] = BUDGET

    for _ in range(4):
        step(model)

    assert held(model) == {"n0", "n1"}


def test_the_next_node_is_cordoned_only_when_the_last_one_is_uncordoned() -> None:
    model = rolling(3)
    closed = []
    for _ in range(30):
        for action in model.plan().actions:
            model.carry_out([action])
            closed.append(len(cordoned(model) | held(model)))
        model.report_all()

    assert is_over(model)
    assert max(closed) == 1


def test_a_canary_that_is_being_emptied_is_the_only_one() -> None:
    model = stuck(maxUnavailable="3", canary=1)

    for _ in range(3):
        step(model)

    assert held(model) == {"n0"}


def test_a_node_where_the_driver_does_not_work_is_emptied_in_its_turn_too() -> None:
    """Who holds the module would be in the way of the correction."""
    model = rolling(4, maxUnavailable="1", canary=0)
    for name in ("n1", "n2"):
        model.report(name, State.FAILED)
        model.consume(name, f"default/{name}")
        model.refused[f"default/{name}"] = BUDGET

    for _ in range(3):
        step(model)

    assert len(held(model)) == 1
    model.refused.clear()
    model.answers.clear()
    to_the_end(model)
    assert is_over(model)
    assert not model.consumers


def test_new_and_rebooted_nodes_get_their_driver_without_being_emptied() -> None:
    model = rolling(2, paused=True)
    model.consume("n1")
    model.reboot("n1", kernel="6.1.0-51-amd64")
    model.add(["n9"])
    model.consume("n9", "default/new")

    actions = to_the_end(model)

    assert {a.node for a in actions if isinstance(a, LabelNode)} == {"n1", "n9"}
    assert len(model.consumers) == 2


# --- a controller that dies ----------------------------------------------------------------------


def history(model: Model, crash_at: int) -> Model:
    """Everything to the end, by controllers of which the first dies before its n-th action."""
    done = 0
    for _ in range(80):
        actions = model.plan().actions
        left = crash_at - done
        model.carry_out(actions[:left] if 0 <= left < len(actions) else actions)
        done += len(actions)
        model.answers.clear()
        model.report_all()
        if not actions:
            return model
    raise AssertionError("not settled")


@pytest.mark.parametrize("crash_at", sampled(range(24), 5))
def test_a_controller_that_dies_between_two_actions_is_taken_over_from(crash_at: int) -> None:
    model = rolling(3, maxUnavailable="2", canary=1)
    for name in ("n0", "n1", "n2"):
        model.consume(name, f"default/{name}")
    model.change("n2", unschedulable=True)

    history(model, crash_at)

    assert is_over(model)
    assert cordoned(model) == {"n2"}
    assert not model.consumers


def test_a_time_on_a_node_is_readable_and_survives_nonsense() -> None:
    from cluster.options.drain.labels import seconds_since, timestamp_to_rfc3339

    assert timestamp_value(1000.0) == "19700101T001640Z"
    assert seconds_since("19700101T001640Z", 1060.0) == 60.0
    assert timestamp_to_rfc3339("19700101T001640Z") == "1970-01-01T00:16:40Z"
    assert (seconds_since("soon", 1060.0), timestamp_to_rfc3339("soon")) == (0.0, "soon")


def test_a_driver_whose_spec_becomes_invalid_drains_no_node_any_more_and_says_so() -> None:
    model = Model()
    model.add(["n0", "n1"])
    evict: dict[str, Any] = {"rollout": {"evict": {"resources": ["example.com/edu"]}, "canary": 0}}
    model.apply_driver(**evict)
    model.settle_ready()
    model.consume("n0")
    model.refused["default/train-0"] = "budget"
    model.apply_driver(version="2.0.0", **evict)
    for _ in range(6):
        model.carry_out(model.plan(now=10.0).actions)
    assert model.drivers["edu"].status["draining"] != []

    invalid = replace(model.drivers["edu"], driver=None, mistakes="bad", generation=9)
    model.drivers["edu"] = invalid
    for _ in range(6):
        model.carry_out(model.plan(now=10.0).actions)

    assert model.drivers["edu"].status["draining"] == []
    assert not any(node.unschedulable for node in model.nodes.values())

"""What the controller met stands in the status, above what a plan sees on nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from cluster.driver import events
from cluster.model.actions import Action, EmitEvent, SetStatus
from cluster.model.problems import Problem, ProblemKind
from cluster.model.snapshot import DriverObject, Snapshot
from cluster.plan import plan_driver as plan_driver_module
from cluster.plan import planner
from cluster.plan.plan_driver import plan_driver
from cluster.plan.planner import Planner, plan
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.problems import with_problems

CONTESTED = Problem(ProblemKind.CONTESTED, "FieldsContested", "somebody edits it")
ON_A_NODE = Problem(ProblemKind.ON_NODES, "RequestTooLarge", "cannot label node n3")
FAILED = Problem(ProblemKind.FAILED, "Forbidden", "no rule")
UNREADABLE = Problem(ProblemKind.UNREADABLE, "NodesUnreadable", "cannot watch nodes")


@pytest.fixture
def ready() -> Model:
    made = Model()
    made.add(["n1"])
    made.apply_driver()
    made.settle_ready()
    return made


def conditions(model: Model, *problems: Problem) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition, with these problems."""
    snapshot = with_problems(model.snapshot, *(("edu", each) for each in problems))
    [status] = [a.status for a in plan(snapshot, 0.0).actions if isinstance(a, SetStatus)]
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


@pytest.mark.parametrize("problems", [*permutations((CONTESTED, FAILED, UNREADABLE))])
def test_the_worst_problem_is_said_in_whatever_order_they_came(
    ready: Model, problems: tuple[Problem, ...]
) -> None:
    assert conditions(ready, *problems)["Degraded"] == ("True", "NodesUnreadable")
    without = [each for each in problems if each is not UNREADABLE]
    assert conditions(ready, *without) == {
        "Ready": ("True", "Forbidden"),
        "Available": ("True", "Available"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("True", "Forbidden"),
    }


@pytest.mark.parametrize("problems", [*permutations((CONTESTED, ON_A_NODE))])
def test_a_contest_hides_no_refusal_of_a_node(ready: Model, problems: tuple[Problem, ...]) -> None:
    assert conditions(ready, *problems)["Degraded"] == ("True", "RequestTooLarge")


def test_an_edited_object_is_said_only_if_nothing_else_is_wrong(ready: Model) -> None:
    assert conditions(ready, CONTESTED)["Degraded"] == ("True", "FieldsContested")

    ready.report("n1", State.FAILED)

    assert conditions(ready, CONTESTED)["Degraded"] == ("True", "NodesFailed")
    assert conditions(ready, FAILED)["Degraded"] == ("True", "Forbidden")


def test_a_problem_is_no_event_and_changes_no_time_but_its_own(ready: Model) -> None:
    before = {c["type"]: c for c in ready.drivers["edu"].status["conditions"]}
    snapshot = with_problems(ready.snapshot, ("edu", FAILED))

    [action] = plan(snapshot, 1000.0).actions

    assert isinstance(action, SetStatus)
    after = {c["type"]: c for c in action.status["conditions"]}
    times = {kind: each["lastTransitionTime"] for kind, each in after.items()}
    expected = {kind: each["lastTransitionTime"] for kind, each in before.items()}
    assert times == expected | {"Degraded": "1970-01-01T00:16:40Z"}


def test_what_was_hidden_by_a_problem_is_told_when_that_is_gone(ready: Model) -> None:
    ready.report("n1", State.FAILED)
    snapshot = with_problems(ready.snapshot, ("edu", FAILED))
    assert [a.reason for a in plan(snapshot, 0.0).actions if isinstance(a, EmitEvent)] == []
    ready.carry_out(plan(snapshot, 0.0).actions)

    events = [a.reason for a in ready.plan().actions if isinstance(a, EmitEvent)]

    assert events == ["NodesFailed"]


def test_a_plan_is_kept_as_long_as_the_problems_are_the_same(
    ready: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, planner_ = list[str](), Planner()

    def plan_one(*args: object) -> object:
        planned.append("edu")
        return plan_driver(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "plan_driver", plan_one)

    def round_with(*problems: Problem) -> int:
        """How often the Driver is planned."""
        planned.clear()
        snapshot = with_problems(ready.snapshot, *(("edu", each) for each in problems))
        ready.carry_out(planner_(snapshot, 0.0).actions)
        return len(planned)

    assert [round_with(FAILED) for _ in range(4)][2:] == [0, 0]
    assert round_with(replace(FAILED, message="another rule")) == 1
    assert ready.condition("Ready")["message"] == "another rule"
    round_with()
    assert ready.condition("Degraded")["reason"] == "AsExpected"


@pytest.mark.parametrize("finalizers", [(), ("nodeside.io/driver",)])
def test_a_driver_that_is_being_deleted_says_it_too(
    ready: Model, finalizers: tuple[str, ...]
) -> None:
    found = replace(ready.drivers["edu"], deleting=True, finalizers=finalizers)
    ready.drivers["edu"] = found

    assert conditions(ready, FAILED)["Degraded"] == ("True", "Forbidden")


def test_a_refusal_about_one_node_hides_no_failure_of_the_driver(ready: Model) -> None:
    assert conditions(ready, ON_A_NODE)["Degraded"] == ("True", "RequestTooLarge")
    ready.said.clear()
    ready.report("n1", State.FAILED)
    snapshot = with_problems(ready.snapshot, ("edu", ON_A_NODE))

    ready.carry_out(plan(snapshot, 0.0).actions)

    assert ready.condition("Degraded")["reason"] == "NodesFailed"
    assert [said.reason for said in ready.said] == ["NodesFailed"]
    assert conditions(ready, ON_A_NODE, FAILED)["Degraded"] == ("True", "Forbidden")


def test_the_last_word_on_a_deleted_driver_is_true_though_a_kind_is_unreadable() -> None:
    model = Model()
    model.add(["n1"])
    model.apply_driver(unload={"policy": "never"})
    model.settle_ready()
    model.delete_driver()

    while "edu" in model.drivers:
        snapshot = with_problems(model.snapshot, ("edu", UNREADABLE))
        model.carry_out(plan(snapshot, 60.0).actions)

    assert [said.reason for said in model.said][-1] == "ModulesStay"


def test_a_bug_in_what_makes_the_status_of_one_driver_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def set_status(snapshot: Snapshot, found: DriverObject, *rest: Any) -> Iterator[Action]:
        if found.name == "broken":
            raise KeyError("a bug")
        return events.set_status(snapshot, found, *rest)

    model = Model()
    model.add(["n1"])
    model.apply_driver()
    model.apply_driver("broken", modules=[{"name": "other"}])
    for module in (planner, plan_driver_module):
        monkeypatch.setattr(module, "set_status", set_status)

    made = Planner()(model.snapshot, 0.0)

    assert list(made.errors) == ["broken"]
    assert {action.driver for action in made.actions} == {"edu"}

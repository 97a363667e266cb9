"""Whose plan is not made again; that it would be the same is checked by `Model`."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from cluster.model.snapshot import DriverPod, ToolkitLabels
from cluster.model.stages import StagePod, Stages
from cluster.plan import planner as module
from nodeside.protocol.node_status import State
from tests.cluster.fakes.images import cannot_have_it, prebuilt
from tests.cluster.fakes.model import PCI, Model

NAMES = ("one", "two", "three")


def at_rest(**spec: Any) -> Model:
    """Three Drivers that work on two nodes; nothing is to be done."""
    model = Model()
    model.add(["n0", "n1"])
    for name in NAMES:
        model.apply_driver(name, modules=[{"name": name}], **spec)
    settle(model)
    return model


def settle(model: Model) -> None:
    for _ in range(20):
        for name in model.drivers:
            model.report_all(driver=name)
        actions = model.plan().actions
        if not actions:
            return
        model.carry_out(actions)
    raise AssertionError("not settled")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Model], set[str]]:
    """Says for which Drivers the planner of a model plans in one look."""
    asked: list[str] = []
    real = module.plan_driver

    def plan_driver(snapshot: Any, found: Any, *rest: Any) -> Any:
        asked.append(found.name)
        return real(snapshot, found, *rest)

    def look(model: Model) -> set[str]:
        asked.clear()
        model.planner(model.snapshot, 0.0)
        return set(asked)

    monkeypatch.setattr(module, "plan_driver", plan_driver)
    return look


Change = Callable[[Model], object]

OF_ONE: dict[str, Change] = {
    "what a node says": lambda model: model.report("n1", State.FAILED, "two"),
    "its label on a node": lambda model: model.relabel("n1", {"nodeside.io/two.state": "failed"}),
    "its own label goes": lambda model: model.relabel("n0", {"nodeside.io/two.assigned": None}),
    "a pod": lambda model: model.pods.update(_pod("two")),
    "its status": lambda model: model.drivers.update(
        two=replace(model.drivers["two"], status={**model.drivers["two"].status, "nodes": {}})
    ),
}
OF_ALL: dict[str, Change] = {
    "a label": lambda model: model.relabel("n1", {PCI: None}),
    "a cordon": lambda model: model.change("n1", unschedulable=True),
    "a drain": lambda model: model.relabel("n1", {"nodeside.io/two.draining": "20260101T000000Z"}),
    "a node that is down": lambda model: model.change("n1", ready=False),
    "a node": lambda model: model.add(["n2"]),
    "a node that is gone": lambda model: model.nodes.pop("n0"),
    "a revision that is gone": lambda model: model.revisions.popitem(),
    "a DaemonSet that is gone": lambda model: model.daemonsets.popitem(),
    "a spec": lambda model: model.apply_driver("two", modules=[{"name": "one"}]),
    "a Driver": lambda model: model.apply_driver("four"),
    "a deletion": lambda model: model.delete_driver("two"),
    "an image's labels": lambda model: model.toolkit_labels.update(x=ToolkitLabels("6.1")),
    "settings": lambda model: setattr(model, "settings", replace(model.settings, scc="x")),
}


def _pod(driver: str) -> dict[str, Any]:
    return {"p": DriverPod("p", "nodeside", "u", driver, "n0", "x")}


def test_nothing_is_planned_where_nothing_changed(planned: Any) -> None:
    model = at_rest()

    assert planned(model) == set()


@pytest.mark.parametrize("change", OF_ONE.values(), ids=OF_ONE)
def test_what_concerns_one_driver_is_planned_for_it_alone(planned: Any, change: Change) -> None:
    model = at_rest()

    change(model)

    assert planned(model) == {"two"}


@pytest.mark.parametrize("change", OF_ALL.values(), ids=OF_ALL)
def test_what_may_concern_everybody_is_planned_for_everybody(planned: Any, change: Change) -> None:
    model = at_rest()

    change(model)

    assert planned(model) == set(model.drivers)


def test_a_driver_that_waits_for_something_or_rests_on_others_is_planned_each_time(
    planned: Any,
) -> None:
    for spec in (
        {"rollout": {"evict": {"resources": ["example.com/edu"]}}},
        {"toolkit": {"imageTemplate": ""}},
        {"stages": [{"name": "first", "manifests": "absent"}]},
    ):
        model = at_rest()
        model.apply_driver("two", modules=[{"name": "two"}], **spec)
        settle(model)
        assert planned(model) == {"two"}, spec

    model = at_rest()
    model.apply_driver("two", modules=[{"name": "one"}])
    settle(model)
    assert planned(model) == {"one", "two"}, "they have a module in common"


def test_a_driver_that_selects_by_the_state_of_another_follows_it(planned: Any) -> None:
    model = at_rest()
    after_one = {"nodeSelector": {"nodeside.io/one.state": "ready"}}
    model.apply_driver("four", modules=[{"name": "four"}], hardware=after_one)
    settle(model)

    model.relabel("n1", {"nodeside.io/one.state": "ready"})

    assert planned(model) == {"one", "four"}
    settle(model)
    assert "nodeside.io/four.assigned" in model.nodes["n1"].labels


def test_a_pod_of_stages_that_are_gone_is_waited_for_until_it_is_gone(planned: Any) -> None:
    model = at_rest()
    left = StagePod("p", "u", "two", "first", "n1", "plugin", deleting=True)
    model.stages = Stages(pods={"p": left})
    model.relabel("n1", {PCI: "false"})
    settle(model)
    assert "nodeside.io/two.assigned" in model.nodes["n1"].labels, "the pod may use its device"

    model.stages = Stages()

    assert "two" in planned(model)
    settle(model)
    assert "nodeside.io/two.assigned" not in model.nodes["n1"].labels


@pytest.mark.parametrize("seed", range(6))
def test_in_any_history_of_many_drivers_a_plan_is_the_one_without_a_memory(seed: int) -> None:
    """`Model.plan` compares them, each time."""
    chance = random.Random(seed)
    model = at_rest()
    changes = [*OF_ONE.values(), *OF_ALL.values()]
    for step in range(40):
        if chance.random() < 0.4:
            with suppress(KeyError):  # it is gone already
                chance.choice(changes)(model)
            model.apply_driver("two", modules=[{"name": "two"}], version=f"1.{step // 8}.0")
        if chance.random() < 0.7 and model.nodes:
            name = chance.choice(list(model.nodes))
            model.report(name, chance.choice(list(State)), chance.choice(list(model.drivers)))
        model.carry_out(model.plan(now=60.0 * step).actions)


def test_a_fall_back_to_building_ends_by_the_clock_and_is_looked_at_each_time(
    planned: Any,
) -> None:
    model = prebuilt()
    cannot_have_it(model, "n1")
    model.carry_out(model.plan().actions)
    model.pods.clear()
    settle(model)

    assert planned(model) == {"edu"}

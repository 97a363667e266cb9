"""Whose plan is not made again; that it would be the same is checked by `Model`."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from cluster.driver.deadlines import NO_REPORT
from cluster.model.labelmap import labels_of
from cluster.model.names import CORDONED, stage_label
from cluster.model.snapshot import DriverPod, ToolkitLabels
from cluster.model.stages import StagePod, Stages
from cluster.plan import planner as module
from cluster.plan.plan_driver import plan_driver
from cluster.plan.planner import Planner, plan
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import PCI, Model
from tests.tries import sampled

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
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """Says for which Drivers the planner of a model plans in one look."""
    asked: list[str] = []
    real = plan_driver

    def plan_one(snapshot: Any, found: Any, *rest: Any) -> Any:
        asked.append(found.name)
        return real(snapshot, found, *rest)

    def look(model: Model, now: float = 0.0) -> set[str]:
        asked.clear()
        model.planner(model.snapshot, now)
        return set(asked)

    monkeypatch.setattr(module, "plan_driver", plan_one)
    return look


Change = Callable[[Model], object]

OF_ONE: dict[str, Change] = {
    "what a node says": lambda model: model.report("n1", State.FAILED, "two"),
    "its label on a node": lambda model: model.relabel("n1", {"nodeside.io/two.state": "failed"}),
    "its own label goes": lambda model: model.relabel("n0", {"nodeside.io/two.assigned": None}),
    "a drain": lambda model: model.relabel("n1", {"nodeside.io/two.draining": "20260101T000000Z"}),
    "a label of its stage": lambda model: model.relabel("n1", {stage_label("two", "x"): "waits"}),
    "a pod": lambda model: model.pods.update(_pod("two")),
    "a revision that is gone": lambda model: _remove(model.revisions, "two"),
    "a DaemonSet that is gone": lambda model: _remove(model.daemonsets, "two"),
    "a deletion": lambda model: model.delete_driver("two"),
    "another version": lambda model: model.apply_driver(
        "two", modules=[{"name": "two"}], version="2.0.0"
    ),
    "an order to repeat a load": lambda model: model.drivers.update(
        two=replace(model.drivers["two"], retries=(("n1", 1767225600.0),))
    ),
    "its status": lambda model: model.drivers.update(
        two=replace(model.drivers["two"], status={**model.drivers["two"].status, "nodes": {}})
    ),
}
OF_ALL: dict[str, Change] = {
    "a label": lambda model: model.relabel("n1", {PCI: None}),
    "a cordon": lambda model: model.change("n1", unschedulable=True),
    "a node that is down": lambda model: model.change("n1", ready=False),
    "a node": lambda model: model.add(["n2"]),
    "a node that is gone": lambda model: model.nodes.pop("n0"),
    "a module that an old revision of another has": lambda model: model.apply_driver(
        "two", modules=[{"name": "one"}, {"name": "three"}]
    ),
    "a Driver": lambda model: model.apply_driver("four"),
    "an image's labels": lambda model: model.toolkit_labels.update(x=ToolkitLabels("6.1")),
    "settings": lambda model: setattr(model, "settings", replace(model.settings, scc="x")),
}


def _remove(objects: dict[str, Any], driver: str) -> None:
    del objects[next(name for name, each in objects.items() if each.driver == driver)]


def _pod(driver: str) -> dict[str, Any]:
    return {"p": DriverPod("p", "nodeside", "u", driver, "n0", daemonset="x")}


def test_nothing_is_planned_where_nothing_changed(planned: Any) -> None:
    model = at_rest()

    assert planned(model) == set()


@pytest.mark.parametrize("change", OF_ONE.values(), ids=OF_ONE)
def test_what_concerns_one_driver_is_planned_for_it_alone(planned: Any, change: Change) -> None:
    model = at_rest()

    change(model)

    assert planned(model) == {"two"}


@pytest.mark.parametrize("change", OF_ALL.values(), ids=OF_ALL)
def test_shared_change_plans_all_drivers(planned: Any, change: Change) -> None:
    model = at_rest()

    change(model)

    assert planned(model) == set(model.drivers)


STORE = {"oci": "registry.example.com/bundles/edu", "publish": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "evict": {"rollout": {"evict": {"resources": ["example.com/edu"]}}},
    "build once": {"prebuilt": {"sources": [STORE]}},
    "preflight": {"prebuilt": {"sources": [STORE]}, "preflight": {"tags": ["9.6"]}},
    "stages": {"stages": [{"name": "first", "manifests": "absent"}]},
    "after": {"after": ["one"]},
    "unload": {"unload": {"policy": "never"}},
}


@pytest.mark.parametrize("spec", OPTIONS.values(), ids=OPTIONS)
def test_a_driver_with_an_option_is_not_planned_where_nothing_changed(
    planned: Any, spec: dict[str, Any]
) -> None:
    model = at_rest()
    model.apply_driver("two", modules=[{"name": "two"}], **spec)
    settle(model)

    assert planned(model) == set()
    model.report("n1", State.READY, "three", message="another")
    assert planned(model) == {"three"}


BONDS: dict[str, dict[str, Any]] = {
    "a module": {"modules": [{"name": "one"}]},
    "after": {"after": ["one"]},
    "a node selector": {"hardware": {"nodeSelector": {"nodeside.io/one.state": "ready"}}},
}


@pytest.mark.parametrize("spec", BONDS.values(), ids=BONDS)
def test_drivers_that_read_one_another_are_planned_together(
    planned: Any, spec: dict[str, Any]
) -> None:
    model = at_rest()
    model.apply_driver("two", **{"modules": [{"name": "two"}], **spec})
    settle(model)

    model.report("n1", State.FAILED, "one")

    assert planned(model) == {"one", "two"}


def test_a_driver_that_waits_is_planned_when_its_time_has_come_with_those_that_read_it(
    planned: Any,
) -> None:
    model = at_rest()
    model.apply_driver("two", modules=[{"name": "two"}], after=["one"])
    settle(model)
    model.node_drivers.pop("one.n1")
    serving = model.serving("n1", "one")
    assert serving is not None
    model.pods["p"] = DriverPod(
        "p", "nodeside", "u", "one", "n1", daemonset=serving.name, created=100.0
    )
    model.carry_out(model.planner(model.snapshot, 100.0).actions)
    wait = model.planner(model.snapshot, 100.0).requeue_after
    assert wait == NO_REPORT

    assert planned(model, 100.0 + wait - 1) == set()
    assert model.planner(model.snapshot, 100.0 + wait - 1).requeue_after == 1
    assert planned(model, 100.0 + wait) == {"one", "two"}


def test_a_clock_that_is_set_back_makes_no_plan_older(planned: Any) -> None:
    model = at_rest()
    assert planned(model, 1000.0) == set()

    assert planned(model, 10.0) == set(model.drivers)


def test_a_node_that_only_one_driver_selects_concerns_it_alone(planned: Any) -> None:
    model = at_rest()
    model.apply_driver("two", modules=[{"name": "two"}], hardware={"nodeSelector": {"x": "y"}})
    model.add(["n9"], labels=labels_of({"x": "y"}))
    settle(model)

    model.change("n9", ready=False)

    assert planned(model) == {"two"}


def test_a_driver_without_nodes_looks_for_labels_like_its_own_on_all_nodes(planned: Any) -> None:
    model = at_rest()
    model.apply_driver("two", modules=[{"name": "two"}], hardware={"nodeSelector": {"a/x": "y"}})
    settle(model)

    model.relabel("n1", {"a/X": "y"})

    assert "two" in planned(model)


def test_a_node_that_waits_for_its_pod_sees_the_daemonset_controller_at_work_for_others(
    planned: Any,
) -> None:
    """Its deadline is later then: see deadlines.py."""
    model = at_rest()
    model.node_drivers.pop("two.n1")
    model.planner(model.snapshot, 0.0)
    other = next(each for each in model.daemonsets.values() if each.driver == "one")

    model.daemonsets[other.name] = replace(other, touched=5.0)

    assert planned(model) == {"one", "two"}


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


@pytest.mark.parametrize("seed", sampled(range(6), 6))
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


# --- what another Driver can change, though it is in no group with this one ----------------------


def differs(planner: Planner, model: Model, now: float = 0.0) -> bool:
    """Whether a plan that remembers earlier looks is not the one without a memory."""
    kept, made = planner(model.snapshot, now), plan(model.snapshot, now)
    return replace(kept, requeue_after=None) != replace(made, requeue_after=None)


def looked_at(model: Model, now: float = 0.0) -> Planner:
    planner = Planner()
    assert not differs(planner, model, now)
    return planner


SELECTS = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: plugin}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      nodeSelector: {nodeside.io/one.state: ready}
      containers: [{name: main, image: registry.example.com/x:1}]
"""
SHARED = """
apiVersion: v1
kind: ConfigMap
metadata: {name: shared}
data: {a: b}
"""
STAGED: dict[str, Any] = {"stages": [{"name": "first", "manifests": "m"}]}


def test_a_stage_may_select_nodes_by_the_label_of_another_driver() -> None:
    model = at_rest()
    model.apply_driver("two", modules=[{"name": "two"}], **STAGED)
    model.config_map("m", ds_yaml=SELECTS)
    model.relabel("n0", {"nodeside.io/one.state": "ready", "nodeside.io/two.state": "ready"})
    model.relabel("n1", {"nodeside.io/two.state": "ready"})
    for _ in range(6):
        settle(model)
        model.play_stages()
    settle(model)
    planner = looked_at(model)

    model.relabel("n1", {"nodeside.io/one.state": "ready"})

    assert not differs(planner, model)


def test_an_object_that_was_in_the_way_of_a_stage_may_be_another_drivers() -> None:
    model = at_rest()
    for name in ("one", "two"):
        stages = [{"name": "first", "manifests": f"of-{name}"}]
        model.apply_driver(name, modules=[{"name": name}], stages=stages)
        model.relabel("n0", {f"nodeside.io/{name}.state": "ready"})
    model.config_map("of-one", a_yaml=SHARED)
    model.config_map("of-two", a_yaml=SHARED.replace("shared", "other"))
    settle(model)
    model.config_map("of-two", a_yaml=SHARED)
    settle(model)
    model.apply_driver("one", modules=[{"name": "one"}])
    planner = looked_at(model)

    for _ in range(4):
        assert not differs(planner, model)
        model.carry_out(model.plan().actions)


def test_a_pod_of_an_older_assignment_is_not_the_one_that_is_waited_for() -> None:
    model = Model()
    model.add(["n0", "n1"], labelled=1000.0)
    for name in ("one", "two"):
        model.apply_driver(name, modules=[{"name": name}])
    settle(model)
    model.node_drivers.pop("two.n1")
    old = DriverPod(
        "old", "nodeside", "u", "two", "n1", daemonset="two-000000000000", deleting=True
    )
    model.pods["old"] = replace(old, created=500.0)
    other = next(each for each in model.daemonsets.values() if each.driver == "one")
    model.carry_out(model.plan(now=1600.0).actions)
    planner = looked_at(model, 1600.0)

    model.daemonsets[other.name] = replace(other, touched=1590.0)

    assert not differs(planner, model, 1601.0)


def test_a_driver_may_select_by_the_label_of_one_that_is_not_there() -> None:
    model = Model()
    model.add(["n0", "n1"])
    by_one = {"nodeSelector": {"nodeside.io/one.state": "ready"}}
    model.apply_driver("four", modules=[{"name": "four"}], hardware=by_one)
    model.relabel("n0", {"nodeside.io/one.state": "ready"})
    settle(model)
    planner = looked_at(model)

    model.relabel("n1", {"nodeside.io/one.state": "ready"})

    assert not differs(planner, model)


def test_the_deadline_of_a_driver_whose_plan_is_not_kept_concerns_those_after_it() -> None:
    model = Model()
    model.add(["n0", "n1", "n2"], labelled=1000.0)
    model.apply_driver("one", modules=[{"name": "one"}])
    after = {"modules": [{"name": "two"}], "after": ["one"]}
    model.apply_driver("two", **after, rollout={"maxUnavailable": "1"})
    settle(model)
    model.node_drivers.pop("one.n2")
    second = {"rollout": {"maxUnavailable": "1", "canary": 0}, "version": "2.0.0"}
    model.apply_driver("two", **after, **second)
    while actions := plan(model.snapshot, 1010.0).actions:
        model.carry_out(actions)
    planner = looked_at(model, 1010.0)

    for now in (1060.0, 1061.0, 1062.0):
        assert not differs(planner, model, now)


def test_a_cordon_of_ours_concerns_everybody_when_a_hold_of_it_changes(planned: Any) -> None:
    model = at_rest(rollout={"evict": {"resources": ["example.com/edu"]}})
    model.relabel("n1", {CORDONED: "", "nodeside.io/two.draining": "20260101T000000Z"})
    model.planner(model.snapshot, 0.0)

    model.report("n1", State.READY, "one", message="another")
    assert "three" not in planned(model)
    model.relabel("n1", {"nodeside.io/two.draining": None})
    assert planned(model) == set(NAMES)

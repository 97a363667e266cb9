"""A pod of a stage that does not end: how long its node waits, and what is said of it then."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.cli.explain import explain_node
from cluster.model.stages import Stages
from nodeside.protocol.node_status import State
from tests.cluster.fakes.drains import DRAINING, EVICT, UNDRAINED, cordoned, held, is_over, step
from tests.cluster.fakes.stage_ends import STUCK, changing, play, play_slowly, rounds
from tests.cluster.fakes.stagedriver import CLOSED, TWO, objects, pods, up, with_stages
from tests.tries import sampled


def test_a_node_that_waits_for_its_stages_says_so() -> None:
    model = changing()

    rounds(model, 1000.0)

    words = f"its stages end first: waiting for {STUCK}"
    said = explain_node(model.snapshot, "edu", "n0")
    assert said.blocks == (words,)
    assert [each.command for each in said.do if each.command] == [
        "kubectl get pods -n nodeside -o wide -l nodeside.io/driver=edu,nodeside.io/stage"
    ]
    progressing = model.condition("Progressing")
    assert progressing["reason"] == "Canary"
    assert progressing["message"].endswith(f"tried first on 1 node; n0: {words}")
    assert model.condition("Degraded")["status"] == "False"


def test_a_cordoned_node_whose_stage_pod_never_ends_is_let_go_in_time_and_named() -> None:
    model = changing(rollout={"evict": {**EVICT, "timeoutSeconds": 60}})
    rounds(model, 1000.0)
    assert (held(model), cordoned(model)) == ({"n0"}, {"n0"})
    [row] = model.drivers["edu"].status["draining"]
    assert row["message"] == f"its stages end first: waiting for {STUCK}"
    assert model.condition("Progressing")["reason"] == "Draining"
    assert model.plan(1030.0).requeue_after == 30.0

    said = rounds(model, 1060.0)

    newest = model.drivers["edu"].status["revision"]
    assert "uncordon node n0" in said
    assert model.nodes["n0"].labels[UNDRAINED] == newest
    assert not {CLOSED, DRAINING} & model.nodes["n0"].labels.keys()
    assert not model.nodes["n0"].unschedulable
    assert model.revision("n1") == newest, "others have their turn"
    degraded = model.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "StagesStuck")
    assert degraded["message"] == (
        "n0: stage pod plugin-n0 does not end, and the driver cannot be replaced before it does: "
        "kubectl -n nodeside describe pod plugin-n0"
    )
    progressing = model.condition("Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "NodesOccupied")
    assert progressing["message"].endswith(
        f"not drained in time: n0 ({STUCK}); it changes when its pods are gone"
    )
    assert model.plan(1061.0).actions == (), "and there it stays"


@pytest.mark.parametrize("evict", sampled([None, EVICT], 2), ids=["no eviction", "eviction"])
def test_a_node_that_was_given_up_changes_when_the_pod_is_gone(evict: Any) -> None:
    model = changing(rollout={"evict": evict} if evict else {})
    rounds(model, 1000.0)
    rounds(model, 4600.0)
    assert UNDRAINED in model.nodes["n0"].labels

    play(model, stuck=False)
    rounds(model, 4700.0, 30, stuck=False)

    assert is_over(model)
    assert not [node for node in model.nodes.values() if CLOSED in node.labels]
    assert model.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("evict", sampled([None, EVICT], 2), ids=["no eviction", "eviction"])
def test_a_node_that_was_given_up_keeps_its_next_turn_while_its_pods_end(evict: Any) -> None:
    model = changing(rollout={"evict": evict} if evict else {})
    rounds(model, 1000.0)
    rounds(model, 4600.0)
    assert UNDRAINED in model.nodes["n0"].labels

    play_slowly(model, stuck=False)
    said = rounds(model, 4700.0, 30, stuck=False, kubernetes=play_slowly)

    assert is_over(model)
    assert sum(f"{CLOSED}=closed" in words and "n0" in words for words in said) == 1


@pytest.mark.parametrize("budget", ["1", "2"])
def test_no_other_node_takes_the_turn_of_one_whose_stages_end(budget: str) -> None:
    """A node that says again and again that it is busy takes from the budget, but not from it."""
    model = changing(2, rollout={"maxUnavailable": budget})
    said: list[str] = []
    for number in range(20):
        said += rounds(model, 1000.0 + 5 * number, 1, stuck=False, kubernetes=play_slowly)
        if number % 2 == 0:
            model.report("n1", State.WAITING)

    assert model.revision("n0") == model.drivers["edu"].status["revision"]
    assert sum(f"{CLOSED}=closed" in words and "n0" in words for words in said) == 1


def test_a_node_whose_stages_end_counts_against_the_budget_until_it_changes() -> None:
    model = changing(3)
    rounds(model, 1000.0)
    assert held(model) == {"n0"}
    assert model.drivers["edu"].status["draining"] == []

    model.apply_driver(version="2.0.0", rollout={"paused": True})
    rounds(model, 1001.0, stuck=False)
    assert held(model) == set(), "its change is called off"
    assert not [node for node in model.nodes.values() if CLOSED in node.labels]


def test_a_broken_node_with_a_stuck_pod_is_given_up_on_once_and_costs_no_other_its_turn() -> None:
    model = changing(3)
    model.report("n0", State.FAILED)

    rounds(model, 1000.0, 20, broken="n0")
    newest = model.drivers["edu"].status["revision"]
    assert held(model) == set()
    assert {model.revision("n1"), model.revision("n2")} == {newest}

    rounds(model, 4600.0, broken="n0")
    assert UNDRAINED in model.nodes["n0"].labels
    assert rounds(model, 8200.0, broken="n0") == rounds(model, 11800.0, broken="n0") == []


@pytest.mark.parametrize(("budget", "left"), [("1", {"n0"}), ("0", set())])
def test_a_lower_budget_stops_nodes_whose_stages_end(budget: str, left: set[str]) -> None:
    model = changing(3, rollout={"maxUnavailable": "3", "canary": 0})
    step(model, 1000.0)
    assert held(model) == {"n0", "n1", "n2"}

    model.apply_driver(stages=TWO, version="2.0.0", rollout={"maxUnavailable": budget, "canary": 0})
    step(model, 1001.0)

    assert held(model) == left
    assert {name for name, node in model.nodes.items() if CLOSED in node.labels} == left


def test_where_evictions_end_only_the_stages_hold_a_node_and_have_all_their_time() -> None:
    model = changing(rollout={"evict": {**EVICT, "timeoutSeconds": 0}})
    step(model, 1000.0)
    assert (held(model), cordoned(model)) == ({"n0"}, {"n0"})
    assert CLOSED not in model.nodes["n0"].labels

    model.apply_driver(stages=TWO, version="2.0.0", rollout={"maxUnavailable": "1", "canary": 1})
    rounds(model, 9000.0)

    assert (held(model), cordoned(model)) == ({"n0"}, set())
    assert model.drivers["edu"].status.get("draining", []) == []
    assert model.plan(9000.0).requeue_after == 3600.0
    rounds(model, 12600.0)
    assert UNDRAINED in model.nodes["n0"].labels


@pytest.mark.slow
def test_a_node_that_was_given_up_is_given_up_again_if_a_pod_does_not_end_again() -> None:
    model = changing()
    rounds(model, 1000.0)
    rounds(model, 4600.0)
    play(model, stuck=False)
    rounds(model, 4700.0)  # its turn, and the pod is stuck once more
    assert (UNDRAINED in model.nodes["n0"].labels, CLOSED in model.nodes["n0"].labels) == (
        False,
        True,
    )
    assert model.plan(4700.0).requeue_after == 3600.0

    rounds(model, 8300.0)

    assert UNDRAINED in model.nodes["n0"].labels
    assert model.plan(8301.0).actions == ()


def test_without_eviction_a_node_that_cannot_end_its_stages_gives_its_turn_to_others() -> None:
    model = changing(3)
    rounds(model, 1000.0)
    newest = model.drivers["edu"].status["revision"]
    assert [model.revision(n) == newest for n in ("n0", "n1", "n2")] == [False, False, False]
    assert model.plan(1600.0).requeue_after == 3000.0

    rounds(model, 4600.0, 30)

    assert [model.revision(n) == newest for n in ("n0", "n1", "n2")] == [False, True, True]
    assert CLOSED not in model.nodes["n0"].labels, "its stages go on meanwhile"
    assert model.condition("Ready")["reason"] == "StagesStuck"


def test_pod_of_removed_stage_does_not_block_rollout() -> None:
    rollout = {"maxUnavailable": "1", "canary": 1}
    model = up(with_stages(3))
    model.apply_driver(stages=[], rollout=rollout)
    rounds(model, 900.0)
    assert (objects(model), pods(model)) == (set(), {"plugin-n0"})

    model.apply_driver(stages=[], rollout=rollout, version="2.0.0")
    rounds(model, 1000.0)
    rounds(model, 4600.0, 30)

    newest = model.drivers["edu"].status["revision"]
    assert [model.revision(n) == newest for n in ("n0", "n1", "n2")] == [False, True, True]
    rounds(model, 4700.0, 30, stuck=False)
    assert is_over(model)
    assert not [node for node in model.nodes.values() if CLOSED in node.labels]


def test_who_waits_for_ever_for_consumers_waits_for_ever_for_stages() -> None:
    model = changing(rollout={"evict": {**EVICT, "timeoutSeconds": 0}})
    rounds(model, 1000.0)

    assert rounds(model, 9e9) == []
    assert cordoned(model) == {"n0"}
    assert model.plan(9e9).requeue_after is None


@pytest.mark.slow
def test_a_broken_driver_is_corrected_as_soon_as_the_pod_is_gone_however_long_it_takes() -> None:
    model = changing()
    rounds(model, 1000.0)
    model.report("n0", State.FAILED)
    for now in (1001.0, 9999.0, 9999.0, 99999.0):
        model.carry_out(model.plan(now).actions)
        play(model, stuck=True)
    assert model.plan(99999.0).actions == (), "it is said once"

    play(model, stuck=False)
    rounds(model, 99999.0, 30, stuck=False)

    assert is_over(model)


def test_another_version_gives_a_node_that_was_given_up_another_chance() -> None:
    model = changing(rollout={"evict": EVICT})
    rounds(model, 1000.0)
    rounds(model, 4600.0)
    assert held(model) == set()

    model.apply_driver(stages=TWO, version="3.0.0", rollout={"evict": EVICT})
    rounds(model, 4601.0)

    assert held(model) == {"n0"}
    assert UNDRAINED not in model.nodes["n0"].labels


def test_stages_that_cannot_be_read_hold_no_node_for_ever_and_it_is_not_begun_again() -> None:
    model = changing(rollout={"evict": {**EVICT, "timeoutSeconds": 60}})
    for _ in range(3):
        step(model, 1000.0)
    known = model.stages
    model.stages = Stages(unknown="no permission to list deployments")
    for now in (1010.0, 1060.0, 1060.0, 1070.0):
        step(model, now)

    assert (held(model), cordoned(model)) == (set(), set()), "nor is another one begun"
    assert "its stage pods cannot be read" in model.condition("Progressing")["message"]
    assert step(model, 2000.0) == []
    assert model.plan(2000.0).requeue_after is None
    model.stages = known
    rounds(model, 2001.0, 30, stuck=False)
    assert is_over(model)

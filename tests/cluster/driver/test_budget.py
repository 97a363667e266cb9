"""Nodes that are down are without a working driver too: what that means for maxUnavailable."""

from __future__ import annotations

import pytest

from cluster.driver.deadlines import NODE_DOWN
from cluster.model.names import before_label
from nodeside.protocol.labels import assigned_label
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.rollouts import THEN, look, newest


def rolling(count: int) -> Model:
    """A driver that works everywhere; `begin` brings a second version."""
    model = Model()
    model.add(f"n{number:03}" for number in range(count))
    model.apply_driver()
    model.settle_ready()
    return model


def begin(model: Model, allowed: str = "1") -> None:
    model.apply_driver(version="2", rollout={"maxUnavailable": allowed, "canary": 0})


def go_down(model: Model, *nodes: int, at: float = THEN) -> None:
    for number in nodes:
        model.change(f"n{number:03}", ready=False, ready_since=at)


def test_a_node_that_reboots_uses_the_budget_until_the_driver_works_there_again() -> None:
    model = rolling(4)
    go_down(model, 3)
    begin(model)
    look(model, THEN + 60)
    assert newest(model) == []
    message = model.condition("Progressing")["message"]
    assert message.endswith("; 0 of 1 under way; n003 is down")

    model.reboot("n003", ready=True, ready_since=THEN + 120)
    look(model, THEN + 130)
    assert newest(model) == []

    model.report("n003")
    look(model, THEN + 140)
    assert newest(model) == ["n000"]


def test_a_machine_that_is_dead_for_long_holds_no_rollout_up() -> None:
    model = rolling(4)
    go_down(model, 3)
    begin(model)
    look(model, THEN + NODE_DOWN - 1)
    assert newest(model) == []
    assert model.plan(THEN + NODE_DOWN - 1).requeue_after == 1.0

    look(model, THEN + NODE_DOWN)

    assert newest(model) == ["n000"]


def test_in_an_outage_the_nodes_that_are_left_are_not_touched_until_it_is_over() -> None:
    model = rolling(10)
    go_down(model, *range(4, 10))
    begin(model)
    look(model, THEN + 10 * NODE_DOWN)
    assert newest(model) == []
    blocked = model.condition("Progressing")
    assert (blocked["status"], blocked["reason"]) == ("False", "RolloutBlocked")
    assert blocked["message"].endswith(
        "n004, n005, n006 and 3 more nodes are down, and maxUnavailable is 1"
    )

    for number in range(5, 10):
        model.change(f"n{number:03}", ready=True, ready_since=THEN + 11 * NODE_DOWN)
    look(model, THEN + 12 * NODE_DOWN)

    assert newest(model) == ["n000"]


def test_rollout_continues_when_budget_exceeds_down_nodes() -> None:
    model = rolling(10)
    go_down(model, 8, 9)

    begin(model, allowed="3")
    look(model, THEN + 10 * NODE_DOWN)

    assert newest(model) == ["n000"]


@pytest.mark.slow
def test_one_percent_dead_nodes_do_not_block_rollout() -> None:
    model = rolling(300)
    go_down(model, 1, 2, 3)
    begin(model)
    look(model, THEN + NODE_DOWN)
    assert newest(model) == ["n000"]
    model.report("n000")

    go_down(model, 4)
    look(model, THEN + 2 * NODE_DOWN)

    assert newest(model) == ["n000"]


def test_a_node_that_has_an_assignment_nobody_knows_uses_the_budget() -> None:
    """A request of a leader that is none any more may arrive late, with what it has planned."""
    model = rolling(4)
    begin(model)
    before = model.nodes["n003"].labels[assigned_label("edu")]
    model.relabel("n003", {assigned_label("edu"): "0" * 12, before_label("edu"): before})

    model.carry_out(model.plan(THEN).actions)
    assert newest(model) == [], "n003 is on its way back to what works"
    assert model.revision("n003") == model.revision("n000") != ""

    model.report("n003")
    look(model, THEN + 10)
    assert newest(model) == ["n000"]

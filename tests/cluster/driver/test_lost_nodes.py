"""A machine that dies in the middle of its change holds a rollout for minutes, and not for ever."""

from __future__ import annotations

from cluster.driver.deadlines import NODE_DOWN
from nodeside.protocol.node_status import State
from tests.cluster.fakes.rollouts import THEN, changing, go_down, look, newest


def test_it_is_waited_for_and_then_another_node_tries_the_change() -> None:
    model = changing()
    look(model, THEN + NODE_DOWN - 1)
    assert newest(model) == ["n0"]
    assert model.condition("Progressing")["status"] == "True"
    assert model.plan(THEN + NODE_DOWN - 1).requeue_after == 1.0

    look(model, THEN + NODE_DOWN)

    assert newest(model) == ["n0", "n1"]
    assert model.condition("Degraded")["reason"] == "AsExpected"


def test_the_rollout_ends_without_it_and_says_where_it_is() -> None:
    model = changing()
    for step in range(4):
        look(model, THEN + NODE_DOWN + step)
        for name in ("n1", "n2", "n3"):
            model.report(name)
    look(model, THEN + NODE_DOWN + 9)

    assert newest(model) == ["n0", "n1", "n2", "n3"]
    ready = model.condition("Ready")
    assert ready["status"] == "True"
    assert "n0" in ready["message"]


def test_a_second_one_is_no_chance_and_stops_it() -> None:
    model = changing()
    look(model, THEN + NODE_DOWN)
    go_down(model, "n1", THEN + NODE_DOWN)

    look(model, THEN + 2 * NODE_DOWN)

    said = model.condition("Degraded")
    assert said["reason"] == "RolloutStopped"
    assert "failed on n0, n1" in said["message"]
    assert (
        "its node has been down since 2027-01-15T08:00:00Z, in the middle of its change"
        in said["message"]
    )
    assert newest(model) == ["n0", "n1"]


def test_when_it_is_back_it_counts_again() -> None:
    model = changing()
    look(model, THEN + NODE_DOWN)

    model.change("n0", ready=True, ready_since=THEN + NODE_DOWN)
    model.report("n0", State.FAILED)
    look(model, THEN + NODE_DOWN + 1)

    assert model.condition("Degraded")["reason"] == "RolloutStopped"


def test_a_machine_that_comes_back_again_and_again_is_not_given_up() -> None:
    """A driver that brings its kernel down, say: no other node is to try it."""
    model = changing()
    for minute in range(20):
        at = THEN + 60 * minute
        model.change("n0", ready=minute % 2 == 0, ready_since=at)
        model.reboot("n0")
        look(model, at + 30)

    assert newest(model) == ["n0"]

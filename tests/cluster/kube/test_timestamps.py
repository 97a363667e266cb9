"""What one node writes of times that are still to come: it holds up nobody, and stops nothing."""

from __future__ import annotations

import pytest

from cluster.driver.deadlines import LAST_REPORT, NODE_DOWN
from cluster.kube.timestamps import CLOCK_SKEW, distrust_far_future
from cluster.kube.wakeup import Wakeup
from cluster.model.names import closed_label, draining_label, undrained_label
from cluster.model.parse import node_driver_from, node_from
from cluster.options.drain.labels import seconds_since
from nodeside.protocol.node_status import State
from tests.cluster.fakes.drains import rolling, step
from tests.cluster.fakes.rollouts import THEN, changing, look, newest
from tests.cluster.fakes.silent_nodes import BUILD, assigned, at, with_pods
from tests.cluster.fakes.stage_ends import changing as staged
from tests.cluster.fakes.stage_ends import rounds

YEAR = 365 * 24 * 3600.0
LATEST = "9999-12-31T23:59:59Z"


def latest() -> float:
    """As a kubelet writes it."""
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": LATEST}
    return node_from({"metadata": {"name": "n"}, "status": {"conditions": [ready]}}).ready_since


def test_a_time_is_believed_as_far_as_clocks_are_apart() -> None:
    assert distrust_far_future(THEN, THEN) == THEN
    assert distrust_far_future(THEN + CLOCK_SKEW, THEN) == THEN + CLOCK_SKEW
    assert 0 < distrust_far_future(THEN + CLOCK_SKEW + 1, THEN) < THEN - YEAR
    assert distrust_far_future(0.0, THEN) == 0.0
    assert distrust_far_future(THEN, 0.0) == THEN


@pytest.mark.parametrize("ahead", [YEAR, latest() - THEN])
def test_a_node_that_is_down_since_a_time_to_come_is_lost_and_holds_no_rollout(
    ahead: float,
) -> None:
    model = changing()
    model.change("n0", ready_since=THEN + ahead)

    look(model, THEN + 1)

    assert newest(model) == ["n0", "n1"]
    assert (model.plan(THEN + 1).requeue_after or 0.0) <= NODE_DOWN


def test_a_word_of_a_time_to_come_is_the_last_one_of_its_node_only() -> None:
    document = {"metadata": {"name": "edu.n0", "managedFields": [{"time": LATEST}]}}
    report = node_driver_from(document)
    assert report is not None
    model = assigned()
    with_pods(model)
    model.report("n0", State.BUILDING, time=report.time)
    model.report("n1", State.BUILDING, time=THEN)

    reason, message = at(model, THEN + 1)

    assert reason == "NodesFailed"
    assert "n0: it reported building at 9999-12-31T23:59:59Z, and nothing since" in message
    assert model.plan(THEN + 1).requeue_after == LAST_REPORT + BUILD - 1


def test_ready_time_in_the_future_uses_pod_age() -> None:
    model = assigned()
    with_pods(model)
    model.change("n0", ready_since=latest())

    assert at(model, THEN + 599)[0] == "NodesBusy"
    assert at(model, THEN + 600)[1].startswith("n0, n1: its pod has not reported")


def test_a_label_of_a_time_to_come_gives_a_drain_no_more_time() -> None:
    assert seconds_since("20270115T080000Z", THEN + 5) == 5
    assert seconds_since("99991231T235959Z", THEN) > YEAR

    model = rolling(1)
    model.consume("n0")
    step(model, THEN)
    model.relabel("n0", {draining_label("edu"): "99991231T235959Z"})

    step(model, THEN + 1)

    assert draining_label("edu") not in model.nodes["n0"].labels


@pytest.mark.parametrize("ahead", [0.0, latest() - THEN])
def test_stages_that_are_closed_since_a_time_to_come_have_no_more_time(ahead: float) -> None:
    """Where the driver does not work, no label of ours has the time."""
    model = staged()
    model.report("n0", State.FAILED)
    rounds(model, THEN, broken="n0")
    assert closed_label("edu") in model.nodes["n0"].labels
    assert draining_label("edu") not in model.nodes["n0"].labels

    model.change("n0", labelled=THEN + ahead)
    step(model, THEN + 1)

    assert (undrained_label("edu") in model.nodes["n0"].labels) == (ahead > 0)


@pytest.mark.parametrize("since", ["20270115T080000Z", "99991231T235959Z"])
def test_a_node_that_is_held_for_its_stages_since_a_time_to_come_has_no_more_time(
    since: str,
) -> None:
    model = staged()
    rounds(model, THEN)
    model.relabel("n0", {draining_label("edu"): since})

    step(model, THEN + 1)

    assert (undrained_label("edu") in model.nodes["n0"].labels) == since.startswith("9")


@pytest.mark.parametrize("seconds", [3e11, float("inf")])
def test_no_wait_is_longer_than_an_operating_system_takes(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.kube.wakeup._LONGEST", 0.01)

    assert not Wakeup().wait(seconds)

"""Counts wait for a second, or some; what a person waits for does not."""

from __future__ import annotations

from typing import Any

from cluster.model.actions import EmitEvent, LabelNode, Plan, SetStatus
from cluster.reconcile.status_throttle import StatusThrottle
from tests.cluster.fakes.model import Model

LABEL = LabelNode("edu", "n1", {})


def status(ready: int, reason: str = "RollingOut") -> dict[str, Any]:
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": f"{ready} ready"}
    return {"nodes": {"ready": ready}, "conditions": [condition]}


def model() -> Model:
    made = Model()
    made.apply_driver()
    made.carry_out([SetStatus("edu", status(0))])
    return made


def test_the_first_count_is_told_at_once_and_the_next_one_a_second_later() -> None:
    quiet, snapshot = StatusThrottle(), model().snapshot
    first, second = (Plan((LABEL, SetStatus("edu", status(n)))) for n in (1, 2))

    assert quiet.drop_excess(first, snapshot, 10.0) == first
    held = quiet.drop_excess(second, snapshot, 10.25)
    assert held.actions == (LABEL,)
    assert held.requeue_after == 0.75
    assert quiet.drop_excess(second, snapshot, 11.0) == second


def test_another_reason_is_told_at_once() -> None:
    quiet, snapshot = StatusThrottle(), model().snapshot
    quiet.drop_excess(Plan((SetStatus("edu", status(1)),)), snapshot, 10.0)
    news = Plan((SetStatus("edu", status(1, "NodesFailed")),))

    assert quiet.drop_excess(news, snapshot, 10.1) == news


def test_one_driver_does_not_hold_back_another_one() -> None:
    made = model()
    made.apply_driver("other", modules=[{"name": "other"}])
    quiet = StatusThrottle()
    quiet.drop_excess(Plan((SetStatus("edu", status(1)),)), made.snapshot, 10.0)
    other = Plan((SetStatus("other", status(1)),))

    assert quiet.drop_excess(other, made.snapshot, 10.1) == other


def test_a_plan_that_wants_to_be_made_again_sooner_is() -> None:
    quiet, snapshot = StatusThrottle(), model().snapshot
    quiet.drop_excess(Plan((SetStatus("edu", status(1)),)), snapshot, 10.0)

    assert (
        quiet.drop_excess(
            Plan((SetStatus("edu", status(2)),), requeue_after=0.1), snapshot, 10.2
        ).requeue_after
        == 0.1
    )


def test_a_pool_that_is_busy_now_and_then_is_no_news_but_one_that_failed_is() -> None:
    quiet, snapshot = StatusThrottle(), model().snapshot

    def with_pool(reason: str) -> Plan:
        pool = {"kernel": "6.1", "reason": reason, "nodes": {"ready": 1}}
        return Plan((SetStatus("edu", {**status(1), "pools": [pool]}),))

    busy = with_pool("NodesBusy")
    quiet.drop_excess(busy, snapshot, 10.0)
    made = model()
    made.carry_out(busy.actions)

    assert quiet.drop_excess(with_pool("Ready"), made.snapshot, 10.1).actions == ()
    failed = with_pool("NodesFailed")
    assert quiet.drop_excess(failed, made.snapshot, 10.2) == failed


def test_with_more_nodes_counts_are_told_less_often() -> None:
    quiet, snapshot = StatusThrottle(), model().snapshot
    counts = [{**status(n), "nodes": {"ready": n, "wanted": 5000}} for n in (1, 2)]
    quiet.drop_excess(Plan((SetStatus("edu", counts[0]),)), snapshot, 10.0)

    held = quiet.drop_excess(Plan((SetStatus("edu", counts[1]),)), snapshot, 12.0)

    assert (held.actions, held.requeue_after) == ((), 3.0)


def test_what_comes_again_and_again_is_told_25_times_and_then_once_in_five_minutes() -> None:
    quiet, snapshot = StatusThrottle(), model().snapshot

    def told(driver: str = "edu", reason: str = "NodesFailed", seconds: float = 0.0) -> bool:
        say = EmitEvent(driver, "u", warning=True, reason=reason, note="n1 failed")
        return quiet.drop_excess(Plan((LABEL, say)), snapshot, 10.0 + seconds).actions == (
            LABEL,
            say,
        )

    assert [told() for _ in range(30)] == [True] * 25 + [False] * 5
    assert told(reason="RolloutStopped")
    assert told(driver="other")
    assert [told(seconds=300.0) for _ in range(2)] == [True, False]
    assert [told(seconds=9000.0) for _ in range(30)].count(True) == 25

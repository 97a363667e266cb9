"""What the results of earlier rounds change in the next plan.

They add the problems of Drivers and the answers to evictions to the snapshot, and drop from the
plan what has to wait: retries of failures, reverts of edits, evictions, status updates. All of it
is in the memory of one leader; the next leader starts without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cluster.model.actions import EmitEvent, Plan
from cluster.model.lanes import Lane
from cluster.model.problems import Problem
from cluster.model.snapshot import Snapshot
from cluster.reconcile.eviction_backoff import EvictionBackoff
from cluster.reconcile.executor import ExecutionResult
from cluster.reconcile.failures import (
    Failure,
    drop_blocked_actions,
    generation_of,
    problems_of,
    with_next_retry,
)
from cluster.reconcile.reverted_edits import RevertedEdits
from cluster.reconcile.status_throttle import StatusThrottle
from nodeside import log


@dataclass
class Amendments:
    """The results of earlier rounds. All times are monotonic.

    `jitter` spreads the retries of failures. `_events` report failures that no condition can.
    """

    throttle: StatusThrottle
    jitter: Callable[[], float]
    evictions: EvictionBackoff = field(default_factory=EvictionBackoff)
    _reverted_edits: RevertedEdits = field(default_factory=RevertedEdits)
    _failures: dict[Lane, Failure] = field(default_factory=dict)
    _events: list[EmitEvent] = field(default_factory=list)

    def forget_all(self) -> None:
        self.evictions.forget_all()
        self._reverted_edits.forget_all()
        self._failures.clear()

    def complete_snapshot(self, snapshot: Snapshot, blind: Problem | None, now: float) -> Snapshot:
        """Return the snapshot with the answers to evictions, and with the problems of Drivers.

        `blind` is a problem that all Drivers have, since a kind cannot be read.
        """
        problems: dict[str, list[Problem]] = defaultdict(list)
        contested = self._reverted_edits.list_problems(snapshot, now)
        for name, each in (*contested, *problems_of(self._failures)):
            problems[name].append(each)
        if blind is not None:
            for name in snapshot.drivers:
                problems[name].append(blind)
        return replace(self.evictions.add_answers(snapshot, now), problems=problems)

    def drop_waiting(self, plan: Plan, snapshot: Snapshot, now: float) -> Plan:
        """Return the plan without what has to wait.

        The order matters. Events about a status that cannot be written come after the failures,
        which would drop them. The throttle is the last that may drop a status or an Event: it
        counts what it passes as written. Evictions only bring the next plan forward.
        """
        plan = self._reverted_edits.drop_futile_applies(plan, snapshot, now)
        plan = drop_blocked_actions(plan, snapshot, self._failures, now)
        plan, self._events = replace(plan, actions=(*plan.actions, *self._events)), []
        plan = self.throttle.drop_excess(plan, snapshot, now)
        return self.evictions.with_retry_time(plan, now)

    def record_outcome(
        self, outcome: ExecutionResult, snapshot: Snapshot, *, began: float, now: float
    ) -> bool:
        """Record the outcome of a round; return whether the next plan has more to report.

        Clears the failure of each lane that was due when the round began and succeeded. A lane in
        backoff at planning time was not tried, however long the round took.
        """
        self.evictions.record_answers(outcome.asked, now)
        news = self._reverted_edits.record_applied(outcome.applied, now) or bool(outcome.asked)
        for lane, failure in outcome.failures.items():
            self.record_failure(lane, failure, snapshot, now)
            news = news or not failure.mute or bool(self._events)
        if outcome.lost or outcome.outage:
            return news
        succeeded = [
            lane
            for lane, failure in self._failures.items()
            if lane not in outcome.failures and failure.again_at <= began
        ]
        for lane in succeeded:
            del self._failures[lane]
        return news or bool(succeeded)

    def record_failure(self, lane: Lane, failure: Failure, snapshot: Snapshot, now: float) -> None:
        """Record a failure of a lane, with the time of its next retry."""
        before, driver = self._failures.get(lane), snapshot.drivers.get(lane.driver)
        if before is None or before.message != failure.message:
            log.warning(failure.message, driver=lane, reason=failure.reason)
            if failure.mute and driver is not None:
                event = EmitEvent(driver.name, driver.uid, True, failure.reason, failure.message)
                self._events.append(event)
        generation = generation_of(lane, snapshot)
        self._failures[lane] = with_next_retry(
            before, failure, generation=generation, now=now, jitter=self.jitter()
        )

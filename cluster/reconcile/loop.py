"""The reconcile loop: take a snapshot, plan, carry the plan out, wait for a change.

Level-triggered: a plan is made from the whole state, never from a change; a watch only wakes the
loop. So a missed event, a crash in the middle and a manual edit are all handled the same way. What
is kept from one round to the next says only what has to wait (amendments.py).
"""

from __future__ import annotations

import math
import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from cluster.cache.cache import ClusterCache
from cluster.cache.image_labels import MAX_ROUNDS
from cluster.kube.election import Leadership
from cluster.kube.wakeup import Wakeup
from cluster.model.actions import Plan
from cluster.model.lanes import Lane
from cluster.model.snapshot import Snapshot
from cluster.plan.planner import report_problems
from cluster.reconcile.amendments import Amendments
from cluster.reconcile.executor import ExecutionResult, Executor
from cluster.reconcile.failures import failure_of, unreadable_kinds
from cluster.reconcile.status_throttle import StatusThrottle
from cluster.reconcile.timings import CpuBudget, Heartbeat, LoopTimings
from nodeside import log
from nodeside.system.clock import backoff

Planner = Callable[[Snapshot, float], Plan]


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The result of one round, for metrics. Durations in seconds."""

    snapshot: Snapshot
    plan: Plan
    outcome: ExecutionResult
    planning: float
    doing: float


_RETRY_AFTER_CONFLICT = 1.0  # seconds until the next round after a conflict with another writer


class Controller:
    """The controller; a leader runs `work_as_leader`."""

    def __init__(
        self,
        view: ClusterCache,
        wakes: Wakeup,
        executor: Executor,
        planner: Planner,
        *,
        stopping: threading.Event,
        pulse: Heartbeat | None = None,
        after: Callable[[ReconcileResult], None] = lambda _: None,
        pace: LoopTimings | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        cpu_time: Callable[[], float] = time.thread_time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._view = view
        self._wakes = wakes
        self._executor = executor
        self._planner = planner
        self._stopping = stopping
        self._pulse = pulse or Heartbeat()
        self._after = after
        self._pace = pace or LoopTimings()
        self._now = now
        self._wall = wall
        self._cpu_time = cpu_time
        self._jitter = jitter
        self._outages = 0
        self._patience_until = (
            math.inf
        )  # after that time, kinds that get no answer hold up no round
        self._cpu_budget = CpuBudget(self._pace, now())
        self._amendments = Amendments(StatusThrottle(self._pace.counts), jitter)

    def work_as_leader(self, leadership: Leadership) -> None:
        """Lead until the lease is lost or we must stop. Nothing is under way when it returns."""
        self._amendments.forget_all()
        try:
            self._wait_for_caches(leadership)
            while self._may_go_on(leadership):
                if not self._caches_are_current():
                    continue
                began = self._now()
                self._pulse.begin_round()
                wait = self._reconcile_once(leadership)
                self._pulse.end_round()
                self._wait_for_next_round(began, wait)
        finally:
            self._view.stop_watching_pods()

    def _wait_for_caches(self, leadership: Leadership) -> None:
        """Wait until every kind is listed: before that, an absence proves nothing.

        The cache may date from before an outage, or from before the last leader's last write, so
        it is renewed for up to `refresh` seconds. A kind that keeps failing does not block the
        others once it has been listed, or if it is optional.
        """
        began = self._now()
        self._view.renew_lists(leadership.alone_since)
        while self._may_go_on(leadership):
            early = self._now() < began + self._pace.optional
            fresh = self._view.refresh_watches(self._pace.sync, optional=early)
            late = self._now() >= began + self._pace.refresh
            if fresh or (late and self._view.wait_synced(0)):
                log.fact("first look", fresh=fresh, seconds=round(self._now() - began, 3))
                return
            self._report_blind(leadership)

    def _caches_are_current(self) -> bool:
        """Return whether the caches are up to date, also after an outage; if not, wait a moment.

        What they have from before an outage may not be true any more: etcd may have been restored.
        Once the API server answers for one kind, the others have `refresh` seconds. After that, a
        kind that keeps failing holds up nothing.
        """
        kinds = [kind for kind in self._view.health() if not kind.optional]
        behind = sum(kind.cut_off for kind in kinds)
        if behind in (0, len(kinds)):  # none, or all: the API server is down
            self._patience_until = math.inf
        else:
            self._patience_until = min(self._patience_until, self._now() + self._pace.refresh)
        if behind == 0 or self._now() >= self._patience_until:
            return True
        self._view.refresh_watches(self._pace.sync, optional=False)
        return False

    def _report_blind(self, leadership: Leadership) -> None:
        """Report on the Drivers why nothing can be planned yet, unless that passes by itself."""
        snapshot = self._complete_snapshot(self._now())
        plan = report_problems(snapshot, self._wall())
        if plan.actions:
            self._wait_for_own_writes(self._executor.carry_out(plan, snapshot, leadership))

    def _reconcile_once(self, leadership: Leadership) -> float | None:
        """Run one round: take a snapshot, plan, carry out.

        Return the seconds until the next round if nothing changes; None to wait for a change.
        """
        began, cpu_time = self._now(), self._cpu_time()
        snapshot, plan = self._snapshot_and_plan(began)
        self._view.watch_pods(plan.demand)
        planned = self._now()
        self._cpu_budget.charge_plan(self._cpu_time() - cpu_time, planned)
        outcome = self._executor.carry_out(plan, snapshot, leadership)
        if self._amendments.record_outcome(outcome, snapshot, began=began, now=self._now()):
            self._wakes.wake()
        result = ReconcileResult(snapshot, plan, outcome, planned - began, self._now() - planned)
        self._after(result)
        self._log_round(result)
        self._wait_for_own_writes(outcome)
        return self._seconds_to_next(plan, outcome)

    def _snapshot_and_plan(self, began: float) -> tuple[Snapshot, Plan]:
        """Return the snapshot and its plan, after reading what an earlier plan asked for."""
        for looks_left in reversed(range(MAX_ROUNDS)):
            snapshot = self._complete_snapshot(began)
            plan = self._planner(snapshot, self._wall())
            news = self._view.render_templates(plan.templates)
            if not looks_left or not (self._view.learn_labels(plan.tags) or news):
                break
        now = self._now()
        for driver, error in plan.errors.items():  # the plan only reports these
            traceback.print_exception(error)
            failure = failure_of(error, f"plan driver {driver}" if driver else "plan")
            self._amendments.record_failure(Lane(driver), failure, snapshot, now)
        return snapshot, self._amendments.drop_waiting(plan, snapshot, now)

    def _complete_snapshot(self, now: float) -> Snapshot:
        """Return what is known: of the cluster, and of what was done and tried before."""
        blind = unreadable_kinds(self._view.health())
        return self._amendments.complete_snapshot(self._view.make_snapshot(), blind, now)

    def _wait_for_own_writes(self, outcome: ExecutionResult) -> None:
        """Wait for our own writes; a plan made before they are seen would repeat them."""
        ends = self._now() + self._pace.echo
        seen = self._view.wait_written(outcome.written, self._pace.echo)
        for deleted in outcome.deleted:
            left = max(0.0, ends - self._now())
            seen &= self._view.wait_gone(deleted.resource, deleted.name, deleted.uid, left)
        if not seen:
            log.detail("our own writes have not come back yet")

    def _seconds_to_next(self, plan: Plan, outcome: ExecutionResult) -> float | None:
        if outcome.outage is None:
            self._outages = 0
            waits = (_requeue_after(plan, outcome), self._view.requeue_after())
            return min((wait for wait in waits if wait is not None), default=None)
        self._outages += 1
        pace = self._pace
        wait = backoff(self._outages, pace.first_retry, pace.longest_retry)
        return max(wait * (0.5 + self._jitter() / 2), outcome.outage.retry_after or 0.0)

    def _wait_for_next_round(self, began: float, wait: float | None) -> None:
        """Wait until something changes, then a moment longer: changes tend to come in bursts."""
        self._wakes.wait(wait)
        now = self._now()
        left = max(began + self._pace.between - now, self._cpu_budget.seconds_to_wait(now))
        self._stopping.wait(max(self._pace.settle, left))

    def _may_go_on(self, leadership: Leadership) -> bool:
        return leadership.leads and not self._stopping.is_set()

    def _log_round(self, result: ReconcileResult) -> None:
        plan, outcome, planning = result.plan, result.outcome, f"{result.planning:.3f}s"
        if outcome.outage is not None:
            say = log.warning if self._outages == 0 else log.detail
            say(f"put off: {outcome.outage}", hint=outcome.outage.hint)
        if not plan.actions:
            log.detail("nothing to do", planning=planning)
        else:
            log.fact(
                "round",
                actions=len(plan.actions),
                done=outcome.done,
                planning=planning,
                doing=f"{result.doing:.3f}s",
            )


def _requeue_after(plan: Plan, outcome: ExecutionResult) -> float | None:
    """Return the seconds until there is something to do if nothing wakes us earlier."""
    if outcome.unfinished:
        return 0.0
    if outcome.overtaken:
        return min(_RETRY_AFTER_CONFLICT, plan.requeue_after or _RETRY_AFTER_CONFLICT)
    return plan.requeue_after

"""The results of evictions and when to retry them, in the memory of one leader.

A disruption budget that allows no eviction is retried with increasing backoff. A new leader retries
once and gets the same answer, so none of this needs to be stored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cluster.model.actions import Plan
from cluster.model.snapshot import EvictionAnswer, Snapshot
from nodeside.system.clock import backoff

_FIRST, _LONGEST = 2.0, 30.0  # seconds until an eviction is retried
_LEAVING = 10.0  # seconds to wait for an evicted pod to show as terminating


@dataclass(frozen=True, slots=True)
class _EvictionAttempt:
    refusal: str | None
    failures: int
    again_at: float


@dataclass
class EvictionBackoff:
    """The evictions by pod uid; times are monotonic."""

    jitter: Callable[[], float] = random.random
    _asked: dict[str, _EvictionAttempt] = field(default_factory=dict)

    def forget_all(self) -> None:
        self._asked.clear()

    def add_answers(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with these answers; answers for pods that are gone are forgotten."""
        occupancy = snapshot.occupancy
        if occupancy.known:
            uids = {consumer.uid for consumer in occupancy.consumers.values()}
            self._asked = {uid: asked for uid, asked in self._asked.items() if uid in uids}
        answers = {u: EvictionAnswer(a.refusal, now < a.again_at) for u, a in self._asked.items()}
        return (
            replace(snapshot, occupancy=replace(occupancy, answers=answers))
            if answers
            else snapshot
        )

    def record_answers(self, answers: Mapping[str, str | None], now: float) -> None:
        """Record the API server's refusal for each pod; None means that it is evicted."""
        for uid, refusal in answers.items():
            before = self._asked.get(uid)
            if refusal is None:
                self._asked[uid] = _EvictionAttempt(None, 0, now + _LEAVING)
                continue
            failures = before.failures + 1 if before else 1
            wait = backoff(failures, _FIRST, _LONGEST) * (0.5 + self.jitter() / 2)
            self._asked[uid] = _EvictionAttempt(refusal, failures, now + wait)

    def with_retry_time(self, plan: Plan, now: float) -> Plan:
        """Return the plan with `requeue_after` at most the time until the next eviction retry."""
        if plan.demand is None:
            return plan
        return plan.requeued_within(
            a.again_at - now for a in self._asked.values() if a.again_at > now
        )

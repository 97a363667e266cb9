"""What became of evictions, and when to ask again: what one leader remembers of them.

A budget that allows no disruption is asked again later and later. Another leader asks once more and
hears the same; so nothing of this needs to be written down.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cluster.model.actions import Plan
from cluster.model.snapshot import EvictionAnswer, Snapshot
from nodeside.backoff import backoff

_FIRST, _LONGEST = 2.0, 30.0  # seconds until a pod is asked again
_LEAVING = 10.0  # seconds in which a pod that may go is seen to go


@dataclass(frozen=True, slots=True)
class _Asked:
    message: str
    failures: int
    again_at: float


@dataclass
class Evictions:
    """By the uid of the pod; times are monotonic."""

    jitter: Callable[[], float] = random.random
    _asked: dict[str, _Asked] = field(default_factory=dict)

    def clear(self) -> None:
        self._asked.clear()

    def seen(self, snapshot: Snapshot, now: float) -> Snapshot:
        """The world with these answers; those of pods that are gone are forgotten."""
        occupancy = snapshot.occupancy
        if occupancy.known:
            there = {consumer.uid for consumer in occupancy.consumers.values()}
            self._asked = {uid: asked for uid, asked in self._asked.items() if uid in there}
        answers = {u: EvictionAnswer(a.message, now < a.again_at) for u, a in self._asked.items()}
        return (
            replace(snapshot, occupancy=replace(occupancy, answers=answers))
            if answers
            else snapshot
        )

    def take(self, answers: Mapping[str, str], now: float) -> None:
        """What the API server said to each."""
        for uid, message in answers.items():
            before = self._asked.get(uid)
            failures = before.failures + 1 if before and message else int(bool(message))
            pause = backoff(failures, _FIRST, _LONGEST)
            wait = pause * (0.5 + self.jitter() / 2) if message else _LEAVING
            self._asked[uid] = _Asked(message, failures, now + wait)

    def waking(self, plan: Plan, now: float) -> Plan:
        """The plan, made again when a pod may be asked again."""
        if plan.demand is None:
            return plan
        waits = [max(0.0, a.again_at - now) for a in self._asked.values() if a.again_at > now]
        waits += [] if plan.again_in is None else [plan.again_in]
        return replace(plan, again_in=min(waits, default=None))

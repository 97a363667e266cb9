"""Counts that change all the time are told once in a while, what a person waits for at once.

In a first rollout to 5,000 nodes the status of the Driver would change with every look. And what
comes again and again, as of a node that flaps, is no news: its Events become few. Pure but for what
it remembers of one leader's life.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.model.actions import Action, EmitEvent, Plan, SetStatus
from cluster.model.snapshot import Snapshot
from nodeside import log

_BETWEEN = 1.0  # seconds between two statuses of a Driver that only count differently
_PASSING = ("Ready", "NodesBusy")  # of a pool: in a rollout it is now the one, now the other
_EVENTS = 25  # for the same reason about one Driver, at once: as client-go has it
_REFILL = 300.0  # seconds, after which there may be one more
_LARGE = 1000  # nodes; with more of them it is longer, so that statuses stay few beside labels


@dataclass
class Quiet:
    """Knows when the status of each Driver was written last, by the monotonic clock."""

    between: float = _BETWEEN
    _written: dict[str, float] = field(default_factory=dict)
    _told: dict[tuple[str, str], float] = field(default_factory=dict)

    def __call__(self, plan: Plan, snapshot: Snapshot, now: float) -> Plan:
        """The plan without Events that are too many, and without statuses that can wait; it says
        when to plan again."""
        spoken = tuple(action for action in plan.actions if self._may_be_told(action, now))
        plan = plan if len(spoken) == len(plan.actions) else replace(plan, actions=spoken)
        held = {
            action.driver: wait
            for action in plan.actions
            if isinstance(action, SetStatus) and (wait := self._wait(action, snapshot, now)) > 0
        }
        if not held:
            return plan
        kept = tuple(action for action in plan.actions if not _is_held(action, held))
        waits = [*held.values(), *([] if plan.again_in is None else [plan.again_in])]
        return replace(plan, actions=kept, again_in=min(waits))

    def _may_be_told(self, action: Action, now: float) -> bool:
        """Each Event takes `_REFILL` seconds of a credit of `_EVENTS` of them."""
        if not isinstance(action, EmitEvent):
            return True
        key = (action.driver, action.reason)
        spent = max(self._told.get(key, now), now) + _REFILL
        if spent - now > _EVENTS * _REFILL:
            log.detail(f"too many Events: {action.note}", driver=action.driver)
            return False
        self._told[key] = spent
        return True

    def _wait(self, action: SetStatus, snapshot: Snapshot, now: float) -> float:
        """Seconds that it can wait; 0 also means that it is written now."""
        found = snapshot.drivers.get(action.driver)
        pause = self.between * max(1.0, _nodes(action.status) / _LARGE)
        wait = self._written.get(action.driver, float("-inf")) + pause - now
        if found is not None and wait > 0 and news(found.status) == news(action.status):
            return wait
        self._written[action.driver] = now
        return 0.0


def news(status: Mapping[str, Any]) -> object:
    """What of a status is worth telling at once."""
    said = [(c.get("type"), c.get("status"), c.get("reason")) for c in status.get("conditions", ())]
    rows = [
        (row.get("kernel"), reason if (reason := row.get("reason")) not in _PASSING else "")
        for row in status.get("pools", ())
    ]
    revisions = (status.get("revision"), status.get("lastGoodRevision"))
    return said, rows, revisions, status.get("casualties"), status.get("observedGeneration")


def _nodes(status: Mapping[str, Any]) -> int:
    return int((status.get("nodes") or {}).get("wanted", 0))


def _is_held(action: Action, held: Mapping[str, float]) -> bool:
    return isinstance(action, SetStatus) and action.driver in held

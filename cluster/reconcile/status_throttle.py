"""Throttles count-only status updates and repeated Events; other updates are written at once.

In a first rollout to 5,000 nodes the status of the Driver would change in every round. Repeated
Events, such as those of a flapping node, are limited. Pure except for the state that it keeps for
the lifetime of one leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.model.actions import Action, EmitEvent, Plan, SetStatus
from cluster.model.snapshot import Snapshot
from nodeside import log

_BETWEEN = 1.0  # seconds between two statuses of a Driver that differ only in counts
# A pool alternates between these during a rollout.
_TRANSIENT_REASONS = ("Ready", "NodesBusy")
_EVENTS = 25  # burst of Events per Driver and reason, as in client-go
_REFILL = 300.0  # seconds after which one more is allowed
_LARGE = 1000  # nodes; beyond it the interval grows, so most requests are for node labels


@dataclass
class StatusThrottle:
    """The throttle. Remembers when each Driver's status was last written, in monotonic time."""

    between: float = _BETWEEN
    _written: dict[str, float] = field(default_factory=dict)
    _spent: dict[tuple[str, str], float] = field(default_factory=dict)

    def drop_excess(self, plan: Plan, snapshot: Snapshot, now: float) -> Plan:
        """Return the plan without excess Events, and without statuses that can wait.

        Its `requeue_after` is no later than the first of those statuses is due.
        """
        waits = {
            action.driver: wait
            for action in plan.actions
            if isinstance(action, SetStatus)
            and (wait := self._seconds_to_wait(action, snapshot, now)) > 0
        }
        actions = tuple(
            action
            for action in plan.actions
            if not (isinstance(action, SetStatus) and action.driver in waits)
            and self._is_allowed(action, now)
        )
        return replace(plan, actions=actions).requeued_within(waits.values())

    def _is_allowed(self, action: Action, now: float) -> bool:
        """Return whether an action is allowed; all but Events are.

        Each Event uses up `_REFILL` seconds of a credit of `_EVENTS * _REFILL` seconds, which time
        gives back.
        """
        if not isinstance(action, EmitEvent):
            return True
        key = (action.driver, action.reason)
        spent = max(self._spent.get(key, now), now) + _REFILL
        if spent - now > _EVENTS * _REFILL:
            log.detail(f"too many Events: {action.note}", driver=action.driver)
            return False
        self._spent[key] = spent
        return True

    def _seconds_to_wait(self, action: SetStatus, snapshot: Snapshot, now: float) -> float:
        """Return the seconds that a status can wait. If 0, its write is recorded as of now."""
        found = snapshot.drivers.get(action.driver)
        pause = self.between * max(1.0, _count_nodes(action.status) / _LARGE)
        wait = self._written.get(action.driver, float("-inf")) + pause - now
        urgent = found is None or urgent_fields(found.status) != urgent_fields(action.status)
        if wait > 0 and not urgent:
            return wait
        self._written[action.driver] = now
        return 0.0


def urgent_fields(status: Mapping[str, Any]) -> object:
    """Return the parts of a status whose changes are reported at once."""
    conditions = status.get("conditions", ())
    states = [(c.get("type"), c.get("status"), c.get("reason")) for c in conditions]
    reasons = ((row.get("kernel"), row.get("reason")) for row in status.get("pools", ()))
    rows = [(kernel, "" if why in _TRANSIENT_REASONS else why) for kernel, why in reasons]
    revisions = (status.get("revision"), status.get("lastGoodRevision"))
    return states, rows, revisions, status.get("casualties"), status.get("observedGeneration")


def _count_nodes(status: Mapping[str, Any]) -> int:
    return int((status.get("nodes") or {}).get("wanted", 0))

"""Failures of one Driver: how its conditions report them, and when to retry.

Other Drivers are not affected. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from cluster.kube.reflector import WatchHealth
from cluster.model.actions import Action, Plan, SetStatus, depends_on, lane_of, waits_for_all_nodes
from cluster.model.lanes import Lane
from cluster.model.limits import truncate
from cluster.model.snapshot import DriverObject, Snapshot
from nodeside.errors import NodesideError
from nodeside.protocol.timestamps import rfc3339
from nodeside.system.clock import backoff
from nodeside.text.shortlist import shortlist

_FIRST, _LONGEST = 1.0, 60.0  # seconds until the next retry
_NAMED = 5  # further nodes that a message names


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of one lane. `generation` is the Driver's: a changed Driver is retried at once.

    `again_at` is monotonic; `failures` counts consecutive failures. `mute`: the status itself
    cannot be written, so only the log and an Event can report it. The status has a lane of its own,
    so nothing else waits for it.
    """

    reason: str
    message: str
    generation: int = 0
    failures: int = 1
    again_at: float = 0.0
    mute: bool = False


def failure_of(error: Exception, doing: str) -> Failure:
    """Return the failure that reports an exception to users; an unexpected one is a bug of ours."""
    if isinstance(error, NodesideError):
        hint = f" ({error.hint})" if error.hint else ""
        return Failure(error.reason, f"cannot {doing}: {error}{hint}")
    return Failure(
        "InternalError",
        f"a bug in nodeside, please report it with the controller's log: cannot {doing}: {error!r}",
    )


def with_next_retry(
    before: Failure | None, trouble: Failure, *, generation: int, now: float, jitter: float
) -> Failure:
    """Return the failure with the time of its next retry, by exponential backoff with jitter."""
    same = before is not None and before.generation == generation
    failures = before.failures + 1 if before is not None and same else 1
    wait = backoff(failures, _FIRST, _LONGEST) * (0.5 + jitter / 2)
    return replace(trouble, generation=generation, failures=failures, again_at=now + wait)


def generation_of(lane: Lane, snapshot: Snapshot) -> int:
    """Return the generation of a lane's Driver, 0 if it has none."""
    driver = snapshot.drivers.get(lane.driver) if lane.has_generation else None
    return driver.generation if driver else 0


def backing_off(trouble: Failure, *, generation: int, now: float) -> bool:
    """Return whether it is too early to retry."""
    return trouble.generation == generation and now < trouble.again_at


def report_failures(
    plan: Plan, snapshot: Snapshot, troubles: Mapping[Lane, Failure], *, now: float, wall: float
) -> Plan:
    """Return the plan in which failing Drivers report their failures and back off until retry."""
    actions: list[Action] = [
        a for a in plan.actions if not _is_blocked_by_failure(a, snapshot, troubles, now)
    ]
    for lane, trouble in _merged_by_driver(troubles):
        driver = snapshot.drivers.get(lane.driver)
        if driver is None or trouble.mute:
            continue
        also = {"StagesReady": "False"} if lane.is_of_stages else {}
        actions = report_in_status(actions, driver, trouble, wall, also)
    waits = [max(0.0, trouble.again_at - now) for trouble in troubles.values()]
    return replace(plan, actions=tuple(actions)).within(waits)


def _merged_by_driver(troubles: Mapping[Lane, Failure]) -> Iterator[tuple[Lane, Failure]]:
    """Yield the failures to report. Those of nodes are merged into one per lane and come first,
    so that worse ones overwrite them."""
    nodes: dict[Lane, dict[str, Failure]] = {}
    for lane in sorted(lane for lane in troubles if lane.node):
        nodes.setdefault(lane.on(""), {})[lane.node] = troubles[lane]
    for whole, each in nodes.items():
        first, *others = each
        words = f"; and so of {shortlist(others, _NAMED)}" if others else ""
        yield whole, replace(each[first], message=each[first].message + words)
    yield from ((lane, each) for lane, each in troubles.items() if not lane.node)


def report_in_status(
    actions: Sequence[Action],
    driver: DriverObject,
    trouble: Failure,
    wall: float,
    also: Mapping[str, str],
) -> list[Action]:
    """Return the actions with a status that reports the failure in place of the planned status.

    If the cluster already has that status, none is written.
    """
    planned = [a for a in actions if isinstance(a, SetStatus) and a.driver == driver.name]
    status = planned[-1].status if planned else driver.status
    reporting = with_failure_condition(status, trouble, wall, also)
    first = next((i for i, a in enumerate(actions) if a in planned), len(actions))
    others: list[Action] = [action for action in actions if action not in planned]
    if _without_times(reporting) != _without_times(driver.status):
        others.insert(first, SetStatus(driver.name, reporting))
    return others


def with_failure_condition(
    status: Mapping[str, Any],
    trouble: Failure,
    wall: float,
    also: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a status that reports the failure: Degraded, with the message in Ready as well.

    `kubectl get` shows the message of Ready; unless `also` names Ready, its status stays. `also`
    are the statuses of further conditions that report the failure.
    """
    conditions = {c["type"]: dict(c) for c in status.get("conditions", ())}
    ready = conditions.get("Ready", {}).get("status", "Unknown")
    for kind, value in ({"Ready": ready, "Degraded": "True"} | dict(also)).items():
        before = conditions.get(kind, {})
        changed = before.get("status") != value or "lastTransitionTime" not in before
        since = rfc3339(wall) if changed else before["lastTransitionTime"]
        conditions[kind] = before | {
            "type": kind,
            "status": value,
            "reason": trouble.reason,
            "message": truncate(trouble.message),
            "lastTransitionTime": since,
        }
    return {**status, "conditions": list(conditions.values())}


def _is_blocked_by_failure(
    action: Action, snapshot: Snapshot, troubles: Mapping[Lane, Failure], now: float
) -> bool:
    if not troubles:
        return False
    generation = generation_of(lane_of(action), snapshot)
    found = (troubles[lane] for lane in depends_on(action) if lane in troubles)
    rests = any(backing_off(trouble, generation=generation, now=now) for trouble in found)
    return rests or waits_for_all_nodes(action, troubles)


def _without_times(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [
        {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        for condition in status.get("conditions", ())
    ]
    return {**status, "conditions": sorted(conditions, key=lambda c: str(c.get("type")))}


# What every Driver has, and what is unknown of it while a kind cannot be read.
_CONDITIONS_WITHOUT_DATA: Final = ("Ready", "Available", "Progressing")


def unreadable_kinds(kinds: Iterable[WatchHealth]) -> Failure | None:
    """Return the failure for kinds whose list or watch is refused; None if there are none.

    A refusal lasts until somebody changes something in the cluster.
    """
    refused = {kind.kind: kind.refusal for kind in kinds if kind.refusal is not None}
    if not refused:
        return None
    first, *others = refused
    trouble = failure_of(refused[first], f"watch {first} objects")
    also = f"; nor {', '.join(others)} objects" if others else ""
    return replace(trouble, reason=f"{first}sUnreadable", message=trouble.message + also)


def report_unreadable_kinds(
    plan: Plan, snapshot: Snapshot, trouble: Failure | None, wall: float
) -> Plan:
    """Return the plan in which every Driver reports the failure and is Unknown instead of ready."""
    if trouble is None:
        return plan
    actions: list[Action] = list(plan.actions)
    for driver in snapshot.drivers.values():
        doubtful = (*_CONDITIONS_WITHOUT_DATA, *_of_stages(driver))
        actions = report_in_status(
            actions, driver, trouble, wall, dict.fromkeys(doubtful, "Unknown")
        )
    return replace(plan, actions=tuple(actions))


def _of_stages(driver: DriverObject) -> list[str]:
    types = {condition.get("type") for condition in driver.status.get("conditions") or ()}
    return [kind for kind in ("StagesReady",) if kind in types]

"""Failures of one Driver: the problems that its status reports, and when to retry.

Other Drivers are not affected. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from cluster.kube.reflector import WatchHealth
from cluster.model.actions import Action, Plan, depends_on, lane_of, waits_for_all_nodes
from cluster.model.lanes import Lane
from cluster.model.problems import Problem, ProblemKind, problem_of
from cluster.model.snapshot import Snapshot
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
    """Return the failure that reports an exception to users."""
    problem = problem_of(error, doing)
    return Failure(problem.reason, problem.message)


def with_next_retry(
    before: Failure | None, failure: Failure, *, generation: int, now: float, jitter: float
) -> Failure:
    """Return the failure with the time of its next retry, by exponential backoff with jitter."""
    same = before is not None and before.generation == generation
    count = before.failures + 1 if before is not None and same else 1
    wait = backoff(count, _FIRST, _LONGEST) * (0.5 + jitter / 2)
    return replace(failure, generation=generation, failures=count, again_at=now + wait)


def generation_of(lane: Lane, snapshot: Snapshot) -> int:
    """Return the generation of a lane's Driver, 0 if it has none."""
    driver = snapshot.drivers.get(lane.driver) if lane.is_retried_on_change else None
    return driver.generation if driver else 0


def is_backing_off(failure: Failure, *, generation: int, now: float) -> bool:
    """Return whether it is too early to retry."""
    return failure.generation == generation and now < failure.again_at


def drop_blocked_actions(
    plan: Plan, snapshot: Snapshot, failures: Mapping[Lane, Failure], now: float
) -> Plan:
    """Return the plan without what is in backoff; the next plan is due when the backoff ends."""
    actions = (a for a in plan.actions if not _is_blocked_by_failure(a, snapshot, failures, now))
    waits = [max(0.0, failure.again_at - now) for failure in failures.values()]
    return replace(plan, actions=tuple(actions)).requeued_within(waits)


def problems_of(failures: Mapping[Lane, Failure]) -> Iterator[tuple[str, Problem]]:
    """Yield the problems that the statuses of Drivers report, by Driver.

    Failures on nodes are merged into one per lane and come first, so that worse ones replace them.
    """
    nodes: dict[Lane, dict[str, Failure]] = {}
    for lane in sorted(lane for lane in failures if lane.node):
        nodes.setdefault(lane.on_node(""), {})[lane.node] = failures[lane]
    for whole, each in nodes.items():
        first, *others = each
        words = f"; the same for {shortlist(others, _NAMED)}" if others else ""
        problem = _problem_from(whole, each[first], words)
        yield whole.driver, replace(problem, kind=ProblemKind.ON_NODES)
    for lane, failure in failures.items():
        if not lane.node and not failure.mute:
            yield lane.driver, _problem_from(lane, failure)


def _problem_from(lane: Lane, failure: Failure, more: str = "") -> Problem:
    message = failure.message + more
    return Problem(ProblemKind.FAILED, failure.reason, message, of_stages=lane.is_of_stages)


def _is_blocked_by_failure(
    action: Action, snapshot: Snapshot, failures: Mapping[Lane, Failure], now: float
) -> bool:
    if not failures:
        return False
    generation = generation_of(lane_of(action), snapshot)
    found = (failures[lane] for lane in depends_on(action) if lane in failures)
    rests = any(is_backing_off(failure, generation=generation, now=now) for failure in found)
    return rests or waits_for_all_nodes(action, failures)


def unreadable_kinds(kinds: Iterable[WatchHealth]) -> Problem | None:
    """Return the problem of all Drivers if the list or watch of a kind is refused; None if none is.

    A refusal lasts until somebody changes something in the cluster.
    """
    refused = {kind.kind: kind.refusal for kind in kinds if kind.refusal is not None}
    if not refused:
        return None
    first, *others = refused
    message = problem_of(refused[first], f"watch {first} objects").message
    also = f"; the same for {', '.join(others)} objects" if others else ""
    return Problem(ProblemKind.UNREADABLE, f"{first}sUnreadable", message + also)

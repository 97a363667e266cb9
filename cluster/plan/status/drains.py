"""Status rows and messages about nodes that are drained.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cluster.model.snapshot import Consumer, DriverObject, EvictionAnswer, Occupancy
from cluster.model.states import Health, Place
from cluster.plan.nodes.drain_labels import for_people
from cluster.plan.rollout.decisions import ENDS_STAGES, Decision, DrainStep
from cluster.plan.rollout.table import Act
from cluster.plan.status.messages import some

_OPEN = (DrainStep.CORDON, DrainStep.WAIT, DrainStep.EVICT, *ENDS_STAGES)
_CHANGES = (Act.IN_TURN, Act.IN_TURN_OR_GOOD, Act.GIVE_NEWEST)


def drains(decisions: Iterable[Decision], occupancy: Occupancy) -> list[dict[str, str]]:
    """Returns a row for each node that is held for its consumers, longest held first."""
    held = [
        decision
        for decision in decisions
        if _is_drained(decision) and not _only_ends_stages(decision)
    ]
    held.sort(key=lambda decision: (decision.member.hold.since, decision.member.node.name))
    return [
        {
            "node": decision.member.node.name,
            "since": for_people(decision.member.hold.since),
            "message": in_words(decision, occupancy),
        }
        for decision in held
    ]


def open_drains(decisions: Iterable[Decision], occupancy: Occupancy) -> list[str]:
    """Returns nodes that are not empty yet and what they wait for; refused evictions first."""
    rows = [
        (decision.member.node.name, in_words(decision, occupancy))
        for decision in decisions
        if decision.step in _OPEN and not _only_ends_stages(decision)
    ]
    rows.sort(key=lambda each: "(" not in each[1])
    return [f"{name}: {words}" for name, words in rows]


def ending(decisions: Iterable[Decision], occupancy: Occupancy) -> list[str]:
    """Returns nodes that are not cordoned and wait for the end of their stages."""
    return [
        f"{decision.member.node.name}: {in_words(decision, occupancy)}"
        for decision in decisions
        if _only_ends_stages(decision)
    ]


def occupied(decisions: Iterable[Decision], newest: str) -> list[str]:
    """Returns nodes whose pods did not leave in time and still run, each with one pod."""
    return [
        f"{decision.member.node.name} ({_leftover(decision)})"
        for decision in decisions
        if _is_occupied(decision, newest)
    ]


def stuck(decisions: Iterable[Decision], newest: str) -> list[tuple[str, str]]:
    """Returns nodes with a stage pod that did not end in time, and that pod as namespace/name."""
    return [
        (decision.member.node.name, decision.member.stage_pods[0])
        for decision in decisions
        if decision.member.hold.given_up == newest and decision.member.stage_pods
    ]


def stalled(decisions: Sequence[Decision], newest: str) -> bool:
    """Returns whether only nodes that were not drained in time are left to change."""
    rest = [decision for decision in decisions if not _is_occupied(decision, newest)]
    return len(rest) < len(decisions) and not any(
        decision.row.act in _CHANGES or decision.member.health is Health.BUSY for decision in rest
    )


def held_up(found: DriverObject, decision: Decision, newest: str) -> Iterator[str]:
    """Yields what blocks a change of a node, for `explain`.

    The row in the status is preferred: it has the controller's latest information.
    """
    name, since = decision.member.node.name, decision.member.hold.since
    rows = (row for row in found.status.get("draining", ()) if row["node"] == name)
    message = next((row["message"] for row in rows), in_words(decision, Occupancy()))
    if _only_ends_stages(decision):
        yield in_words(decision, Occupancy())
    elif since and decision.step is not DrainStep.RELEASE:
        yield f"held since {for_people(since)}: {message}"
    if _is_occupied(decision, newest):
        pods = _leftover(decision)
        yield f"not drained in time: changes when its pods are gone, such as {pods}"


def in_words(decision: Decision, occupancy: Occupancy) -> str:
    """Returns what a node waits for that is held or should be."""
    match decision.step:
        case DrainStep.EVICT:
            return "waiting for " + _pods(decision.member.consumers or (), occupancy.answers)
        case DrainStep.END_STAGES | DrainStep.HOLD_FOR_STAGES if decision.member.stage_pods:
            return f"{decision.detail}: waiting for {some(decision.member.stage_pods, of='pods')}"
        case DrainStep.WAIT if _cannot_see_stages(decision):
            return "its stage pods cannot be read"
        case DrainStep.WAIT if occupancy.trouble:
            return f"{decision.detail}: {occupancy.trouble}"
        case _:
            return decision.detail


def _is_occupied(decision: Decision, newest: str) -> bool:
    return (
        decision.member.hold.given_up == newest
        and not decision.member.is_vacant
        and decision.place is not Place.NEWEST
        and decision.row.act in _CHANGES
    )


def _only_ends_stages(decision: Decision) -> bool:
    """Returns whether a node only waits for its stages to end.

    That takes seconds on every node of a rollout and is not reported as a drain.
    """
    if decision.step is DrainStep.HOLD_FOR_STAGES:
        return True
    waits = decision.step is DrainStep.END_STAGES or _cannot_see_stages(decision)
    return waits and not _is_drained(decision)


def _is_drained(decision: Decision) -> bool:
    """Returns whether a node is held and cordoned, or is to be cordoned again."""
    held, cordoned = decision.member.hold.since, decision.member.node.unschedulable
    return bool(held) and (cordoned or decision.step is DrainStep.CORDON)


def _cannot_see_stages(decision: Decision) -> bool:
    member = decision.member
    return (
        decision.step is DrainStep.WAIT
        and member.consumers is not None
        and member.stage_pods is None
    )


def _leftover(decision: Decision) -> str:
    """Returns the pods that had to leave and are still there."""
    member = decision.member
    if member.consumers or not member.stage_pods:
        return _pods(member.consumers or (), {})
    return some(member.stage_pods, of="pods", shown=1)


def _pods(consumers: Sequence[Consumer], answers: Mapping[str, EvictionAnswer]) -> str:
    """Returns one pod, preferably one whose eviction was refused, and how many more."""
    if not consumers:
        return "pods"
    order = sorted(consumers, key=lambda each: (not _refusal(each, answers), each.name))
    first = order[0]
    words = f"{first.name} to end" if first.deleting else first.name
    if refusal := _refusal(first, answers):
        words += f" ({refusal})"
    return words + (f" and {len(order) - 1} more" if order[1:] else "")


def _refusal(consumer: Consumer, answers: Mapping[str, EvictionAnswer]) -> str:
    answer = answers.get(consumer.uid)
    return "" if consumer.deleting or answer is None else answer.message

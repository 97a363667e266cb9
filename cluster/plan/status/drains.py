"""What people are told of nodes that are drained: rows and sentences of a Driver's status.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cluster.model.snapshot import Consumer, DriverObject, EvictionAnswer, Occupancy
from cluster.model.states import Health, Place
from cluster.plan.nodes.drain_labels import for_people
from cluster.plan.rollout.decisions import Decision, DrainStep
from cluster.plan.rollout.table import Act
from cluster.plan.status.messages import some

_OPEN = (DrainStep.CORDON, DrainStep.WAIT, DrainStep.EVICT, DrainStep.END_STAGES)
_CHANGES = (Act.IN_TURN, Act.IN_TURN_OR_GOOD, Act.GIVE_NEWEST)


def drains(verdicts: Iterable[Decision], occupancy: Occupancy) -> list[dict[str, str]]:
    """A row for each node that is held, the longest first."""
    held = [verdict for verdict in verdicts if verdict.member.hold.since]
    held.sort(key=lambda verdict: (verdict.member.hold.since, verdict.member.node.name))
    return [
        {
            "node": verdict.member.node.name,
            "since": for_people(verdict.member.hold.since),
            "message": in_words(verdict, occupancy),
        }
        for verdict in held
    ]


def open_drains(verdicts: Iterable[Decision], occupancy: Occupancy) -> list[str]:
    """Nodes that are not empty yet, each with what it waits for; first those that were refused."""
    found = [
        (verdict.member.node.name, in_words(verdict, occupancy))
        for verdict in verdicts
        if verdict.step in _OPEN and not _ends_by_the_way(verdict)
    ]
    found.sort(key=lambda each: "(" not in each[1])
    return [f"{name}: {words}" for name, words in found]


def ending(verdicts: Iterable[Decision], occupancy: Occupancy) -> list[str]:
    """Nodes that nobody cordoned, and that wait for the end of their stages."""
    return [
        f"{verdict.member.node.name}: {in_words(verdict, occupancy)}"
        for verdict in verdicts
        if _ends_by_the_way(verdict)
    ]


def occupied(verdicts: Iterable[Decision], newest: str) -> list[str]:
    """Nodes whose pods did not leave in time and are still there, each with a pod."""
    return [
        f"{verdict.member.node.name} ({_leftover(verdict)})"
        for verdict in verdicts
        if _is_occupied(verdict, newest)
    ]


def stuck(verdicts: Iterable[Decision], newest: str) -> list[tuple[str, str]]:
    """Nodes with a pod of a stage that did not end in time, and the pod as namespace/name."""
    return [
        (verdict.member.node.name, verdict.member.stage_pods[0])
        for verdict in verdicts
        if verdict.member.hold.given_up == newest and verdict.member.stage_pods
    ]


def stalled(verdicts: Sequence[Decision], newest: str) -> bool:
    """Whether such nodes are all that is left to change."""
    rest = [verdict for verdict in verdicts if not _is_occupied(verdict, newest)]
    return len(rest) < len(verdicts) and not any(
        verdict.row.act in _CHANGES or verdict.member.health is Health.BUSY for verdict in rest
    )


def held_up(found: DriverObject, verdict: Decision, newest: str) -> Iterator[str]:
    """What keeps a node from being changed, for `explain`: best what the controller heard last."""
    name, since = verdict.member.node.name, verdict.member.hold.since
    rows = (row for row in found.status.get("draining", ()) if row["node"] == name)
    told = next((row["message"] for row in rows), in_words(verdict, Occupancy()))
    if since and verdict.step is not DrainStep.RELEASE:
        yield f"held since {for_people(since)}: {told}"
    elif _ends_by_the_way(verdict):
        yield in_words(verdict, Occupancy())
    if _is_occupied(verdict, newest):
        pods = _leftover(verdict)
        yield f"not emptied in time: changes when its pods are gone, such as {pods}"


def in_words(verdict: Decision, occupancy: Occupancy) -> str:
    """What a held node, or one that should be, waits for."""
    match verdict.step:
        case DrainStep.EVICT:
            return "waiting for " + _pods(verdict.member.consumers or (), occupancy.answers)
        case DrainStep.END_STAGES if verdict.member.stage_pods:
            return f"{verdict.detail}: waiting for {some(verdict.member.stage_pods, of='pods')}"
        case DrainStep.WAIT if _cannot_see_stages(verdict):
            return "what its stages have there cannot be read"
        case DrainStep.WAIT if occupancy.trouble:
            return f"{verdict.detail}: {occupancy.trouble}"
        case _:
            return verdict.detail


def _is_occupied(verdict: Decision, newest: str) -> bool:
    return (
        verdict.member.hold.given_up == newest
        and not verdict.member.is_vacant
        and verdict.place is not Place.NEWEST
        and verdict.row.act in _CHANGES
    )


def _ends_by_the_way(verdict: Decision) -> bool:
    """A matter of seconds on every node of a rollout, which nobody need be told of as a drain."""
    waits = verdict.step is DrainStep.END_STAGES or _cannot_see_stages(verdict)
    return waits and not verdict.member.hold.since


def _cannot_see_stages(verdict: Decision) -> bool:
    member = verdict.member
    return (
        verdict.step is DrainStep.WAIT
        and member.consumers is not None
        and member.stage_pods is None
    )


def _leftover(verdict: Decision) -> str:
    """What is still there of that which had to leave."""
    member = verdict.member
    if member.consumers or not member.stage_pods:
        return _pods(member.consumers or (), {})
    return some(member.stage_pods, of="pods", shown=1)


def _pods(consumers: Sequence[Consumer], answers: Mapping[str, EvictionAnswer]) -> str:
    """One pod, best one that refuses to go, and how many more."""
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

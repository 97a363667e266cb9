"""What people are told of nodes that are drained: rows and sentences of a Driver's status.

Pure; called by conditions.py and inspection.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cluster.crds import DRAIN_LIMIT
from cluster.hold import for_people
from cluster.rollout import Act, Health, Place
from cluster.turns import Step, Verdict
from cluster.world import Answer, Consumer, DriverObject, Occupancy

_OPEN = (Step.CORDON, Step.WAIT, Step.EVICT)
_CHANGES = (Act.IN_TURN, Act.IN_TURN_OR_GOOD, Act.GIVE_NEWEST)


def drains(verdicts: Iterable[Verdict], occupancy: Occupancy) -> list[dict[str, str]]:
    """A row for each node that is held, the longest first."""
    held = [verdict for verdict in verdicts if verdict.member.hold.since]
    held.sort(key=lambda verdict: (verdict.member.hold.since, verdict.member.node.name))
    return [
        {
            "node": verdict.member.node.name,
            "since": for_people(verdict.member.hold.since),
            "message": in_words(verdict, occupancy),
        }
        for verdict in held[:DRAIN_LIMIT]
    ]


def open_drains(verdicts: Iterable[Verdict], occupancy: Occupancy) -> list[str]:
    """Nodes that are not empty yet, each with what it waits for; first those that were refused."""
    found = [(v.member.node.name, in_words(v, occupancy)) for v in verdicts if v.step in _OPEN]
    found.sort(key=lambda each: "(" not in each[1])
    return [f"{name}: {words}" for name, words in found]


def occupied(verdicts: Iterable[Verdict], newest: str) -> list[str]:
    """Nodes whose pods did not leave in time and are still there, each with a pod."""
    return [
        f"{verdict.member.node.name} ({_pods(verdict.member.consumers or (), {})})"
        for verdict in verdicts
        if _is_occupied(verdict, newest)
    ]


def stalled(verdicts: Sequence[Verdict], newest: str) -> bool:
    """Whether such nodes are all that is left to change."""
    rest = [verdict for verdict in verdicts if not _is_occupied(verdict, newest)]
    return len(rest) < len(verdicts) and not any(
        verdict.row.act in _CHANGES or verdict.member.health is Health.BUSY for verdict in rest
    )


def held_up(found: DriverObject, verdict: Verdict, newest: str) -> Iterator[str]:
    """What keeps a node from being changed, for `explain`: best what the controller heard last."""
    name, since = verdict.member.node.name, verdict.member.hold.since
    rows = (row for row in found.status.get("draining", ()) if row["node"] == name)
    told = next((row["message"] for row in rows), in_words(verdict, Occupancy()))
    if since and verdict.step is not Step.RELEASE:
        yield f"held since {for_people(since)}: {told}"
    if _is_occupied(verdict, newest):
        pods = _pods(verdict.member.consumers or (), {})
        yield f"not emptied in time: changes when its pods are gone, such as {pods}"


def in_words(verdict: Verdict, occupancy: Occupancy) -> str:
    """What a held node, or one that should be, waits for."""
    match verdict.step:
        case Step.EVICT:
            return "waiting for " + _pods(verdict.member.consumers or (), occupancy.answers)
        case Step.WAIT if occupancy.trouble:
            return f"{verdict.detail}: {occupancy.trouble}"
        case _:
            return verdict.detail


def _is_occupied(verdict: Verdict, newest: str) -> bool:
    return (
        verdict.member.hold.given_up == newest
        and verdict.member.consumers != ()
        and verdict.place is not Place.NEWEST
        and verdict.row.act in _CHANGES
    )


def _pods(consumers: Sequence[Consumer], answers: Mapping[str, Answer]) -> str:
    """One pod, best one that refuses to go, and how many more."""
    if not consumers:
        return "pods"
    order = sorted(consumers, key=lambda each: (not _refusal(each, answers), each.name))
    first = order[0]
    words = f"{first.name} to end" if first.deleting else first.name
    if refusal := _refusal(first, answers):
        words += f" ({refusal})"
    return words + (f" and {len(order) - 1} more" if order[1:] else "")


def _refusal(consumer: Consumer, answers: Mapping[str, Answer]) -> str:
    answer = answers.get(consumer.uid)
    return "" if consumer.deleting or answer is None else answer.message

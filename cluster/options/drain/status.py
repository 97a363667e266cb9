"""Status rows and messages about nodes that are drained. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cluster.driver.status.messages import few_of
from cluster.driver.status.part import StatusPart
from cluster.driver.update import NodeDecision
from cluster.driver.update_table import Act
from cluster.model.snapshot import Consumer, DriverObject, EvictionAnswer, Occupancy
from cluster.model.states import Health, Place
from cluster.options.drain.drain import Drains
from cluster.options.drain.labels import timestamp_to_rfc3339
from cluster.options.drain.table import ENDS_STAGES, DrainStep

_OPEN = (DrainStep.CORDON, DrainStep.WAIT, DrainStep.EVICT, *ENDS_STAGES)
_CHANGES = (Act.IN_TURN, Act.IN_TURN_OR_GOOD, Act.GIVE_NEWEST, Act.AS_CANARY)


def status_part(drains: Drains, occupancy: Occupancy, newest: str) -> StatusPart:
    """Return what the status says of nodes that are drained."""
    late = _late_message(drains, newest)
    held = _open_drains(drains, occupancy)
    only_late = late and _only_late_left(drains.decisions, newest)
    waits = few_of(_nodes_ending_stages(drains, occupancy), shown=1)
    return StatusPart(
        fields={"draining": _drain_rows(drains, occupancy)},
        complaints={"StagesStuck": _stuck_message(drains.decisions, newest)},
        progress={
            "Draining": f"draining {few_of(held, shown=1)}" if held else "",
            "NodesOccupied": late if only_late else "",
        },
        delays="".join(f"; {words}" for words in (waits, late) if words),
    )


def _drain_rows(drains: Drains, occupancy: Occupancy) -> list[dict[str, str]]:
    """Return a row for each node that is held for its consumers, longest held first."""
    held = [
        decision
        for decision in drains.decisions
        if _is_drained(drains, decision) and not _only_ends_stages(drains, decision)
    ]
    held.sort(key=lambda decision: (decision.member.drain.since, decision.member.node.name))
    return [
        {
            "node": decision.member.node.name,
            "since": timestamp_to_rfc3339(decision.member.drain.since),
            "message": wait_in_words(drains, decision, occupancy),
        }
        for decision in held
    ]


def _open_drains(drains: Drains, occupancy: Occupancy) -> list[str]:
    """Return nodes that are not empty yet and what they wait for; refused evictions first."""
    held = [
        decision
        for decision in drains.decisions
        if drains.step_of(decision) in _OPEN and not _only_ends_stages(drains, decision)
    ]
    held.sort(key=lambda decision: not _is_refused(drains, decision, occupancy))
    return [
        f"{decision.member.node.name}: {wait_in_words(drains, decision, occupancy)}"
        for decision in held
    ]


def _is_refused(drains: Drains, decision: NodeDecision, occupancy: Occupancy) -> bool:
    """Return whether the eviction of a pod of the node is refused."""
    pods = decision.member.drain.pods or ()
    is_evicted = drains.step_of(decision) is DrainStep.EVICT
    return is_evicted and any(_refusal_message(p, occupancy.answers) is not None for p in pods)


def _nodes_ending_stages(drains: Drains, occupancy: Occupancy) -> list[str]:
    """Return nodes that are not cordoned and wait for the end of their stages."""
    return [
        f"{decision.member.node.name}: {wait_in_words(drains, decision, occupancy)}"
        for decision in drains.decisions
        if _only_ends_stages(drains, decision)
    ]


def _late_message(drains: Drains, newest: str) -> str:
    """Return nodes whose pods did not leave in time and still run, each with one pod."""
    names = [
        f"{decision.member.node.name} ({_leftover_pods(decision)})"
        for decision in drains.decisions
        if _is_occupied(decision, newest)
    ]
    if not names:
        return ""
    rest = (
        "each changes when its pods are gone" if names[1:] else "it changes when its pods are gone"
    )
    return f"not drained in time: {few_of(names)}; {rest}"


def _stuck_message(decisions: Iterable[NodeDecision], newest: str) -> str:
    """Return stage pods that do not terminate, on nodes whose drain was given up for that."""
    pods = [
        (decision.member.node.name, decision.member.drain.stage_pods[0])
        for decision in decisions
        if decision.member.drain.given_up == newest and decision.member.drain.stage_pods
    ]
    if not pods:
        return ""
    namespace, pod = pods[0][1]
    return (
        f"{few_of(node for node, _ in pods)}: stage pod {pod} does not end, and the driver cannot "
        f"be replaced before it does: kubectl -n {namespace} describe pod {pod}"
    )


def _only_late_left(decisions: Sequence[NodeDecision], newest: str) -> bool:
    """Return whether only nodes that were not drained in time are left to change."""
    rest = [decision for decision in decisions if not _is_occupied(decision, newest)]
    return len(rest) < len(decisions) and not any(
        decision.row.act in _CHANGES or decision.member.health is Health.BUSY for decision in rest
    )


def list_delays(
    drains: Drains, found: DriverObject, decision: NodeDecision, newest: str
) -> Iterator[str]:
    """Yield what blocks a change of a node, for `explain`.

    The row in the status is preferred: it has the controller's latest information.
    """
    name, since = decision.member.node.name, decision.member.drain.since
    rows = (row for row in found.status.get("draining", ()) if row["node"] == name)
    words = wait_in_words(drains, decision, Occupancy())
    message = next((row["message"] for row in rows), words)
    if _only_ends_stages(drains, decision):
        yield words
    elif since and drains.step_of(decision) is not DrainStep.RELEASE:
        yield f"held since {timestamp_to_rfc3339(since)}: {message}"
    if _is_occupied(decision, newest):
        pods = _leftover_pods(decision)
        yield f"not drained in time: it changes when its pods are gone, such as {pods}"


def wait_in_words(drains: Drains, decision: NodeDecision, occupancy: Occupancy) -> str:
    """Return what a node waits for; the node is held, or should be."""
    drain, why = decision.member.drain, drains.reason_of(decision)
    match drains.step_of(decision):
        case DrainStep.EVICT:
            return "waiting for " + _describe_pods(drain.pods or (), occupancy.answers)
        case DrainStep.END_STAGES | DrainStep.HOLD_FOR_STAGES if drain.stage_pods:
            return f"{why}: waiting for {few_of(map(str, drain.stage_pods), of='pods')}"
        case DrainStep.WAIT if _cannot_see_stages(drains, decision):
            return "its stage pods cannot be read"
        case DrainStep.WAIT if occupancy.trouble:
            return f"{why}: {occupancy.trouble}"
        case _:
            return why


def _is_occupied(decision: NodeDecision, newest: str) -> bool:
    return (
        decision.member.drain.given_up == newest
        and not decision.member.drain.is_clear_of_pods
        and decision.place is not Place.NEWEST
        and decision.row.act in _CHANGES
    )


def _only_ends_stages(drains: Drains, decision: NodeDecision) -> bool:
    """Return whether a node only waits for its stages to end.

    That takes seconds on every node of a rollout and is not reported as a drain.
    """
    step = drains.step_of(decision)
    if step is DrainStep.HOLD_FOR_STAGES:
        return True
    waits = step is DrainStep.END_STAGES or _cannot_see_stages(drains, decision)
    return waits and not _is_drained(drains, decision)


def _is_drained(drains: Drains, decision: NodeDecision) -> bool:
    """Return whether a node is held and cordoned, or is to be cordoned again."""
    held, cordoned = decision.member.drain.since, decision.member.node.unschedulable
    return bool(held) and (cordoned or drains.step_of(decision) is DrainStep.CORDON)


def _cannot_see_stages(drains: Drains, decision: NodeDecision) -> bool:
    drain = decision.member.drain
    waits = drains.step_of(decision) is DrainStep.WAIT
    return waits and drain.pods is not None and drain.stage_pods is None


def _leftover_pods(decision: NodeDecision) -> str:
    """Return the pods that had to leave and are still there."""
    drain = decision.member.drain
    if drain.pods or not drain.stage_pods:
        return _describe_pods(drain.pods or (), {})
    return few_of(map(str, drain.stage_pods), of="pods", shown=1)


def _describe_pods(consumers: Sequence[Consumer], answers: Mapping[str, EvictionAnswer]) -> str:
    """Return one pod, preferably one whose eviction was refused, and how many more."""
    if not consumers:
        return "pods"
    order = sorted(consumers, key=lambda each: (_refusal_message(each, answers) is None, each.name))
    first = order[0]
    words = f"{first.name} to end" if first.deleting else first.name
    if (refusal := _refusal_message(first, answers)) is not None:
        words += f" ({refusal})"
    return words + (f" and {len(order) - 1} more" if order[1:] else "")


def _refusal_message(consumer: Consumer, answers: Mapping[str, EvictionAnswer]) -> str | None:
    answer = answers.get(consumer.uid)
    return None if consumer.deleting or answer is None else answer.refusal

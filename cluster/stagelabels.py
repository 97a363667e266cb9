"""Which node labels stages take, and which nodes may not change before their stages have ended.

Pure; called by case.py and stageactions.py. All labels of a node change in one request: those of
the stages that are ready there, and the one that closes all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cluster.model.names import CLOSED, READY, closed_label, stage_label
from cluster.model.stages_seen import LogWanted
from cluster.model.states import Boot, Health, Place
from cluster.world import NOTHING, DriverObject, Node, World, uses
from nodeside.contract import State, state_label

if TYPE_CHECKING:
    from cluster.members import Member
    from cluster.stages import Staging
    from cluster.turns import Verdict


def logs_wanted(world: World) -> Iterator[LogWanted]:
    """The logs that a stage waits for: of pods that are ready, where its label is not set yet."""
    waits = {
        (found.name, stage.name): stage.wait_for
        for found in world.drivers.values()
        for stage in (found.driver.spec.stages if found.driver and not found.deleting else ())
        if stage.wait_for is not None
    }
    for pod in world.stages.pods.values() if world.stages and waits else ():
        wait = waits.get((pod.driver, pod.stage))
        if wait is None or pod.deleting or not pod.ready:
            continue
        node = world.nodes.get(pod.node)
        if pod.daemonset and node and stage_label(pod.driver, pod.stage) in node.labels:
            continue
        container = wait.container or pod.container
        yield LogWanted(pod.uid, pod.name, container, wait.log, wait.timeout_seconds)


def changed_labels(staging: Staging) -> Iterator[tuple[Node, dict[str, str | None], str]]:
    """What changes of each node's labels, and why."""
    held = {member.node.name for member in staging.case.held}
    members = {member.node.name for member in staging.case.members}
    for member in staging.case.members:
        node = member.node
        if member.health is Health.DOWN:
            continue
        wanted, why = _wanted(staging, member, held=node.name in held)
        yield from _difference(staging.driver, node, wanted, why)
    for node in staging.case.world.nodes.values():
        if node.name in members:
            continue
        if node.name in staging.case.occupied and is_open(staging.driver, node):
            yield from _difference(staging.driver, node, _SHUT, _ENDING)
        elif state_label(staging.driver) not in node.labels:
            yield from _difference(staging.driver, node, {}, "the driver is gone from it")


_SHUT: Final[Mapping[str, str]] = {"": CLOSED}
_ENDING = "its stages end before the driver there changes"


def _wanted(staging: Staging, member: Member, *, held: bool) -> tuple[Mapping[str, str], str]:
    """The stages whose label the node has from now on; "" stands for the label that closes."""
    if held:
        return _SHUT, _ENDING
    if member.health is not Health.WORKING:
        kept = _SHUT if closed_label(staging.driver) in member.node.labels else {}
        return kept, "the driver does not work there"
    ready: dict[str, str] = {}
    node = member.node
    for step in staging.steps:
        if step.on_nodes and staging.passed(step, node):
            ready[step.name] = READY
            node = _labelled(node, stage_label(staging.driver, step.name))
    return ready, "its stages go on"


def _labelled(node: Node, key: str) -> Node:
    there = node.labels.get(key) == READY
    return node if there else replace(node, labels={**node.labels, key: READY})


def _difference(
    driver: str, node: Node, wanted: Mapping[str, str], why: str
) -> Iterator[tuple[Node, dict[str, str | None], str]]:
    labels: dict[str, str | None] = {
        stage_label(driver, stage) if stage else closed_label(driver): value
        for stage, value in wanted.items()
    }
    there = set(label_keys(driver, node))
    changes: dict[str, str | None] = {k: v for k, v in labels.items() if node.labels.get(k) != v}
    changes |= dict.fromkeys(sorted(there - labels.keys()))
    if changes:
        yield node, changes, why


def label_keys(driver: str, node: Node) -> Iterator[str]:
    prefix, closed = stage_label(driver, ""), closed_label(driver)
    return (key for key in node.labels if key == closed or key.startswith(prefix))


def is_open(driver: str, node: Node) -> bool:
    """Whether pods of the first stage may come to a node."""
    ready = node.labels.get(state_label(driver)) == State.READY.value
    return ready and node.labels.get(closed_label(driver)) != CLOSED


# --- what waits for stages -----------------------------------------------------------------------


def occupied(world: World, found: DriverObject) -> frozenset[str]:
    """Nodes that have pods of stages of a Driver, or may get some at any moment.

    While nobody knows, every node counts. Nodes that are down do not: their pods never end.
    """
    seen = world.stages
    if seen is None:
        return frozenset()
    up = [node for node in world.nodes.values() if node.ready]
    if seen.unknown:
        return frozenset(node.name for node in up) if uses(found) else frozenset()
    with_pods = {p.node for p in seen.pods.values() if p.driver == found.name and p.daemonset}
    comes = any(
        each.driver == found.name and each.kind == "DaemonSet" for each in seen.objects.values()
    )
    return frozenset(
        node.name for node in up if node.name in with_pods or (comes and is_open(found.name, node))
    )


def ending_pods(world: World, driver: str) -> Mapping[str, Sequence[str]] | None:
    """By node, the pods of stages that are on their way out, as namespace/name; None: not known."""
    seen, owner = world.stages, world.drivers.get(driver)
    if seen is None or (seen.unknown and not (owner and uses(owner))):
        return NOTHING
    if seen.unknown:
        return None
    found: dict[str, list[str]] = {}
    for pod in seen.pods.values():
        if pod.deleting and pod.daemonset and pod.driver == driver:
            found.setdefault(pod.node, []).append(f"{world.settings.namespace}/{pod.name}")
    return found


def stages_in_the_way(verdict: Verdict, busy: Collection[str]) -> bool:
    """Whether a node has to wait for the end of its stages before it changes.

    One that rebooted has nothing that holds a module: its stages wait for the driver of this boot.
    """
    return (
        verdict.revision is not None
        and verdict.member.boot is not Boot.FRESH
        and verdict.place in (Place.GOOD, Place.STALE, Place.NEWEST)
        and verdict.member.node.name in busy
    )

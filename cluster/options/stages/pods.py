"""Stages on a node: the labels that admit their pods, and the pods that are there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from cluster.model.names import STAGES_CLOSED, closed_label, stage_label
from cluster.model.snapshot import EMPTY, DriverObject, NamespacedName, Node, Snapshot, has_stages
from nodeside.protocol.labels import state_label
from nodeside.protocol.node_status import State


def label_keys(driver: str, node: Node) -> Iterator[str]:
    prefix, closed = stage_label(driver, ""), closed_label(driver)
    return (key for key in node.labels if key == closed or key.startswith(prefix))


def is_open(driver: str, node: Node) -> bool:
    """Return whether pods of the first stage may run on a node."""
    ready = node.labels.get(state_label(driver)) == State.READY.value
    return ready and node.labels.get(closed_label(driver)) != STAGES_CLOSED


def has_leftovers(snapshot: Snapshot, driver: str) -> bool:
    """Return whether stage objects of a Driver exist, or pods of objects that are gone."""
    stages = snapshot.stages
    if stages is None:
        return False
    owners = (each.driver for kind in (stages.objects, stages.pods) for each in kind.values())
    return driver in owners or bool(snapshot.stage_jobs_of(driver))


def occupied_nodes(snapshot: Snapshot, found: DriverObject) -> frozenset[str]:
    """Return the nodes that have stage pods of a Driver, or may get some at any moment.

    While the stages are unknown, every node counts. Nodes that are down do not count: their pods
    never end.
    """
    stages = snapshot.stages
    if stages is None:
        return frozenset()
    up = [node for node in snapshot.nodes.values() if node.ready]
    if stages.unknown:
        return frozenset(node.name for node in up) if has_stages(found) else frozenset()
    with_pods = {
        p.node for p in stages.pods.values() if p.driver == found.name and p.may_use_device
    }
    may_come = any(
        each.driver == found.name and each.kind == "DaemonSet" for each in stages.objects.values()
    )
    for job in snapshot.stage_jobs_of(found.name):
        if not job.finished:  # its pod may come in a moment, be it to replace one that failed
            with_pods |= {job.run.node}
            may_come = may_come or not job.run.node
    return frozenset(
        node.name
        for node in up
        if node.name in with_pods or (may_come and is_open(found.name, node))
    )


def ending_pods(
    snapshot: Snapshot, drivers: Collection[str]
) -> Mapping[str, Sequence[NamespacedName]] | None:
    """Return the terminating stage pods of Drivers by node; None if they are unknown."""
    stages, owners = snapshot.stages, map(snapshot.drivers.get, drivers)
    if stages is None or (stages.unknown and not any(each and has_stages(each) for each in owners)):
        return EMPTY
    if stages.unknown:
        return None
    pods: dict[str, list[NamespacedName]] = {}
    namespace = snapshot.settings.namespace
    for pod in stages.pods.values():
        if pod.deleting and pod.may_use_device and pod.driver in drivers:
            pods.setdefault(pod.node, []).append(NamespacedName(namespace, pod.name))
    return pods

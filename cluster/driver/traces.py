"""What a Driver, valid or not, leaves on a node: labels, a report, pods. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cluster.model.names import before_label, daemonset_name
from cluster.model.snapshot import Node, Snapshot
from nodeside.protocol.labels import assigned_label, node_driver_name, state_label
from nodeside.protocol.node_status import State


def trace_labels(driver: str) -> tuple[str, str, str]:
    """Return the labels of a Driver on a node: two set by the controller, one by the node."""
    return assigned_label(driver), before_label(driver), state_label(driver)


def nodes_with_trace(snapshot: Snapshot, driver: str, members: Collection[str]) -> Iterator[Node]:
    """Yield the nodes with a trace of a Driver, apart from its members, in snapshot order.

    A terminating pod on a node that is down never ends and is ignored.
    """
    labels, nodes = trace_labels(driver), snapshot.nodes
    pods = (*snapshot.driver_pods_of(driver), *snapshot.unload_pods_of(driver))
    down = {pod.node for pod in pods if pod.node in nodes and not nodes[pod.node].ready}
    with_pods = {pod.node for pod in pods if not (pod.deleting and pod.node in down)}
    for node in nodes.values():
        if node.name not in members and (
            any(key in node.labels for key in labels)
            or node_driver_name(driver, node.name) in snapshot.node_drivers
            or node.name in with_pods
        ):
            yield node


def has_left_traces(snapshot: Snapshot, driver: str, members: Collection[str]) -> bool:
    """Return whether nodes that are no members, or nodes that are gone, have left a trace."""
    left = bool(snapshot.unload_pods_of(driver) or snapshot.reports_without_node_of(driver))
    return left or any(True for _ in nodes_with_trace(snapshot, driver, members))


def assigned_nodes(snapshot: Snapshot, driver: str) -> Iterator[Node]:
    """Yield the nodes that are assigned to a Driver, whatever its spec selects."""
    key = assigned_label(driver)
    return (node for node in snapshot.nodes.values() if key in node.labels)


def runs_revision(snapshot: Snapshot, driver: str, node: Node) -> bool:
    """Return whether the driver works on a node, in the revision that the node is assigned to."""
    report = snapshot.node_drivers.get(node_driver_name(driver, node.name))
    assigned = node.labels.get(assigned_label(driver), "")
    daemonset = snapshot.daemonsets.get(daemonset_name(driver, assigned))
    return (
        report is not None
        and daemonset is not None
        and (report.state, report.boot_id) == (State.READY.value, node.boot_id)
        and report.revision == daemonset.revision
    )

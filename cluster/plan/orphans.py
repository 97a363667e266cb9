"""Leftovers of Drivers that were deleted without cleanup: a finalizer was removed by hand. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from cluster.driver.traces import trace_labels
from cluster.kube.resources import DAEMON_SETS, NODE_DRIVERS, PODS
from cluster.model.actions import Action, Delete, LabelNode
from cluster.model.snapshot import DriverObject, DriverPod, NodeReport, Snapshot, UnloadPod
from nodeside.protocol.labels import driver_of_feature

_MAX_ORPHANS = 200  # orphaned NodeDrivers handled in one plan


def delete_orphans(snapshot: Snapshot) -> Iterator[Action]:
    """Remove leftovers of Drivers deleted without cleanup, e.g. a finalizer removed by hand.

    The garbage collector removes the rest.
    """
    for daemonset in snapshot.daemonsets.values():
        if daemonset.driver not in snapshot.drivers and not daemonset.deleting:
            yield Delete(
                daemonset.driver,
                DAEMON_SETS,
                daemonset.name,
                snapshot.settings.namespace,
                daemonset.uid,
            )
    yield from map(
        _delete_pod, snapshot.index.once(_orphaned_pods, snapshot.pods, snapshot.drivers)
    )
    yield from _remove_node_traces(snapshot)


def _orphaned_pods(
    pods: Mapping[str, DriverPod | UnloadPod], drivers: Mapping[str, DriverObject]
) -> Sequence[UnloadPod]:
    """Return the unload pods of Drivers that are gone."""
    unloading = (pod for pod in pods.values() if isinstance(pod, UnloadPod) and not pod.deleting)
    return [pod for pod in unloading if pod.driver not in drivers]


def _reports_of_the_gone(
    reports: Mapping[str, NodeReport], drivers: Mapping[str, DriverObject]
) -> Sequence[NodeReport]:
    return [report for report in reports.values() if report.driver not in drivers]


def _remove_node_traces(snapshot: Snapshot) -> Iterator[Action]:
    """Remove orphaned labels and NodeDrivers: a new Driver of that name would take them over.

    Skips nodes where a pod is still terminating, since it may report again. Labels go first: a
    label without its NodeDriver would never be found.
    """
    gone = snapshot.index.once(_reports_of_the_gone, snapshot.node_drivers, snapshot.drivers)
    if not gone:
        return
    with_pods = {(pod.driver, pod.node) for pod in snapshot.pods.values()}
    with_daemonsets = {daemonset.driver for daemonset in snapshot.daemonsets.values()}
    reports = [
        report
        for report in gone
        if report.driver not in with_daemonsets and (report.driver, report.node) not in with_pods
    ]
    reports = reports[:_MAX_ORPHANS]
    drivers = {each.driver for each in reports}
    traces = {key: driver for driver in drivers for key in trace_labels(driver)}
    for node in snapshot.nodes.values() if traces else ():
        labels: dict[str, dict[str, str | None]] = defaultdict(dict)
        for key in node.labels:
            of = traces.get(key) or driver_of_feature(key)
            if of in drivers and (of, node.name) not in with_pods:
                labels[of][key] = None
        for driver, removed in labels.items():
            yield LabelNode(driver, node.name, removed, "the driver is gone")
    yield from (Delete(report.driver, NODE_DRIVERS, report.name) for report in reports)


def _delete_pod(pod: UnloadPod) -> Delete:
    return Delete(pod.driver, PODS, pod.name, pod.namespace, pod.uid)

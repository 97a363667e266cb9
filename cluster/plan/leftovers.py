"""What is left on nodes: traces of Drivers that are gone, cordons that no Driver holds. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from cluster.driver.traces import trace_labels
from cluster.kube.resources import DAEMON_SETS, NODE_DRIVERS, PODS
from cluster.model.actions import Action, Cordon, Delete, LabelNode, Uncordon
from cluster.model.names import CORDONED
from cluster.model.snapshot import DriverObject, DriverPod, Node, NodeReport, Snapshot, UnloadPod
from cluster.options.after import dependents_of
from cluster.options.drain.labels import holds_on
from cluster.options.drain.pods import eviction_policies
from nodeside.protocol.labels import assigned_label, driver_of_feature

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
        _delete_pod, snapshot.index.look_up(_orphaned_pods, snapshot.pods, snapshot.drivers)
    )
    yield from _remove_node_traces(snapshot)


def _orphaned_pods(
    pods: Mapping[str, DriverPod | UnloadPod], drivers: Mapping[str, DriverObject]
) -> Sequence[UnloadPod]:
    """Return the unload pods of Drivers that are gone."""
    unloading = (pod for pod in pods.values() if isinstance(pod, UnloadPod) and not pod.deleting)
    return [pod for pod in unloading if pod.driver not in drivers]


def _reports_of_gone_drivers(
    reports: Mapping[str, NodeReport], drivers: Mapping[str, DriverObject]
) -> Sequence[NodeReport]:
    return [report for report in reports.values() if report.driver not in drivers]


def _remove_node_traces(snapshot: Snapshot) -> Iterator[Action]:
    """Remove orphaned labels and NodeDrivers: a new Driver of that name would take them over.

    Skips nodes where a pod is still terminating, since it may report again. Labels go first: a
    label without its NodeDriver would never be found.
    """
    gone = snapshot.index.look_up(_reports_of_gone_drivers, snapshot.node_drivers, snapshot.drivers)
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


def end_cordons(snapshot: Snapshot, actions: Collection[Action]) -> Iterator[Uncordon]:
    """Yield the end of each cordon of ours that no Driver holds, or that somebody else has ended.

    The label of a Driver that no longer exists holds nothing. A node that a Driver starts to drain
    in this same plan is left to the next plan.
    """
    begun = {action.node for action in actions if isinstance(action, Cordon)}
    for node in snapshot.nodes.values():
        if CORDONED not in node.labels or node.name in begun:
            continue
        held = dict(holds_on(node.labels))
        if not any(_keeps_cordoned(snapshot, name) for name in held.values()):
            gone = [key for key, name in held.items() if name not in snapshot.drivers]
            yield Uncordon(
                _driver_that_reports(snapshot, node), node.name, dict.fromkeys((CORDONED, *gone))
            )
        elif not node.unschedulable:
            yield Uncordon(
                _driver_that_reports(snapshot, node), node.name, {CORDONED: None}, opens=False
            )


def _keeps_cordoned(snapshot: Snapshot, name: str) -> bool:
    """Return whether a hold of this Driver keeps a node cordoned.

    It does if the Driver evicts pods, or if its spec is invalid.
    """
    found = snapshot.drivers.get(name)
    if found is None or found.driver is None:
        return found is not None
    return bool(eviction_policies((found.driver, *dependents_of(snapshot, found.driver))))


def _driver_that_reports(snapshot: Snapshot, node: Node) -> str:
    """Return the Driver that reports a failure to uncordon; "" if there is none.

    The Driver that cordoned the node is no longer known. Prefers one that evicts, on this node.
    """
    evicts = {d.name for d in snapshot.drivers.values() if d.driver and d.driver.spec.rollout.evict}
    here = {name for name in snapshot.drivers if assigned_label(name) in node.labels}
    names = sorted(evicts & here or here or evicts)
    return next(iter(names), "")

"""Cleanup after a deleted Driver, and on nodes that a Driver no longer selects.

Pure. On each node the driver pod is removed first. Then an unload pod unloads the modules
(unload.py reports its progress). Then the state label, the NodeDriver and the unload pod are
removed. A node that is down does not block deletion. Neither does a node that needs a reboot: the
final Event of a deleted Driver names it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, NODE_DRIVERS, PODS
from cluster.model.actions import (
    Action,
    Apply,
    Create,
    Delete,
    EmitEvent,
    LabelNode,
    Plan,
    SetFinalizers,
    SetStatus,
)
from cluster.model.names import FINALIZER
from cluster.model.snapshot import DriverObject, DriverPod, NodeReport, Snapshot
from cluster.plan import build_jobs
from cluster.plan.announce import set_status
from cluster.plan.objects.revision import config_map, revision_text
from cluster.plan.objects.unload_pod import unload_pod
from cluster.plan.rollout.unload import (
    REST,
    SLOW,
    DriverUnload,
    LeavingNode,
    UnloadPhase,
    trace_labels,
)
from cluster.plan.status import conditions
from nodeside.protocol.labels import feature_prefix, node_driver_name
from nodeside.protocol.node_status import State

LIMIT = 100  # active unload pods per Driver; a pod that waits for holders does not count
_MAX_ORPHANS = 200  # orphaned NodeDrivers handled in one plan
_LEFT = "ModulesStay"  # reason of the final condition if modules stay loaded


def delete(snapshot: Snapshot, found: DriverObject, now: float) -> Plan:
    """Removes the pods, then the modules, then labels and reports, and finally the Driver."""
    if FINALIZER not in found.finalizers:
        return Plan()
    jobs = tuple(build_jobs.delete_all_jobs(snapshot, found.name))
    leaving = DriverUnload(snapshot, found, (), now)
    if leaving.has_daemonsets or (leaving.waits and not _is_reported(found)):
        return Plan((*jobs, *_delete_workloads(leaving)), again_in(leaving))
    if leaving.leavers or _has_objects(snapshot, found.name):
        return Plan((*jobs, *_report_left_behind(leaving), *_delete_leftovers(leaving)))
    rest = tuple(finalizer for finalizer in found.finalizers if finalizer != FINALIZER)
    return Plan((*_final_event(found), SetFinalizers(found.name, found.uid, rest, found.version)))


def remove_from_nodes(leaving: DriverUnload) -> Iterator[Action]:
    """Cleans up nodes that an existing Driver no longer selects."""
    driver = leaving.found.name
    for each in leaving.leavers:
        if each.phase is not UnloadPhase.GONE and (labels := _changed_labels(driver, each)):
            yield LabelNode(driver, each.node.name, labels, "the driver no longer selects it")
    yield from _unload_pods(leaving)
    yield from _clean_nodes(leaving)


def again_in(leaving: DriverUnload) -> float | None:
    """Returns the seconds until a failed pod is recreated or a silent one is reported.

    None if there is no such pod.
    """
    waits = []
    for each in leaving.at(UnloadPhase.FAILED, UnloadPhase.STARTING, UnloadPhase.UNLOADING):
        if each.pod is not None:
            patience = REST if each.phase is UnloadPhase.FAILED else SLOW
            waits.append(each.pod.created + patience - leaving.now)
    return min((wait for wait in waits if wait > 0), default=None)


def delete_orphans(snapshot: Snapshot) -> Iterator[Action]:
    """Removes leftovers of Drivers deleted without cleanup, e.g. a finalizer removed by hand.

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
    yield from map(_delete_pod, snapshot.index.once(_orphaned, snapshot.pods, snapshot.drivers))
    yield from _remove_node_traces(snapshot)


def _orphaned(
    pods: Mapping[str, DriverPod], drivers: Mapping[str, DriverObject]
) -> Sequence[DriverPod]:
    """Returns the unload pods of Drivers that are gone."""
    unloading = (pod for pod in pods.values() if pod.unloader is not None and not pod.deleting)
    return [pod for pod in unloading if pod.driver not in drivers]


def _reports_of_the_gone(
    reports: Mapping[str, NodeReport], drivers: Mapping[str, DriverObject]
) -> Sequence[NodeReport]:
    return [report for report in reports.values() if report.driver not in drivers]


def _remove_node_traces(snapshot: Snapshot) -> Iterator[Action]:
    """Removes orphaned labels and NodeDrivers: a new Driver of that name would take them over.

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
    traces = {
        key: each.driver
        for each in reports
        for key in (*trace_labels(each.driver), feature_prefix(each.driver))
    }
    for node in snapshot.nodes.values() if traces else ():
        labels: dict[str, dict[str, str | None]] = defaultdict(dict)
        for key in node.labels:
            of = traces.get(key) or traces.get(_beginning(key))
            if of and (of, node.name) not in with_pods:
                labels[of][key] = None
        for driver, removed in labels.items():
            yield LabelNode(driver, node.name, removed, "the driver is gone")
    yield from (Delete(report.driver, NODE_DRIVERS, report.name) for report in reports)


def _beginning(key: str) -> str:
    """Return what is `feature_prefix` of the driver if this is a feature label."""
    prefix, _, name = key.partition("/")
    return f"{prefix}/{name.partition('.')[0]}."


# --- a Driver that is deleted --------------------------------------------------------------------


def _delete_workloads(leaving: DriverUnload) -> Iterator[Action]:
    """Deletes DaemonSets, then unloads and cleans nodes.

    While a DaemonSet exists, its controller would recreate pods on a cleaned node.
    """
    snapshot, found = leaving.snapshot, leaving.found
    for each in snapshot.daemonsets.values():
        if each.driver == found.name and not each.deleting:
            yield Delete(found.name, DAEMON_SETS, each.name, snapshot.settings.namespace, each.uid)
    yield from _report_progress(leaving)
    if leaving.has_daemonsets:
        return
    if leaving.lost and found.driver is not None:  # foreground deletion removed it first
        text = revision_text(found.driver)
        yield Apply(found.name, config_map(found, leaving.newest, text, snapshot.settings))
    yield from _unload_pods(leaving)
    yield from _clean_nodes(leaving)


def _report_progress(leaving: DriverUnload) -> Iterator[Action]:
    """Sets a status with the progress; obstacles and their remedies come first."""
    found, obstacle = leaving.found, leaving.obstacle
    rest = leaving.summary(*(phase for phase in UnloadPhase if not phase.is_obstacle))
    words = "; ".join(part for part in (obstacle, rest) if part) or "pods are terminating"
    status = conditions.deleting(
        found, words, leaving=leaving.count, obstacle=obstacle, now=leaving.now
    )
    yield from set_status(found, status)


def _report_left_behind(leaving: DriverUnload) -> Iterator[Action]:
    """Reports once where modules stay loaded and why, before the node state is removed.

    The Event comes first: a controller killed between the two repeats it instead of losing it.
    """
    left = leaving.summary(UnloadPhase.STAYS, UnloadPhase.DOWN)
    if not left or _is_reported(leaving.found):
        return
    found = leaving.found
    status = conditions.deleting(found, left, reason=_LEFT, leaving=leaving.count, now=leaving.now)
    yield EmitEvent(
        found.name, found.uid, warning=True, reason=_LEFT, note=f"driver {found.name}: {left}"
    )
    yield SetStatus(found.name, status)


def _final_event(found: DriverObject) -> Iterator[Action]:
    if not _is_reported(found):
        note = f"driver {found.name} is gone, and none of its modules is loaded any more"
        yield EmitEvent(found.name, found.uid, warning=False, reason="Deleted", note=note)


def _is_reported(found: DriverObject) -> bool:
    return any(each.get("reason") == _LEFT for each in found.status.get("conditions") or ())


def _has_objects(snapshot: Snapshot, driver: str) -> bool:
    return (
        any(each.driver == driver for each in snapshot.jobs.values())
        or any(each.driver == driver for each in snapshot.revisions.values())
        or any(each.driver == driver for each in snapshot.node_drivers.values())
        or any(_is_unload_pod(pod, driver) for pod in snapshot.pods.values())
    )


def _delete_leftovers(leaving: DriverUnload) -> Iterator[Action]:
    """Removes labels (one request per node), NodeDrivers, pods, and finally the revisions."""
    snapshot, driver = leaving.snapshot, leaving.found.name
    yield from _forget(leaving, leaving.leavers)
    yield from (_delete_pod(pod) for pod in snapshot.pods.values() if _is_unload_pod(pod, driver))
    for each in snapshot.revisions.values():
        if each.driver == driver:
            yield Delete(driver, CONFIG_MAPS, each.name, snapshot.settings.namespace, each.uid)


# --- nodes ---------------------------------------------------------------------------------------


def _unload_pods(leaving: DriverUnload) -> Iterator[Action]:
    """Deletes stray and failed unload pods, and creates new ones up to LIMIT."""
    snapshot, found = leaving.snapshot, leaving.found
    yield from (_delete_pod(pod) for pod in leaving.stray_pods())
    for each in leaving.at(UnloadPhase.FAILED):
        if each.pod is not None and leaving.now - each.pod.created >= REST:
            yield _delete_pod(each.pod)
    slots = max(0, LIMIT - sum(each.phase.is_under_way for each in leaving.leavers))
    for each in leaving.at(UnloadPhase.NEXT)[:slots]:
        driver = leaving.revisions[each.revision]
        document = unload_pod(found, driver, each.revision, each.node, snapshot.settings)
        yield Create(found.name, document, each.node.name)


def _clean_nodes(leaving: DriverUnload) -> Iterator[Action]:
    """Cleans the nodes where unloading is finished."""
    gone = leaving.at(UnloadPhase.GONE)
    yield from _forget(leaving, gone)
    yield from (_delete_pod(each.pod) for each in gone if each.pod and not each.pod.deleting)


def _forget(leaving: DriverUnload, leavers: Sequence[LeavingNode]) -> Iterator[Action]:
    """Removes labels and NodeDrivers of these nodes.

    Actions of one kind are yielded in a row, so that they are sent in parallel.
    """
    snapshot, driver = leaving.snapshot, leaving.found.name
    features, traces = feature_prefix(driver), trace_labels(driver)
    for each in leavers:
        labels: dict[str, str | None] = {
            key: None for key in each.node.labels if key in traces or key.startswith(features)
        }
        if labels:
            yield LabelNode(driver, each.node.name, labels, "the driver is gone from it")
    for each in leavers:
        report = node_driver_name(driver, each.node.name)
        if report in snapshot.node_drivers:
            yield Delete(driver, NODE_DRIVERS, report)
    for homeless in snapshot.homeless_of(driver):  # usually the garbage collector is faster
        yield Delete(driver, NODE_DRIVERS, homeless.name)


def _changed_labels(driver: str, leaver: LeavingNode) -> dict[str, str | None]:
    """Returns the label changes that remove the driver pod.

    Where modules stay, it also sets the state label, since no pod is left to set it.
    """
    assigned, before, state = trace_labels(driver)
    labels: dict[str, str | None] = {
        key: None for key in (assigned, before) if key in leaver.node.labels
    }
    stays, current = State.REBOOT_REQUIRED.value, leaver.node.labels.get(state)
    if leaver.phase is UnloadPhase.STAYS and current not in (None, stays):
        labels[state] = stays
    return labels


def _is_unload_pod(pod: DriverPod, driver: str) -> bool:
    return pod.unloader is not None and pod.driver == driver and not pod.deleting


def _delete_pod(pod: DriverPod) -> Delete:
    return Delete(pod.driver, PODS, pod.name, pod.namespace, pod.uid)

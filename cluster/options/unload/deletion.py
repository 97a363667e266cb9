"""Cleanup after a deleted Driver, and on nodes that a Driver no longer selects.

Pure. On each node the driver pod is removed first. Then an unload pod unloads the modules
(nodes.py reports its progress). Then the state label, the NodeDriver and the unload pod are
removed. A node that is down does not block deletion. Neither does a node that needs a reboot. The
final Event of a deleted Driver names both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cluster.driver.events import set_status
from cluster.driver.revisions import config_map, revision_text
from cluster.driver.status import conditions
from cluster.driver.traces import trace_labels
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
)
from cluster.model.names import FINALIZER
from cluster.model.snapshot import DriverObject, Snapshot, UnloadPod
from cluster.options.unload.nodes import (
    RECREATE_AFTER,
    SILENT_AFTER,
    DriverUnload,
    LeavingNode,
    UnloadPhase,
)
from cluster.options.unload.pod import unload_pod
from nodeside.protocol.labels import feature_prefix, node_driver_name
from nodeside.protocol.node_status import NOT_RESTORED, State

LIMIT = 100  # active unload pods per Driver; a pod that waits for holders does not count
_LEFT = "ModulesStay"  # reason of the final condition if modules stay loaded


def plan_deletion(snapshot: Snapshot, found: DriverObject, now: float) -> Plan:
    """Return the plan: the pods go first, then modules, labels and reports, at last the Driver."""
    if FINALIZER not in found.finalizers:
        return Plan()
    leaving = DriverUnload(snapshot, found, (), now)
    if leaving.has_daemonsets or (leaving.is_unfinished and not _is_reported(found)):
        return Plan(tuple(_delete_workloads(leaving)), requeue_after(leaving))
    if leaving.leavers or _has_objects(snapshot, found.name):
        return Plan((*_report_left_behind(leaving), *_delete_leftovers(leaving)))
    rest = tuple(finalizer for finalizer in found.finalizers if finalizer != FINALIZER)
    return Plan((*_final_event(found), SetFinalizers(found.name, found.uid, rest, found.version)))


def remove_from_nodes(leaving: DriverUnload) -> Iterator[Action]:
    """Clean up nodes that an existing Driver no longer selects."""
    driver = leaving.found.name
    for each in leaving.leavers:
        if each.phase is not UnloadPhase.GONE and (labels := _changed_labels(driver, each)):
            yield LabelNode(driver, each.node.name, labels, "the driver no longer selects it")
    yield from _unload_pods(leaving)
    yield from _clean_nodes(leaving)


def requeue_after(leaving: DriverUnload) -> float | None:
    """Return the seconds until a failed pod is recreated or a silent one is reported.

    None if there is no such pod.
    """
    waits = []
    for each in leaving.in_phases(UnloadPhase.FAILED, UnloadPhase.STARTING, UnloadPhase.UNLOADING):
        if each.pod is not None:
            patience = RECREATE_AFTER if each.phase is UnloadPhase.FAILED else SILENT_AFTER
            waits.append(each.pod.created + patience - leaving.now)
    return min((wait for wait in waits if wait > 0), default=None)


# --- a Driver that is deleted --------------------------------------------------------------------


def _delete_workloads(leaving: DriverUnload) -> Iterator[Action]:
    """Delete DaemonSets, then unload and clean nodes.

    While a DaemonSet exists, its controller would recreate pods on a cleaned node.
    """
    snapshot, found = leaving.snapshot, leaving.found
    for each in snapshot.daemonsets.values():
        if each.driver == found.name and not each.deleting:
            yield Delete(found.name, DAEMON_SETS, each.name, snapshot.settings.namespace, each.uid)
    yield from _report_progress(leaving)
    if leaving.has_daemonsets:
        return
    if leaving.has_lost_newest and found.driver is not None:  # foreground deletion removed it first
        text = revision_text(found.driver)
        yield Apply(found.name, config_map(found, leaving.newest, text, snapshot.settings))
    yield from _unload_pods(leaving)
    yield from _clean_nodes(leaving)


def _report_progress(leaving: DriverUnload) -> Iterator[Action]:
    """Set a status with the progress; obstacles and their remedies come first."""
    found, obstacle = leaving.found, leaving.obstacle_message
    rest = leaving.summarize_phases(*(phase for phase in UnloadPhase if not phase.is_obstacle))
    words = "; ".join(part for part in (obstacle, rest) if part) or "pods are terminating"
    status = conditions.status_of_deleting(
        found, words, leaving=leaving.node_count, obstacle=obstacle, now=leaving.now
    )
    yield from set_status(leaving.snapshot, found, status)


def _report_left_behind(leaving: DriverUnload) -> Iterator[Action]:
    """Report once where modules stay loaded and why, before the node state is removed.

    The Event comes first: a controller killed between the two repeats it instead of losing it.
    """
    left = leaving.summarize_phases(UnloadPhase.STAYS, UnloadPhase.DOWN)
    if not left or _is_reported(leaving.found):
        return
    found = leaving.found
    status = conditions.status_of_deleting(
        found, left, reason=_LEFT, leaving=leaving.node_count, now=leaving.now
    )
    yield EmitEvent(
        found.name, found.uid, warning=True, reason=_LEFT, note=f"driver {found.name}: {left}"
    )
    yield from set_status(leaving.snapshot, found, status)


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
        or any(not pod.deleting for pod in snapshot.unload_pods_of(driver))
    )


def _delete_leftovers(leaving: DriverUnload) -> Iterator[Action]:
    """Remove labels (one request per node), NodeDrivers, pods, and finally the revisions."""
    snapshot, driver = leaving.snapshot, leaving.found.name
    yield from _forget_nodes(leaving, leaving.leavers)
    pods = snapshot.unload_pods_of(driver)
    yield from (_delete_pod(pod) for pod in pods if not pod.deleting)
    for each in snapshot.revisions.values():
        if each.driver == driver:
            yield Delete(driver, CONFIG_MAPS, each.name, snapshot.settings.namespace, each.uid)


# --- nodes ---------------------------------------------------------------------------------------


def _unload_pods(leaving: DriverUnload) -> Iterator[Action]:
    """Delete stray and failed unload pods, and create new ones up to LIMIT."""
    snapshot, found = leaving.snapshot, leaving.found
    yield from (_delete_pod(pod) for pod in leaving.stray_pods())
    for each in leaving.in_phases(UnloadPhase.FAILED):
        if each.pod is not None and leaving.now - each.pod.created >= RECREATE_AFTER:
            yield _delete_pod(each.pod)
    slots = max(0, LIMIT - sum(each.phase.is_under_way for each in leaving.leavers))
    for each in leaving.in_phases(UnloadPhase.NEXT)[:slots]:
        driver = leaving.revisions[each.revision]
        document = unload_pod(found, driver, each.revision, each.node, snapshot.settings)
        yield Create(found.name, document, each.node.name)


def _clean_nodes(leaving: DriverUnload) -> Iterator[Action]:
    """Clean the nodes where unloading is finished."""
    gone = leaving.in_phases(UnloadPhase.GONE)
    yield from _forget_nodes(leaving, gone)
    yield from (_delete_pod(each.pod) for each in gone if each.pod and not each.pod.deleting)


def _forget_nodes(leaving: DriverUnload, leavers: Sequence[LeavingNode]) -> Iterator[Action]:
    """Remove labels and NodeDrivers of these nodes.

    An Event keeps what a report says of in-tree drivers that are still away. Actions of one kind
    are yielded in a row, so that they are sent in parallel.
    """
    snapshot, driver = leaving.snapshot, leaving.found.name
    features, traces = feature_prefix(driver), trace_labels(driver)
    for each in leavers:
        labels: dict[str, str | None] = {
            key: None for key in each.node.labels if key in traces or key.startswith(features)
        }
        if labels:
            yield LabelNode(driver, each.node.name, labels, "the driver is gone from it")
    reports = {
        name: each.node
        for each in leavers
        if (name := node_driver_name(driver, each.node.name)) in snapshot.node_drivers
    }
    for name, node in reports.items():
        report = snapshot.node_drivers[name]
        if report.reason == NOT_RESTORED and report.boot_id == node.boot_id:
            note = f"driver {driver} on {node.name}: {report.message}"
            uid = leaving.found.uid
            yield EmitEvent(driver, uid, warning=True, reason=NOT_RESTORED, note=note)
    yield from (Delete(driver, NODE_DRIVERS, name) for name in reports)
    # Usually the garbage collector is faster.
    for orphan in snapshot.reports_without_node_of(driver):
        yield Delete(driver, NODE_DRIVERS, orphan.name)


def _changed_labels(driver: str, leaver: LeavingNode) -> dict[str, str | None]:
    """Return the label changes that remove the driver pod.

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


def _delete_pod(pod: UnloadPod) -> Delete:
    return Delete(pod.driver, PODS, pod.name, pod.namespace, pod.uid)

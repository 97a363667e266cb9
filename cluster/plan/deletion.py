"""The way out: a Driver that is deleted, and nodes that a Driver is not for any more.

Pure. On each node first the driver pod goes, then an unload pod takes the modules out (unload.py
says how far it is), and then what the pods wrote goes: state label, NodeDriver, unload pod. A node
that is down holds nothing up. One where only a reboot helps does not either: the last word on a
deleted Driver, an Event, names it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

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
from cluster.model.snapshot import DriverObject, DriverPod, Snapshot
from cluster.plan import build_jobs
from cluster.plan.announce import status_changes
from cluster.plan.objects.revision import config_map, revision_text
from cluster.plan.objects.unload_pod import unload_pod
from cluster.plan.rollout.unload import REST, SLOW, LeavingNode, Unload, UnloadPhase, trace_labels
from cluster.plan.status import conditions
from nodeside.contract import State, node_driver_name

LIMIT = 100  # unload pods of a Driver that are at work at once; one that waits for holders is not
_AT_ONCE = 200  # NodeDrivers of Drivers that are gone, in one plan
_LEFT = "ModulesStay"  # the reason of the last condition, where modules are left behind


def delete(snapshot: Snapshot, found: DriverObject, now: float) -> Plan:
    """The pods go, then the modules, then what was said of them, and at the end the Driver."""
    if FINALIZER not in found.finalizers:
        return Plan()
    going = tuple(build_jobs.deleted(snapshot, found.name))
    leaving = Unload(snapshot, found, (), now)
    if leaving.has_daemonsets or (leaving.waits and not _is_said(found)):
        return Plan((*going, *_taken_out(leaving)), again_in(leaving))
    if leaving.leavers or _has_objects(snapshot, found.name):
        return Plan((*going, *_left_behind(leaving), *_swept(leaving)))
    rest = tuple(finalizer for finalizer in found.finalizers if finalizer != FINALIZER)
    return Plan((*_farewell(found), SetFinalizers(found.name, found.uid, rest, found.version)))


def leave(leaving: Unload) -> Iterator[Action]:
    """For a Driver that goes on, on nodes that it is not for any more."""
    driver = leaving.found.name
    for each in leaving.leavers:
        if each.stage is not UnloadPhase.GONE and (labels := _changed_labels(driver, each)):
            yield LabelNode(driver, each.node.name, labels, "the driver is not for it")
    yield from _unload_pods(leaving)
    yield from _cleaned(leaving)


def again_in(leaving: Unload) -> float | None:
    """Seconds until a pod that failed is made again, or one that is silent is named."""
    waits = []
    for each in leaving.at(UnloadPhase.FAILED, UnloadPhase.STARTING, UnloadPhase.UNLOADING):
        if each.pod is not None:
            patience = REST if each.stage is UnloadPhase.FAILED else SLOW
            waits.append(each.pod.created + patience - leaving.now)
    return min((wait for wait in waits if wait > 0), default=None)


def orphans(snapshot: Snapshot) -> Iterator[Action]:
    """What is left of Drivers that are gone without us, say by a finalizer taken away by hand.

    The rest is the garbage collector's.
    """
    for found in snapshot.daemonsets.values():
        if found.driver not in snapshot.drivers and not found.deleting:
            yield Delete(
                found.driver, DAEMON_SETS, found.name, snapshot.settings.namespace, found.uid
            )
    for pod in snapshot.pods.values():
        if pod.unloader is not None and pod.driver not in snapshot.drivers and not pod.deleting:
            yield _gone(pod)
    yield from _last_words(snapshot)


def _last_words(snapshot: Snapshot) -> Iterator[Action]:
    """What nodes said of such Drivers: the next Driver of that name would take it for its own.

    Where a pod is still ending it might say it again. The labels go first: of a label alone nobody
    would know.
    """
    speaking = {(pod.driver, pod.node) for pod in snapshot.pods.values()}
    made = {found.driver for found in snapshot.daemonsets.values()}
    reports = [
        report
        for report in snapshot.node_drivers.values()
        if report.driver not in snapshot.drivers
        and report.driver not in made
        and (report.driver, report.node) not in speaking
    ]
    reports = reports[:_AT_ONCE]
    traces = {key: each.driver for each in reports for key in trace_labels(each.driver)}
    for node in snapshot.nodes.values() if traces else ():
        labels: dict[str, dict[str, str | None]] = defaultdict(dict)
        for key in node.labels:
            if key in traces and (traces[key], node.name) not in speaking:
                labels[traces[key]][key] = None
        for driver, gone in labels.items():
            yield LabelNode(driver, node.name, gone, "the driver is gone")
    yield from (Delete(report.driver, NODE_DRIVERS, report.name) for report in reports)


# --- a Driver that is deleted --------------------------------------------------------------------


def _taken_out(leaving: Unload) -> Iterator[Action]:
    """As long as a DaemonSet is there, its controller would make pods again for a clean node."""
    snapshot, found = leaving.snapshot, leaving.found
    for each in snapshot.daemonsets.values():
        if each.driver == found.name and not each.deleting:
            yield Delete(found.name, DAEMON_SETS, each.name, snapshot.settings.namespace, each.uid)
    yield from _told(leaving)
    if leaving.has_daemonsets:
        return
    if leaving.lost and found.driver is not None:  # a deletion in the foreground took it first
        text = revision_text(found.driver)
        yield Apply(found.name, config_map(found, leaving.newest, text, snapshot.settings))
    yield from _unload_pods(leaving)
    yield from _cleaned(leaving)


def _told(leaving: Unload) -> Iterator[Action]:
    """What is under way; what holds it up comes first, with the way out."""
    found, obstacle = leaving.found, leaving.obstacle
    rest = leaving.said(*(stage for stage in UnloadPhase if not stage.is_obstacle))
    words = "; ".join(part for part in (obstacle, rest) if part) or "pods end"
    status = conditions.going(
        found, words, leaving=leaving.count, obstacle=obstacle, now=leaving.now
    )
    yield from status_changes(found, status)


def _left_behind(leaving: Unload) -> Iterator[Action]:
    """Once, before the nodes forget it: where modules stay, and why.

    The Event comes first: a controller that is killed between the two says it twice, not never.
    """
    left = leaving.said(UnloadPhase.STAYS, UnloadPhase.DOWN)
    if not left or _is_said(leaving.found):
        return
    found = leaving.found
    status = conditions.going(found, left, reason=_LEFT, leaving=leaving.count, now=leaving.now)
    yield EmitEvent(
        found.name, found.uid, warning=True, reason=_LEFT, note=f"driver {found.name}: {left}"
    )
    yield SetStatus(found.name, status)


def _farewell(found: DriverObject) -> Iterator[Action]:
    if not _is_said(found):
        note = f"driver {found.name} is gone, and none of its modules is loaded any more"
        yield EmitEvent(found.name, found.uid, warning=False, reason="Deleted", note=note)


def _is_said(found: DriverObject) -> bool:
    return any(each.get("reason") == _LEFT for each in found.status.get("conditions") or ())


def _has_objects(snapshot: Snapshot, driver: str) -> bool:
    return (
        any(each.driver == driver for each in snapshot.jobs.values())
        or any(each.driver == driver for each in snapshot.revisions.values())
        or any(each.driver == driver for each in snapshot.node_drivers.values())
        or any(_is_unload_pod(pod, driver) for pod in snapshot.pods.values())
    )


def _swept(leaving: Unload) -> Iterator[Action]:
    """Labels in one request a node, NodeDrivers, pods, and at the end the revisions."""
    snapshot, driver = leaving.snapshot, leaving.found.name
    yield from _forgotten(leaving, leaving.leavers)
    yield from (_gone(pod) for pod in snapshot.pods.values() if _is_unload_pod(pod, driver))
    for each in snapshot.revisions.values():
        if each.driver == driver:
            yield Delete(driver, CONFIG_MAPS, each.name, snapshot.settings.namespace, each.uid)


# --- nodes ---------------------------------------------------------------------------------------


def _unload_pods(leaving: Unload) -> Iterator[Action]:
    """Those that are of no use go, and a number of new ones come."""
    snapshot, found = leaving.snapshot, leaving.found
    yield from (_gone(pod) for pod in leaving.stray_pods())
    for each in leaving.at(UnloadPhase.FAILED):
        if each.pod is not None and leaving.now - each.pod.created >= REST:
            yield _gone(each.pod)
    slots = max(0, LIMIT - sum(each.stage.is_under_way for each in leaving.leavers))
    for each in leaving.at(UnloadPhase.NEXT)[:slots]:
        driver = leaving.revisions[each.revision]
        document = unload_pod(found, driver, each.revision, each.node, snapshot.settings)
        yield Create(found.name, document, each.node.name)


def _cleaned(leaving: Unload) -> Iterator[Action]:
    """Nodes where it is over."""
    gone = leaving.at(UnloadPhase.GONE)
    yield from _forgotten(leaving, gone)
    yield from (_gone(each.pod) for each in gone if each.pod and not each.pod.deleting)


def _forgotten(leaving: Unload, leavers: Sequence[LeavingNode]) -> Iterator[Action]:
    """What was written about these nodes; neighbours of one kind go out together."""
    snapshot, driver = leaving.snapshot, leaving.found.name
    for each in leavers:
        labels = {key: None for key in trace_labels(driver) if key in each.node.labels}
        if labels:
            yield LabelNode(driver, each.node.name, labels, "the driver is gone from it")
    for each in leavers:
        report = node_driver_name(driver, each.node.name)
        if report in snapshot.node_drivers:
            yield Delete(driver, NODE_DRIVERS, report)
    for homeless in snapshot.homeless_of(driver):  # usually the garbage collector was there first
        yield Delete(driver, NODE_DRIVERS, homeless.name)


def _changed_labels(driver: str, leaver: LeavingNode) -> dict[str, str | None]:
    """The pod goes by them; where modules stay, nobody else could say that they are to go."""
    assigned, before, state = trace_labels(driver)
    labels: dict[str, str | None] = {
        key: None for key in (assigned, before) if key in leaver.node.labels
    }
    stays, there = State.REBOOT_REQUIRED.value, leaver.node.labels.get(state)
    if leaver.stage is UnloadPhase.STAYS and there not in (None, stays):
        labels[state] = stays
    return labels


def _is_unload_pod(pod: DriverPod, driver: str) -> bool:
    return pod.unloader is not None and pod.driver == driver and not pod.deleting


def _gone(pod: DriverPod) -> Delete:
    return Delete(pod.driver, PODS, pod.name, pod.namespace, pod.uid)

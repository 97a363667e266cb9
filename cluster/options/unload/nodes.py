"""Nodes that a Driver leaves: the unload phase of each, by a table, and messages about it.

Pure; deletion.py turns the phases into actions, status.py and explain.py repeat the messages. A
driver may be loaded on a node if the node reported anything about it in its current boot, except
that it was unloaded; a reboot ends that. A pod unloads the modules after the driver pod is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from cluster.driver.revisions import (
    readable_revisions,
    revision_of,
    revision_text,
    with_sent_policy,
)
from cluster.driver.traces import nodes_with_trace
from cluster.model.names import LEAVE_MODULES, boot_mark, config_map_name
from cluster.model.snapshot import (
    DriverObject,
    Node,
    NodeReport,
    Snapshot,
    UnloadPod,
)
from cluster.model.waiting import waiting_message
from nodeside.errors import ExitCode
from nodeside.protocol.labels import assigned_label, node_driver_name, state_label
from nodeside.protocol.node_status import NOT_RESTORED, UNLOADED, State
from nodeside.spec import Driver
from nodeside.spec.model import UnloadPolicy

RECREATE_AFTER = 60.0  # seconds until a failed pod is replaced by another one
SILENT_AFTER = 120.0  # seconds after which a pod that has done nothing is reported
_NAMED = 20  # maximum number of nodes that a message names


class UnloadPhase(Enum):
    """The unload phase of a node; the value is the text shown for it."""

    GONE = "nothing of the driver is left there"
    ENDING = "pods are terminating"
    NEXT = "to be unloaded"
    STARTING = "unload pods are starting"
    UNLOADING = "being unloaded"
    HELD = "modules are held"
    STUCK = "unload pods do not run"
    FAILED = "unload pods failed and are recreated"
    STAYS = "modules stay loaded until a reboot"
    DOWN = "nodes are down, and keep their modules until a reboot"

    @property
    def is_last(self) -> bool:
        """Whether the phase is final."""
        return self in (UnloadPhase.GONE, UnloadPhase.STAYS, UnloadPhase.DOWN)

    @property
    def is_under_way(self) -> bool:
        """Whether an unload is in progress and keeps the cluster busy."""
        return self in (UnloadPhase.STARTING, UnloadPhase.UNLOADING)

    @property
    def is_obstacle(self) -> bool:
        """Whether somebody should investigate."""
        return self in (UnloadPhase.HELD, UnloadPhase.STUCK, UnloadPhase.FAILED)


class UnloadPodState(Enum):
    """The state of the unload pod of this boot."""

    NONE = "none"
    STARTING = "starting"
    RUNNING = "running"
    HELD = "held"
    STUCK = "stuck"
    FAILED = "failed"
    REFUSED = "refused"  # by the node itself: only a reboot helps
    DONE = "done"


_PHASE_BY_POD_STATE: Mapping[UnloadPodState, UnloadPhase] = {
    UnloadPodState.NONE: UnloadPhase.NEXT,
    UnloadPodState.STARTING: UnloadPhase.STARTING,
    UnloadPodState.RUNNING: UnloadPhase.UNLOADING,
    UnloadPodState.HELD: UnloadPhase.HELD,
    UnloadPodState.STUCK: UnloadPhase.STUCK,
    UnloadPodState.FAILED: UnloadPhase.FAILED,
    UnloadPodState.REFUSED: UnloadPhase.STAYS,
    UnloadPodState.DONE: UnloadPhase.GONE,
}


def phase_of(
    *, up: bool, ending: bool, loaded: bool, kept: bool, run: UnloadPodState
) -> UnloadPhase:
    """Return the phase of a node; this is the table.

    `ending`: a pod that may act on the node exists or may appear. `loaded`: modules may be in the
    kernel. `kept`: they must not be touched.
    """
    match up, ending, loaded, kept, run:
        case True, True, _, _, _:
            return UnloadPhase.ENDING
        case (_, _, False, _, _) | (_, _, _, _, UnloadPodState.DONE):
            return UnloadPhase.GONE
        case False, _, _, _, _:
            return UnloadPhase.DOWN
        case _, _, _, True, _:
            return UnloadPhase.STAYS
        case _:
            return _PHASE_BY_POD_STATE[run]


@dataclass(frozen=True, slots=True)
class LeavingNode:
    """A node that a Driver leaves. `why` is the node's own message, or ours.

    `pod` is its unload pod of this boot. `revision` is the one to unload with, "" if none is known.
    """

    node: Node
    phase: UnloadPhase
    why: str = ""
    pod: UnloadPod | None = None
    revision: str = ""


@dataclass(frozen=True)
class DriverUnload:
    """All nodes that have a trace of a Driver and are not among its `members`, in snapshot order.

    `now` is wall clock time.
    """

    snapshot: Snapshot
    found: DriverObject
    members: Collection[str]
    now: float

    @cached_property
    def leavers(self) -> Sequence[LeavingNode]:
        nodes = nodes_with_trace(self.snapshot, self.found.name, self.members)
        return tuple(self._leaving_node(node) for node in nodes)

    @cached_property
    def revisions(self) -> Mapping[str, Driver]:
        """The Driver as of each revision that a pod could be made from."""
        newest = {self.newest: self.found.driver} if self.found.driver else {}
        return readable_revisions(self.snapshot, self.found.name) | newest

    @cached_property
    def newest(self) -> str:
        return revision_of(revision_text(self.found.driver)) if self.found.driver else ""

    @property
    def needed_revisions(self) -> frozenset[str]:
        """Revisions that an unload pod has or will have."""
        return frozenset(each.revision for each in self.leavers if not each.phase.is_last)

    @property
    def has_lost_newest(self) -> bool:
        """Whether the newest revision is needed but its ConfigMap no longer exists."""
        name = config_map_name(self.found.name, self.newest)
        return self.newest in self.needed_revisions and name not in self.snapshot.revisions

    @property
    def is_unfinished(self) -> bool:
        """Whether any node is in a phase that is not final."""
        return any(not each.phase.is_last for each in self.leavers)

    def in_phases(self, *phases: UnloadPhase) -> list[LeavingNode]:
        return [each for each in self.leavers if each.phase in phases]

    def stray_pods(self) -> Iterator[UnloadPod]:
        """Yield unload pods without work.

        The node is gone, rebooted, or a member again, or its modules must stay.
        """
        needed = {
            each.pod.name
            for each in self.leavers
            if each.pod
            and (each.phase is not UnloadPhase.STAYS or not self._kept_message(each.revision))
        }
        for pod in self._unload_pods.values():
            if pod.name not in needed and not pod.deleting:
                yield pod

    # --- messages -----------------------------------------------------------------------------

    @property
    def node_count(self) -> int:
        return sum(each.phase is not UnloadPhase.GONE for each in self.leavers)

    def summarize_phases(self, *phases: UnloadPhase) -> str:
        """Return a message that names the nodes in these phases; "" if there are none."""
        at = ((each, self.in_phases(each)) for each in phases if each is not UnloadPhase.GONE)
        return "; ".join(f"{each.value}: {list_with_reasons(nodes)}" for each, nodes in at if nodes)

    @property
    def obstacle_message(self) -> str:
        """What keeps modules loaded that should be unloaded, with the command to leave them."""
        words = self.summarize_phases(*(each for each in UnloadPhase if each.is_obstacle))
        return f"{words}; to leave the modules loaded: {self.way_out}" if words else ""

    @property
    def way_out(self) -> str:
        """The command that leaves the modules loaded, for users who cannot wait."""
        return f"kubectl annotate driver {self.found.name} {LEAVE_MODULES}=true"

    # --- one node -----------------------------------------------------------------------------

    def _leaving_node(self, node: Node) -> LeavingNode:
        report = self._current_report(node)
        pod = self._unload_pods.get((node.name, boot_mark(node.name, node.boot_id)))
        revision = self._revision_of(report, pod)
        reason, run = self._kept_message(revision), UnloadPodState.NONE
        if pod is not None:
            run = _unload_pod_state(pod, report, self.now)
        phase = phase_of(
            up=node.ready,
            ending=self._may_have_pod(node, pod, run),
            loaded=self._is_loaded(node, report, revision),
            kept=reason is not None,
            run=run,
        )
        why = (
            reason if phase is UnloadPhase.STAYS and reason else _phase_message(phase, pod, report)
        )
        return LeavingNode(node, phase, why, pod, revision)

    def _current_report(self, node: Node) -> NodeReport | None:
        """Return the report of this boot; None if there is none."""
        report = self.snapshot.node_drivers.get(node_driver_name(self.found.name, node.name))
        return report if report is not None and report.boot_id == node.boot_id else None

    def _is_loaded(self, node: Node, report: NodeReport | None, revision: str) -> bool:
        """Return whether modules may be in the kernel.

        If another Driver is assigned for them, they belong to it. A state label without a
        NodeDriver may be from any boot.
        """
        name = self.found.name
        rivals = self._drivers_with_module_of(revision)
        if any(assigned_label(rival) in node.labels for rival in rivals):
            return False
        if report is not None:
            is_unloaded = report.reason in (UNLOADED, NOT_RESTORED)
            return report.state != State.WAITING.value or not is_unloaded
        reported = node_driver_name(name, node.name) in self.snapshot.node_drivers
        return state_label(name) in node.labels and not reported

    def _may_have_pod(self, node: Node, pod: UnloadPod | None, run: UnloadPodState) -> bool:
        """Return whether a pod may act on the node.

        A DaemonSet may create one while the label is there, unless the Driver is being deleted and
        its DaemonSets are gone.
        """
        assigned = assigned_label(self.found.name) in node.labels
        assigned = assigned and (self.has_daemonsets or not self.found.deleting)
        unloading = pod is not None and pod.deleting and run is not UnloadPodState.DONE
        return assigned or unloading or node.name in self._driver_pods

    def _revision_of(self, report: NodeReport | None, pod: UnloadPod | None) -> str:
        """Return the revision that the node had; else the newest, the last good one, any, or ""."""
        had = report.revision if report is not None else ""
        had = pod.revision if pod is not None else had
        good = str(self.found.status.get("lastGoodRevision") or "")
        candidates = [had, self.newest, good, *sorted(self.revisions)]
        return next((each for each in candidates if each in self.revisions), "")

    def _kept_message(self, revision: str) -> str | None:
        """Return why modules must not be touched, None if they may be.

        The Driver's spec decides; if it is invalid, the revision with the policy last sent to
        nodes.
        """
        if self.found.leave_modules:
            return f"annotation {LEAVE_MODULES}"
        driver = self.found.driver or self.revisions.get(revision)
        if driver is None:
            return "its revision is lost, so no unload pod can be created"
        driver = self.found.driver or with_sent_policy(self.snapshot, driver)
        never = driver.spec.unload.policy is UnloadPolicy.NEVER
        return "unload.policy: never" if never else None

    # --- objects of the snapshot --------------------------------------------------------------

    @cached_property
    def has_daemonsets(self) -> bool:
        return any(each.driver == self.found.name for each in self.snapshot.daemonsets.values())

    @cached_property
    def _unload_pods(self) -> Mapping[tuple[str, str], UnloadPod]:
        """Unload pods by node and boot."""
        pods = self.snapshot.unload_pods_of(self.found.name)
        return {(pod.node, pod.mark): pod for pod in pods}

    @cached_property
    def _driver_pods(self) -> frozenset[str]:
        return frozenset(pod.node for pod in self.snapshot.driver_pods_of(self.found.name))

    def _drivers_with_module_of(self, revision: str) -> Sequence[str]:
        """Return the other Drivers that share a module with a revision and are not being deleted.

        Those of earlier revisions do not count, which are only kept for `nodeside-cluster undo`.
        """
        if revision not in self._rivals:
            self._rivals[revision] = self._find_rivals(revision)
        return self._rivals[revision]

    @cached_property
    def _rivals(self) -> dict[str, Sequence[str]]:
        return {}

    def _find_rivals(self, revision: str) -> Sequence[str]:
        modules = _module_names([self.revisions[revision]] if revision else [])
        return [
            other.name
            for other in self.snapshot.drivers.values()
            if other.driver is not None
            and other.name != self.found.name
            and not other.deleting
            and not modules.isdisjoint(_module_names([other.driver]))
        ]


def list_with_reasons(leavers: Iterable[LeavingNode]) -> str:
    """Return `n1, n2 (unload.policy: never), n3 (edu is held by …) and 7 more nodes`."""
    every = list(leavers)
    by_why: dict[str, list[str]] = {}
    for each in every[:_NAMED]:
        by_why.setdefault(each.why, []).append(each.node.name)
    groups = [", ".join(names) + (f" ({why})" if why else "") for why, names in by_why.items()]
    rest = len(every) - _NAMED
    more = f" and {rest} more {'node' if rest == 1 else 'nodes'}" if rest > 0 else ""
    return ", ".join(groups) + more


def _unload_pod_state(pod: UnloadPod, report: NodeReport | None, now: float) -> UnloadPodState:
    reason = report.reason if report and report.state == State.UNLOADING.value else None
    match pod.phase:
        case "Failed":
            refused = pod.code == ExitCode.REBOOT_REQUIRED
            return UnloadPodState.REFUSED if refused else UnloadPodState.FAILED
        case _ if pod.waiting:
            return UnloadPodState.STUCK
        case "Succeeded":
            return UnloadPodState.DONE
        case _ if reason is not None:
            return UnloadPodState.HELD if reason else UnloadPodState.RUNNING
        case _ if now - pod.created >= SILENT_AFTER:
            return UnloadPodState.STUCK
        case phase:
            return UnloadPodState.RUNNING if phase == "Running" else UnloadPodState.STARTING


def _phase_message(phase: UnloadPhase, pod: UnloadPod | None, report: NodeReport | None) -> str:
    if pod is None:
        return ""
    message = report.message if report is not None else ""
    failed = report is not None and report.state == State.FAILED.value
    match phase:
        case UnloadPhase.HELD:
            return message
        case UnloadPhase.STUCK:
            describe = f"kubectl -n {pod.namespace} describe pod {pod.name}"
            return waiting_message(pod.waiting) or f"pod {pod.name} has not reported: {describe}"
        case UnloadPhase.FAILED:
            return (message if failed else "") or pod.ended
        case UnloadPhase.STAYS:
            return message or pod.ended
        case _:
            return ""


def _module_names(drivers: Iterable[Driver]) -> set[str]:
    return {m.name.replace("-", "_") for driver in drivers for m in driver.spec.modules}

"""The state of a Driver on each of its nodes: observations in the terms of update_table.py.

Pure. A `DriverNode` is a node that has the hardware of a Driver. A report counts only for the
current boot and the revision that the node has: a report of an older boot is void, and one for
another revision comes from the previous pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from cluster.driver.deadlines import NO_DEADLINE, NodeDeadlines, down_deadline
from cluster.driver.drain_state import IDLE, DrainState
from cluster.driver.hardware import Match, former_devices, match_hardware
from cluster.driver.pools import pool_of
from cluster.model.names import DRIVER_CONTAINER, assignment_of, before_label
from cluster.model.snapshot import (
    EMPTY,
    Assignment,
    DriverPod,
    Node,
    NodeReport,
    Pool,
    Snapshot,
)
from cluster.model.states import Boot, Health, Place
from cluster.model.waiting import Waiting, waiting_message
from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import NOTHING_SERVED, State
from nodeside.spec import Driver
from nodeside.spec.model import Upgrade
from nodeside.spec.pci import PciId

T = TypeVar("T")


@dataclass
class NodeCache(Generic[T]):
    """Results of one kind by node name, all computed from the same `shared_inputs`.

    Between two snapshots of 5,000 nodes only a few nodes change; results for the others are reused.
    The cache needs no change notifications: each result is stored with the exact values it was
    computed from, and is reused only for those. So a missed event does no harm, and a plan made
    with a cache equals the plan made without one. A cache lives as long as its controller.
    """

    shared_inputs: object = None
    results: dict[str, T] = field(default_factory=dict)

    def results_for(self, shared_inputs: object) -> dict[str, T]:
        """Return the mutable results for these inputs; empty if the inputs changed."""
        if shared_inputs != self.shared_inputs:
            self.shared_inputs, self.results = shared_inputs, {}
        return self.results

    def forget_others(self, nodes: Collection[str]) -> None:
        """Drop the results of all nodes that are not in `nodes`."""
        if len(self.results) > len(nodes):
            rest = {name: each for name, each in self.results.items() if name in nodes}
            self.results = rest


_FAILED, _READY, _REBOOT = State.FAILED.value, State.READY.value, State.REBOOT_REQUIRED.value
_OF_THE_TOOLKIT = frozenset(kind.reason for kind in FailureKind if kind.of_the_toolkit)


class Observations(NamedTuple):
    """The observations a member is built from. `pod` is set only if the pod cannot start."""

    node: Node
    report: NodeReport | None
    pod: DriverPod | None
    drain: DrainState


@dataclass(frozen=True, slots=True)
class DriverNode:
    """A node of a Driver. `at` is None if the assignment is unknown.

    `worked_with` is the assignment under which the driver worked there until we changed the node.
    `last_report` is of any boot and revision; `was_ready` says whether it was "ready". `trouble` is
    what the node does not report itself: its pod cannot start, or the node is silent; `deadline` is
    the wall-clock time at which silence becomes trouble. `stuck_pod` is its pod if that cannot
    start. `has_module_conflict` means that another Driver has a module of the newest revision
    there. `is_given_up` means that the node has been down for too long to wait for it.
    """

    node: Node
    fit: Match
    pool: Pool
    assigned: str
    at: Assignment | None
    health: Health
    boot: Boot
    worked_with: str
    was_ready: bool
    last_report: NodeReport | None
    trouble: str
    deadline: float = NO_DEADLINE.until
    drain: DrainState = IDLE
    stuck_pod: DriverPod | None = None
    has_module_conflict: bool = False
    is_given_up: bool = False

    @property
    def is_untouched(self) -> bool:
        """Returns whether the node has no drain labels and its pod starts."""
        return not self.drain.has_labels and self.stuck_pod is None

    @property
    def current_report(self) -> NodeReport | None:
        """Returns the node's report for this boot and its revision, None if there is none."""
        return _current_report(self.node, self.at, self.last_report, changed=bool(self.worked_with))

    @property
    def pull_failure(self) -> str:
        """Returns why its pod cannot pull the driver image, "" if it can."""
        why = pull_failure_of(self.stuck_pod) if self.stuck_pod else None
        return str(why) if why else ""

    @property
    def refused_toolkit(self) -> str:
        """Returns the toolkit image of its pod that is not for its kernel, "" if there is none.

        The node says that about itself only: it changes no image, and nothing on other nodes.
        """
        report = self.current_report
        if report is None or report.state != _FAILED or report.reason not in _OF_THE_TOOLKIT:
            return ""
        return report.toolkit if report.kernel == self.node.kernel else ""

    def was_built_from(self, observations: Observations) -> bool:
        """Return whether the member was built from exactly these values."""
        return (
            self.node is observations.node
            and self.last_report is observations.report
            and self.stuck_pod is observations.pod
            and (self.drain is observations.drain or self.drain == observations.drain)
        )

    def place(self, newest: str, good: str) -> Place:
        if not self.assigned:
            return Place.UNASSIGNED
        if self.at is None or self.at.pool != self.pool:
            return Place.MOVED
        if self.at.revision == newest:
            return Place.NEWEST
        return Place.GOOD if self.at.revision == good else Place.STALE


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A node that a Driver does not select."""

    node: Node

    def was_built_from(self, observations: Observations) -> bool:
        return self.node is observations.node


def select_members(
    snapshot: Snapshot,
    driver: Driver,
    assignments: Mapping[str, Assignment],
    excluded: Collection[str] = (),
    *,
    memory: NodeCache[DriverNode | OtherNode] | None = None,
    drains: Callable[[Node], DrainState] | None = None,
) -> Iterator[DriverNode]:
    """Yield every node that the Driver selects, in the order of the snapshot's nodes.

    `assignments` resolves assignment labels. `excluded` names the nodes that another Driver has.
    `memory` caches members from earlier snapshots; each member holds all values it was built from.
    `drains` says how far each node is drained; None: none is.
    """
    memory = NodeCache() if memory is None else memory
    memory.forget_others(snapshot.nodes)
    status = snapshot.drivers[driver.name].status if driver.name in snapshot.drivers else EMPTY
    former = former_devices(driver.spec.hardware, status)
    cached = memory.results_for((driver, assignments, excluded, former))
    builder, deadlines = _Builder(driver, assignments, former), NodeDeadlines(snapshot, driver)
    key, stuck_pods = builder.assigned_key, dict(_stuck_pods(snapshot, driver.name))
    reports, prefix = snapshot.node_drivers, f"{driver.name}."
    for node in snapshot.nodes.values():
        name = node.name
        inputs = Observations(
            node,
            reports.get(prefix + name),
            stuck_pods.get((name, node.labels.get(key, ""))) if stuck_pods else None,
            drains(node) if drains else IDLE,
        )
        member = cached.get(name)
        if member is None or not member.was_built_from(inputs):
            member = OtherNode(node) if name in excluded else builder.build_member(inputs)
            cached[name] = member
        if isinstance(member, OtherNode):
            continue
        if (
            member.health is Health.BUSY
            and (member.assigned or member.last_report is not None)
            and (timed := _apply_deadline(member, deadlines)) is not member
        ):
            member = timed
            if member.health is Health.BUSY:
                cached[name] = member
        yield _apply_down_deadline(member, snapshot.now) if member.health is Health.DOWN else member


@dataclass(frozen=True)
class _Builder:
    """A builder for the members of one Driver."""

    driver: Driver
    assignments: Mapping[str, Assignment]
    former: tuple[PciId, ...]

    @cached_property
    def assigned_key(self) -> str:
        return assigned_label(self.driver.name)

    @cached_property
    def before_key(self) -> str:
        return before_label(self.driver.name)

    def build_member(self, observations: Observations) -> DriverNode | OtherNode:
        """Return the member as far as it does not depend on the time."""
        node, report, pod, drain = observations
        labels, spec = node.labels, self.driver.spec
        assigned = labels.get(self.assigned_key, "")
        fit = match_hardware(node, spec.hardware, assigned=bool(assigned), former=self.former)
        if not fit.is_selected:
            return OtherNode(node)
        boot = Boot.REBOOTED if report and report.boot_id != node.boot_id else Boot.RUNNING
        at, on_reboot = self.assignments.get(assigned), spec.upgrade is Upgrade.ON_REBOOT
        before = labels.get(self.before_key, "")
        current = _current_report(node, at, report, changed=bool(before))
        health = _health_of(node, current, on_reboot=on_reboot)
        return DriverNode(
            node=node,
            fit=fit,
            pool=pool_of(
                node,
                at.pool if at else None,
                rebooted=boot is Boot.REBOOTED,
                works=health not in (Health.BUSY, Health.BROKEN),
            ),
            assigned=assigned,
            at=at,
            health=Health.BROKEN if health is Health.BUSY and pod else health,
            boot=boot,
            worked_with=before,
            was_ready=report is not None and report.state == _READY,
            last_report=report,
            trouble=f"its pod cannot start: {waiting_message(pod.waiting)}" if pod else "",
            drain=drain,
            stuck_pod=pod,
        )


def _apply_deadline(member: DriverNode, deadlines: NodeDeadlines) -> DriverNode:
    """Apply the deadlines to a node in progress; one that waits for its reboot has none.

    The member's deadline may be too early, since another pass does no harm.
    """
    report = member.current_report
    if report is not None and report.state == _REBOOT:
        return member
    deadline = deadlines.report_deadline(member.node, member.assigned, report)
    if deadline.message:
        return replace(
            member, health=Health.BROKEN, trouble=deadline.message, deadline=deadline.until
        )
    in_time = deadlines.snapshot.now < member.deadline <= deadline.until
    return member if in_time else replace(member, deadline=deadline.until)


def _apply_down_deadline(member: DriverNode, now: float) -> DriverNode:
    """Apply the deadline to a node that is down; it is reported only if we changed the node.

    A node that comes back is treated as any other.
    """
    deadline = down_deadline(member.node, now)
    trouble = deadline.message if member.worked_with else ""
    lost = bool(deadline.message)
    return replace(
        member, is_given_up=lost, trouble=trouble or member.trouble, deadline=deadline.until
    )


def _current_report(
    node: Node, at: Assignment | None, report: NodeReport | None, *, changed: bool
) -> NodeReport | None:
    """Return the node's report for this boot and its revision, None if there is none.

    If the assignment is no longer known, any report of this boot counts, unless we `changed` the
    node after that report.
    """
    if report is None or report.boot_id != node.boot_id:
        return None
    if at is None:
        return None if changed else report
    return report if report.revision == at.revision else None


def _health_of(node: Node, report: NodeReport | None, *, on_reboot: bool) -> Health:
    if not node.ready:
        return Health.DOWN
    state = report.state if report is not None else ""
    if state == _READY:
        return Health.WORKING
    # With `upgrade: onReboot`, waiting for the administrator's reboot is not a failure.
    if state == _FAILED or (state == _REBOOT and not on_reboot):
        return Health.BROKEN
    return Health.BUSY


def _stuck_pods(snapshot: Snapshot, driver: str) -> Iterator[tuple[tuple[str, str], DriverPod]]:
    """Yield the pods that cannot start, by node and assignment."""
    for pod in snapshot.driver_pods_of(driver):
        if pod.waiting and not pod.deleting:
            yield (pod.node, assignment_of(pod.daemonset)), pod


def failure_message(member: DriverNode) -> str:
    """Return why the driver does not work on a node; the node's own message if it has one."""
    report = member.last_report
    if member.trouble or report is None:
        return member.trouble or "no report"
    words = ": ".join(part for part in (report.reason, report.message) if part)
    return words or report.state


def has_found_no_modules(member: DriverNode) -> bool:
    """Return whether the node reports that its pod, without a toolkit, found no modules for it."""
    report = member.current_report
    if report is None or report.state != _FAILED:
        return False
    return report.reason == NOTHING_SERVED and not report.toolkit


# The kubelet's reasons for an image that it cannot pull.
# https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff
CANNOT_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")


def pull_failure_of(pod: DriverPod) -> Waiting | None:
    """Return why the driver container's image cannot be pulled, None if it can."""
    why = pod.waiting.get(DRIVER_CONTAINER)
    return why if why is not None and why.reason in CANNOT_PULL else None

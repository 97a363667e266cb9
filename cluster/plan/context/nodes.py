"""The nodes of a Driver, and the nodes that Drivers with a module in common keep from it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cluster.driver.drain_state import DrainState
from cluster.driver.nodes import DriverNode, NodeCache, OtherNode, select_members
from cluster.model.names import CORDONED, draining_label, undrained_label
from cluster.model.snapshot import EMPTY, Assignment, DriverObject, Node, Snapshot
from cluster.model.states import Health
from cluster.options import conflicts
from cluster.options.after import dependents_of
from cluster.options.drain.drain import drain_states
from cluster.options.drain.pods import eviction_policies
from cluster.options.stages.pods import ending_pods
from cluster.plan.context.supply import Fallbacks
from cluster.plan.context.toolkits import Toolkits
from nodeside.spec import Driver


@dataclass(frozen=True)
class Nodes:
    """The nodes as observed. `memory` caches members from earlier snapshots."""

    snapshot: Snapshot
    resource: DriverObject
    driver: Driver
    assignments: Mapping[str, Assignment]
    memory: NodeCache[DriverNode | OtherNode]

    @cached_property
    def older_rivals(self) -> Sequence[Driver]:
        """Older Drivers that share a module with this one."""
        return conflicts.older_drivers_with_module(self.snapshot, self.resource)

    @cached_property
    def contested_nodes(self) -> Mapping[str, frozenset[str]]:
        """By rival, the nodes that this Driver selects and does not get because of it."""
        if len(self.snapshot.drivers) < 2:
            return {}
        contested = conflicts.nodes_left_to_older_driver
        return {r.name: contested(self.snapshot, self.driver, r) for r in self.older_rivals}

    @cached_property
    def observed_nodes(self) -> Sequence[DriverNode]:
        without = frozenset().union(*self.contested_nodes.values())
        snapshot, driver = self.snapshot, self.driver
        return tuple(
            select_members(
                snapshot,
                driver,
                self.assignments,
                without,
                memory=self.memory,
                drains=self._drain_state_of,
            )
        )

    @property
    def _drain_state_of(self) -> Callable[[Node], DrainState] | None:
        """A function that says how far a node is drained; None where no Driver drains any."""
        snapshot, driver = self.snapshot, self.driver
        leaving = (driver, *(dependents_of(snapshot, driver) if has_order(snapshot) else ()))
        evict = any(each.spec.rollout.evict for each in leaving)
        names = [each.name for each in leaving]
        stage_pods = EMPTY if snapshot.stages is None else ending_pods(snapshot, names)
        if not (evict or self.marked_nodes or stage_pods is None or stage_pods):
            return None
        return drain_states(snapshot, driver, eviction_policies(leaving), stage_pods)

    @cached_property
    def marked_nodes(self) -> Sequence[Node]:
        """Nodes with a drain label of this Driver, or that we cordoned for any Driver."""
        held, given_up = draining_label(self.driver.name), undrained_label(self.driver.name)
        return [
            node
            for node in self.snapshot.nodes.values()
            if held in node.labels or given_up in node.labels or CORDONED in node.labels
        ]

    @cached_property
    def taken_nodes(self) -> Mapping[str, frozenset[str]]:
        """By rival, our nodes that keep their revision: the rival has one of our modules there."""
        if len(self.snapshot.drivers) < 2:
            return {}
        by_rival = conflicts.nodes_with_conflicting_module(
            self.snapshot, self.driver, self.older_rivals
        )
        names = {m.node.name for m in self.observed_nodes} if any(by_rival.values()) else set()
        return {name: frozenset(nodes & names) for name, nodes in by_rival.items()}


def has_order(snapshot: Snapshot) -> bool:
    """Return whether any Driver comes after another one."""
    return snapshot.index.look_up(_has_order, snapshot.drivers)


def _has_order(drivers: Mapping[str, DriverObject]) -> bool:
    return any(each.driver and each.driver.spec.after for each in drivers.values())


def with_alternatives(
    nodes: Nodes, toolkits: Toolkits, fallbacks: Fallbacks
) -> Sequence[DriverNode]:
    """Return the members with module conflicts marked; a failed one with an alternative is busy.

    It may build if it cannot pull its image or use its bundle, ask the store again, or get another
    toolkit image. If its pod with the other image does not report in time, its trouble says so.
    """
    taken = frozenset().union(*nodes.taken_nodes.values())
    if not taken and not any(m.health is Health.BROKEN for m in nodes.observed_nodes):
        return nodes.observed_nodes
    marked = (
        replace(m, has_module_conflict=True) if m.node.name in taken else m
        for m in nodes.observed_nodes
    )
    return tuple(_excuse_node(m, toolkits, fallbacks) for m in marked)


def _excuse_node(member: DriverNode, toolkits: Toolkits, fallbacks: Fallbacks) -> DriverNode:
    if member.health is not Health.BROKEN:
        return member
    if fallbacks.reason_for(member):
        return replace(member, health=Health.BUSY, trouble="")
    if (until := fallbacks.asks_until(member)) > fallbacks.revisions.snapshot.now:
        return replace(member, health=Health.BUSY, trouble="", deadline=until)
    deadline = toolkits.correction_deadline(member)
    if deadline is None:
        return member
    if deadline.message:
        return replace(member, trouble=deadline.message)
    return replace(member, health=Health.BUSY, trouble="", deadline=deadline.until)

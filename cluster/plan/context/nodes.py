"""The nodes of a Driver, and the nodes that Drivers with a module in common keep from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cluster.model.snapshot import Assignment, DriverObject, Snapshot
from cluster.model.states import Health
from cluster.plan.context.supply import Fallbacks
from cluster.plan.context.toolkits import Toolkits
from cluster.plan.nodes import conflicts
from cluster.plan.nodes.members import Member, NotMember, members
from cluster.plan.nodes.memo import Memo
from nodeside.spec import Driver


@dataclass(frozen=True)
class Nodes:
    """The nodes as observed. `memory` caches members from earlier snapshots."""

    snapshot: Snapshot
    resource: DriverObject
    driver: Driver
    assignments: Mapping[str, Assignment]
    memory: Memo[Member | NotMember]

    @cached_property
    def rivals(self) -> Sequence[Driver]:
        """Older Drivers that share a module with this one."""
        return conflicts.elders(self.snapshot, self.resource)

    @cached_property
    def contested(self) -> Mapping[str, frozenset[str]]:
        """By rival, the nodes that this Driver selects and does not get because of it."""
        contested = conflicts.contested
        return {r.name: contested(self.snapshot, self.driver, r) for r in self.rivals}

    @cached_property
    def observed(self) -> Sequence[Member]:
        without = frozenset().union(*self.contested.values())
        snapshot, driver = self.snapshot, self.driver
        return tuple(members(snapshot, driver, self.assignments, without, self.memory))

    @cached_property
    def taken(self) -> Mapping[str, frozenset[str]]:
        """By rival, our nodes that keep their revision because the rival has one of our modules
        there."""
        by_rival = conflicts.taken(self.snapshot, self.driver, self.rivals)
        names = {m.node.name for m in self.observed} if any(by_rival.values()) else set()
        return {name: frozenset(nodes & names) for name, nodes in by_rival.items()}


def with_alternatives(nodes: Nodes, toolkits: Toolkits, fallbacks: Fallbacks) -> Sequence[Member]:
    """Return the members as observed, except that a failed one with an alternative counts as busy.

    Either it cannot pull its image but can build, or it gets another toolkit image.
    """
    taken = frozenset().union(*nodes.taken.values())
    if not taken and not any(m.health is Health.BROKEN for m in nodes.observed):
        return nodes.observed
    marked = (replace(m, taken=True) if m.node.name in taken else m for m in nodes.observed)
    return tuple(_excused(m, toolkits, fallbacks) for m in marked)


def _excused(member: Member, toolkits: Toolkits, fallbacks: Fallbacks) -> Member:
    if member.health is not Health.BROKEN:
        return member
    if fallbacks.applies_to(member):
        return replace(member, health=Health.BUSY, trouble="")
    deadline = toolkits.correction(member)
    if deadline is None:
        return member
    if deadline.words:
        return replace(member, trouble=deadline.words)
    return replace(member, health=Health.BUSY, trouble="", due=deadline.until)

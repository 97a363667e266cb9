"""The context of a plan for one Driver: everything derived from the Driver and a snapshot.

Pure; planner.py turns it into actions. Each part is computed from the parts above it, on first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cluster.model.annotations import ImageFallback
from cluster.model.snapshot import EMPTY, Assignment, DaemonSetObject, DriverObject, Snapshot
from cluster.model.stages import Framed, Rendered
from cluster.plan.builds.toolkit_evidence import Refusals
from cluster.plan.context.nodes import Nodes, with_alternatives
from cluster.plan.context.revisions import Revisions
from cluster.plan.context.rollout import RolloutPlan
from cluster.plan.context.supply import Fallbacks, ModuleSupply
from cluster.plan.context.toolkits import Toolkits
from cluster.plan.nodes.members import Member, NotMember
from cluster.plan.nodes.memo import Memo
from cluster.plan.objects.driver_pod import DaemonSetInput
from cluster.plan.rollout.decisions import Decision
from nodeside.spec import Driver


@dataclass(frozen=True)
class Memory:
    """Results of earlier plans for one Driver.

    `daemonsets` are those that were as desired, by name. `framed` are the documents of stages, with
    the inputs they were made from.
    """

    members: Memo[Member | NotMember] = field(default_factory=Memo)
    decisions: Memo[Decision] = field(default_factory=Memo)
    daemonsets: dict[str, tuple[DaemonSetInput, DaemonSetObject]] = field(default_factory=dict)
    framed: dict[str, tuple[Rendered, object, Framed]] = field(default_factory=dict)


@dataclass(frozen=True)
class Effects:
    """Effects of this plan that the snapshot does not show yet.

    `assignments` are those whose DaemonSets do not exist yet. `fallbacks` are those among them that
    build because an image could not be pulled. `cordons` are nodes, with the reason. `refusals` are
    passed on because the plan may retire the DaemonSet that records them.
    """

    assignments: Mapping[str, Assignment] = field(default_factory=lambda: EMPTY)
    fallbacks: Mapping[Assignment, ImageFallback] = field(default_factory=dict)
    cordons: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    refusals: Refusals = field(default_factory=dict)


@dataclass(frozen=True)
class DriverContext:
    """A Driver in a snapshot, with everything derived from the two."""

    snapshot: Snapshot
    resource: DriverObject
    driver: Driver
    memory: Memory = field(default_factory=Memory)
    effects: Effects = field(default_factory=Effects)

    @cached_property
    def owner(self) -> DriverObject:
        """The Driver without its status, which does not affect the objects it owns."""
        return replace(self.resource, status=EMPTY)

    @cached_property
    def revisions(self) -> Revisions:
        return Revisions(self.snapshot, self.resource, self.driver, self.effects.assignments)

    @cached_property
    def nodes(self) -> Nodes:
        assignments, memory = self.revisions.assignments, self.memory.members
        return Nodes(self.snapshot, self.resource, self.driver, assignments, memory)

    @cached_property
    def toolkits(self) -> Toolkits:
        daemonsets, observed = self.revisions.daemonsets, self.nodes.observed
        planned, earlier = self.effects.assignments, self.effects.refusals
        return Toolkits(self.snapshot, self.driver, daemonsets, observed, planned, earlier)

    @cached_property
    def fallbacks(self) -> Fallbacks:
        observed, resolutions = self.nodes.observed, self.toolkits.resolutions
        return Fallbacks(self.revisions, observed, resolutions, self.effects.fallbacks)

    @cached_property
    def members(self) -> Sequence[Member]:
        return with_alternatives(self.nodes, self.toolkits, self.fallbacks)

    @cached_property
    def supply(self) -> ModuleSupply:
        return ModuleSupply(self.snapshot, self.driver, self.revisions, self.toolkits, self.members)

    @cached_property
    def rollout(self) -> RolloutPlan:
        return RolloutPlan(
            self.revisions,
            self.members,
            self.supply.by_pool,
            self.fallbacks,
            self.effects.cordons,
            self.memory.decisions,
        )

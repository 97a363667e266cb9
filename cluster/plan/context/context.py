"""The context of a plan for one Driver: everything derived from the Driver and a snapshot.

Pure; plan_driver.py turns it into actions. Each part is computed from the parts above it, on first
use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cluster.driver.nodes import DriverNode, NodeCache, OtherNode
from cluster.driver.pod import DaemonSetInput
from cluster.driver.revisions import Revisions
from cluster.driver.update import NodeDecision
from cluster.model.snapshot import EMPTY, DaemonSetObject, DriverObject, Snapshot, has_stages
from cluster.model.stages import FramedDocuments, Rendered
from cluster.options.after import dependencies_of, dependents_of
from cluster.options.stages.inputs import StageInputs
from cluster.options.stages.stage_plan import StagePlan
from cluster.plan.context.nodes import Nodes, has_order, with_alternatives
from cluster.plan.context.rollout import RolloutPlan
from cluster.plan.context.supply import Fallbacks, ModuleSupply
from cluster.plan.context.toolkits import Toolkits
from nodeside.spec import Driver


@dataclass(frozen=True)
class Memory:
    """Results of earlier plans for one Driver.

    `daemonsets` are those that were as desired, by name. `framed` are the documents of stages, with
    the inputs they were made from.
    """

    members: NodeCache[DriverNode | OtherNode] = field(default_factory=NodeCache)
    decisions: NodeCache[NodeDecision] = field(default_factory=NodeCache)
    daemonsets: dict[str, tuple[DaemonSetInput, DaemonSetObject]] = field(default_factory=dict)
    framed: dict[str, tuple[Rendered | None, object, FramedDocuments]] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverContext:
    """A Driver in a snapshot, with everything derived from the two."""

    snapshot: Snapshot
    resource: DriverObject
    driver: Driver
    memory: Memory = field(default_factory=Memory)
    contexts: Contexts | None = field(default=None, repr=False)

    @cached_property
    def owner(self) -> DriverObject:
        """The Driver without its status, which does not affect the objects it owns."""
        return replace(self.resource, status=EMPTY)

    @cached_property
    def revisions(self) -> Revisions:
        return Revisions(self.snapshot, self.resource, self.driver)

    @cached_property
    def nodes(self) -> Nodes:
        assignments, memory = self.revisions.assignments, self.memory.members
        return Nodes(self.snapshot, self.resource, self.driver, assignments, memory)

    @cached_property
    def toolkits(self) -> Toolkits:
        daemonsets, observed = self.revisions.daemonsets, self.nodes.observed_nodes
        return Toolkits(self.snapshot, self.driver, daemonsets, observed)

    @cached_property
    def fallbacks(self) -> Fallbacks:
        return Fallbacks(self.revisions, self.nodes.observed_nodes, self.supply)

    @cached_property
    def members(self) -> Sequence[DriverNode]:
        return with_alternatives(self.nodes, self.toolkits, self.fallbacks)

    @cached_property
    def supply(self) -> ModuleSupply:
        return ModuleSupply(
            self.snapshot,
            self.driver,
            self.revisions,
            self.toolkits,
            self.nodes.observed_nodes,
            self.resource.rebuild,
            before=lambda: [each.supply for each in self.before],
            after=lambda: [each.supply for each in self.after],
        )

    @cached_property
    def rollout(self) -> RolloutPlan:
        supplies, memory = self.supply.by_pool, self.memory.decisions
        return RolloutPlan(
            self.revisions,
            self.members,
            supplies,
            self.fallbacks,
            memory,
            self.supply.unbuilt,
            before=lambda: [each.rollout for each in self.before],
            after=lambda: [each.rollout for each in self.after],
        )

    @property
    def uses_stages(self) -> bool:
        """Whether the Driver has stages, or any Driver has, so that some may be left here."""
        return self.snapshot.stages is not None or has_stages(self.resource)

    @cached_property
    def staging(self) -> StagePlan:
        """The stages of the Driver."""
        rollout, revisions, toolkits = self.rollout, self.revisions, self.toolkits.resolutions
        inputs = StageInputs(
            snapshot=self.snapshot,
            resource=self.resource,
            owner=self.owner,
            driver=self.driver,
            drivers=revisions.drivers,
            revision=rollout.state.good or revisions.newest,
            members=self.members,
            announced=tuple(decision.member for decision in rollout.announced_decisions),
            ending=rollout.ending_stages,
            occupied=rollout.occupied_by_own,
            desired=rollout.desired_daemonsets,
            toolkits={pool: each.image for pool, each in toolkits.items()},
            framed=self.memory.framed,
        )
        return StagePlan(inputs)

    @cached_property
    def before(self) -> Sequence[DriverContext]:
        """The Drivers in `spec.after`, in the same snapshot."""
        if not self.driver.spec.after:
            return ()
        return [self._context_of(each) for each in dependencies_of(self.snapshot, self.driver)]

    @cached_property
    def after(self) -> Sequence[DriverContext]:
        """The Drivers that come after this one, in the same snapshot."""
        if not has_order(self.snapshot):
            return ()
        return [self._context_of(each) for each in dependents_of(self.snapshot, self.driver)]

    def _context_of(self, driver: Driver) -> DriverContext:
        contexts = self.contexts or Contexts(self.snapshot)
        return contexts.context_of(self.snapshot.drivers[driver.name], driver)


@dataclass(frozen=True)
class Contexts:
    """The contexts of the Drivers of a snapshot, each made once. `memories` is by Driver."""

    snapshot: Snapshot
    memories: Mapping[str, Memory] = field(default_factory=dict)
    _made: dict[str, DriverContext] = field(default_factory=dict)

    def context_of(self, resource: DriverObject, driver: Driver) -> DriverContext:
        """Return the context of a valid Driver."""
        name = resource.name
        if name not in self._made:
            memory = self.memories.get(name) or Memory()
            self._made[name] = DriverContext(self.snapshot, resource, driver, memory, self)
        return self._made[name]

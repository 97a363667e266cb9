"""The rollout of a Driver: its state, the decision for each node, and the desired DaemonSets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cluster.driver.casualties import Casualty, recorded_casualties, update_casualties
from cluster.driver.nodes import DriverNode, NodeCache
from cluster.driver.revisions import Revisions
from cluster.driver.rollout_state import RolloutState, rollout_state
from cluster.driver.update import DependentBudget, NodeDecision, decide_updates
from cluster.model.names import daemonset_name
from cluster.model.snapshot import Assignment, Pool
from cluster.model.states import Health, Phase, Place, Supply
from cluster.options.drain.drain import Drains, decide_drains
from cluster.options.drain.pods import eviction_policies
from cluster.options.drain.table import ENDS_STAGES
from cluster.options.stages.pods import occupied_nodes
from cluster.plan.context.supply import Fallbacks
from nodeside.spec.fleet import Evict

Others = Callable[[], Sequence["RolloutPlan"]]


@dataclass(frozen=True)
class RolloutPlan:
    """The rollout of one Driver; each property is computed once.

    `memory` caches decisions. `unbuilt` has the pools for which a Driver after this one is not
    built yet, and why. `before` returns the rollouts of the Drivers in `spec.after`, and `after`
    those of the Drivers that come after this one.
    """

    revisions: Revisions
    members: Sequence[DriverNode]
    supplies: Mapping[Pool, Supply]
    fallbacks: Fallbacks
    memory: NodeCache[NodeDecision]
    unbuilt: Mapping[Pool, str] = field(default_factory=dict)
    before: Others = field(default=lambda: (), repr=False)
    after: Others = field(default=lambda: (), repr=False)

    @cached_property
    def casualties(self) -> Sequence[Casualty]:
        """The casualties of the newest revision, to be recorded."""
        newest, good, now = self.revisions.newest, self.revisions.good, self.revisions.snapshot.now
        if newest == good:  # the rollout is complete
            return ()
        before = recorded_casualties(self.revisions.resource, newest)
        return update_casualties(
            before, self.members, newest, good, now,
            retries=self.revisions.resource.retries,
            with_first=self.revisions.driver.spec.rollout.canary > 0,
        )  # fmt: skip

    @cached_property
    def state(self) -> RolloutState:
        changing = self._changing_before
        return self._rollout_state(changing) if changing else self.state_alone

    @cached_property
    def _changing_before(self) -> frozenset[str]:
        """Nodes where a Driver before this one changes, or is about to."""
        others = self.before()
        changing = (
            decision.member.node.name
            for other in others
            for decision in other.decisions
            if other.is_replacing(decision)
        )
        return frozenset(changing).union(*(other._changing_before for other in others))

    @cached_property
    def state_alone(self) -> RolloutState:
        """The state as if no Driver before this one changed anything."""
        return self._rollout_state()

    def _rollout_state(self, away: Collection[str] = ()) -> RolloutState:
        revisions, supply, casualties = self.revisions, self.supplies.__getitem__, self.casualties
        driver, newest, good = revisions.driver, revisions.newest, revisions.good
        return rollout_state(
            self.members, driver, newest, good, supply,
            remembered=casualties, away=away, retries=revisions.resource.retries,
            blocked=self._blocked_nodes() if driver.spec.after and not good else (),
        )  # fmt: skip

    def _blocked_nodes(self) -> frozenset[str]:
        """Return the nodes where a Driver before this one failed, or is not wanted."""
        own = {member.node.name for member in self.members}
        blocked = set[str]()
        for other in self.before():
            members = other.members
            blocked |= own - {member.node.name for member in members}
            blocked |= {m.node.name for m in members if m.health is Health.BROKEN}
        return frozenset(blocked)

    def _dependent_budgets(self) -> Iterator[DependentBudget]:
        """Yield the budget of each Driver after this one, less what this one uses already."""
        changing = {member.node.name for member in self.members if _is_changing(member)}
        newest, good = self.revisions.newest, self.revisions.good
        changed = {
            member.node.name
            for member in self.members
            if member.worked_with and member.place(newest, good) is Place.NEWEST
        }
        for other in self.after():
            name, state = other.revisions.driver.name, other.state_alone
            working = {m.node.name for m in other.members if m.health is Health.WORKING}
            not_back = changed & {m.node.name for m in other.members} - working
            away = set(state.unavailable) | (changing & working) | not_back
            yield DependentBudget(name, state.allowed, working, away)

    def _hindered_nodes(self) -> Mapping[str, int]:
        """Return how each member is hindered by the Drivers before this one.

        0: they work there. 1: one of them does not work yet. 2: one of them does not select it.
        """
        hindered: dict[str, int] = {}
        for other in self.before():
            theirs = {m.node.name: int(m.health is not Health.WORKING) for m in other.members}
            for name in (member.node.name for member in self.members):
                hindered[name] = max(hindered.get(name, 0), theirs.get(name, 2))
        return hindered

    @cached_property
    def policies(self) -> Sequence[Evict]:
        """Which pods leave before a node changes, by this Driver and the Drivers after it."""
        drivers = [self.revisions.driver, *(other.revisions.driver for other in self.after())]
        return (
            eviction_policies(drivers) if any(each.spec.rollout.evict for each in drivers) else ()
        )

    @cached_property
    def occupied_by_own(self) -> frozenset[str]:
        """Nodes that have pods of this Driver's stages, or may get some."""
        if self.revisions.snapshot.stages is None:
            return frozenset()
        return occupied_nodes(self.revisions.snapshot, self.revisions.resource)

    @cached_property
    def occupied_by_any(self) -> frozenset[str]:
        """Nodes that cannot change before stages have ended: of this Driver, or of one after it."""
        return self.occupied_by_own.union(*(each.occupied_by_own for each in self.after()))

    @cached_property
    def decisions_before_drain(self) -> Sequence[NodeDecision]:
        """The decision for each member, as if no node had to be drained."""
        spec, phase = self.revisions.driver.spec, self.state.phase
        hindered = self._hindered_nodes() if spec.after and phase is Phase.FIRST_CANARY else {}
        return decide_updates(
            self.members,
            self.revisions.driver,
            self.state,
            self.supplies,
            self.memory,
            dependents=tuple(self._dependent_budgets()),
            unbuilt=self.unbuilt,
            hindered=hindered,
        )

    @cached_property
    def drains(self) -> Drains | None:
        """The drains, with the decisions that wait for them; None if no node is drained."""
        driver, now = self.revisions.driver, self.revisions.snapshot.now
        if self.policies or self.occupied_by_any or any(m.drain.since for m in self.members):
            return decide_drains(
                self.decisions_before_drain, driver, self.policies, self.occupied_by_any, now
            )
        if any(member.drain.has_labels for member in self.members):
            return Drains(driver, self.decisions_before_drain)  # an earlier drain left labels
        return None

    @property
    def decisions(self) -> Sequence[NodeDecision]:
        """The decision for each member, after the drain step has been applied."""
        return self.drains.decisions if self.drains is not None else self.decisions_before_drain

    @cached_property
    def ending_stages(self) -> Sequence[DriverNode]:
        """Nodes that keep their revision until their stages have ended.

        They include nodes where the driver is unloaded for a moment, for a Driver before it.
        """
        ending = set(self.drains.ending_stages) if self.drains is not None else set()
        return tuple(
            d.member
            for d in self.decisions
            if d.member.node.name in ending or self._is_interrupted(d)
        )

    def is_replacing(self, decision: NodeDecision) -> bool:
        """Return whether the driver is being replaced on a node, or begins to be."""
        if decision.revision is not None or _is_changing(decision.member):
            return True
        return self.drains is not None and self.drains.step_of(decision) in ENDS_STAGES

    def _is_interrupted(self, decision: NodeDecision) -> bool:
        member = decision.member
        return member.health is Health.WORKING and member.node.name in self._changing_before

    @cached_property
    def announced_decisions(self) -> Sequence[NodeDecision]:
        """The decisions to report; a node to which this plan gives a revision is already busy."""
        return tuple(
            self._announce_decision(d, d.revision) if d.revision else d for d in self.decisions
        )

    def _announce_decision(self, decision: NodeDecision, revision: str) -> NodeDecision:
        member, report = decision.member, decision.member.current_report
        at = Assignment(member.pool, revision)
        has_it = member.at == at or (report is not None and report.revision == revision)
        if has_it or member.health is Health.DOWN:
            return decision
        place = Place.NEWEST if revision == self.state.newest else Place.GOOD
        assigned = self.revisions.name_of(at)
        member = replace(member, assigned=assigned, at=at, health=Health.BUSY, trouble="")
        return replace(decision, place=place, member=member)

    @cached_property
    def desired_daemonsets(self) -> Mapping[str, Assignment]:
        """By name, the DaemonSets that have nodes assigned once this plan is carried out."""
        targets = (self.target_of(decision) for decision in self.decisions)
        ats = {id(at): at for at in targets if at is not None}  # the same object for most nodes
        driver = self.revisions.driver.name
        return {daemonset_name(driver, self.revisions.name_of(at)): at for at in set(ats.values())}

    def target_of(self, decision: NodeDecision) -> Assignment | None:
        """Return the assignment of a member after this plan; None if it has none."""
        member = decision.member
        if decision.revision is None:
            falls_back = member.at and self.fallbacks.reason_for(member)
            return replace(member.at, builds=True) if member.at and falls_back else member.at
        if not decision.revision:
            return None
        return Assignment(member.pool, decision.revision)


def _is_changing(member: DriverNode) -> bool:
    return bool(member.drain.since) or member.health is Health.BUSY

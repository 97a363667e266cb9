"""The inputs of a Driver's status. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cluster.driver.casualties import Casualty
from cluster.driver.nodes import DriverNode
from cluster.driver.rollout_state import RolloutState
from cluster.driver.status.messages import revision_name
from cluster.driver.status.part import PoolBuild
from cluster.driver.toolkit_image import Resolution
from cluster.driver.update import NodeDecision
from cluster.model.actions import NodeCounts, PoolCount
from cluster.model.names import NAMESPACE, SILENT
from cluster.model.snapshot import DriverObject, Pool
from cluster.model.states import Boot, Health, Place
from cluster.model.status_schema import POOL_LIMIT
from nodeside.spec import Driver


@dataclass(frozen=True)
class StatusInputs:
    """The inputs of conditions and pool rows.

    `versions` maps known revisions to versions. `fell_back` says which nodes of a pool build
    although it need not, and why. `builds` are the newest revision's builds that run once for all
    nodes of a pool. `creating` says by node what a kubelet does before the pod starts. `casualties`
    are the nodes that the newest revision has broken or taken down. `similar_label` is a label of
    some node that may be meant by one that the Driver selects by and that no node has. `namespace`
    is that of the installation.
    """

    found: DriverObject
    driver: Driver
    rollout: RolloutState
    decisions: Sequence[NodeDecision]
    resolutions: Mapping[Pool, Resolution]
    served: Collection[Pool]
    fell_back: Mapping[Pool, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    builds: Mapping[Pool, PoolBuild] = field(default_factory=dict)
    creating: Mapping[str, str] = field(default_factory=dict)
    casualties: Sequence[Casualty] = ()
    similar_label: str = ""
    namespace: str = NAMESPACE

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return count_nodes(self.decisions)

    @cached_property
    def not_working(self) -> Sequence[DriverNode]:
        """Returns the members where the driver does not work, for any reason."""
        members = (decision.member for decision in self.decisions)
        return [member for member in members if member.health is not Health.WORKING]

    @cached_property
    def canaries(self) -> Sequence[DriverNode]:
        """Returns the members that try the newest revision and have not proven it yet."""
        return [
            decision.member
            for decision in self.decisions
            if decision.place is Place.NEWEST
            and decision.member.health is not Health.WORKING
            and not decision.member.is_given_up
        ]

    def node_names(self, matches: Callable[[NodeDecision], bool]) -> list[str]:
        return [decision.member.node.name for decision in self.decisions if matches(decision)]

    def revision_name(self, revision: str) -> str:
        """Return the display name of a revision: `2.0.0 (248fd032616a)`."""
        return revision_name(revision, self.versions.get(revision, ""))


def count_nodes(decisions: Iterable[NodeDecision]) -> dict[str, int]:
    wanted = assigned = updated = ready = failed = 0
    for decision in decisions:  # local variables: this runs for 5,000 nodes, several times per plan
        member = decision.member
        wanted += 1
        assigned += member.assigned != ""
        updated += decision.place is Place.NEWEST
        ready += member.health is Health.WORKING
        failed += member.health is Health.BROKEN
    return {
        "wanted": wanted,
        "assigned": assigned,
        "updated": updated,
        "ready": ready,
        "failed": failed,
    }


def node_counts(inputs: StatusInputs) -> NodeCounts:
    """Return the node counts of a Driver for metrics."""
    decisions, rollout = inputs.decisions, inputs.rollout
    pools = Counter(decision.member.pool for decision in decisions).most_common(POOL_LIMIT)
    return NodeCounts(
        phase=rollout.phase,
        places=Counter(decision.place for decision in decisions),
        states=Counter(_reported_states(decisions)),
        pools=[PoolCount(pool, inputs.resolutions[pool].link.value, n) for pool, n in pools],
        builds=Counter(build.progress for build in inputs.builds.values()),
        unavailable=len(rollout.unavailable),
        allowed=rollout.allowed,
    )


def _reported_states(decisions: Iterable[NodeDecision]) -> Iterable[str]:
    """Yield the last state that each node's pod reported in this boot, or SILENT."""
    for decision in decisions:
        report, boot = decision.member.last_report, decision.member.boot
        yield SILENT if report is None or boot is Boot.REBOOTED else report.state or SILENT

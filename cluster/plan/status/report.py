"""Everything about a Driver that is looked at to say how it stands. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cluster.model.actions import Counts, PoolCount
from cluster.model.names import SILENT
from cluster.model.snapshot import DriverObject, Occupancy, Pool
from cluster.model.states import Boot, Health, Place
from cluster.plan.builds.builds import BuildState
from cluster.plan.builds.preflight import PreflightAnswer
from cluster.plan.builds.toolkit_image import Resolution
from cluster.plan.nodes.members import Member
from cluster.plan.rollout.casualties import Casualty
from cluster.plan.rollout.context import DriverContext
from cluster.plan.rollout.decisions import Decision
from cluster.plan.rollout.state import RolloutState
from cluster.plan.rollout.unload import Unload
from cluster.plan.status.messages import called
from nodeside.spec import Driver


@dataclass(frozen=True)
class StatusReport:
    """Everything that conditions and pool rows look at.

    `contested` maps a rival Driver to nodes that are not ours for it, `taken` to those that stay as
    they are.
    `versions` are those of the revisions that are still known, `fell_back` says of a pool why it
    builds though there should be an image.
    `builds` are those of the newest revision that are made once for all nodes of a pool,
    `casualties` the nodes that it has cost.
    """

    found: DriverObject
    driver: Driver
    standing: RolloutState
    verdicts: Sequence[Decision]
    resolutions: Mapping[Pool, Resolution]
    served: Collection[Pool]
    contested: Mapping[str, Collection[str]] = field(default_factory=dict)
    taken: Mapping[str, Collection[str]] = field(default_factory=dict)
    fell_back: Mapping[Pool, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    leaving: Unload | None = None
    builds: Mapping[Pool, BuildState] = field(default_factory=dict)
    preflight: Sequence[PreflightAnswer] = ()
    occupancy: Occupancy = field(default_factory=Occupancy)
    casualties: Sequence[Casualty] = ()

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return counts(self.verdicts)

    @cached_property
    def lacking(self) -> Sequence[Member]:
        """Where it does not work, for whatever reason."""
        members = (verdict.member for verdict in self.verdicts)
        return [member for member in members if member.health is not Health.WORKING]

    def named(self, wanted: Callable[[Decision], bool]) -> list[str]:
        return [verdict.member.node.name for verdict in self.verdicts if wanted(verdict)]

    def called(self, revision: str) -> str:
        """What people call a revision: `2.0.0 (248fd032616a)`."""
        return called(revision, self.versions.get(revision, ""))


def report_of(case: DriverContext, leaving: Unload | None = None) -> StatusReport:
    """What the status of a Driver is made of."""
    return StatusReport(
        found=case.found,
        driver=case.driver,
        standing=case.standing,
        verdicts=case.verdicts,
        resolutions=case.resolutions,
        served=case.served,
        contested=case.contested,
        taken=case.taken,
        fell_back={at.pool: case.falls[at].why for at in case.wanted.values() if at.builds},
        versions={each: driver.spec.version for each, driver in case.revisions.items()},
        builds=case.newest_builds,
        preflight=case.preflight,
        occupancy=case.world.occupancy,
        casualties=case.casualties,
        leaving=leaving,
    )


def counts(verdicts: Iterable[Decision]) -> dict[str, int]:
    wanted = assigned = updated = ready = failed = 0
    for verdict in verdicts:  # plain names: this runs for 5,000 nodes, several times in a plan
        member = verdict.member
        wanted += 1
        assigned += member.assigned != ""
        updated += verdict.place is Place.NEWEST
        ready += member.health is Health.WORKING
        failed += member.health is Health.BROKEN
    return {
        "wanted": wanted,
        "assigned": assigned,
        "updated": updated,
        "ready": ready,
        "failed": failed,
    }


_POOLS = 256  # rows, as in the status of a Driver


def census(picture: StatusReport) -> Counts:
    """Count what a plan has found."""
    verdicts, now = picture.verdicts, picture.standing
    pools = Counter(verdict.member.pool for verdict in verdicts).most_common(_POOLS)
    return Counts(
        phase=now.phase,
        places=Counter(verdict.place for verdict in verdicts),
        states=Counter(_states(verdicts)),
        pools=[PoolCount(pool, picture.resolutions[pool].link.value, n) for pool, n in pools],
        builds=Counter(build.progress for build in picture.builds.values()),
        unavailable=len(now.unavailable),
        allowed=now.allowed,
    )


def _states(verdicts: Iterable[Decision]) -> Iterable[str]:
    """What each node's pod said last in this boot."""
    for verdict in verdicts:
        report, boot = verdict.member.report, verdict.member.boot
        yield SILENT if report is None or boot is Boot.FRESH else report.state or SILENT

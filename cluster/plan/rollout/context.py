"""A Driver in a snapshot: everything derived from the two, each value computed once.

Pure; planner.py turns it into actions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from cluster.model.annotations import ImageFallback
from cluster.model.names import daemonset_name
from cluster.model.snapshot import (
    EMPTY,
    Assignment,
    DaemonSetObject,
    DriverObject,
    Pool,
    Snapshot,
    Tag,
    Unseen,
    assignment,
)
from cluster.model.stages import Framed, Rendered
from cluster.model.states import Health, Progress, Supply
from cluster.plan.builds.builds import BuildState, build_of, coming
from cluster.plan.builds.builds import standing as standing_of
from cluster.plan.builds.kernel_images import LOST, at_of, falls, image_for, without_image
from cluster.plan.builds.preflight import PreflightAnswer, answers, tags
from cluster.plan.builds.toolkit_evidence import (
    Evidence,
    Refusals,
    Witness,
    heard,
    lasting,
    most,
    refuses,
    remembered,
    together,
    upheld,
)
from cluster.plan.builds.toolkit_image import (
    NO_PROOF,
    NOT_TOLD,
    NOTHING_KEPT,
    CurrentImage,
    Resolution,
    asked,
    proven,
    resolve,
)
from cluster.plan.nodes import conflicts as rivals
from cluster.plan.nodes.conflicts import contested
from cluster.plan.nodes.deadlines import Deadline, Deadlines
from cluster.plan.nodes.members import Member, NotMember, members
from cluster.plan.nodes.memo import Memo
from cluster.plan.nodes.pools import pool_of
from cluster.plan.nodes.stage_pods import occupied
from cluster.plan.objects.build_job import Build, publish_target, stores
from cluster.plan.objects.driver_pod import DaemonSetInput
from cluster.plan.objects.revision import read_revision, revision_of, revision_text
from cluster.plan.rollout.casualties import Casualty, casualties, recorded
from cluster.plan.rollout.decisions import Decision, DrainStep, decide_all
from cluster.plan.rollout.drain import drained
from cluster.plan.rollout.state import RolloutState, assess
from nodeside.contract import NOTHING_SERVED, assigned_label
from nodeside.spec import Driver


@dataclass(frozen=True)
class Memory:
    """Results of earlier plans for one Driver.

    `daemonsets` are those found to be as desired, by name. `framed` are the documents of stages,
    with the inputs they were made from.
    """

    members: Memo[Member | NotMember] = field(default_factory=Memo)
    decisions: Memo[Decision] = field(default_factory=Memo)
    daemonsets: dict[str, tuple[DaemonSetInput, DaemonSetObject]] = field(default_factory=dict)
    framed: dict[str, tuple[Rendered, object, Framed]] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverContext:
    """A Driver in a snapshot, with everything derived from the two, each value computed once.

    `given` are assignments made by this plan whose DaemonSets do not exist yet. `fallen` are those
    among them that build because an image could not be pulled. `begun` are nodes that this plan
    cordons, with the reason. `recalled` are refusals that this plan found; they are passed on
    because the plan may retire the DaemonSet that records them.
    """

    snapshot: Snapshot
    found: DriverObject
    driver: Driver
    given: Mapping[str, Assignment] = field(default_factory=dict)
    begun: Mapping[str, str] = field(default_factory=dict)
    fallen: Mapping[Assignment, ImageFallback] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    recalled: Refusals = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The driver.yaml of the newest revision."""
        return revision_text(self.driver)

    @cached_property
    def newest(self) -> str:
        return revision_of(self.text)

    @cached_property
    def owner(self) -> DriverObject:
        """The Driver without its status, which does not affect the objects it owns."""
        return replace(self.found, status=EMPTY)

    @cached_property
    def revisions(self) -> Mapping[str, Driver]:
        """The Driver as of every revision that can still be assigned to a node."""
        found = {
            each.revision: read_revision(each)
            for each in self.snapshot.revisions.values()
            if each.driver == self.driver.name
        }
        readable = {revision: driver for revision, driver in found.items() if driver is not None}
        return readable | {self.newest: self.driver}

    @cached_property
    def good(self) -> str:
        """The last good revision; "" if there is none that can still be assigned."""
        good = str(self.found.status.get("lastGoodRevision") or "")
        return good if good in self.revisions else ""

    @cached_property
    def daemonsets(self) -> Sequence[DaemonSetObject]:
        mine = (d for d in self.snapshot.daemonsets.values() if d.driver == self.driver.name)
        return tuple(mine)

    @cached_property
    def known(self) -> Mapping[str, Assignment]:
        """Assignments by name: those of existing DaemonSets, and those of deleted DaemonSets with
        which nodes are still labelled."""
        there = {
            found.assignment: at_of(found)
            for found in self.daemonsets
            if self.assignment(at_of(found)) == found.assignment
        } | dict(self.given)
        key = assigned_label(self.driver.name)
        lost = {
            pool_of(node)
            for node in self.snapshot.nodes.values()
            if (assigned := node.labels.get(key)) is not None and assigned not in there
        }
        either = (False, True) if any(map(_has_images, self.revisions.values())) else (False,)
        ats = (Assignment(*each) for each in product(lost, self.revisions, either))
        return there | {self.assignment(at): at for at in ats}

    def assignment(self, at: Assignment) -> str:
        return assignment(self.driver.name, at.pool, at.revision, builds=at.builds)

    @cached_property
    def rivals(self) -> Sequence[Driver]:
        """Older Drivers that share a module with this one."""
        return rivals.elders(self.snapshot, self.found)

    @cached_property
    def contested(self) -> Mapping[str, frozenset[str]]:
        return {r.name: contested(self.snapshot, self.driver, [r]) for r in self.rivals}

    @cached_property
    def taken(self) -> Mapping[str, frozenset[str]]:
        """By rival, our nodes that keep their revision because the rival has one of our modules
        there."""
        found = rivals.taken(self.snapshot, self.driver, self.rivals)
        names = {member.node.name for member in self.observed} if any(found.values()) else set()
        return {name: frozenset(nodes & names) for name, nodes in found.items()}

    @cached_property
    def observed(self) -> Sequence[Member]:
        without = frozenset().union(*self.contested.values())
        return tuple(members(self.snapshot, self.driver, self.known, without, self.memory.members))

    @cached_property
    def members(self) -> Sequence[Member]:
        """The members as observed, except that a failed one with an alternative counts as busy.

        Either it cannot pull its image but can build, or it gets another toolkit image.
        """
        taken = frozenset().union(*self.taken.values())
        if not taken and not any(m.health is Health.BROKEN for m in self.observed):
            return self.observed
        found = (replace(m, taken=True) if m.node.name in taken else m for m in self.observed)
        return tuple(self._excused(m) if m.health is Health.BROKEN else m for m in found)

    def _excused(self, member: Member) -> Member:
        if self.falls_back(member):
            return replace(member, health=Health.BUSY, trouble="")
        silence = self._corrected(member)
        if silence is None:
            return member
        if silence.words:
            return replace(member, trouble=silence.words)
        return replace(member, health=Health.BUSY, trouble="", due=silence.until)

    @cached_property
    def refusals(self) -> Refusals:
        """Toolkit images that nodes refuse or refused before, minus those that built after all."""
        before = together(self.recalled, remembered(self.daemonsets))
        if not before and not any(refuses(m.node, m.word) for m in self._broken if m.word):
            return {}
        witnesses = tuple(self._witnesses())
        return together(upheld(before, witnesses), heard(witnesses))

    def refused(self, pool: Pool) -> Mapping[str, str]:
        return self.refusals.get((pool.kernel, pool.architecture), EMPTY)

    def _witnesses(self) -> Iterator[Witness]:
        """Yield the nodes that are up, with the toolkit image they were given, "" if unknown."""
        given = {(d.assignment, d.pool.kernel): d.toolkit for d in self.daemonsets}
        for member in self.observed:
            if member.health is not Health.DOWN:
                image = given.get((member.assigned, member.node.kernel), "")
                yield Witness(member.node, image, member.word)

    @property
    def _broken(self) -> Iterator[Member]:
        return (member for member in self.observed if member.health is Health.BROKEN)

    @cached_property
    def resolutions(self) -> Mapping[Pool, Resolution]:
        """The toolkit image of each pool."""
        pools = {member.pool for member in self.observed}
        untold = {pool: NOT_TOLD for pool in pools if not pool.kernel}
        kept = {d.pool: CurrentImage(d.toolkit, d.link) for d in self.daemonsets if d.toolkit}
        streams, toolkit = self.snapshot.image_streams, self.driver.spec.toolkit
        known = {pool: self.evidence(pool) for pool in pools - untold.keys()}
        lost = self._without_daemonsets
        found = {
            pool: resolve(
                pool, toolkit, streams, evidence, kept.get(pool, NOTHING_KEPT), lost=pool in lost
            )
            for pool, evidence in known.items()
        }
        lacking = [pool for pool, each in found.items() if not each.image or each.in_doubt]
        proof = proven(self.snapshot) if lacking else NO_PROOF
        for pool in lacking:
            had = kept.get(pool, NOTHING_KEPT)
            if images := proof.get((pool.kernel, pool.architecture), ()):
                known[pool] = replace(known[pool], proven=images)
                found[pool] = resolve(pool, toolkit, streams, known[pool], had, lost=pool in lost)
            if not found[pool].image or known[pool].against(found[pool].image, pool):
                evidence = replace(known[pool], refused=self._refused_for_good(pool))
                found[pool] = resolve(pool, toolkit, streams, evidence, had, lost=pool in lost)
        return found | untold

    def _refused_for_good(self, pool: Pool) -> Mapping[str, str]:
        """Return the lasting refusals, without images that only few nodes refused.

        Those are retried if nothing else serves.
        """
        kernel = (pool.kernel, pool.architecture)
        nodes = Counter((m.node.kernel, m.node.architecture) for m in self.observed)
        return lasting(self.refused(pool), nodes[kernel])

    @cached_property
    def _without_daemonsets(self) -> frozenset[Pool]:
        """Pools that have nodes but whose DaemonSet was deleted externally."""
        there = {each.pool for each in self.daemonsets}
        mine = (m.at.pool for m in self.observed if m.at and m.assigned not in self.given)
        return frozenset(pool for pool in mine if pool not in there)

    def evidence(self, pool: Pool) -> Evidence:
        """Return the evidence about toolkit images that concerns a pool."""
        snapshot = self.snapshot
        return Evidence(
            snapshot.toolkit_labels, self.refused(pool), pending=snapshot.toolkits_pending
        )

    @cached_property
    def tags(self) -> frozenset[Tag]:
        """The tags whose images this plan needs resolved."""
        streams, toolkit = self.snapshot.image_streams, self.driver.spec.toolkit
        pools = {member.pool for member in self.observed}
        mine = (tag for pool in pools for tag in asked(pool, toolkit, streams, self.evidence(pool)))
        kinds = {pool.architecture for pool in pools}
        asking = tags(self.driver, self.driver.spec.preflight, self.snapshot, kinds)
        return frozenset((*mine, *asking))

    def _corrected(self, member: Member) -> Deadline | None:
        """Return the deadline of a node whose next pod gets another toolkit image than the refused
        one; None if that is not the case."""
        word = member.word
        if member.pod is not None or word is None or not refuses(member.node, word):
            return None
        if self.resolutions[member.pool].image in ("", word.toolkit):
            return None
        return Deadlines(self.snapshot, self.driver).corrected(member.assigned, word)

    @cached_property
    def builds(self) -> Mapping[Assignment, BuildState]:
        """Builds that serve all nodes of a pool; empty if there is no store to fetch from.

        Also empty if the Driver names an image for each kernel: those were built elsewhere.
        """
        found: dict[Assignment, BuildState] = {}
        publish = "" if _has_images(self.driver) else publish_target(self.driver)
        for pool, resolution in self.resolutions.items() if publish else ():
            for at in (Assignment(pool, self.newest), Assignment(pool, self.good)):
                if resolution.image and self._fetches(at.revision, publish):
                    driver = self.revisions[at.revision]
                    build = build_of(driver, at.revision, pool, resolution, publish)
                    if at.revision == self.newest or self._is_built_once(at, build):
                        found[at] = standing_of(build, self.snapshot, pool.kernel)
        return found

    def _is_built_once(self, at: Assignment, build: Build) -> bool:
        """Return whether a Job builds it. If the nodes already build it, no new Job is started."""
        on_nodes = any(found.toolkit for found in self.daemonsets if at_of(found) == at)
        return not on_nodes or build.name in self.snapshot.jobs

    @cached_property
    def coming(self) -> Sequence[Build]:
        """Builds for kernels that no node has yet.

        This includes the good revision, because a node that gets such a kernel during a rollout is
        assigned the good revision.
        """
        if _has_images(self.driver):
            return ()
        revisions = {self.newest: self.driver}
        if self.good != self.newest and self._fetches(self.good, publish_target(self.driver)):
            revisions[self.good] = self.revisions[self.good]
        return tuple(coming(self.driver, revisions, self.snapshot, self.resolutions))

    @cached_property
    def preflight(self) -> Sequence[PreflightAnswer]:
        regular = {each.build.name for each in self.builds.values()}
        regular |= {build.name for build in self.coming}
        return tuple(answers(self.driver, self.newest, self.snapshot, regular, self.resolutions))

    @property
    def unseen(self) -> bool:
        """Whether the image streams have not been read."""
        return isinstance(self.snapshot.image_streams, Unseen)

    def _fetches(self, revision: str, publish: str) -> bool:
        driver = self.revisions.get(revision)
        return driver is not None and publish in stores(driver)

    @cached_property
    def supplies(self) -> Mapping[Pool, Supply]:
        """By pool, the supply that a pod there would find."""
        return {pool: self._supply(pool) for pool in self.resolutions}

    def _supply(self, pool: Pool) -> Supply:
        if not pool.kernel:
            return Supply.UNSERVED
        if self._is_supplied(Assignment(pool, self.newest)):
            return Supply.SERVED
        good_only = self.good and self._is_supplied(Assignment(pool, self.good))
        return Supply.GOOD_ONLY if good_only else Supply.UNSERVED

    def _is_supplied(self, at: Assignment) -> bool:
        """Return whether there is a supply. A toolkit image suffices unless a shared build for all
        nodes is still pending or was refused."""
        build = self.builds.get(at)
        if build is None and not self._may_be_built_yet(at.pool):
            prebuilt = bool(self.driver.spec.prebuilt.sources) or _has_images(self.driver)
            return bool(self.resolutions[at.pool].image) or prebuilt
        if build is not None and build.progress in (Progress.DONE, Progress.BROKEN):
            return True
        there = {at_of(found) for found in self.daemonsets} | {m.at for m in self.members}
        return at in there

    def _may_be_built_yet(self, pool: Pool) -> bool:
        """Return whether a shared build is expected whose toolkit image cannot be resolved yet."""
        unnamed = self.unseen and not self.resolutions[pool].image
        return unnamed and bool(publish_target(self.driver))

    def builds_on_nodes(self, at: Assignment, there: DaemonSetObject | None) -> bool:
        """Return whether pods get a build sidecar.

        An existing DaemonSet keeps its choice unless nodes cannot fetch. A node that comes to a
        kernel for which the good revision is not built yet does not wait.
        """
        build = self.builds.get(at)
        if build is None or (there is not None and there.toolkit):
            return True
        match build.progress:
            case Progress.BROKEN:
                return True
            case Progress.DONE:
                return there is not None and self._cannot_fetch(at)
            case _:
                return there is None

    def _cannot_fetch(self, at: Assignment) -> bool:
        """Return whether most nodes report that their build is missing or does not fit."""
        there = [m for m in self.members if m.at == at and m.health is not Health.DOWN]
        without = [m for m in there if _has_found_nothing(m)]
        return most(len(without), len(there)) if without else False

    @cached_property
    def served(self) -> frozenset[Pool]:
        """Pools where a pod of at least one revision has a supply."""
        return frozenset(p for p, each in self.supplies.items() if each is not Supply.UNSERVED)

    def image(self, at: Assignment) -> str:
        """Return the kernel-specific driver image of the pods there; "" if they use the image for
        all kernels."""
        driver = self.revisions.get(at.revision)
        return "" if driver is None or at.builds else image_for(driver, at.pool)

    def falls_back(self, member: Member) -> bool:
        """Return whether the node should build because the image for its kernel cannot be pulled.

        If the driver works there, a restarted pod can wait until the registry is back.
        """
        at = member.at
        if member.health is Health.WORKING:
            return False
        if not member.unpulled or at is None or at.pool != member.pool or not self.image(at):
            return False
        return bool(self.resolutions[at.pool].image or self.driver.spec.prebuilt.sources)

    @cached_property
    def falls(self) -> Mapping[Assignment, ImageFallback]:
        """Assignments whose pods build although there should be an image, with the reason."""
        failing = (
            (m.at, self.image(m.at), m.unpulled)
            for m in self.observed
            if self.falls_back(m) and m.at
        )
        now = self.snapshot.now
        lost = {m.at: ImageFallback(now, LOST) for m in self.observed if m.at and m.at.builds}
        return {**lost, **falls(self.daemonsets, failing, now), **self.fallen}

    @cached_property
    def standing(self) -> RolloutState:
        supply, known = self.supplies.__getitem__, self.casualties
        return assess(self.members, self.driver, self.newest, self.good, supply, remembered=known)

    @cached_property
    def casualties(self) -> Sequence[Casualty]:
        """The casualties of the newest revision, to be recorded."""
        before, now = recorded(self.found, self.newest), self.snapshot.now
        return casualties(before, self.members, self.newest, self.good, now)

    @cached_property
    def occupied(self) -> frozenset[str]:
        """Nodes that cannot change before their stages have ended."""
        return occupied(self.snapshot, self.found)

    @cached_property
    def decisions(self) -> Sequence[Decision]:
        """The decision for each member, after the drain step has been applied."""
        turns = decide_all(
            self.members, self.driver, self.standing, self.supplies, self.memory.decisions
        )
        return tuple(drained(turns, self.driver, self.begun, self.occupied, self.snapshot.now))

    @cached_property
    def held(self) -> Sequence[Member]:
        """Nodes that keep their revision until their stages have ended."""
        return tuple(v.member for v in self.decisions if v.step is DrainStep.END_STAGES)

    @cached_property
    def wanted(self) -> Mapping[str, Assignment]:
        """By name, the DaemonSets that have nodes assigned once this plan is carried out."""
        targets = (self.target(decision) for decision in self.decisions)
        ats = {id(at): at for at in targets if at is not None}  # most nodes share one
        return {
            daemonset_name(self.driver.name, self.assignment(at)): at for at in set(ats.values())
        }

    def target(self, decision: Decision) -> Assignment | None:
        """Return the assignment of a member after this plan; None if it has none."""
        member = decision.member
        if decision.revision is None:
            falls_back = member.at and self.falls_back(member)
            return replace(member.at, builds=True) if member.at and falls_back else member.at
        if not decision.revision:
            return None
        at = Assignment(member.pool, decision.revision)
        building = replace(at, builds=True)
        return building if building in self._without_image else at

    @cached_property
    def _without_image(self) -> frozenset[Assignment]:
        """Assignments where new nodes build at once although the spec names an image."""
        there = {
            at: fall for at, fall in self.falls.items() if self.image(replace(at, builds=False))
        }
        if not there:
            return frozenset()
        lacking = Counter(m.at for m in self.observed if m.at and (m.at.builds or m.unpulled))
        having = Counter(m.at for m in self.observed if m.at and m.word and not m.unpulled)
        return without_image(there, lacking, having, self.snapshot.now)

    @cached_property
    def newest_builds(self) -> Mapping[Pool, BuildState]:
        """By pool, the build of the newest revision."""
        return {at.pool: each for at, each in self.builds.items() if at.revision == self.newest}


def _has_images(driver: Driver) -> bool:
    return bool(driver.spec.prebuilt.image)


def _has_found_nothing(member: Member) -> bool:
    word = member.word
    return member.health is Health.BROKEN and word is not None and word.reason == NOTHING_SERVED

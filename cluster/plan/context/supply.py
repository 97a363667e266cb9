"""Where the pods of a Driver get their modules: images, shared builds, builds on nodes. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from cluster.driver.nodes import DriverNode, has_found_no_modules
from cluster.driver.revisions import Revisions, served_assignment
from cluster.kube.timestamps import distrust_far_future
from cluster.model.names import assignment_of
from cluster.model.snapshot import Assignment, DaemonSetObject, Pool, Snapshot
from cluster.model.states import BuildProgress, Health, Supply
from cluster.options.build_once.builds import BuildState, build_of, build_state, builds_for_new_tags
from cluster.options.build_once.job_manifest import SharedBuild, publish_target, stores_of
from cluster.options.build_once.symbols import Find, with_symbols
from cluster.options.kernel_images import REASON_UNKNOWN, image_for
from cluster.options.preflight import PreflightAnswer, preflight_answers
from cluster.plan.context.toolkits import Toolkits
from nodeside.spec import Driver

Others = Callable[[], Sequence["ModuleSupply"]]

# Seconds in which a node that came up with its pod asks its store again before it builds. If the
# registry was away just then, the node is served in a moment; one that builds goes on building
# until the next revision. In this time a node asks about seven times.
STORE_PATIENCE: Final = 300.0


@dataclass(frozen=True)
class ModuleSupply:
    """The supply of modules for each pool of the `toolkits`.

    `members` are the nodes as observed. `before` are the supplies of the Drivers in `spec.after`,
    `after` those of the Drivers after this one. `rebuild` is the time of an order to build anew.
    """

    snapshot: Snapshot
    driver: Driver
    revisions: Revisions
    toolkits: Toolkits
    members: Sequence[DriverNode]
    rebuild: str = ""
    before: Others = field(default=lambda: (), repr=False)
    after: Others = field(default=lambda: (), repr=False)

    @cached_property
    def builds(self) -> Mapping[Assignment, BuildState]:
        """Builds that serve all nodes of a pool; empty if there is no store to fetch from.

        Also empty if the Driver names an image for each kernel: those were built elsewhere.
        """
        states: dict[Assignment, BuildState] = {}
        if not publishes_builds(self.driver):
            return states
        publish = "" if self.driver.spec.prebuilt.image else publish_target(self.driver)
        newest = self.revisions.newest
        for pool, resolution in self.toolkits.resolutions.items() if publish else ():
            for at in (Assignment(pool, newest), Assignment(pool, self.revisions.good)):
                if resolution.image and self._is_fetched_from_store(at.revision):
                    driver = self.revisions.drivers[at.revision]
                    build = build_of(
                        driver, at.revision, pool, resolution, publish, rebuild=self.rebuild
                    )
                    state = self._state_of(build, pool, newest=True)
                    state = state or self._state_of(build, pool, newest=False)
                    if state and (at.revision == newest or self._is_built_once(at, state.build)):
                        states[at] = state
        return states

    def _state_of(self, build: SharedBuild, pool: Pool, *, newest: bool) -> BuildState | None:
        """Return the state of a build of this Driver for a pool, with the symbols that it needs.

        The symbols are those of the `newest` or of the good revision of the Drivers before. Returns
        None if there is no such build.
        """
        if missing := self._missing_driver:
            words = f"comes after driver {missing}, which is not there"
            return BuildState(build, BuildProgress.RUNNING, words, is_next=False)
        finds = [
            (each.driver.name, each.find_for(pool, newest=newest))
            for each in self.before()
            if each.driver.spec.modules
        ]
        found = with_symbols(build, finds) if finds else build
        if isinstance(found, SharedBuild):
            return build_state(found, self.snapshot, pool.kernel)
        return found

    @property
    def _missing_driver(self) -> str:
        """A Driver that this one comes after and that is not there, or is invalid; "" for none."""
        known = {each.driver.name for each in self.before()}
        return next((name for name in self.driver.spec.after if name not in known), "")

    def find_for(self, pool: Pool, *, newest: bool) -> Find:
        """Return a function that finds the build for a pool, whatever its toolkit is."""
        revision = self.revisions.newest if newest else self.revisions.good

        def find(_: SharedBuild) -> BuildState | None:
            same = (
                state
                for at, state in self.builds.items()
                if at.revision == revision
                and (at.pool.kernel, at.pool.architecture) == (pool.kernel, pool.architecture)
            )
            return next(same, None)

        return find

    def find_same(self, build: SharedBuild) -> BuildState | None:
        """Return the newest revision's build with the same toolkit for the same kernel."""
        target = _target_of(build)
        states = [
            state for at, state in self.builds.items() if at.revision == self.revisions.newest
        ]
        states += [each.state for each in self.preflight if each.state is not None]
        states += [
            build_state(each, self.snapshot)
            for each in self.builds_for_new_tags
            if each.revision == self.revisions.newest
        ]
        return next((each for each in states if _target_of(each.build) == target), None)

    @cached_property
    def with_good_symbols(self) -> Sequence[SharedBuild]:
        """Builds with the symbols of the good revisions of Drivers before this one.

        Nodes have those until the newest ones are rolled out there.
        """
        if not self.builds or all(
            each.revisions.good == each.revisions.newest for each in self.before()
        ):
            return ()
        found = []
        for at, state in self.builds.items():
            plain = replace(state.build, symbols_of=())
            with_good = self._state_of(plain, at.pool, newest=False)
            if with_good is not None and with_good.is_next:
                found.append(with_good.build)
        return tuple(found)

    @cached_property
    def unbuilt(self) -> Mapping[Pool, str]:
        """By pool, why a node that works does not change: a Driver after this one is not built."""
        newest = self.revisions.newest
        return {
            at.pool: last.words
            for at, state in self.builds.items()
            if at.revision == newest and (last := self._last_build(at.pool, state)) is not state
        }

    @cached_property
    def newest_builds(self) -> Mapping[Pool, BuildState]:
        """By pool, the newest revision's build or, if done, one that a Driver after it needs."""
        newest = self.revisions.newest
        states = {at.pool: each for at, each in self.builds.items() if at.revision == newest}
        return {pool: self._last_build(pool, state) for pool, state in states.items()}

    def _last_build(self, pool: Pool, state: BuildState) -> BuildState:
        """Return the state of a build; if it is done, of one that needs it and is not done.

        A Driver that works is not changed before those after it are built for that change.
        """
        is_change = self.revisions.good not in ("", self.revisions.newest)
        if state.progress is not BuildProgress.DONE or not is_change:
            return state
        for other in self.after():
            if other.driver.spec.modules and self.driver.name in other.driver.spec.after:
                later = other.find_for(pool, newest=True)(state.build)
                if later and later.progress in (BuildProgress.RUNNING, BuildProgress.REFUSED):
                    words = f"driver {other.driver.name}, which comes after it: {later.words}"
                    return replace(later, build=state.build, words=words)
        return state

    def _is_built_once(self, at: Assignment, build: SharedBuild) -> bool:
        """Return whether a Job builds it. If the nodes already build it, no new Job is started."""
        on_nodes = any(
            each.toolkit for each in self.revisions.daemonsets if served_assignment(each) == at
        )
        return not on_nodes or build.name in self.snapshot.build_jobs

    def _is_fetched_from_store(self, revision: str) -> bool:
        driver = self.revisions.drivers.get(revision)
        return driver is not None and publish_target(self.driver) in stores_of(driver)

    @cached_property
    def builds_for_new_tags(self) -> Sequence[SharedBuild]:
        """Builds for kernels that no node has yet.

        This includes the good revision, because a node that gets such a kernel during a rollout is
        assigned the good revision.
        """
        if self.driver.spec.prebuilt.image or not publishes_builds(self.driver):
            return ()
        newest, good = self.revisions.newest, self.revisions.good
        drivers = {newest: self.driver}
        if good != newest and self._is_fetched_from_store(good):
            drivers[good] = self.revisions.drivers[good]
        plain = builds_for_new_tags(
            self.driver, drivers, self.snapshot, self.toolkits.resolutions, self.rebuild
        )
        found = (self._in_order(build) for build in plain)
        return tuple(build for build in found if isinstance(build, SharedBuild))

    def _in_order(self, build: SharedBuild) -> SharedBuild | BuildState | None:
        """Return a build that is not for a pool, with the symbols that it needs."""
        if self._missing_driver:
            return None
        modules = [each for each in self.before() if each.driver.spec.modules]
        finds = [(each.driver.name, each.find_same) for each in modules]
        return with_symbols(build, finds) if finds else build

    @cached_property
    def preflight(self) -> Sequence[PreflightAnswer]:
        if not self.driver.spec.preflight:
            return ()
        desired = {each.build.name for each in self.builds.values()}
        desired |= {build.name for build in self.builds_for_new_tags}
        newest, pools = self.revisions.newest, self.toolkits.resolutions
        order = self._in_order
        return tuple(
            preflight_answers(
                self.driver,
                newest,
                self.snapshot,
                desired,
                pools,
                add_dependencies=order,
                rebuild=self.rebuild,
            )
        )

    @cached_property
    def by_pool(self) -> Mapping[Pool, Supply]:
        """The supply that a pod in each pool would find."""
        return {pool: self._supply_of(pool) for pool in self.toolkits.resolutions}

    @cached_property
    def served_pools(self) -> frozenset[Pool]:
        """Pools where a pod of at least one revision has a supply."""
        return frozenset(p for p, each in self.by_pool.items() if each is not Supply.UNSERVED)

    def _supply_of(self, pool: Pool) -> Supply:
        if not pool.kernel:
            return Supply.UNSERVED
        if self._is_supplied(Assignment(pool, self.revisions.newest)):
            return Supply.SERVED
        good = self.revisions.good
        good_only = good and self._is_supplied(Assignment(pool, good))
        return Supply.ONLY_LAST_GOOD if good_only else Supply.UNSERVED

    def _is_supplied(self, at: Assignment) -> bool:
        """Return whether there is a supply.

        A toolkit image suffices unless a shared build for all nodes is still pending or was
        refused; it is also pending while its toolkit image cannot be resolved yet. Without modules,
        none is needed.
        """
        if not self._has_modules(at.revision):
            return True
        build = self.builds.get(at)
        toolkit = self.toolkits.resolutions[at.pool].image
        awaited = self.toolkits.are_streams_unread and not toolkit and publishes_builds(self.driver)
        if build is None and not awaited:
            prebuilt = self.driver.spec.prebuilt
            return bool(toolkit or prebuilt.sources or prebuilt.image)
        if build is not None and build.progress in (BuildProgress.DONE, BuildProgress.BROKEN):
            return True
        used = {served_assignment(each) for each in self.revisions.daemonsets} | {
            m.at for m in self.members
        }
        return at in used

    def _has_modules(self, revision: str) -> bool:
        return bool(self.revisions.drivers.get(revision, self.driver).spec.modules)

    def builds_on_nodes(self, at: Assignment, existing: DaemonSetObject | None) -> bool:
        """Return whether pods get a build sidecar.

        An existing DaemonSet keeps its choice. A node that comes to a kernel for which the good
        revision is not built yet does not wait.
        """
        if not self._has_modules(at.revision):
            return False
        if at.builds or (existing is not None and existing.toolkit):
            return True
        build = self.builds.get(at)
        if build is None:
            return existing is None or not self.driver.spec.after
        match build.progress:
            case BuildProgress.BROKEN:  # of a build that is ordered anew, the store has the former
                return existing is None or not build.build.rebuild
            case BuildProgress.DONE:
                return False
            case _:
                return existing is None

    def has_bundle(self, at: Assignment) -> bool:
        """Return whether pods without a toolkit container are to fetch a bundle built for all."""
        build = self.builds.get(at)
        if build is None:
            return bool(self.driver.spec.after)
        if build.progress is BuildProgress.BROKEN:
            return bool(build.build.rebuild)
        return build.progress is BuildProgress.DONE


@dataclass(frozen=True)
class Fallbacks:
    """Nodes that build although their pool need not, each by its own report (kernel_images.py).

    `members` are the nodes as observed.
    """

    revisions: Revisions
    members: Sequence[DriverNode]
    supply: ModuleSupply

    def image_of(self, at: Assignment) -> str:
        """Return the driver image for the pods' kernel; "" if they use that of all kernels."""
        driver = self.revisions.drivers.get(at.revision)
        if driver is None or at.builds or not driver.spec.prebuilt.image:
            return ""
        return image_for(driver, at.pool)

    def reason_for(self, member: DriverNode) -> str:
        """Return why the node should build from now on, "" if it should not.

        If the driver works there, a restarted pod can wait until the registry is back.
        """
        at = member.at
        if member.health is Health.WORKING or at is None or at.builds or at.pool != member.pool:
            return ""
        toolkit = self.supply.toolkits.resolutions[at.pool].image
        if image := self.image_of(at):
            can_build = toolkit or self.revisions.driver.spec.prebuilt.sources
            unpulled = member.pull_failure if can_build else ""
            return f"image {image} cannot be pulled ({unpulled})" if unpulled else ""
        waits = self.asks_until(member) > self.revisions.snapshot.now
        return _unusable_bundle_message(member) if self._lacks_bundle(member) and not waits else ""

    def _lacks_bundle(self, member: DriverNode) -> bool:
        """Return whether a node that could build found nothing where its pods fetch a bundle."""
        at = member.at
        if at is None or at.pool != member.pool or at not in self._fetching_assignments:
            return False
        return has_found_no_modules(member) and bool(
            self.supply.toolkits.resolutions[at.pool].image
        )

    def asks_until(self, member: DriverNode) -> float:
        """Return until when a node that lacks its bundle asks the store again; 0.0: it need not.

        It does so only if its pod is older than the node's last start: then it got its modules from
        the store before, in this revision. A new node shows whether the bundle can be used.
        """
        if not self._lacks_bundle(member):
            return 0.0
        created = self._pods_created.get((member.node.name, member.assigned), math.inf)
        came_up = distrust_far_future(member.node.ready_since, self.revisions.snapshot.now)
        return came_up + STORE_PATIENCE if created < came_up else 0.0

    @cached_property
    def _pods_created(self) -> Mapping[tuple[str, str], float]:
        """When the driver pods were created, by node and assignment."""
        pods = self.revisions.snapshot.driver_pods_of(self.revisions.driver.name)
        return {(p.node, assignment_of(p.daemonset)): p.created for p in pods if p.created}

    @cached_property
    def _fetching_assignments(self) -> frozenset[Assignment]:
        """Assignments whose pods have no toolkit container, since a bundle was built for all."""
        ats = (served_assignment(each) for each in self.revisions.daemonsets if not each.toolkit)
        return frozenset(at for at in ats if self.supply.has_bundle(at))

    @cached_property
    def by_assignment(self) -> Mapping[Assignment, str]:
        """Assignments whose pods build although their pool need not, with the reason."""
        found = {m.at: REASON_UNKNOWN for m in self.members if m.at and m.at.builds}
        for member in reversed(self.members):
            if member.at and (reason := self.reason_for(member)):
                found[replace(member.at, builds=True)] = f"{reason}; building instead"
        return found | {
            served_assignment(d): d.fell_back for d in self.revisions.daemonsets if d.fell_back
        }


def _unusable_bundle_message(member: DriverNode) -> str:
    message = member.current_report.message.partition("\n")[0] if member.current_report else ""
    return f"the bundle built for all nodes cannot be used ({member.node.name}: {message})"


def publishes_builds(driver: Driver) -> bool:
    """Return whether the Driver names a store for builds that serve all nodes."""
    return any(source.publish for source in driver.spec.prebuilt.sources)


def _target_of(build: SharedBuild) -> tuple[str, str, str, str | None]:
    return build.toolkit, build.architecture, build.kernel, build.variant

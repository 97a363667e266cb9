"""The top-level planner: turns everything observed into a list of actions. Pure.

Planning is idempotent: once the actions of a plan are carried out, the next plan is empty. Nothing
is remembered here, and an action that is no longer needed is not planned again. Only draining a
node takes several plans, see drain.py. A Driver's plan knows only the modules of other Drivers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, NODE_DRIVERS
from cluster.model.actions import Action, Apply, Delete, Plan, SetFinalizers, together
from cluster.model.names import FINALIZER, config_map_name, policy_name
from cluster.model.snapshot import EMPTY, Assignment, DaemonSetObject, DriverObject, Snapshot, uses
from cluster.plan import build_jobs
from cluster.plan.announce import falls_told, refusals_told, status_changes
from cluster.plan.builds.kernel_images import LINK
from cluster.plan.deletion import again_in, delete, leave, orphans
from cluster.plan.objects.build_job import publish_target
from cluster.plan.objects.daemonset import daemonset, differs, is_same
from cluster.plan.objects.driver_pod import DaemonSetInput
from cluster.plan.objects.node_policy import policy_map, policy_text
from cluster.plan.objects.revision import config_map
from cluster.plan.rollout import drain
from cluster.plan.rollout.context import DriverContext, Memory
from cluster.plan.rollout.drain import let_go, uncordons
from cluster.plan.rollout.unload import Unload
from cluster.plan.settle import is_left, to_rest
from cluster.plan.stage_actions import has_left, stage_objects, take_down, with_stage_labels
from cluster.plan.stages.stages import StagePlan
from cluster.plan.status import conditions
from cluster.plan.status.report import census, report_of
from cluster.plan.status.stages import with_stages
from cluster.plan.unchanged import Unchanged

_SOON = 1.0  # seconds until an object that is being deleted may be gone


class Planner:
    """A repeated planner that reuses earlier results, see memo.py."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}
        self._unchanged = Unchanged()

    def __call__(self, snapshot: Snapshot, now: float) -> Plan:
        there = self._memories
        self._memories = {key: there.get(key) or Memory() for key in snapshot.drivers}
        self._unchanged.look(snapshot)
        return plan(snapshot, now, self._memories, self._unchanged)


def plan(
    snapshot: Snapshot,
    now: float,
    memories: Mapping[str, Memory] = EMPTY,
    unchanged: Unchanged | None = None,
) -> Plan:
    """Returns the actions for every Driver, and the cleanup after Drivers that are gone.

    `now` is the wall clock, used for condition times and deadlines. `memories` is keyed by Driver.
    `memories` and `unchanged` only affect how long this takes, not the result.
    """
    snapshot, unchanged = replace(snapshot, now=now), unchanged or Unchanged()
    plans: list[Plan] = []
    for key in sorted(snapshot.drivers):
        if snapshot.about in ("", key):
            made = unchanged.plan_of(key)
            if made is None:
                made = plan_driver(snapshot, snapshot.drivers[key], now, memories.get(key))
                unchanged.keep(key, made)
            plans.append(made)
    made = together(plans, *orphans(snapshot))
    return replace(made, actions=(*made.actions, *uncordons(snapshot, made.actions)))


def plan_driver(
    snapshot: Snapshot, found: DriverObject, now: float, memory: Memory | None = None
) -> Plan:
    """Returns the actions for one Driver in execution order."""
    if found.deleting:
        made = take_down(snapshot, found, now) or delete(snapshot, found, now)
        return replace(made, actions=(*let_go(snapshot, found.name), *made.actions))
    if found.driver is None or not found.driver.spec.image:
        mistakes = found.mistakes or "spec.image is missing: a cluster needs the driver image"
        said = status_changes(found, conditions.unreadable(found, mistakes, now=now))
        return Plan((*let_go(snapshot, found.name), *said))
    context, labelled = to_rest(
        DriverContext(snapshot, found, found.driver, memory=memory or Memory())
    )
    staging = StagePlan(context)
    # A node with stage pods does not leave before they are gone.
    members = {m.node.name for m in context.members} | context.occupied
    leaving = Unload(snapshot, found, members, now)
    report = report_of(context, leaving)
    status = conditions.status(report, now=now)
    actions = [
        *_finalizer(found),
        *_revisions_made(context),
        *_policy_made(context),
        *_daemonsets_applied(context, snapshot),
        *_words_taken_back(context, snapshot),
        *with_stage_labels(labelled, staging),
        *drain.evictions(context.decisions, found.name, snapshot.occupancy.answers),
        *let_go(snapshot, found.name, {m.node.name for m in context.members}),
        *leave(leaving),
        *build_jobs.wanted(context),
        *_daemonsets_retired(context, snapshot),
        *build_jobs.retired(context),
        *_revisions_dropped(context, leaving.needed),
        *falls_told(found, context.wanted, context.falls, snapshot),
        *status_changes(found, with_stages(staging, status, now)),
        *stage_objects(staging),
    ]
    asked = drain.demand(context.decisions, context.driver)
    due, counted = _again_in(context, snapshot, leaving), {found.name: census(report)}
    return Plan(
        tuple(actions),
        due,
        counted,
        asked,
        context.tags,
        staging.templates,
        alone=_is_alone(context),
    )


def _is_alone(context: DriverContext) -> bool:
    """Returns whether the plan depends only on the Driver's own objects and on nodes.

    It then does not depend on other Drivers' modules or reports, on data that is only known while
    it is requested, or on a fallback to building, which expires.
    """
    spec, in_common = context.driver.spec, context.rivals or context.taken
    asks = spec.rollout.evict or spec.preflight or publish_target(context.driver)
    staged = uses(context.found) or has_left(context.snapshot, context.driver.name)
    proofs = any(not each.image or each.in_doubt for each in context.resolutions.values())
    return not (in_common or asks or staged or proofs or context.falls)


def _again_in(context: DriverContext, snapshot: Snapshot, leaving: Unload) -> float | None:
    """Returns the seconds until the plan may change without any event, or None for never."""
    due = min((member.due - snapshot.now for member in context.members), default=math.inf)
    due = min(due, again_in(leaving) or math.inf)
    due = min(due, drain.again_in(context.decisions, context.driver, context.newest, snapshot.now))
    if any(
        snapshot.daemonsets[key].deleting for key in context.wanted if key in snapshot.daemonsets
    ):
        due = min(due, _SOON)
    return due if due < math.inf else None


def _finalizer(found: DriverObject) -> Iterator[Action]:
    if FINALIZER not in found.finalizers:
        wanted = (*found.finalizers, FINALIZER)
        yield SetFinalizers(found.name, found.uid, wanted, found.version)


def _revisions_made(context: DriverContext) -> Iterator[Action]:
    """Creates the newest revision; older ones cannot be recreated."""
    wanted = config_map_name(context.driver.name, context.newest)
    there = context.snapshot.revisions.get(wanted)
    if there is None or there.document != context.text:
        document = config_map(
            context.found, context.newest, context.text, context.snapshot.settings
        )
        if there is not None:  # it is immutable, and its content does not match its name
            yield Delete(
                context.driver.name,
                CONFIG_MAPS,
                wanted,
                context.snapshot.settings.namespace,
                there.uid,
            )
        yield Apply(context.driver.name, document)


def _policy_made(context: DriverContext) -> Iterator[Action]:
    """Applies the policy before any pod that mounts it; it can change without a new pod."""
    there = context.snapshot.revisions.get(policy_name(context.driver.name))
    if there is None or there.document != policy_text(context.driver):
        yield Apply(
            context.driver.name,
            policy_map(context.found, context.driver, context.snapshot.settings),
        )


def _daemonsets_applied(context: DriverContext, snapshot: Snapshot) -> Iterator[Action]:
    as_wanted, applied = context.memory.daemonsets, list[DaemonSetInput]()
    for key in as_wanted.keys() - context.wanted.keys():
        del as_wanted[key]
    for key in sorted(context.wanted):
        there = snapshot.daemonsets.get(key)
        wanted = _wanted(context, there, context.wanted[key])
        if wanted is None or (there is not None and there.deleting):
            continue
        before = as_wanted.get(key)
        if there and before and before[0] == wanted and is_same(before[1], there):
            continue
        document = daemonset(wanted)
        edited = differs(document, there) if there else None
        if there is None or edited:
            yield Apply(context.driver.name, document, edited)
            applied.append(wanted)
        else:
            as_wanted[key] = wanted, there
    yield from refusals_told(
        applied, DriverContext(snapshot, context.found, context.driver).daemonsets
    )


def _wanted(
    context: DriverContext, there: DaemonSetObject | None, at: Assignment
) -> DaemonSetInput | None:
    """Returns the desired DaemonSet; None if its revision is lost, so that it stays as it is.

    The DaemonSet of a pool without nodes keeps its toolkit until its last node has left. So does
    one whose image stream is unknown.
    """
    driver = context.revisions.get(at.revision)
    if driver is None:
        return None
    resolution = context.resolutions.get(at.pool)
    toolkit, link = (there.toolkit, there.link) if there else ("", "")
    image, fall = context.image(at), context.falls.get(at)
    if image:
        toolkit, link = "", LINK
    elif resolution is not None and (resolution.image or not context.unseen):
        on_nodes = context.builds_on_nodes(at, there)
        toolkit, link = resolution.image if on_nodes else "", resolution.link.value
    return DaemonSetInput(
        context.owner, driver, at.revision, at.pool, toolkit, link, context.snapshot.settings,
        image=image, fell_back=fall.note if fall else "", refused=context.refused(at.pool),
    )  # fmt: skip


def _words_taken_back(context: DriverContext, snapshot: Snapshot) -> Iterator[Delete]:
    """Deletes outdated NodeDrivers before labels are set.

    A node that is assigned back counts as working only after a new report.
    """
    if context.snapshot.node_drivers is not snapshot.node_drivers:
        for name in sorted(snapshot.node_drivers.keys() - context.snapshot.node_drivers.keys()):
            yield Delete(context.driver.name, NODE_DRIVERS, name)


def _daemonsets_retired(context: DriverContext, snapshot: Snapshot) -> Iterator[Action]:
    for found in snapshot.daemonsets.values():
        if not is_left(context, found) and not found.deleting:
            yield Delete(
                context.driver.name,
                DAEMON_SETS,
                found.name,
                context.snapshot.settings.namespace,
                found.uid,
            )


def _revisions_dropped(context: DriverContext, unloading: Collection[str]) -> Iterator[Action]:
    """Deletes revisions that no node runs, is to run or unloads with, and no Job works on."""
    needed = {at.revision for at in context.wanted.values()} | set(unloading)
    needed |= build_jobs.revisions_at_work(context)
    needed |= {context.newest, context.standing.good, ""}  # "" is the shared policy
    for found in context.snapshot.revisions.values():
        if found.driver == context.driver.name and found.revision not in needed:
            yield Delete(
                found.driver,
                CONFIG_MAPS,
                found.name,
                context.snapshot.settings.namespace,
                found.uid,
            )

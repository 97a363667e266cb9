"""The top-level planner: turns everything observed into a list of actions. Pure.

Planning is idempotent: once the actions of a plan are carried out, the next plan at most updates
the status, and the one after it is empty. Nothing is remembered here, and an action that is no
longer needed is not planned again. Only draining a node takes several plans, see drain.py. What
a Driver's plan reads of other Drivers stands in plan_cache.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from cluster.kube.managed_fields import ExistingObject
from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, Resource
from cluster.model.actions import Action, Apply, Delete, Plan, SetFinalizers, merge_plans
from cluster.model.names import FINALIZER, config_map_name, daemonset_name, policy_name
from cluster.model.snapshot import (
    EMPTY,
    Assignment,
    DaemonSetObject,
    DriverObject,
    RevisionObject,
    Snapshot,
)
from cluster.plan import build_jobs
from cluster.plan.announce import fallback_events, refusal_events, set_status
from cluster.plan.assign import node_changes, outdated_reports
from cluster.plan.builds.kernel_images import LINK
from cluster.plan.context.context import Contexts, DriverContext, Memory
from cluster.plan.context.supply import publishes
from cluster.plan.deletion import again_in, delete, delete_orphans, remove_from_nodes
from cluster.plan.objects.daemonset import daemonset, differs, is_same
from cluster.plan.objects.driver_pod import DaemonSetInput
from cluster.plan.objects.node_policy import policy_map, policy_text
from cluster.plan.objects.revision import config_map
from cluster.plan.options import status_parts
from cluster.plan.plan_cache import PlanCache, driver_of_label
from cluster.plan.rollout import drain
from cluster.plan.rollout.drain import end_cordons, remove_drain_labels
from cluster.plan.rollout.unload import DriverUnload
from cluster.plan.stage_actions import admit_pods, delete_stages, stage_objects, with_stage_labels
from cluster.plan.stages.stages import StagePlan
from cluster.plan.status import conditions
from cluster.plan.status.part import merge
from cluster.plan.status.report import node_counts, report_of
from cluster.plan.status.stages import with_stages

_SOON = 1.0  # seconds until an object that is being deleted may be gone


class Planner:
    """A repeated planner that reuses earlier results, see plan_cache.py and memo.py."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}
        self._cache = PlanCache()

    def __call__(self, snapshot: Snapshot, now: float) -> Plan:
        earlier = self._memories
        self._memories = {key: earlier.get(key) or Memory() for key in snapshot.drivers}
        self._cache.update(snapshot, now)
        return plan(snapshot, now, self._memories, self._cache)


def plan(
    snapshot: Snapshot,
    now: float,
    memories: Mapping[str, Memory] = EMPTY,
    cache: PlanCache | None = None,
) -> Plan:
    """Returns the actions for every Driver, and the cleanup after Drivers that are gone.

    `now` is the wall clock, used for condition times and deadlines. `memories` is keyed by Driver.
    `memories` and `cache` only affect how long this takes, not the result.
    """
    snapshot, cache = replace(snapshot, now=now), cache or PlanCache()
    plans: list[Plan] = []
    contexts = Contexts(snapshot, memories)
    for key in sorted(snapshot.drivers):
        if snapshot.about in ("", key):
            of_driver = cache.plan_of(key)
            if of_driver is None:
                of_driver = plan_driver(snapshot, snapshot.drivers[key], now, contexts)
                cache.store(key, of_driver)
            plans.append(of_driver)
    merged = merge_plans(plans, *delete_orphans(snapshot))
    return replace(merged, actions=(*merged.actions, *end_cordons(snapshot, merged.actions)))


def plan_driver(snapshot: Snapshot, resource: DriverObject, now: float, contexts: Contexts) -> Plan:
    """Returns the actions for one Driver in execution order.

    An option is asked only if the Driver uses it, or if something of it is left.
    """
    if resource.deleting:
        removal = delete_stages(snapshot, resource, now) or delete(snapshot, resource, now)
        return replace(
            removal, actions=(*remove_drain_labels(snapshot, resource.name), *removal.actions)
        )
    if resource.driver is None or not resource.driver.spec.image:
        return _plan_of_invalid(snapshot, resource, now)
    context = contexts.of(resource, resource.driver)
    rollout, drains, changes = context.rollout, context.rollout.drains, node_changes(context)
    staging = StagePlan(context) if context.uses_stages else None
    has_jobs = _has_build_jobs(context)
    members = {member.node.name for member in context.members}
    # A node with stage pods does not leave before they are gone.
    leaving = DriverUnload(snapshot, resource, members | rollout.occupied_by_own, now)
    report = report_of(context)
    status = conditions.status(report, merge(status_parts(context, leaving)), now=now)
    steps: list[Iterable[Action]] = [
        _finalizer(resource),
        _create_revision(context),
        _apply_policy(context),
        _apply_daemonsets(context),
        outdated_reports(context, changes),
    ]
    if staging:
        steps += with_stage_labels(changes, staging), admit_pods(staging)
        status = with_stages(staging, status, now)
    else:
        steps.append(changes)
    if drains.rows:
        steps.append(drain.evictions(drains, snapshot.occupancy.answers))
    if context.nodes.marked:
        steps.append(remove_drain_labels(snapshot, resource.name, members))
    if leaving.has_work:
        steps.append(remove_from_nodes(leaving))
    if has_jobs:
        steps.append(build_jobs.create_jobs(context))
    steps.append(_delete_daemonsets(context))
    if has_jobs:
        steps.append(build_jobs.delete_unneeded_jobs(context))
    steps += fallback_events(context), set_status(resource, status)
    steps.append(_delete_revisions(context, leaving.needed, has_jobs))
    if staging:
        steps.append(stage_objects(staging))
    return Plan(
        tuple(chain.from_iterable(steps)),
        again_in=_again_in(context, leaving),
        censuses={resource.name: node_counts(report)},
        demand=drain.demand(drains) if drains.policies else None,
        tags=context.toolkits.tags,
        templates=staging.templates if staging else frozenset(),
        reads_all=_reads_all(context) or (staging is not None and _selects_by_others(staging)),
    )


def _plan_of_invalid(snapshot: Snapshot, resource: DriverObject, now: float) -> Plan:
    mistakes = resource.mistakes or "spec.image is missing: a cluster needs the driver image"
    status = conditions.invalid_spec(resource, mistakes, now=now)
    return Plan((*remove_drain_labels(snapshot, resource.name), *set_status(resource, status)))


def _has_build_jobs(context: DriverContext) -> bool:
    """Returns whether the Driver may have Jobs that build, or has Jobs, be they of stages."""
    if context.driver.spec.preflight or publishes(context.driver):
        return True
    return any(job.driver == context.driver.name for job in context.snapshot.jobs.values())


def _reads_all(context: DriverContext) -> bool:
    """Returns whether the plan depends on more than the Driver's group, see plan_cache.py.

    A pool may take its image from what other Drivers built (toolkit_image.py). A node that waits
    for its pod looks at all DaemonSets (deadlines.py), and a Driver without nodes at the labels of
    all nodes (report.py).
    """
    if context.toolkits.asks_others:
        return True
    name = context.driver.name
    pods = {(p.node, p.daemonset) for p in context.snapshot.pods_of(name) if p.unloader is None}
    if any(
        each.assigned
        and not (each.word and each.word.state)
        and (each.node.name, daemonset_name(name, each.assigned)) not in pods
        for each in context.members
    ):
        return True
    return bool(context.driver.spec.hardware.node_selector) and not context.members


def _selects_by_others(staging: StagePlan) -> bool:
    """Returns whether a manifest of a stage selects nodes by a label of another Driver."""
    steps = staging.steps if staging.active else ()
    selectors = [each for step in steps for _, each in step.daemonsets]
    selectors += [job.selector for step in steps for job in step.jobs]
    return any(
        driver_of_label(key) not in ("", staging.driver) for each in selectors for key in each
    )


def _again_in(context: DriverContext, leaving: DriverUnload) -> float | None:
    """Returns the seconds until the plan may change without any event, or None for never."""
    rollout, daemonsets = context.rollout, context.snapshot.daemonsets
    newest, now = context.revisions.newest, context.snapshot.now
    due = min((member.due - now for member in context.members), default=math.inf)
    if leaving.leavers:
        due = min(due, again_in(leaving) or math.inf)
    if rollout.drains.rows:
        due = min(due, drain.again_in(rollout.drains, newest, now))
    for fallback in context.fallbacks.by_assignment.values():
        due = min(due, fallback.until - now) if fallback.holds(now) else due
    if any(daemonsets[key].deleting for key in rollout.desired if key in daemonsets):
        due = min(due, _SOON)
    return due if due < math.inf else None


def _finalizer(resource: DriverObject) -> Iterator[Action]:
    if FINALIZER not in resource.finalizers:
        finalizers = (*resource.finalizers, FINALIZER)
        yield SetFinalizers(resource.name, resource.uid, finalizers, resource.version)


def _create_revision(context: DriverContext) -> Iterator[Action]:
    """Creates the newest revision; older ones cannot be recreated."""
    driver, newest, text = context.driver.name, context.revisions.newest, context.revisions.text
    existing = context.snapshot.revisions.get(config_map_name(driver, newest))
    if existing is None or existing.document != text:
        if existing is not None:  # it is immutable, and its content does not match its name
            yield _deleted(context, CONFIG_MAPS, existing)
        yield Apply(driver, config_map(context.resource, newest, text, context.snapshot.settings))


def _apply_policy(context: DriverContext) -> Iterator[Action]:
    """Applies the policy before any pod that mounts it; it can change without a new pod."""
    driver, settings = context.driver, context.snapshot.settings
    existing = context.snapshot.revisions.get(policy_name(driver.name))
    if existing is None or existing.document != policy_text(driver):
        over = ExistingObject(existing.stamp) if existing else None
        yield Apply(driver.name, policy_map(context.resource, driver, settings), over)


def _apply_daemonsets(context: DriverContext) -> Iterator[Action]:
    desired, unchanged = context.rollout.desired, context.memory.daemonsets
    applied: list[DaemonSetInput] = []
    for key in unchanged.keys() - desired.keys():
        del unchanged[key]
    for key in sorted(desired):
        existing = context.snapshot.daemonsets.get(key)
        spec = _daemonset_input(context, existing, desired[key])
        if spec is None or (existing is not None and existing.deleting):
            continue
        before = unchanged.get(key)
        if existing and before and before[0] == spec and is_same(before[1], existing):
            continue
        document = daemonset(spec)
        edited = differs(document, existing) if existing else None
        if existing is None or edited:
            yield Apply(context.driver.name, document, edited)
            applied.append(spec)
        else:
            unchanged[key] = spec, existing
    if context.toolkits.refusals:
        yield from refusal_events(applied, context.revisions.daemonsets)


def _daemonset_input(
    context: DriverContext, existing: DaemonSetObject | None, at: Assignment
) -> DaemonSetInput | None:
    """Returns the desired DaemonSet; None if its revision is lost, so that it stays as it is.

    The DaemonSet of a pool without nodes keeps its toolkit until its last node has left. So does
    one whose image stream is unknown.
    """
    driver = context.revisions.drivers.get(at.revision)
    if driver is None:
        return None
    resolution = context.toolkits.resolutions.get(at.pool)
    toolkit, link = (existing.toolkit, existing.link) if existing else ("", "")
    image, fallback = context.fallbacks.image(at), context.fallbacks.by_assignment.get(at)
    if image:
        toolkit, link = "", LINK
    elif resolution is not None and (resolution.image or not context.toolkits.unseen):
        on_nodes = context.supply.builds_on_nodes(at, existing)
        toolkit, link = resolution.image if on_nodes else "", resolution.link.value
    return DaemonSetInput(
        context.owner, driver, at.revision, at.pool, toolkit, link, context.snapshot.settings,
        image=image, fell_back=fallback.annotation if fallback else "",
        refused=context.toolkits.refused(at.pool),
    )  # fmt: skip


def _delete_daemonsets(context: DriverContext) -> Iterator[Action]:
    for each in context.revisions.daemonsets:
        if each.name not in context.rollout.desired and not each.deleting:
            yield _deleted(context, DAEMON_SETS, each)


def _delete_revisions(
    context: DriverContext, unloading: Collection[str], has_jobs: bool
) -> Iterator[Action]:
    """Deletes revisions that no node runs, is to run or unloads with, and no Job works on.

    One of them may be the last good one as far as the status says. Without it, the next rollout
    would have no canaries, so the status comes first.
    """
    needed = {at.revision for at in context.rollout.desired.values()} | set(unloading)
    needed |= build_jobs.revisions_in_jobs(context) if has_jobs else set()
    needed |= {context.revisions.newest, context.rollout.state.good, ""}  # "" is the shared policy
    for each in context.snapshot.revisions.values():
        if each.driver == context.driver.name and each.revision not in needed:
            yield replace(_deleted(context, CONFIG_MAPS, each), of_status=True)


def _deleted(
    context: DriverContext, kind: Resource, each: DaemonSetObject | RevisionObject
) -> Delete:
    namespace = context.snapshot.settings.namespace
    return Delete(context.driver.name, kind, each.name, namespace, each.uid)

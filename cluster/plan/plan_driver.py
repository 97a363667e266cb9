"""The plan of one Driver: the order of everything, with an `if` for each option. Pure.

An option is asked only if the Driver uses it, or if something of it is left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from cluster.driver.daemonset import daemonset_document, has_same_content, object_to_overwrite
from cluster.driver.events import announce_rollout, set_status
from cluster.driver.pod import DaemonSetInput
from cluster.driver.pod_policy import rebuilt_pods_of
from cluster.driver.revisions import config_map, policy_config_map, policy_text, read_revision
from cluster.driver.status import conditions
from cluster.driver.status.inputs import node_counts
from cluster.driver.status.part import merge_parts
from cluster.driver.traces import has_left_traces
from cluster.kube.managed_fields import ExistingObject
from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, Resource
from cluster.model.actions import Action, Apply, Delete, LabelNode, Plan, SetFinalizers
from cluster.model.names import (
    FINALIZER,
    config_map_name,
    daemonset_name,
    driver_of_label,
    policy_name,
)
from cluster.model.snapshot import (
    Assignment,
    DaemonSetObject,
    DriverObject,
    RevisionObject,
    Snapshot,
)
from cluster.options.after import dependency_problem
from cluster.options.build_once.job_manifest import SharedBuild
from cluster.options.build_once.jobs import (
    create_jobs,
    delete_all_jobs,
    delete_unneeded_jobs,
    revisions_in_jobs,
)
from cluster.options.drain import drain
from cluster.options.drain.drain import remove_drain_labels
from cluster.options.kernel_images import LINK
from cluster.options.stages.actions import (
    admit_pods,
    delete_stages,
    reopen_stages,
    stage_objects,
    with_stage_labels,
)
from cluster.options.stages.stage_plan import StagePlan
from cluster.options.stages.status import with_former_stages, with_stages
from cluster.options.unload.deletion import plan_deletion, remove_from_nodes, requeue_after
from cluster.options.unload.nodes import DriverUnload
from cluster.plan.announce import fallback_events, rival_events
from cluster.plan.assign import delete_outdated_reports, node_changes
from cluster.plan.context.context import Contexts, DriverContext
from cluster.plan.context.supply import publishes_builds
from cluster.plan.status_parts import status_inputs, status_parts

KEPT_REVISIONS = 3  # that nothing needs, for `undo`
_SOON = 1.0  # seconds until an object that is being deleted may be gone


def plan_driver(snapshot: Snapshot, resource: DriverObject, now: float, contexts: Contexts) -> Plan:
    """Return the actions for one Driver in execution order."""
    if resource.deleting:
        return _plan_of_deleted(snapshot, resource, now)
    if resource.driver is None or not resource.driver.spec.image:
        return _plan_of_invalid(snapshot, resource)
    return _plan_of_valid(contexts.context_of(resource, resource.driver))


def _plan_of_valid(context: DriverContext) -> Plan:
    snapshot, resource, now = context.snapshot, context.resource, context.snapshot.now
    drains, changes = context.rollout.drains, node_changes(context)
    staging = context.staging if context.uses_stages else None
    builds = desired_builds(context) if _has_build_jobs(context) else None
    members = {member.node.name for member in context.members}
    leaving = _find_leaving_nodes(context, members)
    inputs = status_inputs(context)
    status = conditions.status_of_valid(
        inputs, merge_parts(status_parts(context, leaving)), now=now
    )
    steps: list[Iterable[Action]] = [
        _set_finalizer(resource),
        _create_revision(context),
        _apply_policy(context),
        _apply_daemonsets(context),
        delete_outdated_reports(context, changes),
    ]
    if staging:
        steps += with_stage_labels(changes, staging), admit_pods(staging)
        status = with_stages(staging, status, now)
    else:
        steps.append(changes)
    if drains is not None:
        steps.append(drain.evict_pods(drains, snapshot.occupancy.answers))
    if context.nodes.marked_nodes:
        steps.append(remove_drain_labels(snapshot, resource.name, members))
    if leaving is not None:
        steps.append(remove_from_nodes(leaving))
    if builds is not None:
        selected = [member.node for member in context.members]
        steps.append(create_jobs(builds, resource, snapshot, selected))
    steps.append(_delete_daemonsets(context))
    if builds is not None and _builds_are_known(context):
        steps.append(delete_unneeded_jobs(builds, resource.name, snapshot))
    if context.fallbacks.by_assignment:
        steps.append(fallback_events(context))
    steps += set_status(snapshot, resource, status), announce_rollout(inputs)
    if len(snapshot.drivers) > 1:
        steps.append(rival_events(context))
    steps.append(_delete_revisions(context, leaving, builds or {}))
    if staging:
        steps.append(stage_objects(staging))
    return Plan(
        tuple(chain.from_iterable(steps)),
        requeue_after=_requeue_after(context, leaving),
        node_counts={resource.name: node_counts(inputs)},
        demand=drain.pods_to_watch(drains) if drains is not None else None,
        tags=context.toolkits.tags,
        templates=staging.templates if staging else frozenset(),
        reads_all=_reads_all(context)
        or (staging is not None and _selects_by_other_drivers(staging)),
    )


def _find_leaving_nodes(context: DriverContext, members: Collection[str]) -> DriverUnload | None:
    """Return the nodes that the Driver leaves; None if nothing of it is left on any."""
    snapshot, resource = context.snapshot, context.resource
    # A node with stage pods does not leave before they are gone.
    stay = context.rollout.occupied_by_own.union(members)
    if not has_left_traces(snapshot, resource.name, stay):
        return None
    return DriverUnload(snapshot, resource, stay, snapshot.now)


def _plan_of_deleted(snapshot: Snapshot, resource: DriverObject, now: float) -> Plan:
    """Return the actions that remove stages, then build Jobs, then what is on the nodes."""
    jobs: Iterable[Action] = ()
    removal = delete_stages(snapshot, resource)
    if removal is None:
        removal = plan_deletion(snapshot, resource, now)
        if FINALIZER in resource.finalizers:
            jobs = delete_all_jobs(snapshot, resource.name)
    labels = remove_drain_labels(snapshot, resource.name)
    return replace(removal, actions=(*labels, *jobs, *removal.actions))


def _plan_of_invalid(snapshot: Snapshot, resource: DriverObject) -> Plan:
    """Return the actions that call off what the Driver had begun on nodes."""
    mistakes = resource.mistakes or "spec.image is missing: a cluster needs the driver image"
    status = conditions.status_of_invalid(snapshot, resource, mistakes)
    status = with_former_stages(snapshot, resource, status)
    labels: dict[str, LabelNode] = {}  # one request for each node
    for action in chain(
        remove_drain_labels(snapshot, resource.name), reopen_stages(snapshot, resource.name)
    ):
        before = labels.get(action.node)
        merged = {**before.labels, **action.labels} if before else action.labels
        labels[action.node] = replace(action, labels=merged)
    return Plan((*labels.values(), *set_status(snapshot, resource, status)))


def _has_build_jobs(context: DriverContext) -> bool:
    """Return whether the Driver may have Jobs that build, or has any Jobs, also those of stages."""
    if context.driver.spec.preflight or publishes_builds(context.driver):
        return True
    return any(job.driver == context.driver.name for job in context.snapshot.jobs.values())


def desired_builds(context: DriverContext) -> Mapping[str, SharedBuild]:
    """Return every desired build by the name of its Job."""
    state, supply = context.rollout.state, context.supply
    revisions = (state.newest, state.good)  # the newest may just have become the last good one
    desired = [
        each.build
        for at, each in supply.builds.items()
        if at.revision in revisions and each.is_next
    ]
    desired += supply.with_good_symbols
    desired += supply.builds_for_new_tags
    states = [each.state for each in supply.preflight if each.state is not None]
    desired += [each.build for each in states if each.is_next]
    return {build.name: build for build in reversed(desired)}


def _builds_are_known(context: DriverContext) -> bool:
    """Return whether all desired builds are known.

    They are not while the image streams are unknown, or a Driver that this one comes after is not
    there.
    """
    return not context.toolkits.are_streams_unread and not any(
        dependency_problem(context.snapshot, context.driver)
    )


def _reads_all(context: DriverContext) -> bool:
    """Return whether the plan depends on more than the Driver's group, see plan_cache.py.

    A node that waits for its pod looks at all DaemonSets (deadlines.py), and a Driver without nodes
    at the labels of all nodes (status_parts.py).
    """
    name = context.driver.name
    pods = {(p.node, p.daemonset) for p in context.snapshot.driver_pods_of(name)}
    if any(
        each.assigned
        and not (each.current_report and each.current_report.state)
        and (each.node.name, daemonset_name(name, each.assigned)) not in pods
        for each in context.members
    ):
        return True
    return bool(context.driver.spec.hardware.node_selector) and not context.members


def _selects_by_other_drivers(staging: StagePlan) -> bool:
    """Return whether a manifest of a stage selects nodes by a label of another Driver."""
    steps = staging.steps if staging.is_active else ()
    selectors = [each for step in steps for _, each in step.daemonsets]
    selectors += [job.selector for step in steps for job in step.jobs]
    return any(
        driver_of_label(key) not in ("", staging.driver) for each in selectors for key in each
    )


def _requeue_after(context: DriverContext, leaving: DriverUnload | None) -> float | None:
    """Return the seconds until the plan may change without any event, or None for never."""
    rollout, daemonsets = context.rollout, context.snapshot.daemonsets
    newest, now = context.revisions.newest, context.snapshot.now
    due = min((member.deadline - now for member in context.members), default=math.inf)
    if leaving is not None:
        due = min(due, requeue_after(leaving) or math.inf)
    if rollout.drains is not None:
        due = min(due, drain.requeue_after(rollout.drains, newest, now))
    if any(daemonsets[key].deleting for key in rollout.desired_daemonsets if key in daemonsets):
        due = min(due, _SOON)
    return due if due < math.inf else None


def _set_finalizer(resource: DriverObject) -> Iterator[Action]:
    if FINALIZER not in resource.finalizers:
        finalizers = (*resource.finalizers, FINALIZER)
        yield SetFinalizers(resource.name, resource.uid, finalizers, resource.version)


def _create_revision(context: DriverContext) -> Iterator[Action]:
    """Create the newest revision; older ones cannot be recreated."""
    driver, newest, text = context.driver.name, context.revisions.newest, context.revisions.text
    existing = context.snapshot.revisions.get(config_map_name(driver, newest))
    if existing is None or existing.document != text:
        if existing is not None:  # it is immutable, and its content does not match its name
            yield _delete_object(context, CONFIG_MAPS, existing)
        yield Apply(driver, config_map(context.resource, newest, text, context.snapshot.settings))


def _apply_policy(context: DriverContext) -> Iterator[Action]:
    """Apply the policy before any pod that mounts it; it can change without a new pod."""
    driver, settings = context.driver, context.snapshot.settings
    existing = context.snapshot.revisions.get(policy_name(driver.name))
    if existing is None or existing.document != policy_text(context.resource, driver):
        over = ExistingObject(existing.stamp) if existing else None
        yield Apply(driver.name, policy_config_map(context.resource, driver, settings), over)


def _apply_daemonsets(context: DriverContext) -> Iterator[Action]:
    desired, unchanged = context.rollout.desired_daemonsets, context.memory.daemonsets
    for key in unchanged.keys() - desired.keys():
        del unchanged[key]
    for key in sorted(desired):
        existing = context.snapshot.daemonsets.get(key)
        spec = _daemonset_input(context, existing, desired[key])
        if spec is None or (existing is not None and existing.deleting):
            continue
        before = unchanged.get(key)
        if existing and before and before[0] == spec and has_same_content(before[1], existing):
            continue
        document = daemonset_document(spec)
        edited = object_to_overwrite(document, existing) if existing else None
        if existing is None or edited:
            yield Apply(context.driver.name, document, edited)
        else:
            unchanged[key] = spec, existing


def _daemonset_input(
    context: DriverContext, existing: DaemonSetObject | None, at: Assignment
) -> DaemonSetInput | None:
    """Return the desired DaemonSet; None if its revision is lost, so that it stays as it is.

    The DaemonSet of a pool without nodes keeps its toolkit until its last node has left. So does
    one whose image stream is unknown.
    """
    driver = context.revisions.drivers.get(at.revision)
    if driver is None:
        return None
    resolution = context.toolkits.resolutions.get(at.pool)
    toolkit, link = (existing.toolkit, existing.link) if existing else ("", "")
    image, fell_back = context.fallbacks.image_of(at), context.fallbacks.by_assignment.get(at, "")
    if image:
        toolkit, link = "", LINK
    elif resolution is not None and (resolution.image or not context.toolkits.are_streams_unread):
        on_nodes = context.supply.builds_on_nodes(at, existing)
        if resolution.image or not (at.builds and toolkit):  # what a node has, it keeps
            toolkit, link = resolution.image if on_nodes else "", resolution.link.value
    pods = context.driver.spec.pods
    if context.resource.rebuild:
        pods = rebuilt_pods_of(context.resource)
    return DaemonSetInput(
        context.owner, driver, at.revision, at.pool, toolkit, link, context.snapshot.settings,
        image=image, fell_back=fell_back, pods=pods,
    )  # fmt: skip


def _delete_daemonsets(context: DriverContext) -> Iterator[Action]:
    for each in context.revisions.daemonsets:
        if each.name not in context.rollout.desired_daemonsets and not each.deleting:
            yield _delete_object(context, DAEMON_SETS, each)


def _delete_revisions(
    context: DriverContext, leaving: DriverUnload | None, builds: Mapping[str, SharedBuild]
) -> Iterator[Action]:
    """Delete revisions that no node runs, is to run or unloads with, and no Job works on.

    The good one before the present one stays, and the youngest, so that `nodeside-cluster undo` can
    go back to them.

    The status update comes before them, since until then the status may name one of them as the
    last good revision. Without that revision, the next rollout would have no canaries.
    """
    needed = {at.revision for at in context.rollout.desired_daemonsets.values()}
    needed |= leaving.needed_revisions if leaving is not None else set()
    needed |= revisions_in_jobs(builds, context.driver.name, context.snapshot) if builds else set()
    needed |= {context.revisions.newest, context.rollout.state.good, ""}  # "" is the shared policy
    unneeded = [
        each
        for each in context.snapshot.revisions.values()
        if each.driver == context.driver.name and each.revision not in needed
    ]
    if (surplus := len(unneeded) - KEPT_REVISIONS) > 0:
        status = context.resource.status  # the last good one becomes the previous one by this plan
        were_good = status.get("previousGoodRevision"), status.get("lastGoodRevision")
        unneeded.sort(
            key=lambda each: (
                each.revision in were_good,
                read_revision(each) is not None,
                each.created,
                each.revision,
            )
        )
        for each in unneeded[:surplus]:
            yield replace(_delete_object(context, CONFIG_MAPS, each), of_status=True)


def _delete_object(
    context: DriverContext, kind: Resource, each: DaemonSetObject | RevisionObject
) -> Delete:
    namespace = context.snapshot.settings.namespace
    return Delete(context.driver.name, kind, each.name, namespace, each.uid)

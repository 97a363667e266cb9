"""Actions for stages: node labels, stage objects, and their removal with the Driver.

Pure. Stage labels are sent with those of the driver, in one request per node. Objects have their
own lane, so that a rejection by the API server does not block a rollout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cluster.driver.events import set_status
from cluster.driver.status import conditions
from cluster.driver.status.messages import few_of
from cluster.driver.traces import runs_revision
from cluster.kube.resources import JOBS, PODS
from cluster.model.actions import (
    Action,
    Annotate,
    Apply,
    Cordon,
    Create,
    Delete,
    LabelNode,
    Plan,
)
from cluster.model.lanes import MAIN, LanePart, stages_part
from cluster.model.names import ADMITTED_NOTE, closed_label
from cluster.model.snapshot import DriverObject, Snapshot, StageJob, has_stages
from cluster.model.stage_order import stages_of
from cluster.model.stages import ALLOWED, StageObject
from cluster.options.stages.changes import (
    content_hash,
    deletion_order,
    objects_to_apply,
    objects_to_delete,
)
from cluster.options.stages.job_changes import jobs_to_create, jobs_to_delete
from cluster.options.stages.labels import list_label_changes
from cluster.options.stages.pods import has_leftovers, label_keys
from cluster.options.stages.stage_plan import StagePlan

_RESOURCES = {each.kind: each for each in ALLOWED}


def with_stage_labels(
    labelled: Sequence[LabelNode | Cordon], staging: StagePlan
) -> Iterator[LabelNode | Cordon]:
    """Merge stage labels into the label actions of the driver's own plan."""
    every: dict[str, LabelNode | Cordon] = {action.node: action for action in labelled}
    for action in _stage_labels(staging):
        earlier = every.get(action.node)
        every[action.node] = (
            replace(earlier, labels={**earlier.labels, **action.labels}) if earlier else action
        )
    yield from every.values()


def _stage_labels(staging: StagePlan) -> Iterator[LabelNode]:
    """Yield label changes; without stages, remove the labels left on nodes that were down."""
    if staging.is_active:
        for node, labels, why in list_label_changes(staging):
            yield LabelNode(staging.driver, node.name, labels, why)
    elif (stages := staging.inputs.snapshot.stages) is not None and not stages.unknown:
        yield from _remove_labels(staging.inputs.snapshot, staging.driver)


def admit_pods(staging: StagePlan) -> Iterator[Annotate]:
    """Yield annotations that tell waiting pods: the stage before is ready in this boot."""
    namespace = staging.inputs.snapshot.settings.namespace
    for pod, node in staging.pods_to_admit() if staging.is_active else ():
        yield Annotate(
            staging.driver,
            PODS,
            pod.name,
            namespace,
            pod.uid,
            ADMITTED_NOTE,
            node.boot_id,
            node.name,
        )


def stage_objects(staging: StagePlan) -> Iterator[Action]:
    """Yield the stage objects to apply and delete."""
    if not staging.is_active:
        return
    unwanted, changed = list(objects_to_delete(staging)), list(objects_to_apply(staging))
    ended_jobs, due_jobs = list(jobs_to_delete(staging)), list(jobs_to_create(staging))
    if not (unwanted or changed or ended_jobs or due_jobs):
        return  # the usual case; hashing all documents is slow
    part = stages_part(content_hash(staging))
    namespace = staging.inputs.snapshot.settings.namespace
    yield from (_delete_job(job, namespace, part) for job in ended_jobs)
    for found in unwanted:
        yield _delete_object(found, namespace, part)
    for document, edited in changed:
        yield Apply(staging.driver, document, edited, part)
    yield from (Create(staging.driver, document, node, part) for document, node in due_jobs)


def delete_stages(snapshot: Snapshot, found: DriverObject) -> Plan | None:
    """Remove the stages of a deleted Driver, last one first; None when they are gone."""
    observed = snapshot.stages
    if observed is None or not (has_stages(found) or has_leftovers(snapshot, found.name)):
        rest = tuple(_remove_labels(snapshot, found.name))
        return Plan(rest) if rest else None
    if observed.unknown:
        words = f"its stages cannot be ended: {observed.unknown}"
        return Plan(tuple(_set_status(snapshot, found, words)))
    left = [each for each in observed.objects.values() if each.driver == found.name]
    jobs = snapshot.stage_jobs_of(found.name)
    pods = {pod.stage: [] for pod in observed.pods.values()}  # type: dict[str, list[str]]
    for pod in observed.pods.values():
        if pod.driver == found.name and not pod.over and _delays_deletion(snapshot, pod.node):
            pods[pod.stage].append(pod.node)
    stages = {each.stage for each in left} | {job.run.stage for job in jobs}
    stages |= {stage for stage, nodes in pods.items() if nodes}
    if not stages:
        labels = tuple(_remove_labels(snapshot, found.name))
        return Plan(labels) if labels else None
    last = max(stages, key=lambda stage: _stage_order(found, stage))
    gone = sorted((each for each in left if each.stage == last), key=deletion_order)
    namespace = snapshot.settings.namespace
    where = few_of(sorted(pods.get(last, ())))
    words = f"stage {last} ends" + (f": pods on {where}" if where else "")
    over = [job for job in jobs if job.run.stage == last and not job.deleting]
    ending = [_delete_job(job, namespace) for job in over]
    ending += [_delete_object(each, namespace) for each in gone if not each.deleting]
    return Plan((*ending, *_set_status(snapshot, found, words)))


def _delete_object(existing: StageObject, namespace: str, part: LanePart = MAIN) -> Delete:
    resource = _RESOURCES[existing.kind]
    return Delete(existing.driver, resource, existing.name, namespace, existing.uid, part)


def _delete_job(job: StageJob, namespace: str, part: LanePart = MAIN) -> Delete:
    return Delete(job.driver, JOBS, job.name, namespace, job.uid, part)


def _set_status(snapshot: Snapshot, found: DriverObject, words: str) -> Iterator[Action]:
    return set_status(
        snapshot, found, conditions.status_of_deleting(found, words, now=snapshot.now)
    )


def _delays_deletion(snapshot: Snapshot, node: str) -> bool:
    """Return whether a node's pods delay removal; those of a node that is down never end."""
    return node in snapshot.nodes and snapshot.nodes[node].ready


def _stage_order(found: DriverObject, stage: str) -> tuple[int, str]:
    """Return the sort key of a stage; one that is no longer listed comes last, and ends first."""
    if found.driver is not None:
        order = [each.name for each in stages_of(found.driver.spec)]
    else:
        order = [row["name"] for row in found.status.get("stages", ())]
    return (order.index(stage) if stage in order else len(order), stage)


def reopen_stages(snapshot: Snapshot, driver: str) -> Iterator[LabelNode]:
    """Remove the label that closes stages where an invalid Driver works: no change will come."""
    closed = closed_label(driver)
    for node in snapshot.nodes.values():
        if closed in node.labels and node.ready and runs_revision(snapshot, driver, node):
            yield LabelNode(driver, node.name, {closed: None}, "its change is called off")


def _remove_labels(snapshot: Snapshot, driver: str) -> Iterator[LabelNode]:
    for node in snapshot.nodes.values():
        keys = sorted(label_keys(driver, node))
        if keys:
            yield LabelNode(driver, node.name, dict.fromkeys(keys), "its stages have ended")

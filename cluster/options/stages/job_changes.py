"""The Jobs of stages to create and to delete. Pure.

A running Job leaves a node when the pods of a DaemonSet would: when the stages are closed there, or
when the driver or the stage before is not ready any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from cluster.model.names import stage_label
from cluster.model.snapshot import Node, StageJob
from cluster.model.states import Health
from cluster.options.stages.job_runs import AT_ONCE, JobManifest
from cluster.options.stages.pods import is_open
from cluster.options.stages.stage_plan import StagePlan
from cluster.options.stages.stage_state import Document, StageState

_IN_A_PLAN = 200  # Jobs deleted in one plan; the next plan follows when they are gone


def jobs_to_create(staging: StagePlan) -> Iterator[tuple[Document, str]]:
    """Yield Jobs to create, each with the only node it is for, "" for any."""
    runs, room = staging.runs, max(0, AT_ONCE - staging.runs.active_count)
    for step in staging.steps:
        for manifest in step.jobs if step.opened and not step.error else ():
            nodes = [m.node for m in staging.working_members if _gate_admits(staging, step, m.node)]
            if manifest.per_node:
                due = (node for node in nodes if _is_due(staging, step, manifest, node))
                for node in islice(due, room):
                    room -= 1
                    mark = runs.mark_of(node)
                    yield (
                        manifest.job_of_run(runs.job_name(manifest, mark), mark, node.name),
                        node.name,
                    )
            elif nodes and _is_due(staging, step, manifest, None):
                mark = runs.mark_of(None)
                yield manifest.job_of_run(runs.job_name(manifest, mark), mark), ""


def _is_due(staging: StagePlan, step: StageState, manifest: JobManifest, node: Node | None) -> bool:
    runs = staging.runs
    if node is not None and not staging.selects_node(step, manifest.selector, node):
        return False
    missing = bool(runs.mark_of(node)) and runs.current_job(manifest, node) is None
    return missing and runs.is_free(manifest, node)


def _gate_admits(staging: StagePlan, step: StageState, node: Node) -> bool:
    """Return whether the gate of a stage lets pods onto a node."""
    before = not step.after or stage_label(staging.driver, step.after) in node.labels
    return before and is_open(staging.driver, node)


def jobs_to_delete(staging: StagePlan) -> Iterator[StageJob]:
    """Yield Jobs that are in the way or that nothing needs any more, running ones first."""
    steps = {step.name: step for step in staging.steps}
    held = {member.node.name for member in staging.inputs.ending}
    gone = [
        job
        for job in staging.runs.every
        if not job.deleting and _must_end(staging, steps.get(job.run.stage), job, held)
    ]
    return islice(sorted(gone, key=lambda job: (job.finished, job.name)), _IN_A_PLAN)


def _must_end(
    staging: StagePlan, step: StageState | None, job: StageJob, held: Collection[str]
) -> bool:
    if step is None or (not job.finished and _is_gate_closed(staging, step, job, held)):
        return True
    if step.error:  # its manifests are unknown
        return False
    manifest = next((each for each in step.jobs if each.name == job.run.job), None)
    if manifest is None or manifest.per_node != bool(job.run.node):
        return True
    if job.run.node:
        return _ends_on_node(staging, step, manifest, job)
    return job is not staging.runs.current_job(manifest)


def _is_gate_closed(
    staging: StagePlan, step: StageState, job: StageJob, held: Collection[str]
) -> bool:
    """Return whether a Job has a pod, or is about to have one, where its stage may not run."""
    found = (staging.inputs.snapshot.nodes.get(name) for name in staging.runs.nodes_of(job))
    return any(
        node.ready and (node.name in held or not _gate_admits(staging, step, node))
        for node in found
        if node is not None
    )


def _ends_on_node(
    staging: StagePlan, step: StageState, manifest: JobManifest, job: StageJob
) -> bool:
    """Return whether a Job for one node has to go: it is neither due nor a record that counts."""
    node = staging.inputs.snapshot.nodes.get(job.run.node)
    health = staging.healths.get(job.run.node)
    if node is None or health is None or not staging.selects_node(step, manifest.selector, node):
        return True
    if health is Health.DOWN:
        return False
    mark = staging.runs.mark_of(node)
    if job.run.mark != mark:  # of another boot or revision; a node without either keeps its Jobs
        return bool(mark)
    # A completed run of another manifest counts until the new one has completed.
    current = staging.runs.current_job(manifest, node)
    counts = job.has_completed and not (current and current.has_completed)
    return job is not current and not counts

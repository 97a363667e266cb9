"""The build Jobs of a Driver: creation, recording of outcomes, and deletion.

Pure. `desired` are builds by the name of their Job. A Job is created once and never changed. A
failed Job stays, so that the build is not retried endlessly. Deleting the Job triggers another
try; a Job whose pod no node takes is deleted when the policy for its pods has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cluster.kube.resources import JOBS
from cluster.model.actions import Action, Annotate, Apply, Delete, EmitEvent
from cluster.model.names import APPLIED_NOTE, OUTCOME_NOTE
from cluster.model.snapshot import BuildJob, DriverObject, JobObject, Node, Snapshot
from cluster.options.build_once.builds import outcome_of, unscheduled_pod
from cluster.options.build_once.job_manifest import SharedBuild, build_job, tolerations_for
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict, termination_message


def create_jobs(
    desired: Mapping[str, SharedBuild],
    resource: DriverObject,
    snapshot: Snapshot,
    nodes: Iterable[Node],
) -> Iterator[Action]:
    """Yield actions that create missing Jobs and record the outcome of those that ended.

    A Job whose pod no node takes is deleted if it would be created with another document now.
    `nodes` are those that the Driver selects: Jobs tolerate their taints.
    """
    settings = snapshot.settings
    for name, build in sorted(desired.items()):
        existing = snapshot.build_jobs.get(name)
        if existing is None:
            yield Apply(resource.name, build_job(build, resource, settings, tolerations_for(nodes)))
        elif unscheduled_pod(snapshot, name) and not existing.deleting:
            document = build_job(build, resource, settings, tolerations_for(nodes))
            if _is_outdated(existing, document):
                yield _delete_job(snapshot, existing)
        elif existing.outcome is None and (outcome := outcome_of(existing, snapshot)) is not None:
            note = termination_message(outcome)
            yield Annotate(
                resource.name,
                JOBS,
                name,
                settings.namespace,
                existing.uid,
                OUTCOME_NOTE,
                note,
            )
            yield _outcome_event(resource, build, outcome)


def _is_outdated(existing: BuildJob, document: Mapping[str, Any]) -> bool:
    """Return whether a Job was created with another document; False if that is not known."""
    return existing.applied not in ("", document["metadata"]["annotations"][APPLIED_NOTE])


def delete_unneeded_jobs(
    desired: Mapping[str, SharedBuild], driver: str, snapshot: Snapshot
) -> Iterator[Action]:
    """Delete Jobs that are no longer desired."""
    for each in build_jobs_of(snapshot, driver):
        if each.name not in desired:
            yield _delete_job(snapshot, each)


def revisions_in_jobs(
    desired: Mapping[str, SharedBuild], driver: str, snapshot: Snapshot
) -> set[str]:
    """Return the revisions that unfinished desired Jobs mount.

    A Job may mount an older revision that builds the same as the newest.
    """
    jobs = build_jobs_of(snapshot, driver)
    return {
        build_job.revision
        for build_job in jobs
        if build_job.name in desired and not build_job.finished
    }


def build_jobs_of(snapshot: Snapshot, driver: str) -> Iterator[BuildJob]:
    """Yield the build Jobs of a Driver that are not being deleted yet."""
    jobs = snapshot.build_jobs.values()
    return (
        build_job for build_job in jobs if build_job.driver == driver and not build_job.deleting
    )


def delete_all_jobs(snapshot: Snapshot, driver: str) -> Iterator[Action]:
    """Delete all Jobs of a Driver that is being deleted, also those of its stages."""
    for each in snapshot.jobs.values():
        if each.driver == driver and not each.deleting:
            yield _delete_job(snapshot, each)


def _delete_job(snapshot: Snapshot, existing: JobObject) -> Delete:
    return Delete(existing.driver, JOBS, existing.name, snapshot.settings.namespace, existing.uid)


def _outcome_event(resource: DriverObject, build: SharedBuild, outcome: BuildOutcome) -> EmitEvent:
    failed = outcome.verdict in (BuildVerdict.REFUSED, BuildVerdict.BROKEN)
    reason = "BuildFailed" if failed else "Built"
    words = outcome.failure_in_words() if failed else outcome.message
    note = f"Job {build.name}, {outcome.kernel or build.description}: {words}"
    return EmitEvent(resource.name, resource.uid, failed, reason, note)

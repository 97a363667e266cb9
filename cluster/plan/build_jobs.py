"""The build Jobs of a Driver: creation, recording of outcomes, and deletion.

Pure. A Job is created once and never changed. A failed Job stays, so that the build is not retried
endlessly. Deleting the Job triggers another try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cluster.kube.resources import JOBS
from cluster.model.actions import Action, Annotate, Apply, Delete, EmitEvent
from cluster.model.names import OUTCOME_NOTE
from cluster.model.snapshot import JobObject, Snapshot
from cluster.plan.builds.builds import outcome_of
from cluster.plan.context.context import DriverContext
from cluster.plan.nodes.neighbours import dependency_problem
from cluster.plan.objects.build_job import SharedBuild, job
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict, termination_message


def builds(context: DriverContext) -> Mapping[str, SharedBuild]:
    """Returns every desired build by the name of its Job."""
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


def create_jobs(context: DriverContext) -> Iterator[Action]:
    """Yields actions that create missing Jobs and record the outcome of those that ended."""
    snapshot, settings = context.snapshot, context.snapshot.settings
    for name, build in sorted(builds(context).items()):
        existing = snapshot.jobs.get(name)
        if existing is None:
            yield Apply(context.driver.name, job(build, context.resource, settings))
        elif existing.outcome is None and (outcome := outcome_of(existing, snapshot)) is not None:
            note = termination_message(outcome)
            yield Annotate(
                context.driver.name,
                JOBS,
                name,
                settings.namespace,
                existing.uid,
                OUTCOME_NOTE,
                note,
            )
            yield _event(context, build, outcome)


def delete_unneeded_jobs(context: DriverContext) -> Iterator[Action]:
    """Deletes Jobs that are no longer desired.

    Deletes none while the image streams are unknown, or a Driver that this one comes after is not
    there: then the desired builds are unknown too.
    """
    if context.toolkits.unseen or any(dependency_problem(context.snapshot, context.driver)):
        return
    desired = builds(context)
    yield from (
        _delete(context.snapshot, each)
        for each in build_jobs_of(context.snapshot, context.driver.name)
        if each.name not in desired
    )


def revisions_in_jobs(context: DriverContext) -> set[str]:
    """Returns the revisions that running Jobs mount.

    The Job may mount an older revision that builds the same as the newest.
    """
    desired = builds(context)
    jobs = build_jobs_of(context.snapshot, context.driver.name)
    return {job.revision for job in jobs if job.name in desired and not job.finished}


def build_jobs_of(snapshot: Snapshot, driver: str) -> Iterator[JobObject]:
    """Yields the build Jobs of a Driver that are not being deleted yet."""
    return (job for job in _jobs_of(snapshot, driver) if job.run is None)


def delete_all_jobs(snapshot: Snapshot, driver: str) -> Iterator[Action]:
    """Deletes all Jobs of a Driver that is being deleted."""
    return (_delete(snapshot, each) for each in _jobs_of(snapshot, driver))


def _jobs_of(snapshot: Snapshot, driver: str) -> Iterator[JobObject]:
    return (job for job in snapshot.jobs.values() if job.driver == driver and not job.deleting)


def _delete(snapshot: Snapshot, existing: JobObject) -> Delete:
    return Delete(existing.driver, JOBS, existing.name, snapshot.settings.namespace, existing.uid)


def _event(context: DriverContext, build: SharedBuild, outcome: BuildOutcome) -> EmitEvent:
    failed = outcome.verdict in (BuildVerdict.REFUSED, BuildVerdict.BROKEN)
    reason = "BuildFailed" if failed else "Built"
    words = outcome.words if failed else outcome.message
    note = f"Job {build.name}, {outcome.kernel or build.what}: {words}"
    return EmitEvent(context.driver.name, context.resource.uid, failed, reason, note)

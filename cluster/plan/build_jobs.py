"""The build Jobs of a Driver: made where one is wanted, noted what came of it, retired.

Pure. A Job is made once: nothing in it is ever changed, and one that failed stays, so that it is
not tried for ever. Who deletes it has it tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cluster.kube.resources import JOBS
from cluster.model.actions import Action, AnnotateJob, Apply, Delete, EmitEvent
from cluster.model.snapshot import JobObject, Snapshot
from cluster.plan.builds.builds import outcome_of
from cluster.plan.objects.build_job import Build, job
from cluster.plan.rollout.context import DriverContext
from nodeside.buildjob import BuildOutcome, BuildVerdict, termination_message


def builds(case: DriverContext) -> Mapping[str, Build]:
    """Every build that is wanted, by the name of its Job."""
    revisions = (case.newest, case.standing.good)  # the newest may just have become the good one
    found = [each.build for at, each in case.builds.items() if at.revision in revisions]
    found += case.coming
    found += [each.found.build for each in case.preflight if each.found is not None]
    return {build.name: build for build in reversed(found)}


def wanted(case: DriverContext) -> Iterator[Action]:
    """Jobs that are missing, and what came of those that have ended."""
    settings = case.world.settings
    for name, build in sorted(builds(case).items()):
        there = case.world.jobs.get(name)
        if there is None:
            yield Apply(case.driver.name, job(build, case.found, settings))
        elif there.outcome is None and (outcome := outcome_of(there, case.world)) is not None:
            note = termination_message(outcome)
            yield AnnotateJob(case.driver.name, name, settings.namespace, there.uid, note)
            yield _said(case, build, outcome)


def retired(case: DriverContext) -> Iterator[Action]:
    """While the image streams are not known, what is wanted is not known either."""
    if case.unseen:
        return
    kept = builds(case)
    yield from (
        _deleted(case.world, each)
        for each in of(case.world, case.driver.name)
        if each.name not in kept
    )


def revisions_at_work(case: DriverContext) -> set[str]:
    """Those that Jobs mount which go on: an older one may build the same as the newest."""
    kept = builds(case)
    mine = of(case.world, case.driver.name)
    return {job.revision for job in mine if job.name in kept and not job.finished}


def of(world: Snapshot, driver: str) -> Iterator[JobObject]:
    """The Jobs of a Driver that are not going already."""
    return (job for job in world.jobs.values() if job.driver == driver and not job.deleting)


def deleted(world: Snapshot, driver: str) -> Iterator[Action]:
    """All of them, since the Driver is going."""
    return (_deleted(world, each) for each in of(world, driver))


def _deleted(world: Snapshot, found: JobObject) -> Delete:
    return Delete(found.driver, JOBS, found.name, world.settings.namespace, found.uid)


def _said(case: DriverContext, build: Build, outcome: BuildOutcome) -> EmitEvent:
    failed = outcome.verdict in (BuildVerdict.REFUSED, BuildVerdict.BROKEN)
    reason = "BuildFailed" if failed else "Built"
    words = outcome.words if failed else outcome.message
    note = f"Job {build.name}, {outcome.kernel or build.what}: {words}"
    return EmitEvent(case.driver.name, case.found.uid, failed, reason, note)

"""Builds that run once for all nodes of a kernel: which are desired, and the state of each.

Pure. A Job's outcome is the report of its last step. If only Kubernetes reports a failure, the
outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cluster.driver.toolkit_image import Link, Resolution, stream_of
from cluster.model.coreos import parse_coreos_version, tag_order
from cluster.model.snapshot import BuildJob, BuildPod, ImageStream, Pool, Snapshot
from cluster.model.states import BuildProgress
from cluster.model.waiting import Waiting
from cluster.options.build_once.job_manifest import SharedBuild, publish_target
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict, kernel_variant
from nodeside.spec import Driver

COMING_TAGS = 2  # tags to build for: the newest of those later than the one that a pool runs


@dataclass(frozen=True, slots=True)
class BuildState:
    """A build and its state. `outcome` is None until the build has one.

    `is_next` is false while another build has to come first. `is_unscheduled` means that the
    scheduler finds no node for its pod.
    """

    build: SharedBuild
    progress: BuildProgress
    words: str
    outcome: BuildOutcome | None = None
    is_next: bool = True
    is_unscheduled: bool = False


def build_of(
    driver: Driver,
    revision: str,
    pool: Pool,
    resolution: Resolution,
    publish: str,
    *,
    rebuild: str = "",
) -> SharedBuild:
    """Return the build for a pool.

    A toolkit found by OS version builds for its own kernel of the pool's variant. So this build is
    the same as the one that was made before any node had that kernel.
    """
    named = resolution.link in (Link.MAP, Link.TEMPLATE)
    return SharedBuild(
        driver=driver,
        revision=revision,
        toolkit=resolution.image,
        architecture=pool.architecture,
        publish=publish,
        kernel=pool.kernel if named else "",
        variant=None if named else kernel_variant(pool.kernel),
        rebuild=rebuild,
    )


def build_state(build: SharedBuild, snapshot: Snapshot, kernel: str = "") -> BuildState:
    """Return the state of a build, for nodes with `kernel` if it is given."""
    job = snapshot.build_jobs.get(build.name)
    outcome = outcome_of(job, snapshot) if job is not None else None
    if outcome is None:
        if found := _waiting_container(snapshot, build.name):
            words = f"the build's pod cannot start: {found[0]}: {found[1]}"
            return BuildState(build, BuildProgress.BROKEN, words)
        if why := unscheduled_pod(snapshot, build.name):
            words = f"no node for the pod of Job {build.name}: {why.message or why.reason}"
            return BuildState(build, BuildProgress.RUNNING, words, is_unscheduled=True)
        return BuildState(
            build, BuildProgress.RUNNING, f"Job {build.name} builds for {build.description}"
        )
    return BuildState(build, *_progress_of(outcome, kernel), outcome)


def _progress_of(outcome: BuildOutcome, kernel: str) -> tuple[BuildProgress, str]:
    match outcome.verdict:
        case BuildVerdict.REFUSED:
            return BuildProgress.REFUSED, outcome.failure_in_words()
        case BuildVerdict.BROKEN:
            return (
                BuildProgress.BROKEN,
                f"the build failed: {outcome.reason}: {outcome.failure_in_words()}",
            )
    if kernel and outcome.kernel != kernel:
        return BuildProgress.BROKEN, f"the toolkit image has kernel {outcome.kernel}, not {kernel}"
    return BuildProgress.DONE, outcome.message


def outcome_of(job: BuildJob, snapshot: Snapshot) -> BuildOutcome | None:
    """Return the outcome of a Job, None while it may still finish on its own."""
    if job.outcome is not None or not job.finished:
        return job.outcome
    pods = sorted(_pods_of_job(snapshot, job.name), key=lambda pod: (pod.created, pod.name))
    for pod in reversed(pods):
        if pod.outcome is not None:
            return pod.outcome
    words = next((pod.ended for pod in reversed(pods) if pod.ended), "")
    words = "; ".join(part for part in (words, job.why) if part) or "its pod reported nothing"
    return BuildOutcome(BuildVerdict.BROKEN, reason="BuildLost", message=words)


def _pods_of_job(snapshot: Snapshot, job: str) -> Iterator[BuildPod]:
    return (pod for pod in snapshot.build_pods.values() if pod.job == job)


def _waiting_container(snapshot: Snapshot, job: str) -> tuple[str, Waiting] | None:
    """Return a container of a build that cannot start, and why; None if there is none.

    Nodes do not wait for a build that may never come. An unschedulable pod does not count: it may
    be scheduled later, or the deadline of its Job ends it.
    """
    found = (
        (name, why)
        for pod in _pods_of_job(snapshot, job)
        for name, why in pod.waiting.items()
        if name != "pod"
    )
    return next(found, None)


def unscheduled_pod(snapshot: Snapshot, job: str) -> Waiting | None:
    """Return why a pod of a Job has no node, None if each has one."""
    found = (pod.waiting["pod"] for pod in _pods_of_job(snapshot, job) if "pod" in pod.waiting)
    return next(found, None)


# --- before the reboot ---------------------------------------------------------------------------


def builds_for_new_tags(
    driver: Driver,
    revisions: Mapping[str, Driver],
    snapshot: Snapshot,
    resolutions: Mapping[Pool, Resolution],
    rebuild: str = "",
) -> Iterator[SharedBuild]:
    """Yield builds of these revisions for the newest tags that a pool may get next.

    `driver` defines where toolkits are found and modules are published. Pools of the same variant
    share a build.
    """
    publish, toolkit = publish_target(driver), driver.spec.toolkit
    stream = stream_of(toolkit, snapshot.image_streams)
    if not publish or stream is None:
        return
    targets = {
        (tag_order(tag), pool.architecture, kernel_variant(pool.kernel))
        for pool, resolution in resolutions.items()
        if resolution.link.is_from_stream
        for tag in _coming_tags(pool, resolution.image, stream)
    }
    for (_, tag), architecture, variant in sorted(targets):
        image = stream.tags[tag]
        for revision, source in revisions.items():
            yield SharedBuild(
                source, revision, image, architecture, publish, variant=variant, rebuild=rebuild
            )


def _coming_tags(pool: Pool, image: str, stream: ImageStream) -> list[str]:
    """Return the newest tags of the pool's RHEL that are later than the one that the pool runs.

    A pool whose OS version is not one of CoreOS runs the tag of its toolkit image.
    """
    versions = {tag: version for tag in stream.tags if (version := parse_coreos_version(tag))}
    of_image = (version for tag, version in versions.items() if stream.tags[tag] == image)
    now = parse_coreos_version(pool.os_version) or max(of_image, default=None)
    if now is None:
        return []
    later = (tag for tag, each in versions.items() if each.major == now.major and each > now)
    return sorted(later, key=tag_order)[-COMING_TAGS:]

"""The Jobs of a Driver's stages: whether each has run, and the Job for a run that has not begun.

Pure. A run is one Job object. A Job that runs once for all nodes has one run for the revision that
new nodes get; a Job per node has one on each node, for its revision in this boot. The Job object is
created once and never changed, so its name has a hash of all that a new run depends on. A completed
one stays, as the record of its run.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from cluster.model.names import APPLIED_NOTE, JOB_NOTE, NODE_NOTE, RUN_MARK_NOTE, run_mark, run_name
from cluster.model.snapshot import Node, StageJob, StageRun
from cluster.model.stages import StagePod
from cluster.options.stages.job_manifests import is_per_node
from cluster.options.stages.manifests import AFFINITY

Document = Mapping[str, Any]

AT_ONCE: Final = 100  # Jobs per node of a Driver that run at once
# The pods of Jobs per node tolerate a cordon, as those of DaemonSets do.
_CORDON_TOLERATION: Final = {
    "key": "node.kubernetes.io/unschedulable",
    "operator": "Exists",
    "effect": "NoSchedule",
}


@dataclass(frozen=True)
class JobManifest:
    """A Job in the manifests of a stage, completed and gated."""

    stage: str
    document: Document

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @cached_property
    def per_node(self) -> bool:
        return is_per_node(self.document)

    @property
    def selector(self) -> Mapping[str, str]:
        """Returns the node labels that its author selects, and those of the gate."""
        selector: Mapping[str, str] = self.document["spec"]["template"]["spec"]["nodeSelector"]
        return selector

    @property
    def content_hash(self) -> str:
        return str(self.document["metadata"]["annotations"][APPLIED_NOTE])

    def job_of_run(self, name: str, mark: str, node: str = "") -> dict[str, Any]:
        """Return the Job of one run; with `node`, its pod can only run there."""
        document: dict[str, Any] = copy.deepcopy(dict(self.document))
        metadata, pod = document["metadata"], document["spec"]["template"]["spec"]
        notes = {JOB_NOTE: self.name, NODE_NOTE: node, RUN_MARK_NOTE: mark}
        document["metadata"] = {
            **metadata,
            "name": name,
            "annotations": {**metadata["annotations"], **notes},
        }
        # A pod may outlive its Job; its annotations say which runs have to wait for it.
        of_pod = document["spec"]["template"].setdefault("metadata", {})
        run = {JOB_NOTE: self.name, NODE_NOTE: node}
        of_pod["annotations"] = {**of_pod.get("annotations", {}), **run}
        if node:
            [term] = pod["affinity"]["nodeAffinity"][AFFINITY]["nodeSelectorTerms"]
            here = {"key": "metadata.name", "operator": "In", "values": [node]}
            term["matchFields"] = [here]
            pod["tolerations"] = [*pod.get("tolerations", ()), _CORDON_TOLERATION]
        return document


@dataclass(frozen=True)
class JobRuns:
    """The runs of a Driver's stages.

    `revision` is the one that new nodes get, `revisions` those of its nodes, by name. `pods` are by
    uid of their Job; pods on nodes that are not `up` are left out, since they may never end.
    """

    driver: str
    namespace: str
    revision: str
    revisions: Mapping[str, str]
    every: Sequence[StageJob]
    pods: Mapping[str, Sequence[StagePod]]
    up: Collection[str]

    @cached_property
    def _by_name(self) -> Mapping[str, StageJob]:
        return {job.name: job for job in self.every}

    @cached_property
    def _by_run(self) -> Mapping[StageRun, Sequence[StageJob]]:
        """Returns the Jobs by run: of the present manifest and of earlier ones."""
        jobs: dict[StageRun, list[StageJob]] = {}
        for job in self.every:
            jobs.setdefault(job.run, []).append(job)
        return jobs

    @cached_property
    def active_count(self) -> int:
        """Returns how many Jobs per node run, without those on nodes that are down."""
        return sum(job.run.node in self.up and not job.finished for job in self.every)

    def mark_of(self, node: Node | None) -> str:
        """Return the mark of the runs on a node, "" if its boot or revision is unknown.

        Without a node, return the mark of the runs of Jobs that run once for all nodes.
        """
        if node is None:
            return run_mark("", "", self.revision)
        revision = self.revisions.get(node.name, "")
        known = node.boot_id and revision
        return run_mark(node.uid, node.boot_id, revision) if known else ""

    def job_name(self, manifest: JobManifest, mark: str) -> str:
        return run_name(self.driver, manifest.stage, manifest.name, mark, manifest.content_hash)

    def current_job(self, manifest: JobManifest, node: Node | None = None) -> StageJob | None:
        """Return the Job of the run that is due, None if it does not exist."""
        mark = self.mark_of(node)
        return self._by_name.get(self.job_name(manifest, mark)) if mark else None

    def has_completed(self, manifest: JobManifest, node: Node) -> bool:
        """Return whether a run of this revision and boot has completed, with any manifest.

        So the later stages do not end when only the manifest changes.
        """
        run = StageRun(manifest.stage, manifest.name, node.name, self.mark_of(node))
        return any(job.has_completed for job in self._by_run.get(run, ()))

    def missing_message(self, manifest: JobManifest, node: Node | None = None) -> str:
        """Return why a run that is due has not completed, "" if it has."""
        job, there = self.current_job(manifest, node), " there" if node else ""
        if job is None:
            why = f": {AT_ONCE} run already" if node and self.active_count >= AT_ONCE else ""
            if left := self._orphaned_pods.get(_place_of(manifest, node)):
                why = (
                    f": pod {left.name} of an earlier run does not end on {left.node}: "
                    f"kubectl -n {self.namespace} describe pod {left.name}"
                )
            return f"Job {manifest.name} has not begun{there} yet{why}"
        if job.why:
            return self._failure_in_words(manifest, job, there)
        if job.finished:
            return ""
        last = self._pod_failure(job)
        on = min((f" on {pod.node}" for pod in self._live_pods(job) if pod.node), default="")
        return f"Job {manifest.name} runs{there or on}" + (f", again after {last}" if last else "")

    def failure_message(self, manifest: JobManifest, node: Node | None = None) -> str:
        """Return how the run that is due failed, "" if it did not."""
        job = self.current_job(manifest, node)
        return self.missing_message(manifest, node) if job and job.why else ""

    def _failure_in_words(self, manifest: JobManifest, job: StageJob, there: str) -> str:
        words = "; ".join(filter(None, (job.why, self._pod_failure(job))))
        return (
            f"Job {manifest.name} failed{there}: {words}: kubectl -n {self.namespace} logs "
            f"job/{job.name}; to run it again, delete that Job"
        )

    def _pod_failure(self, job: StageJob) -> str:
        return next((pod.failure for pod in self.pods.get(job.uid, ()) if pod.failure), "")

    def _live_pods(self, job: StageJob) -> Iterator[StagePod]:
        return (pod for pod in self.pods.get(job.uid, ()) if not pod.over)

    def nodes_of(self, job: StageJob) -> set[str]:
        """Return the nodes that a Job has pods on, or is about to."""
        return {job.run.node} if job.run.node else {p.node for p in self._live_pods(job) if p.node}

    @cached_property
    def _unfinished_runs(self) -> set[tuple[str, str, str]]:
        """Returns stage, Job and node of the runs that have not ended, with all their pods."""
        return {
            (job.run.stage, job.run.job, job.run.node)
            for job in self.every
            if job.deleting or not job.finished or any(self._live_pods(job))
        }

    @cached_property
    def _orphaned_pods(self) -> Mapping[tuple[str, str, str], StagePod]:
        """Returns the pods whose Job is gone, by stage, Job and node of their run."""
        uids = {job.uid for job in self.every}
        orphans = [pod for uid, pods in self.pods.items() if uid not in uids for pod in pods]
        return {(pod.stage, pod.run_of, pod.run_on): pod for pod in orphans if not pod.over}

    def is_free(self, manifest: JobManifest, node: Node | None) -> bool:
        """Return whether no earlier run of a Job is at work, and no pod of a deleted Job.

        Two runs must never work on a device at the same time.
        """
        where = _place_of(manifest, node)
        return where not in self._unfinished_runs and where not in self._orphaned_pods


def _place_of(manifest: JobManifest, node: Node | None) -> tuple[str, str, str]:
    return manifest.stage, manifest.name, node.name if node else ""

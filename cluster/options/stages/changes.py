"""The stage objects to apply, and those to delete since no stage has them any more. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.driver.daemonset import document_digest
from cluster.kube.comparison import has_drifted
from cluster.kube.managed_fields import ExistingObject, existing_object, has_additions
from cluster.model.names import APPLIED_NOTE
from cluster.model.stages import StageObject, key_of
from cluster.options.stages.stage_plan import StagePlan
from cluster.options.stages.stage_state import Document, StageState


def objects_to_apply(staging: StagePlan) -> Iterator[tuple[Document, ExistingObject | None]]:
    """Yield documents that differ from the cluster, in stage order, and what they overwrite."""
    for step in staging.steps:
        for document in step.documents if step.opened else ():
            existing = staging.owned_objects.get(key_of(document))
            if existing is not None and existing.deleting:
                continue
            edited = _find_difference(document, existing, step) if existing else None
            if existing is None or edited:
                yield document, edited


def _find_difference(
    document: Document, current: StageObject, step: StageState
) -> ExistingObject | None:
    applied = document["metadata"]["annotations"][APPLIED_NOTE]
    marked = (current.applied, current.stage) == (applied, step.name)
    additions = has_additions(current.meta, document)
    if marked and not additions and not has_drifted(document, current.document):
        return None
    return existing_object(current.meta, document, edited=marked)


def objects_to_delete(staging: StagePlan) -> Iterator[StageObject]:
    """Yield objects that no stage has any more, workloads first.

    Objects of a stage whose documents are unknown are kept.
    """
    desired = {key for step in staging.steps for key in step.keys}
    unreadable = {step.name for step in staging.steps if step.error}
    gone = [
        each
        for key, each in staging.owned_objects.items()
        if key not in desired and each.stage not in unreadable and not each.deleting
    ]
    return iter(sorted(gone, key=deletion_order))


def deletion_order(found: StageObject) -> tuple[bool, str, str]:
    return found.kind not in ("DaemonSet", "Deployment"), found.kind, found.name


def content_hash(staging: StagePlan) -> str:
    """Return a hash of all documents: once they change, an earlier error no longer applies."""
    steps = staging.steps
    jobs = [[job.document for job in step.jobs] for step in steps]
    return document_digest({"documents": [list(step.documents) for step in steps], "jobs": jobs})

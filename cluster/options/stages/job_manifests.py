"""The Jobs in a stage's manifests: what they may say, and what is added to them.

Pure. A Job runs once for a revision of the Driver, or, with the annotation `nodeside.io/run:
perNode`, on each node of its stage. Its manifest is never applied as it stands: each run has a Job
of its own, see job_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cluster.model.names import RUN_NOTE

Document = dict[str, Any]

PER_NODE: Final = "perNode"
_ONCE: Final = "once"
_DEADLINE: Final = 3600  # seconds that a Job may be active if its author sets no limit
_REFUSED: Final = {
    "ttlSecondsAfterFinished": "a Job that is gone would run again; nodeside deletes it in time",
    "selector": "the Job controller sets it",
    "manualSelector": "the Job controller sets the selector",
    "managedBy": "only the Job controller of the cluster obeys the deadline",
    "suspend": "the stage would wait for ever",
}
_ONE: Final = ("completions", "parallelism")


def job_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a Job of a stage, besides its pod template."""
    notes, spec = document["metadata"].get("annotations"), document.get("spec")
    run = notes.get(RUN_NOTE, _ONCE) if isinstance(notes, dict) else _ONCE
    if run not in (_ONCE, PER_NODE):
        yield f"annotation {RUN_NOTE}: expected {_ONCE} or {PER_NODE}, found {run!r}"
    if not isinstance(spec, dict):
        yield "spec: expected a mapping"
        return
    for field, why in _REFUSED.items():
        if field in spec:
            yield f"spec.{field} is not allowed in a stage: {why}"
    for field in _ONE if run == PER_NODE else ():
        if spec.get(field, 1) != 1:
            yield f"spec.{field}: with {RUN_NOTE}: {PER_NODE}, a node has one pod: omit it"
    template = spec.get("template")
    pod = template.get("spec") if isinstance(template, dict) else None
    if isinstance(pod, dict) and "nodeName" in pod:
        yield "spec.template.spec.nodeName is not allowed in a stage: use nodeSelector"


def complete_job(document: Document) -> None:
    """Add a deadline; make the end of a failed container's log its termination message."""
    spec = document["spec"]
    if spec.get("activeDeadlineSeconds") is None:
        spec["activeDeadlineSeconds"] = _DEADLINE
    pod = spec["template"]["spec"]
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def is_per_node(document: Mapping[str, Any]) -> bool:
    return bool(document["metadata"]["annotations"].get(RUN_NOTE) == PER_NODE)

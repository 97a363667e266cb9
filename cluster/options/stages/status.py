"""Status of stages: rows and a condition of the status, and the lines of `explain`.

Pure. The condition Ready is only about the driver: a dashboard that does not start does not make a
driver unready. But its reason, which `kubectl get drivers` shows, is that of the stages if the
driver has no worse one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.driver.status.conditions import Condition, timed_conditions
from cluster.driver.status.messages import cut_message, few_of
from cluster.kube.conditions import find_condition
from cluster.model.names import closed_label
from cluster.model.snapshot import DriverObject, Node, Snapshot
from cluster.model.stages import StagePod
from cluster.model.states import Health
from cluster.model.waiting import waiting_message
from cluster.options.stages.stage_plan import StagePlan
from cluster.options.stages.stage_state import StageState

Status = dict[str, Any]

_BAD = ("Invalid", "Failed")
STAGE_REASONS = {
    "Invalid": "StageInvalid",
    "Failed": "StageFailed",
    "Unknown": "StagesUnknown",
    "Waiting": "StagesWaiting",
    "Progressing": "StagesProgressing",
}


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage in the status. `wanted` is the number of nodes where the driver works."""

    name: str
    state: str
    wanted: int = 0
    ready: int = 0
    message: str = ""

    def to_row(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "nodes": {"wanted": self.wanted, "ready": self.ready},
            "message": cut_message(self.message),
        }


def with_stages(staging: StagePlan, status: Status, now: float) -> Status:
    """Add the rows and conditions of stages to a status; without stages it stays unchanged."""
    rows = tuple(_stage_rows(staging))
    if not rows:
        return status
    found = staging.inputs.resource
    changed = {condition.type: condition for condition in _changed_conditions(rows, status)}
    unchanged = [c for c in status["conditions"] if c["type"] not in changed]
    timed = timed_conditions(found, changed.values(), now=now)
    order = ["Ready", "Available", "Progressing", "Degraded", "StagesReady"]
    merged = sorted([*unchanged, *timed], key=lambda c: order.index(c["type"]))
    return {**status, "conditions": merged, "stages": [row.to_row() for row in rows]}


def with_former_stages(snapshot: Snapshot, found: DriverObject, status: Status) -> Status:
    """Return the status of an invalid Driver; StagesReady, if unknown, is what its last rows say.

    The condition became unknown when some kind could not be read, and nothing else would change it.
    """
    old = find_condition(status, "StagesReady")
    rows = tuple(_row_from(row) for row in status.get("stages") or ())
    if old["status"] != "Unknown" or not rows:
        return status
    stages_ready = next(_changed_conditions(rows, status))
    others = [each for each in status["conditions"] if each["type"] != "StagesReady"]
    timed = timed_conditions(found, [stages_ready], now=snapshot.now)
    return {**status, "conditions": [*others, *timed]}


def _row_from(row: Mapping[str, Any]) -> StageRow:
    return StageRow(row["name"], row["state"], **row["nodes"], message=row["message"])


def _changed_conditions(rows: Sequence[StageRow], status: Status) -> Iterator[Condition]:
    """Yield StagesReady, and the other conditions that it changes."""
    bad = next((row for row in rows if row.state in _BAD), None)
    first = bad or next((row for row in rows if row.state != "Ready"), None)
    if first is None:
        yield Condition("StagesReady", True, "Ready", f"{_count_stages(rows)} ready")
        return
    reason, message = STAGE_REASONS[first.state], f"stage {first.name}: {first.message}"
    yield Condition("StagesReady", False, reason, message)
    before = {c["type"]: c for c in status["conditions"]}
    ready, degraded = before["Ready"], before["Degraded"]
    if ready["status"] == "True":
        yield Condition("Ready", True, reason, f"{ready['message']}; {message}")
    if bad is not None and degraded["status"] != "True":
        yield Condition("Degraded", True, reason, message)


def _count_stages(rows: Sequence[StageRow]) -> str:
    return "1 stage is" if len(rows) == 1 else f"{len(rows)} stages are"


def _stage_rows(staging: StagePlan) -> Iterator[StageRow]:
    names = {step.name for step in staging.steps}
    for step in staging.steps:
        yield _stage_row(staging, step)
    # Stages that were removed from the spec, until their objects are gone.
    removed = {each.stage for each in staging.owned_objects.values()} - names
    if staging.observed_stages.unknown:
        stages = staging.inputs.resource.status.get("stages", ())
        removed = {row["name"] for row in stages} - names
    for name in sorted(removed):
        yield StageRow(name, "Progressing", message="removed from the spec, and being deleted")


def _stage_row(staging: StagePlan, step: StageState) -> StageRow:
    working = staging.working_members
    if staging.observed_stages.unknown:
        return StageRow(step.name, "Unknown", message=staging.observed_stages.unknown)
    ready = [m for m in working if step.opened and _is_ready(staging, step, m.node)]
    counts = (len(working), len(ready))
    if step.error:
        return StageRow(
            step.name, "Progressing" if step.awaited else "Invalid", *counts, step.error
        )
    for state, message in _list_obstacles(staging, step, {m.node.name for m in ready}):
        if message:
            return StageRow(step.name, state, *counts, "; ".join((message, *step.skipped)))
    return StageRow(step.name, "Ready", *counts, "; ".join(step.skipped))


def _is_ready(staging: StagePlan, step: StageState, node: Node) -> bool:
    return staging.has_passed(step, node) and not staging.missing_message(step, node)


def _list_obstacles(
    staging: StagePlan, step: StageState, ready: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield states with messages, worst first; one without a message does not apply."""
    yield "Failed", _failing_message(staging, step)
    if not step.opened:
        yield "Waiting", _waits_for_message(staging, step)
    behind = staging.unfinished_messages(step)
    yield (
        "Progressing",
        "; ".join((*behind, *(words for _, words in staging.pods_without_line(step)))),
    )
    late = [m.node for m in staging.working_members if m.node.name not in ready]
    if late:
        yield (
            "Progressing",
            f"{few_of(node.name for node in late)}: {_node_message(staging, step, late[0])}",
        )
    if not staging.working_members:
        yield "Waiting", "the driver works on no node yet"


def _failing_message(staging: StagePlan, step: StageState) -> str:
    """Return what fails: a pod that cannot start or restarts, a Job, a missing line of a log."""
    stuck = [
        pod
        for pod in staging.observed_stages.pods.values()
        if (pod.driver, pod.stage) == (staging.driver, step.name) and pod.waiting
        if not (pod.deleting or pod.over)
    ]
    if not stuck:
        return _failed_job_message(staging, step) or _late_message(staging, step)
    stuck.sort(key=lambda pod: pod.name)
    return f"{few_of(_pod_place(pod) for pod in stuck)}: {waiting_message(stuck[0].waiting)}"


def _failed_job_message(staging: StagePlan, step: StageState) -> str:
    for job in step.jobs:
        if not job.per_node and (words := staging.runs.failure_message(job)):
            return words
        failed = {
            member.node.name: words
            for member in (staging.working_members if job.per_node else ())
            if (words := staging.runs.failure_message(job, member.node))
        }
        if failed:
            return f"{few_of(failed)}: {next(iter(failed.values()))}"
    return ""


def _late_message(staging: StagePlan, step: StageState) -> str:
    late = [
        pod
        for pod in sorted(staging.observed_stages.pods.values(), key=lambda pod: pod.name)
        if (pod.driver, pod.stage) == (staging.driver, step.name)
        if (match := staging.observed_stages.logs.get(pod.uid)) and match.late and not pod.deleting
    ]
    if not late:
        return ""
    return (
        f"{few_of(_pod_place(pod) for pod in late)}: {staging.missing_line_message(step, late[0])}"
    )


def _pod_place(pod: StagePod) -> str:
    return pod.node or pod.name


def _waits_for_message(staging: StagePlan, step: StageState) -> str:
    earlier = staging.steps[: staging.steps.index(step)]
    if not earlier:
        return "the driver works on no node yet"
    return f"waits for stage {earlier[-1].name}"


def _node_message(staging: StagePlan, step: StageState, node: Node) -> str:
    if closed_label(staging.driver) in node.labels:
        return "closed because the driver there changed"
    lacking = staging.missing_message(step, node)
    if step.after and not staging.has_passed(_find_stage(staging, step.after), node):
        return f"stage {step.after} is not ready there"
    return lacking or "its label is not set yet"


def _find_stage(staging: StagePlan, name: str) -> StageState:
    return next(step for step in staging.steps if step.name == name)


# --- explain -------------------------------------------------------------------------------------


def stage_lines(staging: StagePlan, node: Node) -> Iterator[str]:
    """Yield a line for each stage on a node."""
    for step in staging.steps:
        yield f"stage {step.name}: {_unready_message(staging, step, node) or 'ready'}"


def first_unready_stage(staging: StagePlan, node: Node) -> str:
    """Return the first stage that is not ready on a node where the driver works, and why.

    Returns "" if there is none.
    """
    member = next((m for m in staging.inputs.members if m.node is node), None)
    if member is None or member.health is not Health.WORKING:
        return ""
    if member in staging.inputs.ending:
        return ""  # reported with the decision: see options/drain/status.py
    for step in staging.steps:
        if why := _unready_message(staging, step, node):
            return f"stage {step.name}: {why}"
    return ""


def _unready_message(staging: StagePlan, step: StageState, node: Node) -> str:
    if staging.observed_stages.unknown or step.error:
        return staging.observed_stages.unknown or step.error
    if not step.opened:
        return _waits_for_message(staging, step)
    if _is_ready(staging, step, node):
        return ""
    return "; ".join(staging.unfinished_messages(step)) or _node_message(staging, step, node)


def unready_stages(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each stage that is not ready according to a status."""
    for row in status.get("stages", ()):
        if row["state"] != "Ready":
            yield f"stage {row['name']}: {row['state']}: {row['message']}"


def unready_states(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the state of each stage that is not ready according to a status."""
    yield from (row["state"] for row in status.get("stages", ()) if row["state"] != "Ready")

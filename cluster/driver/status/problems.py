"""The problems of a Driver in its status: they outrank what the plan sees on nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cluster.driver.status.conditions import transition_time
from cluster.driver.status.messages import cut_message
from cluster.model.problems import Problem, ProblemKind
from cluster.model.snapshot import DriverObject
from nodeside.protocol.timestamps import rfc3339

Conditions = Mapping[str, Mapping[str, Any]]

# What is not known of a Driver while some kind of objects cannot be read.
_DOUBTFUL = ("Ready", "Available", "Progressing")


def with_problems(
    found: DriverObject, status: Mapping[str, Any], problems: Collection[Problem], *, now: float
) -> Mapping[str, Any]:
    """Return a status that reports the problems; in each condition the worst one.

    Ready reports them too, since `kubectl get` shows its message.
    """
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    planned = dict(conditions)
    old = {c["type"]: c for c in found.status.get("conditions", ())}
    for problem in sorted(problems, key=lambda problem: problem.kind):
        for kind, value in _affected_conditions(problem, planned).items():
            if found.deleting and kind == "Progressing":
                continue  # it says what is left on nodes, and deletion.py reads its reason
            conditions[kind] = conditions.get(kind, {}) | {
                "type": kind,
                "status": value,
                "lastTransitionTime": transition_time(old.get(kind), value) or rfc3339(now),
                "reason": problem.reason,
                "message": cut_message(problem.message),
            }
    return {**status, "conditions": list(conditions.values())}


def _affected_conditions(problem: Problem, conditions: Conditions) -> dict[str, str]:
    """Return the conditions that report a problem, with their statuses.

    `conditions` are those without any problem: a milder one outranks no other.
    """
    degraded = conditions.get("Degraded", {})
    reports = {
        "Ready": str(conditions.get("Ready", {}).get("status", "Unknown")),
        "Degraded": "True",
    }
    of_stages = {"StagesReady": "False"} if problem.of_stages else {}
    match problem.kind:
        case ProblemKind.CONTESTED | ProblemKind.ON_NODES:
            is_outranked = degraded.get("status") == "True" and degraded["reason"] != problem.reason
            return {} if is_outranked else reports | of_stages
        case ProblemKind.FAILED:
            return reports | of_stages
        case ProblemKind.UNREADABLE:
            stages = ["StagesReady"] if "StagesReady" in conditions else []
            return reports | dict.fromkeys((*_DOUBTFUL, *stages), "Unknown")

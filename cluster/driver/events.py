"""Status updates, with an Event for every change that a user should notice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cluster.driver.status.inputs import StatusInputs
from cluster.driver.status.messages import nodes_in_words
from cluster.driver.status.problems import with_problems
from cluster.model.actions import Action, EmitEvent, SetStatus
from cluster.model.limits import fit_status
from cluster.model.problems import Problem
from cluster.model.snapshot import DriverObject, Snapshot


def set_status(
    snapshot: Snapshot, found: DriverObject, status: Mapping[str, Any], *more: Problem
) -> Iterator[Action]:
    """Yield the status if it changed, and an Event for each notable change of a condition.

    The status also reports the problems of the Driver, and `more` of them. No Event is made here
    for a problem.
    """
    problems = (*snapshot.problems.get(found.name, ()), *more)
    reasons = {problem.reason for problem in problems}
    if problems:
        status = with_problems(found, status, problems, now=snapshot.now)
    status = fit_status(status)
    if status == found.status:
        return
    yield SetStatus(found.name, status)
    old = {c.get("type"): c for c in found.status.get("conditions") or ()}
    for condition in status["conditions"]:
        was = old.get(condition["type"], {})
        changed = (was.get("status"), was.get("reason")) != (
            condition["status"],
            condition["reason"],
        )
        is_news = changed and condition["status"] == "True" and condition["reason"] not in reasons
        if is_news and _deserves_event(condition["type"], old):
            warning = condition["type"] == "Degraded"
            reason, message = condition["reason"], condition["message"]
            yield EmitEvent(found.name, found.uid, warning, reason, message, of_status=True)


def announce_rollout(inputs: StatusInputs) -> Iterator[Action]:
    """Yield an Event if the newest revision is not the one that the status names so far.

    The preceding status update names it. While the rollout is paused, nothing begins: the Event is
    due when the rollout goes on. The condition Ready shows when it has ended.
    """
    found, newest, rollout = inputs.found, inputs.rollout.newest, inputs.driver.spec.rollout
    if not newest or rollout.paused or not inputs.decisions:
        return
    was_paused = any(
        each.get("type") == "Progressing" and each.get("reason") == "RolloutPaused"
        for each in found.status.get("conditions") or ()
    )
    had_no_nodes = not inputs.rollout.good and not found.status.get("nodes", {}).get("wanted")
    if newest == found.status.get("revision", "") and not was_paused and not had_no_nodes:
        return
    name, on = inputs.revision_name(newest), nodes_in_words(len(inputs.decisions))
    note = f"back to {name}, which worked: {on}"
    if newest != inputs.rollout.good:
        note = f"rollout of {name} to {on}: canary {rollout.canary}, "
        note += f"maxUnavailable {rollout.max_unavailable}, maxFailed {rollout.max_failed}"
    yield EmitEvent(found.name, found.uid, False, "RolloutStarted", note, of_status=True)


def _deserves_event(kind: str, old: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a condition that became true deserves an Event, given the old conditions.

    A joining node makes a Driver not ready for a while, which needs no Event each time. An Event is
    due when the driver works for the first time, or works again after a failure.
    """
    if kind != "Ready":
        return kind == "Degraded"
    ready, degraded = old.get("Ready", {}), old.get("Degraded", {})
    if ready.get("status") == "True":
        return False  # only the reason changed, because of stages
    since, failed = ready.get("lastTransitionTime", ""), degraded.get("lastTransitionTime", "")
    # An equal or later time: it has failed since it was last ready.
    return bool(ready.get("reason") != "NodesBusy" or failed >= since)

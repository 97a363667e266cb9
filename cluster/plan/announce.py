"""Status updates, with an Event for every change that a user should notice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cluster.model.actions import Action, EmitEvent, SetStatus
from cluster.model.limits import fit_status
from cluster.model.snapshot import DaemonSetObject, DriverObject
from cluster.plan.builds.toolkit_evidence import remembered
from cluster.plan.context.context import DriverContext
from cluster.plan.objects.driver_pod import DaemonSetInput


def set_status(found: DriverObject, status: Mapping[str, Any]) -> Iterator[Action]:
    """Yields the status if it changed, and an Event for each notable change of a condition."""
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
        if changed and condition["status"] == "True" and _deserves_event(condition["type"], old):
            warning = condition["type"] == "Degraded"
            reason, message = condition["reason"], condition["message"]
            yield EmitEvent(found.name, found.uid, warning, reason, message, of_status=True)


def fallback_events(context: DriverContext) -> Iterator[EmitEvent]:
    """Yields one Event per pool that falls back to building because an image cannot be pulled.

    It is not repeated: the DaemonSet records the fallback.
    """
    found, falls = context.resource, context.fallbacks.by_assignment
    for key, at in context.rollout.desired.items():
        daemonset = context.snapshot.daemonsets.get(key)
        if at in falls and (daemonset is None or daemonset.fell_back != falls[at].annotation):
            yield EmitEvent(found.name, found.uid, True, "FellBack", falls[at].why)


def refusal_events(
    applied: Sequence[DaemonSetInput], daemonsets: Iterable[DaemonSetObject]
) -> Iterator[EmitEvent]:
    """Yields one Event per toolkit image that nodes refuse; DaemonSets record the refusal."""
    reported = {(k, image) for k, images in remembered(daemonsets).items() for image in images}
    for inputs in applied:
        owner, kernel = inputs.owner, (inputs.pool.kernel, inputs.pool.architecture)
        for image, why in inputs.refused.items():
            if (kernel, image) not in reported:
                reported.add((kernel, image))
                instead = f"; {inputs.toolkit} instead" if inputs.toolkit not in ("", image) else ""
                words = f"toolkit image {image} is not for kernel {kernel[0]}: {why}{instead}"
                yield EmitEvent(owner.name, owner.uid, True, "ToolkitRefused", words)


def _deserves_event(kind: str, old: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether a condition that became true deserves an Event, given the old conditions.

    A joining node makes a Driver not ready for a while, which needs no Event each time. An Event is
    due when the driver works for the first time, or works again after a failure.
    """
    if kind != "Ready":
        return kind == "Degraded"
    ready, degraded = old.get("Ready", {}), old.get("Degraded", {})
    if ready.get("status") == "True":
        return False  # only the reason changed, because of stages
    since, failed = ready.get("lastTransitionTime", ""), degraded.get("lastTransitionTime", "")
    return bool(ready.get("reason") != "NodesBusy" or failed >= since)

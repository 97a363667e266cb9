"""The status of a Driver: conditions, and a row for each pool. It contains observed state only.

Pure. A condition's reason is that of the first line of its table that applies; each table is
ordered from worst to best. Every field is always present, so that a merge patch of the status
leaves no old values behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from cluster.driver.casualties import limit_casualty_rows
from cluster.driver.hardware import selected_devices
from cluster.driver.nodes import DriverNode, failure_message
from cluster.driver.status.inputs import StatusInputs, count_nodes
from cluster.driver.status.messages import (
    and_more,
    cut_message,
    failures_message,
    few_of,
    kernel_unknown_message,
    nodes_in_words,
    refused_builds_message,
    toolkit_message,
    toolkit_refused_message,
)
from cluster.driver.status.part import NOTHING, StatusPart
from cluster.driver.status.pools import pool_order, pool_rows
from cluster.driver.status.progress import RolloutProgress, current_progress, stopped_message
from cluster.driver.traces import assigned_nodes, runs_revision
from cluster.model.snapshot import DriverObject, Snapshot
from cluster.model.states import Health, Phase
from nodeside.protocol.node_status import WAITS_FOR_DRIVER
from nodeside.protocol.timestamps import rfc3339


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without its time."""

    type: str
    true: bool
    reason: str
    message: str


# The status fields that options fill in, with their values where no option does.
_WITHOUT_OPTIONS: Final[Mapping[str, Any]] = {
    "leaving": 0,
    "resources": [],
    "preflight": [],
    "draining": [],
}


def status_of_valid(
    inputs: StatusInputs, options: StatusPart = NOTHING, *, now: float
) -> dict[str, Any]:
    """Return the whole status. `options` is what the options of the Driver add to it."""
    progress = current_progress(inputs, options)
    ready = _ready_condition(inputs, options, progress)
    conditions_without_time = (
        ready,
        _available_condition(inputs, options),
        _progressing_condition(options, progress, ready),
        _degraded_condition(inputs, options),
    )
    good, before = inputs.rollout.good, inputs.found.status
    had = str(before.get("lastGoodRevision") or "")
    is_same = had in ("", good)
    return {
        "observedGeneration": inputs.found.generation,
        "revision": inputs.rollout.newest,
        "lastGoodRevision": good,
        "previousGoodRevision": str(before.get("previousGoodRevision") or "") if is_same else had,
        "nodes": dict(inputs.counts),
        "devices": selected_devices(inputs.driver.spec.hardware, inputs.found.status),
        "pools": pool_rows(inputs),
        "casualties": _casualty_rows(inputs) if inputs.casualties else [],
        "conditions": timed_conditions(inputs.found, conditions_without_time, now=now),
        **_WITHOUT_OPTIONS,
        **options.fields,
    }


def _casualty_rows(inputs: StatusInputs) -> list[dict[str, Any]]:
    if inputs.rollout.phase is Phase.SETTLED:
        return []
    members = {decision.member.node.name: decision.member for decision in inputs.decisions}
    return limit_casualty_rows(inputs.casualties, members)


def status_of_invalid(snapshot: Snapshot, found: DriverObject, mistakes: str) -> dict[str, Any]:
    """Return the status of an invalid Driver. What runs on the nodes stays as it is.

    So the fields and conditions about what runs stay too, as observed for an earlier generation.
    Of these, only Available is made anew, if it was unknown, since some kind of objects could not
    be read.
    """
    now = snapshot.now
    message = cut_message(f"{mistakes}; what runs on the nodes stays as it is")
    conditions_without_time = (
        Condition("Ready", False, "InvalidSpec", message),
        Condition("Progressing", False, "InvalidSpec", message),
        Condition("Degraded", True, "InvalidSpec", message),
    )
    old = {condition.get("type"): condition for condition in found.status.get("conditions") or ()}
    ready, *rest = timed_conditions(found, conditions_without_time, now=now)
    available = old.get("Available")
    if available is not None and available.get("status") == "Unknown":
        [available] = timed_conditions(found, [_available_without_spec(snapshot, found)], now=now)
    timed = [ready, available, *rest, old.get("StagesReady")]
    kept = _previous_fields(found) | {"draining": []}  # the drains are called off
    return kept | {"conditions": [each for each in timed if each is not None]}


def status_of_deleting(
    found: DriverObject,
    message: str,
    *,
    leaving: int = 0,
    obstacle: str = "",
    reason: str = "Deleting",
    now: float,
) -> dict[str, Any]:
    """Return the status of a Driver that is being deleted; `obstacle` needs a user's attention."""
    degraded = Condition("Degraded", False, reason, message)
    if obstacle:
        degraded = Condition("Degraded", True, "ModulesHeld", obstacle)
    conditions_without_time = (
        Condition("Ready", False, reason, message),
        Condition("Progressing", True, reason, message),
    )
    timed = timed_conditions(found, (*conditions_without_time, degraded), now=now)
    # `leaving` and the message tell what is left on nodes. Stages end in their order, and their
    # rows stay.
    gone = {
        "nodes": count_nodes(()),
        "pools": [],
        "preflight": [],
        "casualties": [],
        "resources": [],
    }
    return _previous_fields(found) | gone | {"leaving": leaving, "conditions": timed}


def _previous_fields(found: DriverObject) -> dict[str, Any]:
    empty: dict[str, Any] = {"revision": "", "lastGoodRevision": "", **_WITHOUT_OPTIONS}
    empty |= {"previousGoodRevision": ""}
    empty |= {"nodes": count_nodes(()), "pools": [], "casualties": [], "devices": []}
    fields = {key: found.status.get(key, value) for key, value in empty.items()}
    if "stages" in found.status:
        fields["stages"] = found.status["stages"]
    return {"observedGeneration": found.generation, **fields}


def timed_conditions(
    found: DriverObject, conditions_without_time: Iterable[Condition], *, now: float
) -> list[dict[str, Any]]:
    """Return conditions as in metav1.Condition; the time is that of the last status change."""
    old = {c.get("type"): c for c in found.status.get("conditions") or ()}
    time = rfc3339(now)
    return [
        {
            "type": condition.type,
            "status": str(condition.true),
            "observedGeneration": found.generation,
            "lastTransitionTime": transition_time(old.get(condition.type), str(condition.true))
            or time,
            "reason": condition.reason,
            "message": cut_message(condition.message),
        }
        for condition in conditions_without_time
    ]


def transition_time(old: Mapping[str, Any] | None, status: str) -> str:
    """Return since when a condition has this status, "" if it had another one."""
    return str(old.get("lastTransitionTime", "")) if old and old.get("status") == status else ""


def _degraded_condition(inputs: StatusInputs, options: StatusPart) -> Condition:
    """Return the Degraded condition: true if someone should investigate."""
    for reason, message in _list_complaints(inputs, options):
        if message:
            return Condition("Degraded", True, reason, message)
    return Condition("Degraded", False, "AsExpected", "nothing failed")


def _list_complaints(inputs: StatusInputs, options: StatusPart) -> Iterable[tuple[str, str]]:
    """Yield complaints, worst first. A complaint without a message does not apply."""
    for reason, message in COMPLAINTS.items():
        yield reason, message(inputs) if message else options.complaints.get(reason, "")


def _ready_condition(
    inputs: StatusInputs, options: StatusPart, progress: RolloutProgress | None
) -> Condition:
    """Return the Ready condition: true if the newest revision works everywhere.

    Its reason sums up the whole status. A script that applied a Driver waits for this, so it is
    also false while a rollout is paused.
    """
    for reason, message in chain(
        _list_complaints(inputs, options), _list_obstacles(inputs, progress)
    ):
        if message:
            return Condition("Ready", False, reason, message)
    ready = inputs.counts["ready"]
    rest = [_down_message(inputs), _stuck_pods_message(inputs), *options.notes]
    rest += [f"fell back: {why}" for why in list(inputs.fell_back.values())[:1]]
    words = "; ".join((f"works on {nodes_in_words(ready)}", *filter(None, rest)))
    return Condition("Ready", True, "Ready", words)


def _available_condition(inputs: StatusInputs, options: StatusPart) -> Condition:
    """Return the Available condition: true if the driver works on each node that is up.

    It may be any revision. This is the condition to wait for if you need the driver.
    """
    without = [m.node.name for m in inputs.not_working if m.health is not Health.DOWN]
    all_taken = not inputs.decisions and options.complaints.get("ModuleConflict")
    why = "another driver has all nodes that it selects" if all_taken else _NONE_UP
    return _availability(inputs.counts["ready"], without, none_up=why)


def _availability(works: int, without: Sequence[str], *, none_up: str) -> Condition:
    """Return the condition; `without` are the nodes that are up and where it does not work."""
    if not works and not without:
        return Condition("Available", False, "NoNodes", none_up)
    words = f"works on {works} of {nodes_in_words(works + len(without))}"
    if without:
        return Condition("Available", False, "NodesLacking", f"{words}; not on {few_of(without)}")
    return Condition("Available", True, "Available", words)


_NONE_UP = "no node that it selects is up"


def _available_without_spec(snapshot: Snapshot, found: DriverObject) -> Condition:
    """Return the condition for the nodes that have the driver, whatever its spec selects now."""
    up = [node for node in assigned_nodes(snapshot, found.name) if node.ready]
    without = [node.name for node in up if not runs_revision(snapshot, found.name, node)]
    return _availability(len(up) - len(without), without, none_up="no node that has it is up")


def _stuck_pods_message(inputs: StatusInputs) -> str:
    """Name nodes that work according to their last report, but whose pod is in trouble now."""
    members = [decision.member for decision in inputs.decisions if decision.member.trouble]
    return f"but on {few_of(m.node.name for m in members)} {members[0].trouble}" if members else ""


def _list_obstacles(
    inputs: StatusInputs, progress: RolloutProgress | None
) -> Iterable[tuple[str, str]]:
    """Yield reasons for not being ready that are no faults, such as a rollout's progress."""
    yield "NoNodes", "" if inputs.decisions else _no_nodes_message(inputs)
    yield WAITS_FOR_DRIVER, _waiting_message(inputs)
    if progress is not None:
        yield progress.reason, progress.message
    up = [m for m in inputs.not_working if m.health is not Health.DOWN]
    yield "KernelUnknown", kernel_unknown_message(m for m in up if not m.pool.kernel)
    yield "NodesNotReady", "" if up or inputs.counts["ready"] else _down_message(inputs)


def _waiting_message(inputs: StatusInputs) -> str:
    """Name nodes where a driver named in `after` is not ready."""
    waiting = [
        member
        for member in inputs.not_working
        if member.current_report is not None and member.current_report.reason == WAITS_FOR_DRIVER
    ]
    return (
        f"{few_of(m.node.name for m in waiting)}: {failure_message(waiting[0])}" if waiting else ""
    )


def _down_message(inputs: StatusInputs) -> str:
    """Name nodes that are down and nodes whose kernel is still unknown."""
    with_kernel = (m for m in inputs.not_working if m.pool.kernel)
    down = [m.node.name for m in with_kernel if m.health is Health.DOWN]
    words = f"nodes not ready: {few_of(down)}" if down else ""
    rest = kernel_unknown_message(m for m in inputs.not_working if not m.pool.kernel)
    return "; ".join(filter(None, (words, rest)))


def _progressing_condition(
    options: StatusPart, progress: RolloutProgress | None, ready: Condition
) -> Condition:
    """Return the Progressing condition: true if something changes without user action."""
    if progress is not None:
        return Condition("Progressing", progress.by_itself, progress.reason, progress.message)
    if words := options.progress.get("NodesLeaving"):
        return Condition("Progressing", True, "NodesLeaving", words)
    if not ready.true:
        return Condition(
            "Progressing", False, "Blocked", f"nothing more changes by itself: see {ready.reason}"
        )
    return Condition("Progressing", False, "Complete", "there is nothing to change")


def _toolkit_refused_message(inputs: StatusInputs) -> str:
    broken = _broken_members(inputs)
    return toolkit_refused_message(broken, inputs.resolutions) if broken else ""


def _failed_message(inputs: StatusInputs) -> str:
    broken = _broken_members(inputs)
    return failures_message(broken) if broken else ""


def _broken_members(inputs: StatusInputs) -> list[DriverNode]:
    return [member for member in inputs.not_working if member.health is Health.BROKEN]


def _unserved_message(inputs: StatusInputs) -> str:
    missing = [
        pool
        for pool in inputs.resolutions
        if pool.kernel and pool not in inputs.served and pool not in inputs.builds
    ]
    if not missing:
        return ""
    first = min(missing, key=pool_order)
    where = inputs.node_names(lambda decision: decision.member.pool == first)
    words = toolkit_message(inputs.resolutions[first])
    return f"kernel {first.kernel} on {few_of(where)}{and_more(missing[1:], 'pools')}: {words}"


def _no_nodes_message(inputs: StatusInputs) -> str:
    hardware = inputs.driver.spec.hardware
    pci = [f"PCI device {d.vendor}:{d.device or '*'}" for d in hardware.pci]
    selector = [f"{key}={value}" for key, value in hardware.node_selector.items()]
    words = " and ".join(part for part in (" or ".join(pci), ", ".join(selector)) if part)
    nfd = ", by the labels of Node Feature Discovery (is its class in deviceClassWhitelist?)"
    near = f"; there is {inputs.similar_label}" if inputs.similar_label else ""
    return f"no node has {words or 'come up'}{nfd if pci else ''}{near}"


# The reasons of the condition Degraded, worst first. None: an option has the message, see
# StatusPart.complaints.
COMPLAINTS: Final[Mapping[str, Callable[[StatusInputs], str] | None]] = {
    "AfterItself": None,
    "DriverMissing": None,
    "ModuleConflict": None,
    "RolloutStopped": lambda inputs: (
        # A toolkit image that the first canary refused has to be replaced, not the version.
        ""
        if inputs.rollout.phase is Phase.FIRST_STOPPED and _toolkit_refused_message(inputs)
        else stopped_message(inputs)
    ),
    "BuildFailed": lambda inputs: (
        refused_builds_message(inputs.builds, inputs.decisions) if inputs.builds else ""
    ),
    "ToolkitRefused": _toolkit_refused_message,
    "NodesFailed": _failed_message,
    "ToolkitMissing": _unserved_message,
    "StagesStuck": None,
}

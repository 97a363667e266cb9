"""The status of a Driver: conditions, and a row for each pool. It contains observed state only.

Pure. A condition's reason is that of the first line of its table that applies; each table is
ordered from worst to best. Every field is always present, so that a merge patch of the status
leaves no old values behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from cluster.model.snapshot import DriverObject
from cluster.model.states import Health, Phase
from cluster.plan.nodes.hardware import devices
from cluster.plan.nodes.members import cause
from cluster.plan.rollout.casualties import within_limits
from cluster.plan.rollout.unload import UnloadPhase
from cluster.plan.status.drains import drains, stuck
from cluster.plan.status.messages import cut, nodes, refused, some, toolkit_message, untold
from cluster.plan.status.pool_rows import pool_order, pool_rows
from cluster.plan.status.progress import Moving, moving, stopped
from cluster.plan.status.report import StatusReport, counts
from nodeside.timestamps import rfc3339


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without its time."""

    type: str
    true: bool
    reason: str
    message: str


def status(picture: StatusReport, *, now: float) -> dict[str, Any]:
    """Returns the whole status."""
    motion = moving(picture)
    said = (
        _ready(picture, motion),
        _available(picture),
        _progressing(picture, motion),
        _degraded(picture),
    )
    return {
        "observedGeneration": picture.found.generation,
        "revision": picture.standing.newest,
        "lastGoodRevision": picture.standing.good,
        "nodes": dict(picture.counts),
        "leaving": picture.leaving.count if picture.leaving else 0,
        "devices": devices(picture.driver.spec.hardware, picture.found.status),
        "pools": pool_rows(picture),
        "preflight": [answer.row() for answer in picture.preflight],
        "draining": drains(picture.decisions, picture.occupancy),
        "casualties": _casualties(picture),
        "conditions": conditions(picture.found, said, now=now),
    }


def _casualties(picture: StatusReport) -> list[dict[str, Any]]:
    if picture.standing.phase is Phase.SETTLED or not picture.casualties:
        return []
    members = {decision.member.node.name: decision.member for decision in picture.decisions}
    return within_limits(picture.casualties, members)


def unreadable(found: DriverObject, mistakes: str, *, now: float) -> dict[str, Any]:
    """Returns the status of an invalid Driver: what runs stays, and so do its status fields."""
    message = cut(f"{mistakes}; what runs on the nodes stays as it is")
    said = (
        Condition("Ready", False, "InvalidSpec", message),
        Condition("Progressing", False, "InvalidSpec", message),
        Condition("Degraded", True, "InvalidSpec", message),
    )
    return _kept(found) | {"conditions": conditions(found, said, now=now)}


def going(
    found: DriverObject,
    message: str,
    *,
    leaving: int = 0,
    obstacle: str = "",
    reason: str = "Deleting",
    now: float,
) -> dict[str, Any]:
    """Returns the status of a Driver that is being deleted; `obstacle` needs a user's attention."""
    degraded = Condition("Degraded", False, reason, message)
    if obstacle:
        degraded = Condition("Degraded", True, "ModulesHeld", obstacle)
    said = (
        Condition("Ready", False, reason, message),
        Condition("Progressing", True, reason, message),
    )
    told = conditions(found, (*said, degraded), now=now)
    return _kept(found) | {"leaving": leaving, "conditions": told}


def _kept(found: DriverObject) -> dict[str, Any]:
    empty: dict[str, Any] = {"revision": "", "lastGoodRevision": "", "leaving": 0}
    empty |= {"nodes": counts(()), "pools": [], "preflight": [], "draining": []}
    empty |= {"casualties": [], "devices": []}
    kept = {key: found.status.get(key, value) for key, value in empty.items()}
    if "stages" in found.status:
        kept["stages"] = found.status["stages"]
    return {"observedGeneration": found.generation, **kept}


def conditions(
    found: DriverObject, said: Iterable[Condition], *, now: float
) -> list[dict[str, Any]]:
    """Returns conditions as in metav1.Condition; the time is that of the last status change."""
    old = {c.get("type"): c for c in found.status.get("conditions") or ()}
    moment = rfc3339(now)
    return [
        {
            "type": one.type,
            "status": str(one.true),
            "observedGeneration": found.generation,
            "lastTransitionTime": _since(old.get(one.type), str(one.true)) or moment,
            "reason": one.reason,
            "message": cut(one.message),
        }
        for one in said
    ]


def _since(old: Mapping[str, Any] | None, status: str) -> str:
    return str(old.get("lastTransitionTime", "")) if old and old.get("status") == status else ""


def _degraded(picture: StatusReport) -> Condition:
    """Returns the Degraded condition: true if someone should investigate."""
    for reason, message in _complaints(picture):
        if message:
            return Condition("Degraded", True, reason, message)
    return Condition("Degraded", False, "AsExpected", "nothing failed")


def _complaints(picture: StatusReport) -> Iterable[tuple[str, str]]:
    """Yields complaints, worst first. A complaint without a message does not apply."""
    yield "ModuleConflict", _conflict(picture)
    yield "RolloutStopped", stopped(picture)
    yield "BuildFailed", refused(picture.builds, picture.decisions)
    yield "NodesFailed", _failed(picture)
    yield "ToolkitMissing", _unserved(picture)
    yield "StagesStuck", _stuck(picture)


def _ready(picture: StatusReport, motion: Moving | None) -> Condition:
    """Returns whether the newest revision works everywhere; the reason sums up the whole status.

    A script that applied a Driver waits for this, so it is also false while a rollout is paused.
    """
    for reason, message in chain(_complaints(picture), _obstacles(picture, motion)):
        if message:
            return Condition("Ready", False, reason, message)
    ready = picture.counts["ready"]
    rest = [_down(picture), _lame(picture), _leaving(picture)]
    rest += [f"fell back: {why}" for why in list(picture.fell_back.values())[:1]]
    words = "; ".join((f"works on {nodes(ready)}", *filter(None, rest)))
    return Condition("Ready", True, "Ready", words)


def _available(picture: StatusReport) -> Condition:
    """Returns whether the driver works on every node that is up, in any revision.

    This is the condition to wait for if you need the driver.
    """
    lacking = [m.node.name for m in picture.lacking if m.health is not Health.DOWN]
    up = picture.counts["ready"] + len(lacking)
    words = f"works on {picture.counts['ready']} of {nodes(up)}"
    if not up:
        return Condition("Available", False, "NoNodes", "no node that it selects is up")
    if lacking:
        return Condition("Available", False, "NodesLacking", f"{words}; not on {some(lacking)}")
    return Condition("Available", True, "Available", words)


def _lame(picture: StatusReport) -> str:
    """Returns nodes that still work by their earlier report but whose pod is in trouble now."""
    lame = [v.member for v in picture.decisions if v.member.trouble]
    return f"but on {some(m.node.name for m in lame)} {lame[0].trouble}" if lame else ""


def _obstacles(picture: StatusReport, motion: Moving | None) -> Iterable[tuple[str, str]]:
    """Yields reasons for not being ready that are no faults, such as a rollout's progress."""
    yield "NoNodes", _no_nodes(picture)
    if motion is not None:
        yield motion.reason, motion.message
    up = [m for m in picture.lacking if m.health is not Health.DOWN]
    yield "KernelUnknown", untold(m for m in up if not m.pool.kernel)
    yield "NodesNotReady", "" if up or picture.counts["ready"] else _down(picture)


def _down(picture: StatusReport) -> str:
    """Returns nodes that are down and nodes whose kernel is still unknown."""
    known = (m for m in picture.lacking if m.pool.kernel)
    down = [m.node.name for m in known if m.health is Health.DOWN]
    words = f"nodes not ready: {some(down)}" if down else ""
    rest = untold(m for m in picture.lacking if not m.pool.kernel)
    return "; ".join(filter(None, (words, rest)))


def _progressing(picture: StatusReport, motion: Moving | None) -> Condition:
    """Returns the Progressing condition: true if something changes without user action."""
    if motion is not None:
        return Condition("Progressing", motion.by_itself, motion.reason, motion.message)
    if words := _leaving(picture):
        return Condition("Progressing", True, "NodesLeaving", words)
    return Condition("Progressing", False, "Complete", "there is nothing to change")


def _leaving(picture: StatusReport) -> str:
    """Returns nodes that the Driver no longer selects; they do not affect readiness."""
    if picture.leaving is None or not picture.leaving.count:
        return ""
    held, rest = picture.leaving.obstacle, (stage for stage in UnloadPhase if not stage.is_obstacle)
    words = "; ".join(part for part in (held, picture.leaving.said(*rest)) if part)
    return f"no longer selects {nodes(picture.leaving.count)}: {words}"


def _conflict(picture: StatusReport) -> str:
    words = [
        f"driver {rival} came first and has a module of the same name: this one is not "
        f"assigned to {some(sorted(nodes))}"
        for rival, nodes in picture.contested.items()
        if nodes
    ]
    words += [
        f"driver {rival} has a module of the same name: nothing changes on {some(sorted(nodes))} "
        "until one of the two drivers leaves them or has other modules"
        for rival, nodes in picture.taken.items()
        if nodes
    ]
    return "; ".join(words)


def _failed(picture: StatusReport) -> str:
    broken = [member for member in picture.lacking if member.health is Health.BROKEN]
    return f"{some(m.node.name for m in broken)}: {cause(broken[0])}" if broken else ""


def _stuck(picture: StatusReport) -> str:
    """Returns stage pods that do not terminate, on nodes whose drain was given up for that."""
    left = stuck(picture.decisions, picture.standing.newest)
    if not left:
        return ""
    namespace, _, pod = left[0][1].partition("/")
    return (
        f"{some(node for node, _ in left)}: stage pod {pod} does not end, and the driver cannot be "
        f"replaced before it does: kubectl -n {namespace} describe pod {pod}"
    )


def _unserved(picture: StatusReport) -> str:
    missing = [
        pool
        for pool in picture.resolutions
        if pool.kernel and pool not in picture.served and pool not in picture.builds
    ]
    if not missing:
        return ""
    first = min(missing, key=pool_order)
    where = picture.named(lambda v: v.member.pool == first)
    more = f" (and {len(missing) - 1} more pools)" if missing[1:] else ""
    words = toolkit_message(picture.resolutions[first])
    return f"kernel {first.kernel} on {some(where)}{more}: {words}"


def _no_nodes(picture: StatusReport) -> str:
    if picture.decisions:
        return ""
    hardware = picture.driver.spec.hardware
    wanted = [f"PCI device {d.vendor}:{d.device or '*'}" for d in hardware.pci]
    selector = [f"{key}={value}" for key, value in hardware.node_selector.items()]
    words = " and ".join(part for part in (" or ".join(wanted), ", ".join(selector)) if part)
    nfd = "; PCI devices are known by the labels of Node Feature Discovery" if wanted else ""
    return f"no node has {words or 'come up'}{nfd}"

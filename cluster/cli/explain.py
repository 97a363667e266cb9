"""`nodeside-cluster explain`: one snapshot of the cluster, evaluated as the controller would.

The snapshot is read with one list per kind and passed to the same functions that the controller
plans with. *there* is the observed state. *next* is a plan made now, which is carried out only if a
controller leads; if none does, the output says so first.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from cluster.cache.cache import read_once
from cluster.cache.drain_pods import list_consumers
from cluster.cache.image_labels import TagLabels
from cluster.cli import image_pulls, node_pods, remedies
from cluster.cli.advice import (
    Advice,
    Subject,
    advise,
    driver_subject,
    format_advice,
    member_subject,
    node_subject,
)
from cluster.cli.leader_status import LeaderStatus, leader_status
from cluster.cli.near_names import did_you_mean
from cluster.cli.remedies import Remedy, by_condition, by_report, by_waiting
from cluster.cli.status import NoSuchObject, find_driver, outdated_status_note
from cluster.driver.hardware import (
    Match,
    former_devices,
    match_hardware,
    similar_label,
    stale_nfd_label,
)
from cluster.driver.nodes import CANNOT_PULL, DriverNode
from cluster.driver.other_installers import find_other_installers
from cluster.driver.status.messages import (
    build_reason,
    few_of,
    nodes_in_words,
    revision_name,
    toolkit_message,
    wrong_toolkit_message,
)
from cluster.driver.update import NodeDecision, why_queued
from cluster.driver.update_table import Act
from cluster.kube.client import Api
from cluster.kube.conditions import find_condition
from cluster.model.actions import Action, Cordon, EvictPod, LabelNode, SetStatus, Uncordon
from cluster.model.names import NAMESPACE
from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import EMPTY, DriverObject, DriverPod, Node, Settings, Snapshot
from cluster.model.states import Health, Phase, Place
from cluster.model.waiting import waiting_message
from cluster.options.conflicts import WAY_OUT
from cluster.options.devices import status as resources
from cluster.options.drain.status import list_delays
from cluster.options.drain.table import ENDS_STAGES
from cluster.options.stages.status import (
    STAGE_REASONS,
    first_unready_stage,
    stage_lines,
    unready_stages,
    unready_states,
)
from cluster.options.unload.nodes import DriverUnload, UnloadPhase
from cluster.plan.context.context import DriverContext
from cluster.plan.planner import plan
from cluster.plan.rivals import device_rivals_in_words
from cluster.plan.status_parts import status_inputs
from cluster.render.renderer import render_once
from nodeside.protocol.labels import assigned_label, node_driver_name
from nodeside.spec.model import Hardware
from nodeside.text.table import table

Row = Sequence[str]

_STOPPED = (Phase.STOPPED, Phase.FIRST_STOPPED)
_PAUSED_OR_STOPPED = (Phase.HELD, Phase.PAUSED, *_STOPPED)
_REASONS_OF_STOP = ("RolloutStopped", "ToolkitRefused")  # the latter: by a first canary


# --- explain -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """The sections of the output: four of lines, and what to type. `notice` comes before them."""

    subject: str
    wanted: tuple[str, ...]
    there: tuple[str, ...]
    blocks: tuple[str, ...]
    next: tuple[str, ...]
    do: tuple[Advice, ...] = ()
    notice: str = ""

    def with_presence(self, who: LeaderStatus, namespace: str = NAMESPACE) -> Explanation:
        """Return the explanation with the presence of a leader taken into account."""
        if not who.absent:
            return replace(self, notice=who.words)
        later = ("once a controller leads:", *self.next) if self.next else ()
        blocks = ("no controller leads", *self.blocks)
        first = advise([remedies.NO_LEADER], Subject(namespace, ""))
        do = sorted(dict.fromkeys((*first, *self.do)), key=lambda each: bool(each.page))
        return replace(self, notice=who.words, blocks=blocks, next=later, do=tuple(do))

    def text(self) -> str:
        notice = f"{self.notice}\n\n" if self.notice else ""
        rows = [
            *_section_rows("wanted", self.wanted),
            *_section_rows("there", self.there),
            *_section_rows("blocks", self.blocks or ("nothing",)),
            *_section_rows("next", self.next or (self._nothing,)),
        ]
        lines = (table(rows), *format_advice("do", self.do))
        return f"{notice}{self.subject}\n" + "\n".join(lines)

    @property
    def _nothing(self) -> str:
        return "nothing, until that changes" if self.blocks else "nothing: it is as it should be"

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def explain(api: Api, settings: Settings, driver: str, node: str = "") -> Explanation:
    """Read the cluster once and explain the controller's view of it.

    Raises ControllerNotInstalled.
    """
    who = leader_status(api, settings.namespace)
    snapshot = read_once(api, settings)
    snapshot = replace(snapshot, now=api.now())
    snapshot = with_controller_data(api, snapshot)
    if not node:
        return explain_driver(snapshot, driver).with_presence(who, settings.namespace)
    found = snapshot.nodes.get(node)
    events = node_pods.newest_events(api, snapshot, driver, found) if found else EMPTY
    explanation = explain_node(snapshot, driver, node, events)
    there = node_pods.with_names(api, node, explanation.there)
    blocks = node_pods.with_names(api, node, explanation.blocks)
    explanation = replace(explanation, there=there, blocks=blocks)
    return explanation.with_presence(who, settings.namespace)


def with_controller_data(api: Api, snapshot: Snapshot, pods: PodDemand | None = None) -> Snapshot:
    """Return the snapshot with the data that a controller reads only if a plan asks for it.

    `pods` are read even if no plan asks for them.
    """
    known = TagLabels(api).read_labels(
        lambda known: plan(replace(snapshot, toolkit_labels=known), snapshot.now).tags
    )
    snapshot = replace(snapshot, toolkit_labels=known)
    made = plan(snapshot, snapshot.now)
    if snapshot.stages is not None:
        given = render_once(made.templates)
        snapshot = replace(snapshot, stages=replace(snapshot.stages, rendered=given))
    demand = made.demand | pods if made.demand and pods else made.demand or pods
    consumers = list_consumers(api, demand, snapshot.settings.namespace)
    return replace(snapshot, occupancy=consumers)


def explain_driver(snapshot: Snapshot, name: str) -> Explanation:
    observed = find_driver(snapshot.drivers, name)
    ready, degraded, progressing = (
        find_condition(observed.status, kind) for kind in ("Ready", "Degraded", "Progressing")
    )
    worst = [degraded] if degraded["status"] == "True" else []
    if ready["status"] != "True" and not worst and progressing["status"] != "True":
        worst = [ready]
    blocks = [f"{each['reason']}: {each['message']}" for each in worst]
    blocks += unready_stages(observed.status)
    reasons = [each["reason"] for each in worst]
    reasons += (STAGE_REASONS.get(state, "") for state in unready_states(observed.status))
    return Explanation(
        subject=f"driver {name}",
        wanted=tuple(_describe_spec(snapshot, observed)),
        there=(
            *_status_lines(snapshot, observed),
            *_rival_lines(snapshot, name, snapshot.nodes.values()),
        ),
        blocks=tuple(blocks),
        next=tuple(_planned_steps(snapshot, name, progressing)),
        do=advise(map(by_condition, reasons), driver_subject(snapshot, observed)),
    )


def _describe_spec(snapshot: Snapshot, observed: DriverObject) -> Iterator[str]:
    if observed.deleting:
        yield "to be deleted"
    if observed.driver is None:
        yield "its document has mistakes"
        return
    spec, context = observed.driver.spec, DriverContext(snapshot, observed, observed.driver)
    newest = status_inputs(context).revision_name(context.revisions.newest)
    yield f"version {newest} from {spec.image or 'no image'}"
    yield f"on {nodes_in_words(len(context.members))}; hardware: {_describe_hardware(observed)}"
    rollout = spec.rollout
    yield (
        f"rollout: upgrade {spec.upgrade.value}, maxUnavailable {rollout.max_unavailable}, "
        f"canary {rollout.canary}, maxFailed {rollout.max_failed}"
        f"{', paused' if rollout.paused else ''}"
    )


def _rival_lines(snapshot: Snapshot, name: str, nodes: Iterable[Node]) -> Iterator[str]:
    """Yield which other Drivers are for the same devices."""
    driver = snapshot.drivers[name].driver
    if driver is not None:
        yield from device_rivals_in_words(snapshot, driver, nodes)


def _status_lines(snapshot: Snapshot, observed: DriverObject) -> Iterator[str]:
    """Yield lines for the status that the controller last wrote."""
    if old := outdated_status_note(observed):
        yield old
    status = observed.status
    nodes = status.get("nodes", {})
    words = ("assigned", "updated", "ready", "failed")
    yield ", ".join(f"{nodes.get(word, 0)} {word}" for word in words)
    if leaving := status.get("leaving"):
        yield f"nodes that it is leaving: {leaving}"
    if good := status.get("lastGoodRevision"):
        read = DriverContext(snapshot, observed, observed.driver) if observed.driver else None
        version = read.revisions.drivers[good].spec.version if read and read.revisions.good else ""
        yield f"last good version {revision_name(good, version)}"
    if lost := [row["node"] for row in status.get("casualties", ()) if row["state"] != "Down"]:
        yield f"nodes that failed or went down with the newest version: {few_of(lost)}"
    for row in status.get("pools", ()):
        pool = f"{row['osVersion']} {row['kernel']} {row['architecture']}"
        counts = row["nodes"]
        image = f"toolkit {row['toolkit']} ({row['link']})" if row["toolkit"] else "no toolkit"
        yield f"pool {pool}: {counts['ready']} of {counts['wanted']} ready; {image}"
    for row in status.get("preflight", ()):
        where = " ".join(row[key] for key in ("osVersion", "kernel", "architecture") if row[key])
        yield f"preflight {where}: {row['verdict']}: {row['message']}"


def _planned_steps(snapshot: Snapshot, name: str, progressing: Mapping[str, str]) -> Iterator[str]:
    """Yield the actions of a plan made now, with relabels grouped by reason, then progress."""
    actions = [a for a in plan(snapshot, _snapshot_time(snapshot)).actions if a.driver == name]
    labels = Counter(action.why for action in actions if isinstance(action, LabelNode))
    yield from (f"relabel {nodes_in_words(count)}: {why}" for why, count in labels.items())
    rest = (a for a in actions if not isinstance(a, LabelNode | SetStatus))
    yield from (action.words for action in rest)
    if progressing["status"] == "True":
        yield f"{progressing['reason']}: {progressing['message']}"


@dataclass
class _Notes:
    """The lines about a node, collected step by step."""

    wanted: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    subject: Subject | None = None  # what commands are about; None: Driver and node only


def explain_node(
    snapshot: Snapshot, name: str, node_name: str, events: Mapping[str, str] = EMPTY
) -> Explanation:
    """Return the explanation; `events` has the newest event of pods on the node, by pod name."""
    observed = find_driver(snapshot.drivers, name)
    node = snapshot.nodes.get(node_name)
    if node is None:
        hint = f"{did_you_mean(node_name, snapshot.nodes)}kubectl get nodes"
        raise NoSuchObject(f"no node {node_name!r}", hint=hint)
    actions = [
        a for a in plan(snapshot, _snapshot_time(snapshot)).actions if _is_about(a, name, node_name)
    ]
    notes = _explain_member(snapshot, observed, node)
    return Explanation(
        subject=f"driver {name} on node {node_name}",
        wanted=tuple(notes.wanted),
        there=tuple(_observed_lines(snapshot, name, node, events)),
        blocks=tuple(notes.blocks),
        next=tuple(action.words for action in actions) or tuple(notes.next),
        do=advise(notes.remedies, notes.subject or node_subject(snapshot, observed, node_name, "")),
    )


def _explain_member(snapshot: Snapshot, observed: DriverObject, node: Node) -> _Notes:
    """Return the desired state of a node, what blocks it, and what it waits for."""
    if observed.deleting:
        leaving = DriverUnload(snapshot, observed, (), _snapshot_time(snapshot))
        return _unload_notes(leaving, node, _Notes(["nothing: the driver is being deleted"]))
    if observed.driver is None:
        wrong = [by_condition("InvalidSpec")]
        return _Notes(["nothing: its document has mistakes"], [observed.mistakes], remedies=wrong)
    context = DriverContext(snapshot, observed, observed.driver)
    decision = next((v for v in context.rollout.decisions if v.member.node is node), None)
    if decision is None:
        leaving = DriverUnload(
            snapshot, observed, {m.node.name for m in context.members}, _snapshot_time(snapshot)
        )
        return _unload_notes(leaving, node, _non_member_notes(context, node))
    fit, pool = decision.member.fit, decision.member.pool
    resolution = context.toolkits.resolutions[pool]
    notes = _Notes(
        [f"the node {fit.value}", f"pool {pool.os_version} {pool.kernel} {pool.architecture}"]
    )
    notes.wanted.append(f"toolkit: {resolution.why}")
    if build := context.supply.newest_builds.get(pool):
        notes.wanted.append(f"built once for all: {build.progress.value}: {build.words}")
    state = context.rollout.state
    newest, good = map(status_inputs(context).revision_name, (state.newest, state.good))
    notes.wanted.append(f"version {newest}; last good {good}")
    if fit is Match.KEPT:
        notes.wanted.append("labels of Node Feature Discovery are absent: what runs is kept")
    notes.subject = member_subject(context, decision.member)
    for words, remedy in (
        *_list_obstacles(context, decision),
        *_list_drain_delays(context, decision),
    ):
        notes.blocks.append(words)
        notes.remedies.append(remedy)
    staging = context.staging
    notes.wanted += stage_lines(staging, node)
    names = [device.resource for device in context.driver.spec.devices]
    notes.wanted += resources.resource_lines(names, node)
    if why := first_unready_stage(staging, node):
        notes.blocks.append(why)
        notes.remedies.append(remedies.STAGE_NOT_READY)
    queued = why_queued(decision, state)
    if queued or not notes.blocks:
        notes.next += [*_list_awaited(decision), *filter(None, [queued])]
    if queued and state.trying:
        command = f"nodeside-cluster explain {context.driver.name} {state.trying[0]}"
        notes.next.append(f"what the canary does: {command}")
    return notes


def _list_drain_delays(
    context: DriverContext, decision: NodeDecision
) -> Iterator[tuple[str, Remedy]]:
    """Yield what delays the drain of the node, and what to do about it."""
    drains = context.rollout.drains
    if drains is None:
        return
    ends_stages = drains.step_of(decision) in ENDS_STAGES
    remedy = by_condition("StagesStuck") if ends_stages else remedies.HELD_BY_PODS
    for words in list_delays(drains, context.resource, decision, context.rollout.state.newest):
        yield words, remedy


def _non_member_notes(context: DriverContext, node: Node) -> _Notes:
    """Return notes for a node that is not a member: the labels that would make it one."""
    hardware, name = context.driver.spec.hardware, context.driver.name
    former = former_devices(hardware, context.resource.status)
    assigned = assigned_label(name) in node.labels
    fit = match_hardware(node, hardware, assigned=assigned, former=former)
    rivals = [rival for rival, nodes in context.nodes.contested_nodes.items() if node.name in nodes]
    notes = _Notes([f"nothing: the node {fit.value}"])
    if rivals:
        why = f"driver {rivals[0]} came first and has a module of the same name"
        notes.blocks.append(f"{why}; {WAY_OUT}")
        notes.remedies.append(by_condition("ModuleConflict"))
    notes.remedies.append(remedies.BY_MATCH[fit])
    if not fit.is_selected:
        notes.blocks += _missing_labels(node, hardware)
    return notes


def _unload_notes(leaving: DriverUnload, node: Node, notes: _Notes) -> _Notes:
    """Return the notes with the unload phase, for a node that a Driver leaves."""
    leaver = next((each for each in leaving.leavers if each.node is node), None)
    if leaver is None or leaver.phase is UnloadPhase.GONE:
        return notes
    words = leaver.phase.value + (f": {leaver.why}" if leaver.why else "")
    pod = leaver.pod.name if leaver.pod else ""
    notes.subject = node_subject(leaving.snapshot, leaving.found, node.name, pod)
    notes.remedies.insert(0, remedies.BY_UNLOAD[leaver.phase])
    if leaver.phase.is_obstacle:
        way_out = f"to leave the modules loaded: {leaving.way_out}"
        if leaver.phase is UnloadPhase.HELD:
            way_out = f"end what holds them, and they are unloaded; {way_out}"
        return replace(notes, blocks=[words, way_out, *notes.blocks])
    return replace(notes, next=[words, *notes.next])


def _missing_labels(node: Node, hardware: Hardware) -> Iterator[str]:
    """Yield the hardware labels that the node lacks."""
    for key, value in hardware.node_selector.items():
        present = node.labels.get(key)
        if present != value:
            near = present or similar_label([node], key, value)
            yield f"the node needs the label {key}={value}" + (f" (it has {near})" if near else "")
    alone = replace(hardware, node_selector={})
    if hardware.pci and match_hardware(node, alone, assigned=False) is not Match.HAS:
        ids = ["_".join(filter(None, (each.vendor, each.device))) for each in hardware.pci]
        labels = [f"feature.node.kubernetes.io/pci-{each}.present=true" for each in ids]
        yield (
            f"the node needs the label {' or '.join(labels)}, with or without a class "
            "before the ids; Node Feature Discovery sets it where the device is, if "
            "deviceClassWhitelist of its worker names the class of the device"
        )


def _list_obstacles(context: DriverContext, decision: NodeDecision) -> Iterator[tuple[str, Remedy]]:
    """Yield what blocks a node, each with what a person does about it."""
    member, row = decision.member, decision.row
    build = status_inputs(context).builds.get(member.pool)
    if build is not None and (reason := build_reason(build, [decision])) is not None:
        yield ": ".join(reason), by_condition(reason[0])
    elif not member.pool.kernel:
        yield "its kubelet has not reported its kernel yet", by_condition("KernelUnknown")
    elif member.pool not in context.supply.served_pools:
        missing = toolkit_message(context.toolkits.resolutions[member.pool])
        yield missing, by_condition("ToolkitMissing")
    for rival, theirs in context.nodes.taken_nodes.items():
        if member.node.name in theirs:
            conflict = f"driver {rival} has a module of the same name there; {WAY_OUT}"
            yield conflict, by_condition("ModuleConflict")
    if member.health is Health.DOWN:
        yield "the node is not ready", remedies.BY_HEALTH[Health.DOWN]
    yield from _pod_problem(member)
    if (report := member.current_report) is not None and member.health is Health.BROKEN:
        hint = f" ({report.hint})" if report.hint else ""
        yield f"{report.reason}: {report.message}{hint}", by_report(report.reason)
        if member.refused_toolkit == context.toolkits.resolutions[member.pool].image != "":
            yield wrong_toolkit_message(member), by_condition("ToolkitRefused")
    phase = context.rollout.state.phase
    halted = row.act is Act.KEEP and phase in _PAUSED_OR_STOPPED
    if halted and decision.place is not Place.NEWEST and member.pool in context.supply.served_pools:
        degraded = find_condition(context.resource.status, "Degraded")
        stopped = phase in _STOPPED and degraded["reason"] in _REASONS_OF_STOP
        words = f"{row.why}: {degraded['message']}" if stopped else row.why
        yield words, remedies.BY_PHASE[phase]


def _pod_problem(member: DriverNode) -> Iterator[tuple[str, Remedy]]:
    """Yield why its pod does not start, and what to do if that is an image."""
    waiting = list(member.stuck_pod.waiting.values()) if member.stuck_pod else []
    if member.trouble:
        first = next((why for why in waiting if why.crash is not None), next(iter(waiting), None))
        yield member.trouble, by_waiting(first.reason) if first else remedies.SILENT
    if unpulled := [why for why in waiting if why.reason in CANNOT_PULL]:
        yield image_pulls.remedy(unpulled[0].message), by_waiting(unpulled[0].reason)


def _list_awaited(decision: NodeDecision) -> Iterator[str]:
    """Yield what a node is waiting for, apart from what blocks it."""
    if decision.place is not Place.NEWEST:
        yield decision.row.why
    elif decision.member.health is not Health.WORKING:
        yield "its pod starts and reports the state of the driver"


def _observed_lines(
    snapshot: Snapshot, name: str, node: Node, events: Mapping[str, str]
) -> Iterator[str]:
    if node.kernel:
        system = f", {node.os_image}" if node.os_image else ""
        yield f"kernel {node.kernel} ({node.architecture}){system}"
    else:
        yield "kernel not reported yet"
    if odd := stale_nfd_label(node):
        yield odd
    yield from _rival_lines(snapshot, name, [node])
    yield from _others_on_node(snapshot, name, node)
    if node.unschedulable:
        yield "the node is cordoned: of new pods, only those of DaemonSets start there"
    assigned = node.labels.get(assigned_label(name), "")
    yield f"assigned to {name}-{assigned}" if assigned else "assigned to nothing"
    pods = [p for p in snapshot.pods.values() if p.driver == name and p.node == node.name]
    for pod in pods:
        creating = pod.creating if isinstance(pod, DriverPod) else ""
        words = (waiting_message(pod.waiting), creating, events.get(pod.name))
        known = "; ".join(filter(None, words))
        yield f"pod {pod.name}{' (ending)' if pod.deleting else ''}" + (known and f": {known}")
    report = snapshot.node_drivers.get(node_driver_name(name, node.name))
    if report is None:
        yield "the node has not reported anything"
        return
    void = "" if report.boot_id == node.boot_id else " (void: reported before the last reboot)"
    source = f", {report.source}" if report.source else ""
    yield f"the node says {report.state}{source}: version {report.version}{void}"
    if report.message:
        yield ": ".join(filter(None, (report.reason, report.message)))
    for service in report.services:
        yield f"service {service}"
    for parameter in report.parameters:
        yield f"parameter of {parameter}"


def _others_on_node(snapshot: Snapshot, name: str, node: Node) -> Iterator[str]:
    """Yield other software that installs the driver or serves its devices, by signs on the node."""
    driver = snapshot.drivers[name].driver
    for each in find_other_installers(driver, node) if driver is not None else ():
        way_out = each.way_out.replace(" NODE ", f" {node.name} ")
        yield f"{each.name} works there too: {each.sign}; to end that: {way_out}"


def _is_about(action: Action, driver: str, node: str) -> bool:
    """Return whether an action is about the node; an uncordon counts for any Driver."""
    if not isinstance(action, LabelNode | Cordon | Uncordon | EvictPod) or action.node != node:
        return False
    return isinstance(action, Uncordon) or action.driver == driver


def _snapshot_time(snapshot: Snapshot) -> float:
    return snapshot.now or time.time()


def _section_rows(name: str, lines: Sequence[str]) -> list[Row]:
    return [(name if i == 0 else "", line) for i, line in enumerate(lines)]


def _describe_hardware(observed: DriverObject) -> str:
    assert observed.driver is not None
    hardware = observed.driver.spec.hardware
    devices = [f"PCI {d.vendor}:{d.device or '*'}" for d in hardware.pci]
    labels = [f"{key}={value}" for key, value in hardware.node_selector.items()]
    return " and ".join([" or ".join(devices), *labels] if devices else labels) or "every node"

"""`nodeside-cluster nodes`: what each node last reported of each Driver, one line for each.

A report from before the last reboot of a node says nothing of now, and a node that has a driver and
has not reported has no report at all: both are `silent` here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cluster.cli.status import no_driver
from cluster.driver.status.messages import revision_name
from cluster.kube.client import Api
from cluster.kube.errors import Forbidden
from cluster.kube.resources import DRIVERS, NODE_DRIVERS, NODES
from cluster.model.json_fields import condition_of, parse_time, part, text
from cluster.model.parse import node_driver_from, node_from
from cluster.model.snapshot import Node, NodeReport
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import READY_CONDITION, State
from nodeside.protocol.timestamps import rfc3339
from nodeside.text.table import Colored, bad, busy, good, table

SILENT = "silent"
STATES = (*(state.value for state in State), SILENT)
_WORST = (State.FAILED.value, State.REBOOT_REQUIRED.value, SILENT)  # come first, ready nodes last
_BUSY = (State.WAITING, State.BUILDING, State.LOADING, State.UNLOADING)
_SHOWN = 200  # characters of a message; `explain` and JSON have all of it
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


@dataclass(frozen=True)
class NodeState:
    """What a Driver is doing on a node. `since` is 0.0 if nobody knows."""

    node: str
    driver: str
    state: str
    version: str = ""
    revision: str = ""
    kernel: str = ""
    since: float = 0.0
    reason: str = ""
    message: str = ""

    def row(self, now: float) -> Sequence[str]:
        version = revision_name(self.revision, self.version) if self.version else self.revision
        return (
            self.node,
            self.driver,
            self._state_cell(),
            version,
            self.kernel,
            format_age(now - self.since) if self.since else "",
            "" if self.state == State.READY.value else self._why(),
        )

    def _state_cell(self) -> Colored:
        if self.state == State.READY.value:
            return good(self.state)
        is_busy = self.state in {state.value for state in _BUSY}
        return busy(self.state) if is_busy else bad(self.state)

    def _why(self) -> str:
        said = " ".join(": ".join(filter(None, (self.reason, self.message))).split())
        return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…"

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "since": rfc3339(self.since) if self.since else ""}


@dataclass(frozen=True)
class NodeStates:
    """The nodes of all Drivers, or of one, and in which states they were asked for.

    `notice` is what could not be looked at, "" if everything could.
    """

    rows: tuple[NodeState, ...]
    now: float
    driver: str = ""
    states: tuple[str, ...] = ()
    notice: str = ""

    def text(self) -> str:
        if not self.rows:
            return self._nothing
        header = ("NODE", "DRIVER", "STATE", "VERSION", "KERNEL", "SINCE", "WHY")
        return table([each.row(self.now) for each in self.rows], header=header)

    @property
    def _nothing(self) -> str:
        whose = f"driver {self.driver}" if self.driver else "any driver"
        if self.states:
            return f"no node of {whose} is {' or '.join(self.states)}"
        explain = f"nodeside-cluster explain {self.driver or 'DRIVER'}"
        return f"no node has {whose}; to see why: {explain}"

    def json(self) -> str:
        return json.dumps([each.document() for each in self.rows], indent=2)


def list_nodes(api: Api, driver: str = "", states: Collection[str] = ()) -> NodeStates:
    """Read what nodes have reported. Raises NoSuchObject for a Driver that does not exist."""
    names = api.list(DRIVERS, _name_of).items
    if driver and driver not in names:
        raise no_driver(driver, names)
    told = [each for each in api.list(NODE_DRIVERS, _read_report).items if each[0].driver in names]
    nodes, notice = _read_nodes(api)
    rows = [_as_state(report, since, nodes) for report, since in told]
    rows += _silent_nodes(nodes or {}, names, {(each.driver, each.node) for each in rows})
    chosen = [
        each
        for each in rows
        if driver in ("", each.driver) and (not states or each.state in states)
    ]
    ordered = sorted(chosen, key=_worst_first)
    wanted = tuple(state for state in STATES if state in states)
    return NodeStates(tuple(ordered), api.now(), driver, wanted, notice)


def _read_nodes(api: Api) -> tuple[Mapping[str, Node] | None, str]:
    """Return the nodes by name; None, and what is not known without them, if that is refused."""
    try:
        found = api.list(NODES, node_from).items
    except Forbidden as error:
        why = f"whether a node has rebooted since its report is not known: {error}"
        return None, f"{why}; to list nodes takes the ClusterRole nodeside-explain"
    return {node.name: node for node in found}, ""


def _read_report(document: dict[str, Any]) -> tuple[NodeReport, float] | None:
    """Return a report, and since when its state is what it is, as far as the node says that."""
    report = node_driver_from(document)
    if report is None:
        return None
    ready = condition_of(part(document, "status"), READY_CONDITION)
    return report, parse_time(text(ready, "lastTransitionTime")) or report.time


def _name_of(document: dict[str, Any]) -> str:
    return text(part(document, "metadata"), "name")


def _as_state(report: NodeReport, since: float, nodes: Mapping[str, Node] | None) -> NodeState:
    """Return the state that a node reported, or that it is silent if the report is void."""
    state = NodeState(
        report.node,
        report.driver,
        report.state if report.state in STATES else State.WAITING.value,
        report.version,
        report.revision,
        report.kernel,
        since,
        report.reason,
        report.message,
    )
    if nodes is None:
        return state
    node = nodes.get(report.node)
    if node is None:
        return _silence(state, "the cluster has no such node any more")
    if report.boot_id != node.boot_id:
        why = f"no report since its last reboot; before that it was {state.state}"
        return _silence(replace(state, kernel=node.kernel), why)
    return state


def _silence(state: NodeState, why: str) -> NodeState:
    return replace(state, state=SILENT, since=0.0, reason="", message=why)


def _silent_nodes(
    nodes: Mapping[str, Node], drivers: Sequence[str], told: Collection[tuple[str, str]]
) -> Iterator[NodeState]:
    """Yield nodes that have been given a Driver and have not reported anything of it."""
    for driver in drivers:
        label = assigned_label(driver)
        for node in nodes.values():
            if node.labels.get(label) and (driver, node.name) not in told:
                why = f"no report yet: nodeside-cluster explain {driver} {node.name}"
                yield NodeState(node.name, driver, SILENT, kernel=node.kernel, message=why)


def _worst_first(state: NodeState) -> tuple[int, str, str]:
    rank = _WORST.index(state.state) if state.state in _WORST else len(_WORST)
    is_ready = state.state == State.READY.value
    return rank + is_ready, state.driver, state.node


def format_age(seconds: float) -> str:
    """Return a duration in its largest unit, as kubectl does: `45s`, `12m`, `3h`, `5d`."""
    whole = max(0, int(seconds))
    for unit, length in _UNITS:
        if whole >= 2 * length:
            return f"{whole // length}{unit}"
    return f"{whole}s"

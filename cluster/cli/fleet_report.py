"""`nodeside-cluster report`: the drivers of a cluster on one page, to look at, to keep and to send.

The tables show what the controller and the nodes wrote last; only sums are computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from cluster.cli.status import (
    Overview,
    Row,
    counts_of,
    look,
    pools_of,
    resources_of,
    row_of,
    stages_of,
)
from cluster.kube.client import Api
from cluster.kube.resources import NODE_DRIVERS
from cluster.model.parse import node_driver_from
from cluster.model.snapshot import DriverObject, NodeReport
from nodeside.protocol.node_status import State
from nodeside.text.html_page import (
    Bar,
    Cell,
    bad_cell,
    good_cell,
    html_heading,
    html_paragraph,
    html_table,
    long_cell,
    number_cell,
    render_bars,
    render_page,
)

_NODES = 2000  # rows of one driver, those that are not ready first
_COLORS = {
    "ready": "#01665e",
    "building": "#5ab4ac",
    "loading": "#5ab4ac",
    "unloading": "#c2a5cf",
    "waiting": "#d8b365",
    "reboot-required": "#7b3294",
    "failed": "#c62828",
    "silent": "#888888",
}
_STATES = frozenset(state.value for state in State)
_SILENT = "silent"  # nodes that are to have the driver and have not reported


@dataclass(frozen=True)
class NodeRow:
    """What a node reported of a driver.

    `seconds` says how long each step of the node's last attempt took, such as `build`. These steps
    are not the stages of a Driver.
    """

    report: NodeReport
    seconds: Mapping[str, float]

    @property
    def state(self) -> str:
        return self.report.state if self.report.state in _STATES else "waiting"


def make_report(api: Api, namespace: str, driver: str = "") -> str:
    """Return the page.

    Raises ControllerNotInstalled, and NoSuchObject for a driver that does not exist.
    """
    overview = look(api, namespace, driver)
    rows = [row for row in api.list(NODE_DRIVERS, _node_row).items if row.report.driver]
    return make_page(overview, rows, api.url, datetime.fromtimestamp(api.now(), UTC))


def _node_row(data: dict[str, Any]) -> NodeRow | None:
    found = node_driver_from(data)
    if found is None:
        return None
    stages = (data.get("status") or {}).get("stages")
    pairs = stages.items() if isinstance(stages, Mapping) else ()
    numbers = ((name, value) for name, value in pairs if isinstance(value, int | float))
    return NodeRow(found, {str(name)[:40]: float(value) for name, value in islice(numbers, 20)})


def make_page(overview: Overview, rows: Sequence[NodeRow], url: str, now: datetime) -> str:
    return render_page("Drivers of a cluster", _page_parts(overview, rows, url, now))


def _page_parts(
    overview: Overview, rows: Sequence[NodeRow], url: str, now: datetime
) -> Iterator[str]:
    yield html_paragraph(f"{url}, {now:%Y-%m-%d %H:%M:%S} UTC")
    if overview.leader.words:
        yield html_paragraph(overview.leader.words)
    drivers = list(overview.drivers.values())
    if not drivers:
        yield html_paragraph("There is no Driver in this cluster.")
        return
    header = ("driver", "version", *_COUNTS, "status", "why")
    yield html_table(header, [_driver_row(row_of(each)) for each in drivers])
    yield html_heading("Nodes by state")
    shown = [_state_bar(each.name, each.status, rows) for each in drivers]
    used = {name for bar in shown for name, _ in bar.parts}
    yield render_bars(
        "nodes by state", shown, {name: c for name, c in _COLORS.items() if name in used}
    )
    for title, columns, rows_of in _TABLES:
        yield from _titled_table(title, columns, [row for each in drivers for row in rows_of(each)])
    for each in drivers:
        mine = [row for row in rows if row.report.driver == each.name]
        yield from _node_table(each.name, sorted(mine, key=_worst_first))


_COUNTS = ("nodes", "updated", "ready", "failed")
_TABLES: tuple[tuple[str, Row, Callable[[DriverObject], Iterator[Row]]], ...] = (
    ("Kernels", ("driver", "OS version", "kernel", *_COUNTS, "toolkit", "why"), pools_of),
    ("Devices", ("driver", "resource", "devices", "healthy", "why"), resources_of),
    ("Stages", ("driver", "stage", "nodes", "ready", "state", "why"), stages_of),
)


def _driver_row(row: Sequence[str]) -> list[str | Cell]:
    name, version, *counted, status, why = row
    words = good_cell(status) if status == "Ready" else bad_cell(status)
    return [name, version, *map(number_cell, counted), words, long_cell(why)]


def _titled_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    if rows:
        yield html_heading(title)
        cells: list[list[str | Cell]] = [[*row[:-1], long_cell(row[-1])] for row in rows]
        yield html_table(header, cells)


def _state_bar(name: str, status: Mapping[str, Any], rows: Sequence[NodeRow]) -> Bar:
    states = Counter(row.state for row in rows if row.report.driver == name)
    wanted = int(counts_of(status.get("nodes", {}))[0])
    silent = max(0, wanted - states.total())
    counted = {**states, _SILENT: silent}
    parts = tuple((state, float(counted[state])) for state in _COLORS if counted.get(state))
    words = ", ".join(f"{int(count)} {state}" for state, count in parts) or "no node"
    return Bar(f"{name}: {words}", parts)


def _worst_first(row: NodeRow) -> tuple[bool, bool, str]:
    state = row.report.state
    return state != State.FAILED.value, state == State.READY.value, row.report.node


def _node_table(driver: str, rows: Sequence[NodeRow]) -> Iterator[str]:
    """Yield a table of nodes: what each runs, where its modules came from, and what is wrong."""
    if not rows:
        return
    yield html_heading(f"{driver} on its nodes")
    if len(rows) > _NODES:
        yield html_paragraph(f"{_NODES} of {len(rows)} nodes, those that are not ready first.")
    steps = list(dict.fromkeys(name for row in rows for name in row.seconds))[:8]
    header: list[str | Cell] = ["node", "state", "version", "kernel", "source"]
    header += [*(number_cell(f"{name}, s") for name in steps), "why"]
    yield html_table(header, [_node_cells(row, steps) for row in rows[:_NODES]])


def _state_cell(state: str) -> str | Cell:
    if state == State.READY.value:
        return good_cell(state)
    return bad_cell(state) if state == State.FAILED.value else state or "unknown"


def _node_cells(row: NodeRow, steps: Sequence[str]) -> list[str | Cell]:
    report = row.report
    times = (number_cell(f"{row.seconds[s]:.1f}" if s in row.seconds else "") for s in steps)
    words = "; ".join(part for part in (report.reason, report.message) if part)
    why = long_cell("" if report.state == State.READY.value else words)
    state, source = _state_cell(report.state), report.source
    return [report.node, state, report.version, report.kernel, source, *times, why]

"""How panels are written, and those that both dashboards have.

`max by` drops the labels of what was scraped, as in the alerts: a pod that replaces another, or a
target that is scraped twice, counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.monitoring.dashboards.model import (
    COLUMNS,
    Colors,
    Kind,
    Panel,
    Query,
)

OF_DRIVER = 'driver=~"$driver"'
ON_NODE = f'node="$node", {OF_DRIVER}'
_DEVICE = "driver, node, resource, device"
_ALERTS = 'ALERTS{alertname=~"Nodeside.+"'


def stat(title: str, expression: str, colors: Colors = Colors.NEUTRAL, **more: Any) -> Panel:
    """`more` is of the panel, but for two words that are of its query."""
    of_query = {key: more.pop(key) for key in ("or_zero", "yes_no") if key in more}
    queries = (Query(expression, **of_query),)
    return Panel(title, Kind.STAT, queries, width=3, colors=colors, **more)


def graph(title: str, *queries: Query, width: int = 6, **more: Any) -> Panel:
    return Panel(title, Kind.GRAPH, queries, width=width, **more)


def table(title: str, labels: Mapping[str, str], *queries: Query, **more: Any) -> Panel:
    width = more.pop("width", COLUMNS)
    return Panel(title, Kind.TABLE, queries, width=width, labels=labels, **more)


def devices(where: str) -> str:
    """For each device, 1 if it works."""
    return f"max by ({_DEVICE}) (nodeside_device_healthy{{{where}}})"


def given(where: str) -> str:
    """For each device that a container has, a number."""
    return f"max by ({_DEVICE}) (nodeside_device_allocated{{{where}}})"


def plugins(metric: str, where: str) -> str:
    return f"max by (driver, node, resource) ({metric}{{{where}}})"


def device_numbers(where: str) -> tuple[Panel, ...]:
    watched = plugins("nodeside_device_plugin_watched", where)
    return (
        stat("Devices", f"count({devices(where)})"),
        stat(
            "Devices that do not work",
            f"sum({devices(where)} == bool 0)",
            Colors.ALARM,
            words="New containers do not get them.",
        ),
        stat(
            "Devices that containers have",
            f"count({given(where)})",
            or_zero=True,
            words="A device that several containers share counts once.",
        ),
        stat(
            "Resources that the kubelet does not listen to",
            f"sum({watched} == bool 0)",
            Colors.ALARM,
            words="Pods that ask for one of them wait.",
        ),
    )


def device_graph(where: str) -> Panel:
    return graph(
        "Devices over time",
        Query(f"count by (resource) ({devices(where)})", "{{resource}}"),
        Query(f"sum by (resource) ({devices(where)})", "{{resource}}, working"),
        Query(f"count by (resource) ({given(where)})", "{{resource}}, in containers"),
    )


def alerts(where: str) -> tuple[Panel, Panel]:
    names = "alertname, alertstate, severity, driver, node, resource, device"
    firing = f'count({_ALERTS}, alertstate="firing"{where}}})'
    heads = ("Alert", "State", "Severity", "Driver", "Node", "Resource", "Device")
    return (
        stat(
            "Alerts that fire",
            firing,
            Colors.ALARM,
            or_zero=True,
            words="docs/monitoring.md has a runbook for each.",
        ),
        table(
            "Alerts",
            dict(zip(names.split(", "), heads, strict=True)),
            Query(f"max by ({names}) ({_ALERTS}{where}}})"),
            words="Pending ones, too. docs/monitoring.md has a runbook for each.",
            quiet=True,
        ),
    )

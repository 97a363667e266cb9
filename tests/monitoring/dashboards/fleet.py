"""The dashboard of the fleet: how many of what, and where something is wrong."""

from __future__ import annotations

from tests.monitoring.dashboards.model import (
    COLUMNS,
    Colors,
    Dashboard,
    Query,
    Row,
    Variable,
)
from tests.monitoring.dashboards.panels import (
    OF_DRIVER,
    alerts,
    device_graph,
    device_numbers,
    devices,
    graph,
    stat,
    table,
)

_BROKEN = "failed|reboot-required"


def _nodes(states: str = "") -> str:
    """The nodes of each driver in each of these states."""
    state = f', state=~"{states}"' if states else ""
    return f"max by (driver, state) (nodeside_nodes{{{OF_DRIVER}{state}}})"


def _places(place: str = "") -> str:
    which = f', place="{place}"' if place else ""
    return f"max by (driver, place) (nodeside_nodes_by_place{{{OF_DRIVER}{which}}})"


def _phases(phases: str) -> str:
    return f'max by (driver, phase) (nodeside_rollout_phase{{{OF_DRIVER}, phase=~"{phases}"}})'


def _of_driver(metric: str, more: str = "") -> str:
    return f"max by (driver) ({metric}{{{OF_DRIVER}{more}}})"


def _condition(name: str) -> str:
    return _of_driver("nodeside_driver_condition", f', condition="{name}"')


_FIRING, _LIST = alerts("")

_AT_A_GLANCE = Row(
    "At a glance",
    (
        stat(
            "Nodes that should have the driver",
            f"sum({_nodes()})",
            words="A node counts for each driver that it should have.",
        ),
        stat("Nodes where it works", f"sum({_nodes('ready')})"),
        stat("Nodes where it failed", f"sum({_nodes(_BROKEN)})", Colors.ALARM),
        stat(
            "Nodes that report nothing",
            f"sum({_nodes('silent')})",
            Colors.WARNING,
            words="Since they booted, their pods have said nothing.",
        ),
        stat("Nodes assigned to the newest version", f"sum({_places('newest')})"),
        stat("Rollouts in progress", f"sum({_phases('first|first_canary|canary|open')})"),
        stat("Rollouts that stopped", f"sum({_phases('stopped')})", Colors.ALARM),
        _FIRING,
    ),
)

_DRIVERS = Row(
    "Drivers",
    (
        table(
            "Drivers",
            {"driver": "Driver"},
            Query(f"sum by (driver) ({_nodes()})", "Nodes"),
            Query(f"sum by (driver) ({_nodes('ready')})", "Ready"),
            Query(f"sum by (driver) ({_places('newest')})", "Newest version"),
            Query(f"sum by (driver) ({_nodes(_BROKEN)})", "Failed"),
            Query(f"sum by (driver) ({_nodes('silent')})", "Silent"),
            Query(_of_driver("nodeside_rollout_unavailable_nodes"), "Unavailable"),
            Query(_of_driver("nodeside_rollout_allowed_nodes"), "May be unavailable"),
            Query(_condition("StagesReady"), "Stages ready", yes_no=Colors.WANTED),
            Query(_condition("Degraded"), "Degraded", yes_no=Colors.ALARM),
            words="Why one is Degraded: nodeside-cluster explain. One without stages has none.",
        ),
        graph(
            "Nodes by state",
            Query(f"sum by (state) ({_nodes()})", "{{state}}"),
            stacked=True,
        ),
        graph(
            "Nodes by what they are assigned to",
            Query(f"sum by (place) ({_places()})", "{{place}}"),
            stacked=True,
        ),
        graph(
            "Nodes without a working driver",
            Query(_of_driver("nodeside_rollout_unavailable_nodes"), "{{driver}}"),
            Query(_of_driver("nodeside_rollout_allowed_nodes"), "{{driver}}, allowed"),
            words="Those that count against maxUnavailable, and that in nodes.",
        ),
        table(
            "Rollouts",
            {"driver": "Driver", "phase": "Phase"},
            Query(f"{_phases('.+')} == 1"),
            width=6,
        ),
    ),
)

_POOL = {
    "driver": "Driver",
    "kernel": "Kernel",
    "os_version": "OS version",
    "architecture": "Architecture",
    "link": "Toolkit image found by",
}

_BUILDS = Row(
    "Kernels and builds",
    (
        table(
            "Kernels",
            _POOL,
            Query(f"max by ({', '.join(_POOL)}) (nodeside_pool_nodes{{{OF_DRIVER}}})", "Nodes"),
        ),
        graph(
            "Shared builds of the newest version",
            Query(
                f"max by (driver, progress) (nodeside_builds{{{OF_DRIVER}}})",
                "{{driver}} {{progress}}",
            ),
            width=COLUMNS,
            words="Refused: it does not compile. Broken: the nodes build for themselves.",
        ),
    ),
)

_FLEET_DEVICES = Row(
    "Devices",
    (
        *device_numbers(OF_DRIVER),
        device_graph(OF_DRIVER),
        table(
            "Which devices do not work",
            {"driver": "Driver", "node": "Node", "resource": "Resource", "device": "Device"},
            Query(f"{devices(OF_DRIVER)} == 0"),
            width=6,
            quiet=True,
        ),
        table(
            "Nodes with devices whose driver is not ready",
            {"driver": "Driver", "node": "Node"},
            Query(f"max by (driver, node) (nodeside_driver_ready{{{OF_DRIVER}}}) == 0"),
            quiet=True,
        ),
    ),
)


def _slowest(metric: str) -> str:
    return f"histogram_quantile(0.99, sum by (le) (rate({metric}_bucket[5m])))"


_CONTROLLER = Row(
    "Controller",
    (
        stat(
            "Controllers that lead",
            "sum(max by (pod) (nodeside_leader))",
            Colors.WANTED,
        ),
        stat(
            "Caches behind the API server",
            "sum(max by (pod, kind) (nodeside_up_to_date == bool 0))",
            Colors.ALARM,
        ),
        graph(
            "Duration of a round",
            Query(_slowest("nodeside_round_duration_seconds"), "round"),
            Query(_slowest("nodeside_plan_duration_seconds"), "of that, planning"),
            words="The 99th percentile; a gap where nothing was done.",
            unit="s",
        ),
        graph(
            "Requests to the API server, a second",
            Query(
                "sum by (code) (max by (pod, verb, resource, code) "
                "(rate(nodeside_api_requests_total[5m])))",
                "{{code}}",
            ),
        ),
        graph(
            "Memory",
            Query(
                "max by (pod) (process_resident_memory_bytes and on (instance) nodeside_leader)",
                "{{pod}}",
            ),
            unit="bytes",
        ),
    ),
)

FLEET = Dashboard(
    uid="nodeside-fleet",
    title="nodeside / Fleet",
    words="Drivers on all nodes, rollouts, builds, devices, and the controller.",
    variables=(Variable("driver", "nodeside_nodes", all=True),),
    rows=(
        _AT_A_GLANCE,
        _DRIVERS,
        _BUILDS,
        _FLEET_DEVICES,
        Row("Alerts", (_LIST,)),
        _CONTROLLER,
    ),
)

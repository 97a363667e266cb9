"""The dashboard of one node: what has devices there, and who has them."""

from __future__ import annotations

from tests.monitoring.dashboards.model import (
    COLUMNS,
    NODE_UID,
    Colors,
    Dashboard,
    Query,
    Row,
    Variable,
)
from tests.monitoring.dashboards.panels import (
    ON_NODE,
    alerts,
    device_graph,
    device_numbers,
    graph,
    plugins,
    stat,
    table,
)

_FIRING_HERE, _LIST_HERE = alerts(', node="$node"')
_HAS = "driver, resource, device, namespace, pod, container"
_KNOWN = "nodeside_device_holders_known"
_SINCE = "nodeside_driver_ready_timestamp_seconds"

_READY = Row(
    "Driver",
    (
        stat(
            "Drivers work",
            f"min(max by (driver) (nodeside_driver_ready{{{ON_NODE}}}))",
            yes_no=Colors.WANTED,
            words="All that have a device agent on this node.",
        ),
        stat(
            "Working for",
            f"min(time() - max by (driver) ({_SINCE}{{{ON_NODE}}}))",
            unit="s",
        ),
        stat(
            "The kubelet says who has devices",
            f"min({plugins(_KNOWN, ON_NODE)})",
            yes_no=Colors.WANTED,
        ),
        _FIRING_HERE,
        table(
            "Drivers",
            {"driver": "Driver", "version": "Version"},
            Query(
                f"max by (driver, version) (nodeside_driver_ready{{{ON_NODE}}})",
                "Works",
                yes_no=Colors.WANTED,
            ),
            width=6,
        ),
        graph(
            "Drivers that work",
            Query(f"max by (driver) (nodeside_driver_ready{{{ON_NODE}}})", "{{driver}}"),
        ),
        table(
            "How they came up in this boot",
            {"driver": "Driver", "stage": "Stage"},
            Query(
                f"max by (driver, stage) (nodeside_driver_stage_seconds{{{ON_NODE}}})", "Seconds"
            ),
            width=6,
        ),
    ),
)

_WHERE = "driver, resource, device"
_NODE_DEVICES = Row(
    "Devices",
    (
        *device_numbers(ON_NODE),
        table(
            "Where devices are",
            {
                "driver": "Driver",
                "resource": "Resource",
                "device": "Device",
                "address": "Address",
                "numa_node": "NUMA node",
            },
            Query(
                f"max by ({_WHERE}) (nodeside_device_healthy{{{ON_NODE}}})"
                f" * on ({_WHERE}) group_left (address, numa_node)"
                f" max by ({_WHERE}, address, numa_node) (nodeside_device_info{{{ON_NODE}}})",
                "Works",
                yes_no=Colors.WANTED,
            ),
            words="Why one does not work: the log of the device agent.",
        ),
        table(
            "Containers that have devices",
            {
                "namespace": "Namespace",
                "pod": "Pod",
                "container": "Container",
                "driver": "Driver",
                "resource": "Resource",
                "device": "Device",
            },
            Query(f"max by ({_HAS}) (nodeside_device_allocated{{{ON_NODE}}})", "Shares"),
        ),
        device_graph(ON_NODE),
        graph(
            "Containers that were given devices, in an hour",
            Query(
                f"max by (driver, resource) "
                f"(increase(nodeside_device_plugin_allocations_total{{{ON_NODE}}}[1h]))",
                "{{resource}}",
            ),
        ),
    ),
)

_AGENT = Row(
    "Device agent",
    (
        table(
            "Agents",
            {"driver": "Driver", "version": "Version of nodeside"},
            Query(f"max by (driver, version) (nodeside_device_agent_info{{{ON_NODE}}})"),
            width=6,
        ),
        graph(
            "The kubelet listens",
            Query(
                f"max by (driver, resource) (nodeside_device_plugin_watched{{{ON_NODE}}})",
                "{{resource}}",
            ),
        ),
        graph(
            "Registrations with the kubelet, in an hour",
            Query(
                f"max by (driver, resource) "
                f"(increase(nodeside_device_plugin_registrations_total{{{ON_NODE}}}[1h]))",
                "{{resource}}",
            ),
            width=COLUMNS,
            words="One for each restart of the kubelet or the agent.",
        ),
    ),
)

NODE = Dashboard(
    uid=NODE_UID,
    title="nodeside / Node",
    words="Drivers, devices and device agents of one node that offers devices.",
    variables=(
        Variable("node", "nodeside_device_agent_info", all=False),
        Variable("driver", 'nodeside_device_agent_info{node="$node"}', all=True),
    ),
    rows=(_READY, _NODE_DEVICES, Row("Alerts", (_LIST_HERE,)), _AGENT),
)

"""The way out: a Driver that is deleted, and nodes that a Driver is not for any more.

Pure; called by plan.py. What the pod on a node wrote (its state label, its NodeDriver) goes only
when the pod is gone, which would write it again. A node that is down holds nothing up: its pods
never end. The kernel modules stay loaded until somebody unloads them (`nodeside driver unload`) or
the node reboots, and the status says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cluster import conditions
from cluster.actions import FINALIZER, Action, Delete, LabelNode, Plan, SetFinalizers, SetStatus
from cluster.pools import before_label
from cluster.resources import CONFIG_MAPS, DAEMON_SETS, NODE_DRIVERS
from cluster.world import DriverObject, Node, World
from nodeside.contract import assigned_label, node_driver_name, state_label

_STAYS = "kernel modules stay loaded until the node reboots or somebody unloads them"


def delete(world: World, found: DriverObject, now: float) -> Plan:
    """First the pods go, then what they wrote, then the Driver."""
    if FINALIZER not in found.finalizers:
        return Plan()
    if _has_objects(world, found.name):
        stopping = [*_daemonsets(world, found.name), *_told(world, found, now)]
        return Plan((*stopping, *_traces(world, found.name)))
    rest = tuple(finalizer for finalizer in found.finalizers if finalizer != FINALIZER)
    return Plan((SetFinalizers(found.name, found.uid, rest),))


def leave(world: World, driver: str, members: Collection[str]) -> Iterator[Action]:
    """Nodes that are not (any more) among those that the Driver is for."""
    gone = _label_keys(driver)[:2]
    stays = _nodes_with_pods(world, driver)
    for node in world.nodes.values():
        if node.name in members:
            continue
        if any(key in node.labels for key in gone):
            yield LabelNode(driver, node.name, _without(node, gone), "the driver is not for it")
        elif node.name not in stays:
            yield from _node_cleaned(world, driver, node)
    yield from _strays(world, driver)


def _has_objects(world: World, driver: str) -> bool:
    keys = _label_keys(driver)
    return (
        any(each.driver == driver for each in world.daemonsets.values())
        or any(each.driver == driver for each in world.revisions.values())
        or any(each.driver == driver for each in world.node_drivers.values())
        or any(key in node.labels for node in world.nodes.values() for key in keys)
    )


def _daemonsets(world: World, driver: str) -> Iterator[Action]:
    for each in world.daemonsets.values():
        if each.driver == driver and not each.deleting:
            yield Delete(driver, DAEMON_SETS, each.name, world.settings.namespace, each.uid)


def _traces(world: World, driver: str) -> Iterator[Action]:
    """Labels in one request a node, NodeDrivers, and at the end the revisions."""
    if any(each.driver == driver for each in world.daemonsets.values()):
        return  # its controller would make pods again for a node that keeps its label
    stays = _nodes_with_pods(world, driver)
    for node in world.nodes.values():
        if node.name not in stays:
            yield from _node_cleaned(world, driver, node)
    yield from _strays(world, driver)
    if not stays:
        for each in world.revisions.values():
            if each.driver == driver:
                yield Delete(driver, CONFIG_MAPS, each.name, world.settings.namespace, each.uid)


def _node_cleaned(world: World, driver: str, node: Node) -> Iterator[Action]:
    keys = _label_keys(driver)
    if any(key in node.labels for key in keys):
        yield LabelNode(driver, node.name, _without(node, keys), "the driver is gone from it")
    report = node_driver_name(driver, node.name)
    if report in world.node_drivers:
        yield Delete(driver, NODE_DRIVERS, report)


def _strays(world: World, driver: str) -> Iterator[Action]:
    """Reports of nodes that are gone; usually the garbage collector was there first."""
    for report in world.node_drivers.values():
        if report.driver == driver and report.node not in world.nodes:
            yield Delete(driver, NODE_DRIVERS, report.name)


def _nodes_with_pods(world: World, driver: str) -> frozenset[str]:
    """Nodes that are up and have a pod of the driver, be it one that is ending."""
    return frozenset(
        pod.node
        for pod in world.pods.values()
        if pod.driver == driver and pod.node in world.nodes and world.nodes[pod.node].ready
    )


def _told(world: World, found: DriverObject, now: float) -> Iterator[Action]:
    nodes = sorted(_nodes_with_pods(world, found.name))
    waits = f"pods end on {conditions.some(nodes)}; " if nodes else ""
    status = conditions.going(found, waits + _STAYS, now=now)
    if status != found.status:
        yield SetStatus(found.name, status)


def _label_keys(driver: str) -> tuple[str, str, str]:
    return assigned_label(driver), before_label(driver), state_label(driver)


def _without(node: Node, keys: Collection[str]) -> dict[str, str | None]:
    return {key: None for key in keys if key in node.labels}

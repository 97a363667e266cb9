"""Pods that use a device and must leave before a Driver is replaced on their node.

Pure. `PodDemand` describes the pod data that all evicting Drivers need from the whole cluster.
`consumer_from` keeps only that data. It drops pods that no Driver asks for and pods that are never
evicted: DaemonSet pods, static pods, our own, and those that have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import EMPTY, Consumer, Snapshot
from nodeside.protocol.labels import dra_driver
from nodeside.spec import Driver
from nodeside.spec.devices import dra_devices
from nodeside.spec.fleet import Evict
from nodeside.spec.model import Upgrade


def eviction_policy(driver: Driver) -> Evict | None:
    """Return which pods a Driver evicts, None for none.

    With `upgrade: onReboot` it evicts none: a reboot empties a node by itself. Without `resources`
    and `selector`, the pods that request a declared device are evicted. One that requests it by a
    claim is found by the name of the driver that gives the device, see `PodDemand`.
    """
    evict, devices = driver.spec.rollout.evict, driver.spec.devices
    if evict is None or driver.spec.upgrade is not Upgrade.LIVE:
        return None
    resources = evict.resources
    if not (resources or evict.selector):
        resources = tuple(device.resource for device in devices)
    by_claims = any(each.resource in resources for each in dra_devices(devices))
    claims = (dra_driver(driver.name),) if by_claims else ()
    return replace(evict, resources=(*resources, *claims))


def eviction_policies(drivers: Iterable[Driver]) -> tuple[Evict, ...]:
    """Return the policies of those Drivers that evict pods."""
    found = (eviction_policy(driver) for driver in drivers)
    return tuple(each for each in found if each is not None)


def demand_of(*policies: Evict) -> PodDemand:
    """Return the demand for the pods that one of the policies matches."""
    return reduce(PodDemand.__or__, (_demand_of_policy(each) for each in policies))


def _demand_of_policy(evict: Evict) -> PodDemand:
    selector = frozenset(evict.selector.items())
    return PodDemand(
        frozenset(evict.resources),
        frozenset([selector] if selector else ()),
        frozenset(evict.namespaces),
    )


def policy_matches(consumer: Consumer, evict: Evict) -> bool:
    """Return whether a Driver's `evict` matches this pod."""
    if evict.namespaces and consumer.pod.namespace not in evict.namespaces:
        return False
    if not consumer.resources.isdisjoint(evict.resources):
        return True
    return bool(evict.selector) and evict.selector.items() <= consumer.labels.items()


def consumers_by_node(
    snapshot: Snapshot, policies: Sequence[Evict]
) -> Mapping[str, Sequence[Consumer]] | None:
    """Return the pods that one of the policies matches, by node; None if they are unknown."""
    if not policies:
        return EMPTY
    if not snapshot.occupancy.knows(demand_of(*policies)):
        return None
    pods: dict[str, list[Consumer]] = defaultdict(list)
    for consumer in snapshot.occupancy.consumers.values():
        if any(policy_matches(consumer, each) for each in policies):
            pods[consumer.node].append(consumer)
    return pods

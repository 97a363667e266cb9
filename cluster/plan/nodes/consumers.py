"""Pods that use a device: which ones a Driver wants to be gone before it is replaced on their node.

Pure. `Demand` is what of the pods of a whole cluster has to be known for all Drivers that evict;
`consumer_from` keeps of a pod what that is, and nothing of a pod that nobody asks for, or that is
never evicted: those of DaemonSets, static ones, our own, and those that have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from cluster.model.actions import Demand
from cluster.model.snapshot import EMPTY, Consumer, Snapshot
from nodeside.spec import Driver
from nodeside.spec.fleet import Evict
from nodeside.spec.model import Upgrade


def evicts(driver: Driver) -> Evict | None:
    """Whom a Driver evicts; None if nobody: a reboot empties a node by itself."""
    return driver.spec.rollout.evict if driver.spec.upgrade is Upgrade.LIVE else None


def demand_of(evict: Evict) -> Demand:
    selector = frozenset(evict.selector.items())
    return Demand(
        frozenset(evict.resources),
        frozenset([selector] if selector else ()),
        frozenset(evict.namespaces),
    )


def consumes(consumer: Consumer, evict: Evict) -> bool:
    """Whether one Driver means this pod."""
    if evict.namespaces and consumer.name.partition("/")[0] not in evict.namespaces:
        return False
    if not consumer.resources.isdisjoint(evict.resources):
        return True
    return bool(evict.selector) and evict.selector.items() <= consumer.labels.items()


def by_node(snapshot: Snapshot, evict: Evict | None) -> Mapping[str, Sequence[Consumer]] | None:
    """The pods that one Driver means, by node; None if they are not known."""
    if evict is None:
        return EMPTY
    if not snapshot.occupancy.known:
        return None
    found: dict[str, list[Consumer]] = defaultdict(list)
    for consumer in snapshot.occupancy.consumers.values():
        if consumes(consumer, evict):
            found[consumer.node].append(consumer)
    return found

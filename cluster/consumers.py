"""Pods that use a device: which ones a Driver wants to be gone before it is replaced on their node.

Pure. `Demand` is what of the pods of a whole cluster has to be known for all Drivers that evict;
`consumer_from` keeps of a pod what that is, and nothing of a pod that nobody asks for, or that is
never evicted: those of DaemonSets, static ones, our own, and those that have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from sys import intern
from typing import Any, Final

from cluster.model.names import MANAGED_BY, MANAGER
from cluster.world import NOTHING, Consumer, World
from nodeside.spec import Driver
from nodeside.spec.fleet import Evict
from nodeside.spec.model import Upgrade

# What the API server leaves out by itself: pods that were never bound, or have ended.
FIELDS: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"

# A kubelet shows a pod of its own files by it, and nobody else may set it or take it off.
MIRROR: Final = "kubernetes.io/config.mirror"
_NONE = ("0", "")

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Demand:
    """Pods with one of these resources, or all labels of one selector. No `namespaces`: of all."""

    resources: frozenset[str]
    selectors: frozenset[Labels]
    namespaces: frozenset[str]

    def __or__(self, other: Demand) -> Demand:
        every = not self.namespaces or not other.namespaces
        return Demand(
            self.resources | other.resources,
            self.selectors | other.selectors,
            frozenset() if every else self.namespaces | other.namespaces,
        )


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


def all_of(demands: Iterable[Demand | None]) -> Demand | None:
    """One demand for all of them; None if there is none."""
    asked = [demand for demand in demands if demand is not None]
    return reduce(Demand.__or__, asked) if asked else None


def pod_name(document: Mapping[str, Any]) -> str:
    """namespace/name: names of pods are unique in their namespace only."""
    metadata = document.get("metadata", {})
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def consumer_from(document: Mapping[str, Any], demand: Demand) -> Consumer | None:
    """What of a pod matters to this demand; None if nothing."""
    metadata, spec = document["metadata"], document.get("spec", {})
    if demand.namespaces and metadata.get("namespace") not in demand.namespaces:
        return None
    labels = metadata.get("labels") or NOTHING
    resources = demand.resources & _requested(spec) if demand.resources else frozenset()
    asked = [wanted for wanted in demand.selectors if wanted <= labels.items()]
    if not (resources or asked) or not spec.get("nodeName") or _stays(document):
        return None
    return Consumer(
        name=pod_name(document),
        uid=str(metadata.get("uid", "")),
        node=intern(str(spec["nodeName"])),
        resources=frozenset(intern(each) for each in resources),
        labels={intern(k): intern(v) for wanted in asked for k, v in wanted} or NOTHING,
        deleting="deletionTimestamp" in metadata,
    )


def consumes(consumer: Consumer, evict: Evict) -> bool:
    """Whether one Driver means this pod."""
    if evict.namespaces and consumer.name.partition("/")[0] not in evict.namespaces:
        return False
    if not consumer.resources.isdisjoint(evict.resources):
        return True
    return bool(evict.selector) and evict.selector.items() <= consumer.labels.items()


def by_node(world: World, evict: Evict | None) -> Mapping[str, Sequence[Consumer]] | None:
    """The pods that one Driver means, by node; None if they are not known."""
    if evict is None:
        return NOTHING
    if not world.occupancy.known:
        return None
    found: dict[str, list[Consumer]] = defaultdict(list)
    for consumer in world.occupancy.consumers.values():
        if consumes(consumer, evict):
            found[consumer.node].append(consumer)
    return found


def _requested(spec: Mapping[str, Any]) -> frozenset[str]:
    """Resources that a container asks for; of an extended one request and limit are the same."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return frozenset(
        name
        for container in containers
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items()
        if str(amount) not in _NONE
    )


def _stays(document: Mapping[str, Any]) -> bool:
    """Whether nobody may or need evict it."""
    metadata = document["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return (
        document.get("status", {}).get("phase") in ("Succeeded", "Failed")
        or MIRROR in (metadata.get("annotations") or ())
        or (metadata.get("labels") or NOTHING).get(MANAGED_BY) == MANAGER
        or any(o.get("kind") == "DaemonSet" and o.get("controller") for o in owners)
    )

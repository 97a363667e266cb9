"""Watches the pods that use devices, cluster-wide, only while a Driver with `evict` changes nodes.

Listing and watching all pods of a large cluster is expensive, so it is not done at other times.
Pods that match no Driver are not kept. ResourceClaims are watched too if a Driver's devices are
requested by them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import PODS, RESOURCE_CLAIMS
from cluster.model.lookup_cache import LookupCache
from cluster.model.names import NAMESPACE
from cluster.model.parse_claims import claim_from, with_claims
from cluster.model.parse_pods import RUNNING_PODS, consumer_from, pod_name
from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import EMPTY, ClaimObject, Consumer, Occupancy

_WATCH_AFTER_LAST_USE: Final = 300.0  # seconds from the last plan that asked for pods


class ConsumerCache:
    """At most one reflector for pods and one for claims, which are replaced when the demand grows.

    A single node may make one plan ask for pods, the next one not, and so on. So the demand does
    not shrink, and ends only when no plan has asked for some time.
    """

    def __init__(
        self,
        api: Api,
        wake: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
        *,
        namespace: str = NAMESPACE,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._wake = wake
        self._now = now
        self._demand: PodDemand | None = None
        self._asked = float("-inf")
        self._pods: Reflector[Consumer] | None = None
        self._claims: Reflector[ClaimObject] | None = None
        self._index = LookupCache()

    def watch_pods(self, demand: PodDemand | None) -> None:
        """Watch these pods, and for some time those of earlier plans too."""
        now, before = self._now(), self._demand
        if demand is None:
            if now >= self._asked + _WATCH_AFTER_LAST_USE:
                self.stop()
            return
        self._asked = now
        if before is None or not before.covers(demand):
            self.stop()
            self._demand = demand if before is None else before | demand
            selection = _select_pods(self._demand, self._namespace)
            self._pods = Reflector(self._api, selection, self._wake)
            self._pods.start()
            if self._demand.by_claims:
                self._claims = Reflector(self._api, _select_claims(self._demand), self._wake)
                self._claims.start()

    def stop(self) -> None:
        """Watch no pods."""
        for reflector in (self._pods, self._claims):
            if reflector is not None:
                reflector.stop()
        self._demand, self._pods, self._claims = None, None, None

    def expires_in(self) -> float | None:
        """Return the seconds until pods need not be watched any more; None if none are."""
        if self._demand is None:
            return None
        return max(0.0, self._asked + _WATCH_AFTER_LAST_USE - self._now())

    def occupancy(self) -> Occupancy:
        """Return the pods. They are unknown while a watch fails: a pod may have been added."""
        if self._pods is None:
            return Occupancy()
        for reflector in (self._pods, self._claims):
            if reflector is not None:
                health = reflector.health()
                if not health.synced or health.trouble:
                    return Occupancy(trouble=health.trouble)
        consumers = self._pods.objects() or EMPTY
        if self._claims is not None:
            claims = self._claims.objects() or EMPTY
            consumers = self._index.look_up(with_claims, consumers, claims)
        return Occupancy(consumers, known=True, demand=self._demand)


def list_consumers(api: Api, demand: PodDemand | None, namespace: str = NAMESPACE) -> Occupancy:
    """List the pods once, for a one-shot command."""
    if demand is None:
        return Occupancy()
    try:
        consumers: Mapping[str, Consumer] = _select_pods(demand, namespace).list_once(api) or EMPTY
        if demand.by_claims:
            consumers = with_claims(consumers, _select_claims(demand).list_once(api) or EMPTY)
    except ApiError as error:
        return Occupancy(trouble=str(error))
    return Occupancy(consumers, known=True, demand=demand)


def _select_pods(demand: PodDemand, namespace: str) -> Selection[Consumer]:
    trim = partial(consumer_from, demand=demand, ours=namespace)
    return Selection(PODS, trim, fields=RUNNING_PODS, left_out=pod_name)


def _select_claims(demand: PodDemand) -> Selection[ClaimObject]:
    """Return the selection of claims; without dynamic resource allocation there are none."""
    trim = partial(claim_from, demand=demand)
    return Selection(RESOURCE_CLAIMS, trim, optional=True, left_out=pod_name)

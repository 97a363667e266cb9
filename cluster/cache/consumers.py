"""Watches the pods that use devices, cluster-wide, only while a Driver that evicts is changing.

Listing and watching all pods of a large cluster is expensive, so it is not done at other times.
Pods that match no Driver are not kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import PODS
from cluster.model.demand import Demand
from cluster.model.parse_pods import FIELDS, consumer_from, pod_name
from cluster.model.snapshot import Consumer, Occupancy

_KEPT: Final = 300.0  # seconds for which pods are watched after a plan last asked for them


class ConsumerCache:
    """A holder of at most one reflector, which is replaced when the demand grows.

    A single node can make every other plan ask for pods. So the demand does not shrink, and ends
    only when no plan has asked for some time.
    """

    def __init__(
        self, api: Api, wake: Callable[[], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._wake = wake
        self._now = now
        self._demand: Demand | None = None
        self._asked = float("-inf")
        self._reflector: Reflector[Consumer] | None = None

    def want(self, demand: Demand | None) -> None:
        """Watch these pods, and for some time those of earlier plans too."""
        now, before = self._now(), self._demand
        if demand is None:
            if now >= self._asked + _KEPT:
                self.stop()
            return
        self._asked = now
        if before is None or not before.covers(demand):
            self.stop()
            self._demand = demand if before is None else before | demand
            self._reflector = Reflector(self._api, _selection(self._demand), self._wake)
            self._reflector.start()

    def stop(self) -> None:
        """Watch no pods."""
        if self._reflector is not None:
            self._reflector.stop()
        self._demand, self._reflector = None, None

    def ends_in(self) -> float | None:
        """Return the seconds until pods need not be watched any more; None if none are."""
        return None if self._demand is None else max(0.0, self._asked + _KEPT - self._now())

    def occupancy(self) -> Occupancy:
        """Return the pods. They are unknown while the watch fails: a pod may have been added."""
        if self._reflector is None:
            return Occupancy()
        health, consumers = self._reflector.health(), self._reflector.objects()
        if not health.synced or health.trouble or consumers is None:
            return Occupancy(trouble=health.trouble)
        return Occupancy(consumers, known=True, demand=self._demand)


def look(api: Api, demand: Demand | None) -> Occupancy:
    """List the pods once, for a one-shot command."""
    if demand is None:
        return Occupancy()
    selection = _selection(demand)
    try:
        page = api.list(selection.resource, selection.trim, fields=selection.fields)
    except ApiError as error:
        return Occupancy(trouble=str(error))
    return Occupancy({item.name: item for item in page.items}, known=True, demand=demand)


def _selection(demand: Demand) -> Selection[Consumer]:
    return Selection(PODS, partial(consumer_from, demand=demand), fields=FIELDS, left_out=pod_name)

"""Watches the pods that use devices, cluster-wide, only while a Driver that evicts is changing.

Listing and watching all pods of a large cluster is expensive, so it is not done at other times.
Pods that match no Driver are not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import PODS
from cluster.model.actions import Demand
from cluster.model.parse_pods import FIELDS, consumer_from, pod_name
from cluster.model.snapshot import Consumer, Occupancy


class ConsumerCache:
    """A holder of at most one reflector, which is replaced when the demand changes."""

    def __init__(self, api: Api, wake: Callable[[], None]) -> None:
        self._api = api
        self._wake = wake
        self._demand: Demand | None = None
        self._reflector: Reflector[Consumer] | None = None

    def want(self, demand: Demand | None) -> None:
        if demand == self._demand:
            return
        if self._reflector is not None:
            self._reflector.stop()
        self._demand, self._reflector = demand, None
        if demand is not None:
            self._reflector = Reflector(self._api, _selection(demand), self._wake)
            self._reflector.start()

    def occupancy(self) -> Occupancy:
        """Return the pods. They are unknown while the watch fails: a pod may have been added."""
        if self._reflector is None:
            return Occupancy()
        health, consumers = self._reflector.health(), self._reflector.objects()
        if not health.synced or health.trouble or consumers is None:
            return Occupancy(trouble=health.trouble)
        return Occupancy(consumers, known=True)


def look(api: Api, demand: Demand | None) -> Occupancy:
    """List the pods once, for a one-shot command."""
    if demand is None:
        return Occupancy()
    selection = _selection(demand)
    try:
        page = api.list(selection.resource, selection.trim, fields=selection.fields)
    except ApiError as error:
        return Occupancy(trouble=str(error))
    return Occupancy({item.name: item for item in page.items}, known=True)


def _selection(demand: Demand) -> Selection[Consumer]:
    return Selection(PODS, partial(consumer_from, demand=demand), fields=FIELDS, left_out=pod_name)

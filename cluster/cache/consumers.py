"""The pods that use devices, of the whole cluster: watched while a Driver that evicts changes.

All pods of a large cluster are much to list and to hear of, so nobody looks at them at other times,
and of a pod that no Driver means nothing is kept.
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
    """At most one reflector, for one demand; another demand is another one."""

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
        """What is known. While a watch is broken it is nothing: a pod may have come meanwhile."""
        if self._reflector is None:
            return Occupancy()
        health, consumers = self._reflector.health(), self._reflector.objects()
        if not health.synced or health.trouble or consumers is None:
            return Occupancy(trouble=health.trouble)
        return Occupancy(consumers, known=True)


def look(api: Api, demand: Demand | None) -> Occupancy:
    """One list, for a command that looks once."""
    if demand is None:
        return Occupancy()
    of = _selection(demand)
    try:
        page = api.list(of.resource, of.trim, fields=of.fields)
    except ApiError as error:
        return Occupancy(trouble=str(error))
    return Occupancy({item.name: item for item in page.items}, known=True)


def _selection(demand: Demand) -> Selection[Consumer]:
    return Selection(PODS, partial(consumer_from, demand=demand), fields=FIELDS, left_out=pod_name)

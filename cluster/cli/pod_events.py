"""What the kubelet last said of a driver pod: `Pulling image ... (35 s ago)`.

A node reports nothing before its driver container runs, and a slow pull shows nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.resources import Resource
from cluster.model.limits import clipped
from cluster.model.snapshot import DriverPod, Snapshot
from nodeside.contract import State, node_driver_name
from nodeside.timestamps import parse_rfc3339

# The core group's, since the ClusterRole view allows reading those.
_EVENTS = Resource("Event", "events", namespaced=True)
_LIMIT = 500  # bytes of a message


class _Said(NamedTuple):
    time: float
    message: str


def of_starting_pods(api: Api, snapshot: Snapshot, driver: str, node: str) -> Iterator[str]:
    """Yield a line for each pod of the driver on a node that is not ready; none without events."""
    report = snapshot.node_drivers.get(node_driver_name(driver, node))
    boot = snapshot.nodes[node].boot_id
    if report and report.boot_id == boot and report.state == State.READY.value:
        return
    for pod in snapshot.pods.values():
        if pod.driver == driver and pod.node == node and (said := _newest(api, pod)):
            ago = max(0, round(api.now() - said.time))
            yield f"pod {pod.name}: {said.message} ({ago} s ago)"


def _newest(api: Api, pod: DriverPod) -> _Said | None:
    try:
        fields = f"involvedObject.uid={pod.uid}"
        page = api.list(_EVENTS, _said, namespace=pod.namespace, fields=fields)
    except ApiError:  # without the right to read events, the rest is still worth telling
        return None
    return max(page.items, default=None)


def _said(event: dict[str, Any]) -> _Said | None:
    """Return an event's time and message. `lastTimestamp` is empty in those of the newer API."""
    metadata = event.get("metadata") or {}
    last = event.get("lastTimestamp") or event.get("eventTime") or metadata.get("creationTimestamp")
    with suppress(ValueError):
        time = parse_rfc3339(f"{str(last).rstrip('Z').partition('.')[0]}Z")
        return _Said(time, clipped(str(event.get("message", "")), _LIMIT))
    return None

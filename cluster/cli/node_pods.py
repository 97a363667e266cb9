"""What the API server knows of the pods of a node, and the node does not report.

The kubelet's events, such as `Pulling image ...`: a node reports nothing before its driver
container runs. And the names of the pods that hold a module: a node knows the start of their uid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.resources import PODS, Resource
from cluster.model.json_fields import part, report_text, text
from cluster.model.limits import truncate
from cluster.model.snapshot import Node, PodObject, Snapshot
from nodeside.protocol.labels import node_driver_name
from nodeside.protocol.node_status import State
from nodeside.protocol.pod_mentions import mentions_pods, name_pods
from nodeside.protocol.timestamps import parse_rfc3339

# The core group's, since the ClusterRole view allows reading those.
_EVENTS = Resource("Event", "events", namespaced=True)
_LIMIT = 500  # bytes of a message


class _Event(NamedTuple):
    time: float
    message: str


def newest_events(api: Api, snapshot: Snapshot, driver: str, node: Node) -> Mapping[str, str]:
    """Return the newest event of each pod of the driver on a node that has not reported ready."""
    report = snapshot.node_drivers.get(node_driver_name(driver, node.name))
    is_ready = (
        report is not None and report.state == State.READY.value and report.boot_id == node.boot_id
    )
    since = report.time if report and is_ready else -math.inf  # a later pod has not reported yet
    events: dict[str, str] = {}
    for pod in snapshot.pods.values():
        is_awaited = pod.driver == driver and pod.node == node.name and pod.created > since
        if is_awaited and (event := _newest_event(api, pod)):
            ago = max(0, round(api.now() - event.time))
            events[pod.name] = f"{event.message} ({ago}s ago)"
    return events


def with_names(api: Api, node: str, lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines with the names of the pods whose uids a node has reported."""
    if not any(map(mentions_pods, lines)):
        return tuple(lines)
    try:
        found = api.list(PODS, _uid_and_name, fields=f"spec.nodeName={node}").items
    except ApiError:
        return tuple(lines)
    names = dict(found)
    return tuple(name_pods(line, names) for line in lines)


def _uid_and_name(pod: dict[str, Any]) -> tuple[str, str]:
    metadata = part(pod, "metadata")
    return text(metadata, "uid"), f"{text(metadata, 'namespace')}/{text(metadata, 'name')}"


def _newest_event(api: Api, pod: PodObject) -> _Event | None:
    try:
        fields = f"involvedObject.uid={pod.uid}"
        page = api.list(_EVENTS, _event_from, namespace=pod.namespace, fields=fields)
    except ApiError:  # without the right to read events, the rest is still worth telling
        return None
    return max(page.items, default=None)


def _event_from(event: dict[str, Any]) -> _Event | None:
    """Return an event's time and message. `lastTimestamp` is empty in those of the newer API."""
    last = text(event, "lastTimestamp") or text(event, "eventTime")
    last = last or text(part(event, "metadata"), "creationTimestamp")
    with suppress(ValueError):
        time = parse_rfc3339(f"{last.rstrip('Z').partition('.')[0]}Z")
        words = " ".join(report_text(event, "message").split())
        return _Event(time, truncate(words, _LIMIT))
    return None

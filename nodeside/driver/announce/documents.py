"""What a cluster is told about a driver on a node: documents, and the requests that carry them.

Pure: made from a `NodeDriverStatus` by announcer.py, sent by api.py, shown and checked by
`nodeside try`. The node says three things: its state label, the NodeDriver object
`<driver>.<node>`, and an Event when the driver became ready or failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from nodeside.contract import (
    API_GROUP,
    API_VERSION,
    REPORT_ITEMS,
    REPORT_TEXT,
    NodeDriverStatus,
    State,
    node_driver_name,
    state_label,
)
from nodeside.errors import encodable
from nodeside.records import encode
from nodeside.spec.schema import camel_case
from nodeside.timestamps import rfc3339_micro

FIELD_MANAGER = "nodeside-node"
EVENT_NAMESPACE = "default"  # where the API server wants events about objects without a namespace

# States that an administrator wants in `kubectl get events`; the others pass by.
NOTABLE = (State.READY, State.FAILED, State.REBOOT_REQUIRED)

_NOTE_LIMIT = 1024  # bytes, of an Event's note; a longer one is refused


@dataclass(frozen=True)
class Call:
    """One request. `verb` and `resource` are the words that RBAC rules are written in."""

    verb: str
    resource: str
    name: str
    method: str
    path: str
    content_type: str = ""
    body: Mapping[str, Any] | None = None

    @property
    def words(self) -> str:
        """What is asked for: `patch nodes "n1"`."""
        return f'{self.verb} {self.resource} "{self.name}"'


def label_call(node: str, labels: Mapping[str, str]) -> Call:
    """Set these labels of a node and touch nothing else (RFC 7386 merge patch)."""
    body = {"metadata": {"labels": dict(labels)}}
    path = f"/api/v1/nodes/{quote(node, safe='')}"
    return Call("patch", "nodes", node, "PATCH", path, "application/merge-patch+json", body)


def node_call(node: str) -> Call:
    return Call("get", "nodes", node, "GET", f"/api/v1/nodes/{quote(node, safe='')}")


def node_driver_call(document: Mapping[str, Any], subresource: str = "") -> Call:
    """Server-side apply of a NodeDriver or of its status; JSON is YAML."""
    name = str(document["metadata"]["name"])
    resource = "nodedrivers" + (f"/{subresource}" if subresource else "")
    path = f"/apis/{API_VERSION}/nodedrivers/{quote(name, safe='')}"
    path += (f"/{subresource}" if subresource else "") + "?"
    path += urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})
    return Call("patch", resource, name, "PATCH", path, "application/apply-patch+yaml", document)


def event_call(event: Mapping[str, Any]) -> Call:
    name, namespace = str(event["metadata"]["name"]), str(event["metadata"]["namespace"])
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events?fieldManager={FIELD_MANAGER}"
    return Call("create", "events", name, "POST", path, "application/json", event)


# --- documents ---------------------------------------------------------------------------------


def labels(status: NodeDriverStatus) -> dict[str, str]:
    """The one label that the node writes; names and messages go to the NodeDriver."""
    return {state_label(status.driver): status.state.value}


def node_driver(status: NodeDriverStatus, *, node_uid: str = "") -> dict[str, Any]:
    """The NodeDriver object, complete: what is left out of a server-side apply is removed.

    Its one owner is the Node. The garbage collector deletes an object only when the last of its
    owners is gone, so with the Driver as a second one neither's deletion would collect it; the
    controller deletes the NodeDrivers of a Driver that it deletes. A node whose uid is not known is
    not named: a reference with a wrong uid gets the object collected at once.
    """
    metadata: dict[str, Any] = {"name": node_driver_name(status.driver, status.node)}
    if node_uid:
        owner = {"apiVersion": "v1", "kind": "Node", "name": status.node, "uid": node_uid}
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeDriver",
        "metadata": metadata,
        "status": _status(status),
    }


def occasion(status: NodeDriverStatus) -> tuple[object, ...]:
    """What makes an Event another one; messages vary from attempt to attempt."""
    return status.state, status.version, status.reason, status.boot_id


def event(status: NodeDriverStatus, *, node_uid: str, now: float) -> dict[str, Any]:
    """An Event about the node, with the NodeDriver as its related object.

    `now` is the wall clock; it also makes the name, so that a repeated request makes no second
    Event. https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
    """
    name = node_driver_name(status.driver, status.node)
    node = {"apiVersion": "v1", "kind": "Node", "name": status.node}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{name[:200].rstrip('.-')}.{int(now * 1e6):x}",
            "namespace": EVENT_NAMESPACE,
        },
        "eventTime": rfc3339_micro(now),
        "reportingController": f"{API_GROUP}/driver",
        "reportingInstance": status.node[:128],
        "action": "Announce",
        "reason": _event_reason(status),
        "type": "Normal" if status.state is State.READY else "Warning",
        "regarding": {**node, "uid": node_uid} if node_uid else node,
        "related": {"apiVersion": API_VERSION, "kind": "NodeDriver", "name": name},
        "note": _cut_bytes(encodable(_note(status)), _NOTE_LIMIT),
    }


def _status(status: NodeDriverStatus) -> dict[str, Any]:
    """camelCase, without what is empty, and no longer than the API server takes it."""
    record = {camel_case(key): _clipped(value) for key, value in encode(status).items()}
    return {key: value for key, value in record.items() if value not in ("", None, [], {})}


def _clipped(value: object) -> object:
    if isinstance(value, str):
        value, cut = encodable(value), " [cut]"
        fits = len(value) <= REPORT_TEXT
        return value if fits else value[: REPORT_TEXT - len(cut)] + cut
    if isinstance(value, Mapping):
        return dict(islice(value.items(), REPORT_ITEMS))
    if isinstance(value, Sequence):
        return [_clipped(each) for each in value[:REPORT_ITEMS]]
    return value


def _event_reason(status: NodeDriverStatus) -> str:
    """A CamelCase word: that of the error, else that of the state."""
    word = "".join(part.capitalize() for part in status.state.value.split("-"))
    return status.reason[:128] or f"Driver{word}"


def _note(status: NodeDriverStatus) -> str:
    about = f"driver {status.driver} {status.version}, kernel {status.kernel}"
    if status.state is State.READY:
        source = f" ({status.source.value})" if status.source else ""
        return f"{about}: ready{source}, modules {', '.join(status.modules) or 'none'}"
    words = f"{about}: {status.state.value}"
    words += f": {status.message}" if status.message else ""
    return words + (f"\nhint: {status.hint}" if status.hint else "")


def _cut_bytes(text: str, limit: int) -> str:
    data = text.encode()
    if len(data) <= limit:
        return text
    return data[: limit - len(" [cut]")].decode(errors="ignore") + " [cut]"

"""The documents that report a driver on a node to a cluster, and the requests to send them.

Pure: everything is computed from a `NodeDriverStatus`; `nodeside try` shows and checks it. The node
reports in three ways: its state label, the NodeDriver object `<driver>.<node>`, and an Event when
the driver became ready or failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from nodeside.errors import make_encodable
from nodeside.kube.client import ApiCall
from nodeside.protocol.labels import (
    API_GROUP,
    API_VERSION,
    DRIVER_LABEL,
    STATE_LABEL,
    node_driver_name,
    state_label,
)
from nodeside.protocol.node_status import (
    READY_CONDITION,
    REPORT_ITEMS,
    REPORT_TEXT,
    NodeDriverStatus,
    State,
)
from nodeside.protocol.records import encode
from nodeside.protocol.timestamps import rfc3339, rfc3339_micro
from nodeside.spec.schema import camel_case

FIELD_MANAGER = "nodeside-node"
EVENT_NAMESPACE = "default"  # required for events about cluster-scoped objects

# States that an administrator wants to see in `kubectl get events`; the others are transient.
NOTABLE = (State.READY, State.FAILED, State.REBOOT_REQUIRED)

# What the API's conventions allow as the reason of a condition.
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")
_NOTE_LIMIT = 1024  # bytes; the API server refuses an Event with a longer note


def node_driver_call(document: Mapping[str, Any], subresource: str = "") -> ApiCall:
    """Return the server-side apply of a NodeDriver or its status. JSON is valid YAML."""
    name = str(document["metadata"]["name"])
    resource = "nodedrivers" + (f"/{subresource}" if subresource else "")
    path = f"/apis/{API_VERSION}/nodedrivers/{quote(name, safe='')}"
    path += (f"/{subresource}" if subresource else "") + "?"
    path += urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})
    return ApiCall("patch", resource, name, "PATCH", path, "application/apply-patch+yaml", document)


def event_call(event: Mapping[str, Any]) -> ApiCall:
    name, namespace = str(event["metadata"]["name"]), str(event["metadata"]["namespace"])
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events?fieldManager={FIELD_MANAGER}"
    return ApiCall("create", "events", name, "POST", path, "application/json", event)


# --- documents ---------------------------------------------------------------------------------


def node_labels(status: NodeDriverStatus) -> dict[str, str]:
    """Return the only label that the node writes. Details go to the NodeDriver."""
    return {state_label(status.driver): status.state.value}


def node_driver_document(
    status: NodeDriverStatus, *, node_uid: str = "", since: float = 0.0
) -> dict[str, Any]:
    """Return the complete NodeDriver object: a server-side apply removes fields that are left out.

    `since` is when the driver became ready or ceased to be, in seconds of the wall clock; 0.0 if
    that is not known.

    Its only owner is the Node. The garbage collector deletes an object only when its last owner is
    gone, so with the Driver as a second owner, deleting one of them would not collect it. The
    controller deletes the NodeDrivers of a Driver that it deletes. A node with unknown uid gets no
    owner reference: an object whose owner reference has a wrong uid is collected immediately.
    """
    metadata: dict[str, Any] = {
        "name": node_driver_name(status.driver, status.node),
        "labels": {DRIVER_LABEL: status.driver, STATE_LABEL: status.state.value},
    }
    if node_uid:
        owner = {"apiVersion": "v1", "kind": "Node", "name": status.node, "uid": node_uid}
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeDriver",
        "metadata": metadata,
        "status": _status_document(status) | {"conditions": [_ready_condition(status, since)]},
    }


def event_occasion(status: NodeDriverStatus) -> tuple[object, ...]:
    """Return the identity of an Event. The message is left out; it varies between attempts."""
    return status.state, status.version, status.reason, status.boot_id


def event_document(status: NodeDriverStatus, *, node_uid: str, now: float) -> dict[str, Any]:
    """Return an Event about the node, with the NodeDriver as its related object.

    `now` is the wall clock in seconds. It is also part of the name, so that a repeated request
    creates no second Event.
    https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
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
        "note": _cut_bytes(make_encodable(_event_message(status)), _NOTE_LIMIT),
    }


def _status_document(status: NodeDriverStatus) -> dict[str, Any]:
    """Return the status in camelCase, without empty fields, within the API server's limits."""
    record = {camel_case(key): _clip_value(value) for key, value in encode(status).items()}
    return {key: value for key, value in record.items() if value not in ("", None, [], {})}


def _ready_condition(status: NodeDriverStatus, since: float) -> dict[str, Any]:
    reason = status.reason if _REASON.fullmatch(status.reason) else _state_word(status.state)
    condition = {
        "type": READY_CONDITION,
        "status": "True" if status.state is State.READY else "False",
        "reason": reason,
        "message": _clip_value(status.message),
    }
    return condition | ({"lastTransitionTime": rfc3339(since)} if since else {})


def _clip_value(value: object) -> object:
    if isinstance(value, str):
        value, cut = make_encodable(value), " [cut]"
        fits = len(value) <= REPORT_TEXT
        return value if fits else value[: REPORT_TEXT - len(cut)] + cut
    if isinstance(value, Mapping):
        return {key: _clip_value(each) for key, each in islice(value.items(), REPORT_ITEMS)}
    if isinstance(value, Sequence):
        return [_clip_value(each) for each in value[:REPORT_ITEMS]]
    return value


def _event_reason(status: NodeDriverStatus) -> str:
    """Return the CamelCase reason of the error; without one, a reason made from the state."""
    return status.reason[:128] or f"Driver{_state_word(status.state)}"


def _state_word(state: State) -> str:
    """Return a state in CamelCase."""
    return "".join(part.capitalize() for part in state.value.split("-"))


def _event_message(status: NodeDriverStatus) -> str:
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

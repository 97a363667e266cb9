"""The requests that drain a node: cordon, evict, uncordon.

Each is idempotent. An admission policy enforces the rules: no cordon without our label, and no
uncordon of a node that does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Conflict, NotFound
from cluster.kube.resources import NODES
from cluster.model.actions import Cordon, EvictPod, Uncordon
from cluster.model.names import CORDONED
from cluster.reconcile.node_labels import Limit
from nodeside import log

Document = Mapping[str, Any]

# The machine-config-operator sets it to `drain-<config>`, and to `uncordon-<config>` when done.
# https://github.com/openshift/machine-config-operator/blob/main/docs/DrainController.md
_DESIRED_DRAIN = "machineconfiguration.openshift.io/desiredDrain"


def change_cordon(
    api: Api,
    action: Cordon | Uncordon,
    limit: Limit,
    seen: Mapping[str, str] | None = None,
) -> Document:
    """Cordon or uncordon a node.

    Raises NotFound if the node is gone, and Conflict if the labels to change are not what the plan
    has `seen`.
    """
    node = api.get(NODES, action.node, **limit())
    there = node["metadata"].get("labels") or {}
    if seen is not None and any(there.get(key) != seen.get(key) for key in action.labels):
        raise Conflict(f"labels of node {action.node} are not what they were", status=409)
    if isinstance(action, Cordon):
        return _cordon_node(api, action, node, limit)
    return _end_hold(api, action, node, limit)


def _cordon_node(api: Api, action: Cordon, node: Document, limit: Limit) -> Document:
    """Cordon the node. Raises Conflict if the node changed between our read and our write.

    The API server is asked whether the node is already cordoned. Our cache may be a second old, and
    we would later undo a cordon that somebody else set in that second.
    """
    labels = dict(action.labels)
    metadata = {"resourceVersion": node["metadata"]["resourceVersion"], "labels": labels}
    patch: dict[str, Any] = {"metadata": metadata}
    if not node.get("spec", {}).get("unschedulable"):
        labels[CORDONED] = "true"
        patch["spec"] = {"unschedulable": True}
    return api.merge_patch(NODES, action.node, patch, **limit())


def _end_hold(api: Api, action: Uncordon, node: Document, limit: Limit) -> Document:
    """End our hold on a node. Raises Conflict if the node changed between our read and our write.

    `kubectl drain` leaves no mark on a node that we have cordoned, so it cannot be detected. The
    machine-config-operator records that it drains; then the cordon stays and belongs to it.
    """
    found = node["metadata"]
    metadata = {"resourceVersion": found["resourceVersion"], "labels": dict(action.labels)}
    patch: dict[str, Any] = {"metadata": metadata}
    if action.opens and CORDONED in (found.get("labels") or {}):
        if (found.get("annotations") or {}).get(_DESIRED_DRAIN, "").startswith("drain-"):
            log.fact("left cordoned: the machine-config-operator drains it", node=action.node)
        else:
            patch["spec"] = {"unschedulable": None}
    return api.merge_patch(NODES, action.node, patch, **limit())


def evict_pod(api: Api, action: EvictPod, limit: Limit) -> str | None:
    """Return the API server's reason why the pod cannot be evicted now; None if it is evicted.

    A refusal concerns this pod only. Raises ApiError if the failure is about us: no answer, too
    many requests, unknown credentials.
    """
    limits = limit()  # raises LostLead, which is no refusal
    try:
        api.evict(action.namespace, action.pod, action.uid, **limits)
    except (NotFound, Conflict):
        return None  # it is gone, or was replaced by another pod of that name
    except ApiError as error:
        if not error.budgets and error.concerns_all:
            raise
        return "; ".join(error.budgets) or str(error)
    return None

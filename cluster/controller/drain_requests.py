"""The requests that empty a node: cordon, evict, uncordon.

Each may be repeated: it does what is not done yet. An admission policy holds the controller to it:
no cordon without our label, no uncordon of a node that does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Conflict, NotFound
from cluster.kube.resources import NODES
from cluster.model.actions import Cordon, Evict, Uncordon
from cluster.model.names import CORDONED
from nodeside import log

Document = Mapping[str, Any]

# `drain-<config>` from its wish to drain until its wish to uncordon, which is `uncordon-<config>`.
# https://github.com/openshift/machine-config-operator/blob/main/docs/DrainController.md
_DESIRED_DRAIN = "machineconfiguration.openshift.io/desiredDrain"


def change(
    api: Api,
    action: Cordon | Uncordon,
    limit: Mapping[str, Any],
    seen: Mapping[str, str] | None = None,
) -> Document:
    """Raises NotFound if the node is gone, Conflict if labels of it that change are not what the
    plan has `seen`."""
    node = api.get(NODES, action.node, **limit)
    there = node["metadata"].get("labels") or {}
    if seen is not None and any(there.get(key) != seen.get(key) for key in action.labels):
        raise Conflict(f"labels of node {action.node} are not what they were", status=409)
    if isinstance(action, Cordon):
        return _cordon(api, action, node, limit)
    return _end(api, action, node, limit)


def _cordon(api: Api, action: Cordon, node: Document, limit: Mapping[str, Any]) -> Document:
    """Raises Conflict if the node changed between our look and our write.

    Whether it is cordoned already is asked of the API server: what we know may be a second old,
    and whoever cordoned it then would find it uncordoned by us one day.
    """
    labels = dict(action.labels)
    metadata = {"resourceVersion": node["metadata"]["resourceVersion"], "labels": labels}
    patch: dict[str, Any] = {"metadata": metadata}
    if not node.get("spec", {}).get("unschedulable"):
        labels[CORDONED] = "true"
        patch["spec"] = {"unschedulable": True}
    return api.merge_patch(NODES, action.node, patch, **limit)


def _end(api: Api, action: Uncordon, node: Document, limit: Mapping[str, Any]) -> Document:
    """Raises Conflict if the node changed between our look and our write.

    Who finds a node cordoned by us writes nothing that would tell: `kubectl drain` cannot be seen.
    The machine-config-operator notes that it drains: then the cordon stays, and is its own.
    """
    found = node["metadata"]
    metadata = {"resourceVersion": found["resourceVersion"], "labels": dict(action.labels)}
    patch: dict[str, Any] = {"metadata": metadata}
    if action.opens and CORDONED in (found.get("labels") or {}):
        if (found.get("annotations") or {}).get(_DESIRED_DRAIN, "").startswith("drain-"):
            log.fact("left cordoned: the machine-config-operator drains it", node=action.node)
        else:
            patch["spec"] = {"unschedulable": None}
    return api.merge_patch(NODES, action.node, patch, **limit)


def evict(api: Api, action: Evict, limit: Mapping[str, Any]) -> str:
    """Why the pod does not go now, in the API server's words; "" if it goes.

    A refusal concerns this pod only. Raises ApiError if it is about us: no answer, too many
    requests, unknown credentials.
    """
    try:
        api.evict(action.namespace, action.pod, action.uid, **limit)
    except (NotFound, Conflict):
        return ""  # it is gone, or is another one by now
    except ApiError as error:
        if not error.budgets and error.concerns_all:
            raise
        return "; ".join(error.budgets) or str(error)
    return ""

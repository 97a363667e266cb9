"""The request that changes labels of a node, if they still are as the plan saw them.

A plan is made of what was seen, and that may be old: a watch can be dead for minutes before it
fails, and a process can be frozen between its last look and a request. Then another controller may
lead by now, and have changed the node. Only the labels that change are compared: a kubelet writes
its node all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Conflict
from cluster.kube.resources import NODES
from cluster.model.actions import LabelNode

Document = Mapping[str, Any]

_TEST_FAILED = 422  # of a JSON patch; like that of a value that cannot be
_INVALID = "is invalid"  # as the API server says of such a value


def label(
    api: Api, action: LabelNode, seen: Mapping[str, str], limit: Mapping[str, Any]
) -> Document:
    """Raises Conflict if a label is another one than was `seen`, NotFound if the node is gone.

    https://datatracker.ietf.org/doc/html/rfc6902
    """
    patch = [step for key in action.labels for step in _steps(key, action.labels[key], seen)]
    try:
        return api.json_patch(NODES, action.node, patch, **limit)
    except ApiError as error:
        if error.status != _TEST_FAILED:
            raise
        return _anyhow(api, action, seen, limit, error)


def _steps(key: str, value: str | None, seen: Mapping[str, str]) -> list[Document]:
    """A label that is not there tests as null; only one that is there can be removed."""
    path = "/metadata/labels/" + key.replace("~", "~0").replace("/", "~1")
    test = {"op": "test", "path": path, "value": seen.get(key)}
    if value is not None:
        return [test, {"op": "add", "path": path, "value": value}]
    return [test, {"op": "remove", "path": path}] if key in seen else [test]


def _anyhow(
    api: Api,
    action: LabelNode,
    seen: Mapping[str, str],
    limit: Mapping[str, Any],
    error: ApiError,
) -> Document:
    """A request that was repeated may have been carried out before: then all is as it should be."""
    node = api.get(NODES, action.node, **limit)
    labels = node["metadata"].get("labels") or {}
    if all(labels.get(key) == value for key, value in action.labels.items()):
        return node
    # A label that is as it was seen may have been another one between.
    if any(labels.get(key) != seen.get(key) for key in action.labels) or _INVALID not in str(error):
        raise Conflict(f"labels of node {action.node} are not what they were", status=409)
    raise error

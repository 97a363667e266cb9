"""The request that changes labels of a node if they still are as the plan saw them.

A plan is made from a snapshot that may be stale: a watch can be dead for minutes before it fails,
and a process can be frozen between its snapshot and a request. By then another controller may lead
and have changed the node. Only the labels to change are compared, because the kubelet updates its
node all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Conflict
from cluster.kube.resources import NODES
from cluster.model.actions import LabelNode

Document = Mapping[str, Any]
Limit = Callable[[], Mapping[str, Any]]  # how long the next request may take

_TEST_FAILED = 422  # failed test in a JSON patch; an invalid value gives the same code
_INVALID = "is invalid"  # the API server's message for an invalid value
_FAILED_STEP_MESSAGE = "the server rejected our request"  # its message for a step that fails


def patch_labels(api: Api, action: LabelNode, seen: Mapping[str, str], limit: Limit) -> Document:
    """Change the labels. Raises Conflict if one differs from `seen`, NotFound if the node is gone.

    https://datatracker.ietf.org/doc/html/rfc6902
    """
    patch = [step for key in action.labels for step in _patch_steps(key, action.labels[key], seen)]
    try:
        return api.json_patch(NODES, action.node, patch, **limit())
    except ApiError as error:
        if error.status != _TEST_FAILED:
            raise
        return _node_if_already_changed(api, action, seen, limit, error)


def is_failed_test(error: ApiError) -> bool:
    """Return whether a step of a JSON patch failed, rather than a rule or a webhook refusing it."""
    return error.status == _TEST_FAILED and _FAILED_STEP_MESSAGE in str(error)


def _patch_steps(key: str, value: str | None, seen: Mapping[str, str]) -> list[Document]:
    """Return the patch steps of one label. An absent label tests as null and cannot be removed."""
    path = "/metadata/labels/" + key.replace("~", "~0").replace("/", "~1")
    test = {"op": "test", "path": path, "value": seen.get(key)}
    if value is not None:
        return [test, {"op": "add", "path": path, "value": value}]
    return [test, {"op": "remove", "path": path}] if key in seen else [test]


def _node_if_already_changed(
    api: Api,
    action: LabelNode,
    seen: Mapping[str, str],
    limit: Limit,
    error: ApiError,
) -> Document:
    """Return the node if its labels are as desired: a retried request may have succeeded before."""
    node = api.get(NODES, action.node, **limit())
    labels = node["metadata"].get("labels") or {}
    if all(labels.get(key) == value for key, value in action.labels.items()):
        return node
    # A label that equals the seen value may have had another value in between.
    if any(labels.get(key) != seen.get(key) for key in action.labels) or _INVALID not in str(error):
        raise Conflict(f"labels of node {action.node} are not what they were", status=409)
    raise error  # the labels are what they were, and the API server refuses a new value

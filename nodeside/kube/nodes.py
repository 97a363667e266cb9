"""Requests about the node that a pod runs on: read it, label it.

Answers have only its name, uid and labels, not its 10-30 kB of status.
https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from nodeside.kube.client import ApiCall

_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


def read_node(node: str) -> ApiCall:
    return ApiCall("get", "nodes", node, "GET", _node_path(node), accept=_METADATA_ONLY)


def label_node(node: str, labels: Mapping[str, str | None]) -> ApiCall:
    """Set these labels, remove those that are None, change nothing else (RFC 7386 merge patch)."""
    body: dict[str, Any] = {"metadata": {"labels": dict(labels)}}
    kind = "application/merge-patch+json"
    return ApiCall(
        "patch", "nodes", node, "PATCH", _node_path(node), kind, body, accept=_METADATA_ONLY
    )


def _node_path(node: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}"

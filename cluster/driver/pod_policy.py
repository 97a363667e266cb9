"""What `spec.pods` of a Driver asks of the pods that the controller makes.

Pure. Nothing of it is in a revision: a change replaces pods, and touches no module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cluster.kube.quantity import canonical
from cluster.model.retries import REBUILD_NOTE
from cluster.model.snapshot import DriverObject
from nodeside.spec.pods import Pods, PullPolicy, Resources, amount_of

Document = dict[str, Any]


def pods_of(found: DriverObject) -> Pods:
    """Return what a Driver asks of its pods; the defaults while its spec is invalid.

    After an order to build anew, pods are replaced once, and pull what their images are by now.
    """
    asked = found.driver.spec.pods if found.driver is not None else Pods()
    if not found.rebuild:
        return asked
    never = asked.image_pull_policy is PullPolicy.NEVER
    return replace(
        asked,
        annotations={**asked.annotations, REBUILD_NOTE: found.rebuild},
        image_pull_policy=asked.image_pull_policy if never else PullPolicy.ALWAYS,
    )


def resources(
    asked: Resources, requests: Mapping[str, str], limits: Mapping[str, str] | None = None
) -> Document:
    """Return the resources of a container; `requests` and `limits` hold where none are asked for.

    The quantities are as the API server returns them: any other form would look like an edit and
    would be reverted on every pass.
    """
    merged = {**(limits or {}), **asked.limits}
    bounded = {name: _bounded(request, merged.get(name)) for name, request in requests.items()}
    found = {"requests": {**bounded, **asked.requests}, "limits": merged}
    return {
        kind: {name: canonical(quantity) for name, quantity in quantities.items()}
        for kind, quantities in found.items()
        if quantities
    }


def _bounded(request: str, limit: str | None) -> str:
    """Return a request that is not above its limit, which the API server would refuse."""
    return limit if limit is not None and amount_of(limit) < amount_of(request) else request


def with_pull_policy(spec: Document, asked: Pods) -> Document:
    """Return a pod spec whose containers pull their images when they are asked to."""
    if asked.image_pull_policy is None:
        return spec
    policy = {"imagePullPolicy": asked.image_pull_policy.value}
    return {
        key: [each | policy for each in value] if key in ("initContainers", "containers") else value
        for key, value in spec.items()
    }

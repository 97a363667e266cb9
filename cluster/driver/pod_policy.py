"""What `spec.pods` of a Driver asks of the pods that the controller makes.

Pure. Nothing of it is in a revision: a change replaces pods, and touches no module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cluster.kube.quantity import canonical_quantity
from cluster.model.retries import REBUILD_NOTE
from cluster.model.snapshot import DriverObject
from nodeside.spec.pods import Pods, PullPolicy, Resources, amount_of

Document = dict[str, Any]


def pods_of(found: DriverObject) -> Pods:
    """Return what a Driver asks of its pods; the defaults while its spec is invalid."""
    return found.driver.spec.pods if found.driver is not None else Pods()


def rebuilt_pods_of(found: DriverObject) -> Pods:
    """Return the same for pods that build: after an order to build anew, they are replaced once.

    They pull what their images are by now, unless `imagePullPolicy` asks for something else.
    """
    asked = pods_of(found)
    if not found.rebuild:
        return asked
    return replace(
        asked,
        annotations={**asked.annotations, REBUILD_NOTE: found.rebuild},
        image_pull_policy=asked.image_pull_policy or PullPolicy.ALWAYS,
    )


def container_resources(
    asked: Resources, requests: Mapping[str, str], limits: Mapping[str, str] | None = None
) -> Document:
    """Return the resources of a container: what is asked for, else `requests` and `limits`.

    The quantities are as the API server returns them: any other form would look like an edit and
    would be reverted on every pass.
    """
    merged = {**(limits or {}), **asked.limits}
    bounded = {name: _cap_request(request, merged.get(name)) for name, request in requests.items()}
    found = {"requests": {**bounded, **asked.requests}, "limits": merged}
    return {
        kind: {name: canonical_quantity(quantity) for name, quantity in quantities.items()}
        for kind, quantities in found.items()
        if quantities
    }


def _cap_request(request: str, limit: str | None) -> str:
    """Return the request, at most the limit: the API server refuses a request above its limit."""
    return limit if limit is not None and amount_of(limit) < amount_of(request) else request


def with_pull_policy(spec: Document, asked: Pods) -> Document:
    """Return a pod spec whose containers have the image pull policy that the Driver asks for."""
    if asked.image_pull_policy is None:
        return spec
    policy = {"imagePullPolicy": asked.image_pull_policy.value}
    return {
        key: [each | policy for each in value] if key in ("initContainers", "containers") else value
        for key, value in spec.items()
    }

"""The ConfigMap for Driver settings that need no new revision: `upgrade` and `unload`.

There is one per Driver. Every driver pod mounts it, and it changes in place: the kubelet refreshes
the file within about a minute, and no pod is replaced. Pure.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from cluster.driver.revisions import owner
from cluster.model.names import DRIVER_LABEL, MANAGED_BY, MANAGER, POLICY_KEY, policy_name
from cluster.model.snapshot import DriverObject, Settings, Snapshot
from nodeside.errors import SpecError
from nodeside.spec import Driver
from nodeside.spec.policy import policy_of, with_policy


def policy_text(driver: Driver) -> str:
    return json.dumps(policy_of(driver), sort_keys=True, separators=(",", ":")) + "\n"


def policy_map(found: DriverObject, driver: Driver, settings: Settings) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": policy_name(driver.name),
            "namespace": settings.namespace,
            "labels": {MANAGED_BY: MANAGER, DRIVER_LABEL: driver.name},
            "ownerReferences": owner(found),
        },
        "data": {POLICY_KEY: policy_text(driver)},
    }


def with_sent_policy(snapshot: Snapshot, driver: Driver) -> Driver:
    """Return the driver with the policy last sent to nodes, or unchanged if it is unreadable."""
    sent = snapshot.revisions.get(policy_name(driver.name))
    if sent is not None:
        with suppress(SpecError):
            return with_policy(driver, sent.document, f"ConfigMap {sent.name}")
    return driver

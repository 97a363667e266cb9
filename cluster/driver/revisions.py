"""The revisions of a Driver: each is the part that nodes see, hashed, in an immutable ConfigMap.

Pure. `rollout`, `hardware`, `toolkit`, `preflight`, `stages`, `pods` and the publish target concern
only the controller and are left out: pausing a rollout or selecting one more node makes no new
revision. Neither does a change of `upgrade` or `unload`: they are in the ConfigMap of the Driver's
policy, one per Driver. Every driver pod mounts it, and it changes in place: the kubelet refreshes
the file within about a minute, and no pod is replaced. It also has the orders to retry (`retry`),
by node; an older driver image ignores them.

The driver.yaml of a revision is JSON, which is YAML; a node reads it with
`nodeside.spec.node_load`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

from cluster.driver.pools import pool_of
from cluster.model.names import (
    DRIVER_LABEL,
    MANAGED_BY,
    MANAGER,
    POLICY_KEY,
    config_map_name,
    object_labels,
    policy_name,
)
from cluster.model.snapshot import (
    Assignment,
    DaemonSetObject,
    DriverObject,
    RevisionObject,
    Settings,
    Snapshot,
    assignment_name,
)
from nodeside.errors import SpecError
from nodeside.protocol.labels import API_VERSION, assigned_label
from nodeside.protocol.timestamps import rfc3339
from nodeside.spec import Driver, node_parse, to_document
from nodeside.spec.fleet import Rollout, Toolkit
from nodeside.spec.model import Hardware
from nodeside.spec.pods import Pods
from nodeside.spec.policy import EVERY_NODE, RETRY, policy_of, with_policy, without_policy


def revision_text(driver: Driver) -> str:
    """Return the driver.yaml of a revision in canonical form: equal drivers have equal texts."""
    sources = tuple(replace(each, publish=False) for each in driver.spec.prebuilt.sources)
    spec = replace(
        without_policy(driver.spec),
        rollout=Rollout(),
        hardware=Hardware(),
        toolkit=Toolkit(),
        preflight=(),
        stages=(),
        pods=Pods(),
        prebuilt=replace(driver.spec.prebuilt, sources=sources),
    )
    document = to_document(Driver(driver.name, spec))
    return json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"


def revision_of(text: str) -> str:
    """Return the revision: 12 hex digits of the hash of the text that nodes see."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=1024)
def read_revision(stored: RevisionObject) -> Driver | None:
    """Return the Driver of a revision; None if the ConfigMap does not match its label.

    After a downgrade, a newer controller may have written it. Fields that are unknown here are left
    out and logged once, as on a node. Pods mount the ConfigMap unchanged.
    """
    if revision_of(stored.document) != stored.revision:
        return None
    try:
        return node_parse(json.loads(stored.document), where=f"ConfigMap {stored.name}")
    except (SpecError, ValueError):
        return None


def readable_revisions(snapshot: Snapshot, driver: str) -> dict[str, Driver]:
    """Return a Driver as of each of its revisions that can be read."""
    own = (each for each in snapshot.revisions.values() if each.driver == driver)
    read = {each.revision: read_revision(each) for each in own}
    return {revision: found for revision, found in read.items() if found is not None}


def owner_references(driver: DriverObject) -> list[dict[str, Any]]:
    """Return the owner reference to a Driver; the garbage collector cleans up without us."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": "Driver",
        "name": driver.name,
        "uid": driver.uid,
        "controller": True,
    }
    return [reference]


def config_map(
    driver: DriverObject, revision: str, text: str, settings: Settings
) -> dict[str, Any]:
    """Return the ConfigMap that a pod of this revision mounts."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(driver.name, revision),
            "namespace": settings.namespace,
            "labels": object_labels(driver.name, revision),
            "ownerReferences": owner_references(driver),
        },
        "immutable": True,
        "data": {"driver.yaml": text},
    }


def served_assignment(daemonset: DaemonSetObject) -> Assignment:
    """Return the assignment that a DaemonSet serves."""
    return Assignment(daemonset.pool, daemonset.revision, builds=bool(daemonset.fell_back))


@dataclass(frozen=True)
class Revisions:
    """The revisions of a Driver, its DaemonSets, and the assignments that its nodes can have."""

    snapshot: Snapshot
    resource: DriverObject
    driver: Driver

    @cached_property
    def text(self) -> str:
        """The driver.yaml of the newest revision."""
        return revision_text(self.driver)

    @cached_property
    def newest(self) -> str:
        return revision_of(self.text)

    @cached_property
    def good(self) -> str:
        """The last good revision; "" if there is none that can still be assigned."""
        good = str(self.resource.status.get("lastGoodRevision") or "")
        return good if good in self.drivers else ""

    @cached_property
    def drivers(self) -> Mapping[str, Driver]:
        """The Driver as of every revision that can still be assigned to a node."""
        return readable_revisions(self.snapshot, self.driver.name) | {self.newest: self.driver}

    @cached_property
    def daemonsets(self) -> Sequence[DaemonSetObject]:
        name = self.driver.name
        return tuple(each for each in self.snapshot.daemonsets.values() if each.driver == name)

    @cached_property
    def assignments(self) -> Mapping[str, Assignment]:
        """Assignments by name: of DaemonSets, and of deleted ones whose labels nodes still have."""
        served = ((each.assignment, served_assignment(each)) for each in self.daemonsets)
        existing = {name: at for name, at in served if self.name_of(at) == name}
        key = assigned_label(self.driver.name)
        lost = {
            pool_of(node)
            for node in self.snapshot.nodes.values()
            if (assigned := node.labels.get(key)) is not None and assigned not in existing
        }
        ats = (Assignment(*each) for each in product(lost, self.drivers, (False, True)))
        return existing | {self.name_of(at): at for at in ats}

    def name_of(self, at: Assignment) -> str:
        return assignment_name(self.driver.name, at.pool, at.revision, builds=at.builds)


# --- the policy: what needs no new revision ------------------------------------------------------


def policy_text(found: DriverObject, driver: Driver) -> str:
    """Return the policy file of nodes, with the orders to repeat a load."""
    orders = {node or EVERY_NODE: rfc3339(time) for node, time in found.retries}
    policy = policy_of(driver) | ({RETRY: orders} if orders else {})
    return json.dumps(policy, sort_keys=True, separators=(",", ":")) + "\n"


def policy_config_map(found: DriverObject, driver: Driver, settings: Settings) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": policy_name(driver.name),
            "namespace": settings.namespace,
            "labels": {MANAGED_BY: MANAGER, DRIVER_LABEL: driver.name},
            "ownerReferences": owner_references(found),
        },
        "data": {POLICY_KEY: policy_text(found, driver)},
    }


def with_sent_policy(snapshot: Snapshot, driver: Driver) -> Driver:
    """Return the driver with the policy last sent to nodes, or unchanged if it is unreadable."""
    sent = snapshot.revisions.get(policy_name(driver.name))
    if sent is not None:
        with suppress(SpecError):
            return with_policy(driver, sent.document, f"ConfigMap {sent.name}")
    return driver

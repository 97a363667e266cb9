"""The revision of a Driver: the part that nodes see, hashed, in an immutable ConfigMap.

Pure. `rollout`, `hardware`, `toolkit`, `preflight`, `stages` and the publish target concern only
the controller and are left out: pausing a rollout or selecting one more node makes no new revision.
Neither do `upgrade` and `unload`: node_policy.py delivers them to the nodes. The ConfigMap's
driver.yaml is JSON, which is YAML; a node reads it with `nodeside.spec.node_load`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

from cluster.model.names import (
    config_map_name,
    object_labels,
)
from cluster.model.snapshot import DriverObject, RevisionObject, Settings
from nodeside.errors import SpecError
from nodeside.protocol.labels import API_VERSION
from nodeside.spec import Driver, node_parse, to_document
from nodeside.spec.fleet import Rollout, Toolkit
from nodeside.spec.model import Hardware
from nodeside.spec.policy import without_policy


def revision_text(driver: Driver) -> str:
    """Returns the driver.yaml of a revision in canonical form: equal drivers have equal texts."""
    sources = tuple(replace(each, publish=False) for each in driver.spec.prebuilt.sources)
    spec = replace(
        without_policy(driver.spec),
        rollout=Rollout(),
        hardware=Hardware(),
        toolkit=Toolkit(),
        preflight=(),
        stages=(),
        prebuilt=replace(driver.spec.prebuilt, sources=sources),
    )
    document = to_document(Driver(driver.name, spec))
    return json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"


def revision_of(text: str) -> str:
    """Returns the revision: 12 hex digits of the hash of the text that nodes see."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=1024)
def read_revision(stored: RevisionObject) -> Driver | None:
    """Returns the Driver of a revision; None if the ConfigMap does not match its label.

    After a downgrade, a newer controller may have written it. Fields that are unknown here are left
    out and logged once, as on a node. Pods mount the ConfigMap unchanged.
    """
    if revision_of(stored.document) != stored.revision:
        return None
    try:
        return node_parse(json.loads(stored.document), where=f"ConfigMap {stored.name}")
    except (SpecError, ValueError):
        return None


def owner(driver: DriverObject) -> list[dict[str, Any]]:
    """Returns the owner reference to a Driver; the garbage collector cleans up without us."""
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
    """Returns the ConfigMap that a pod of this revision mounts."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(driver.name, revision),
            "namespace": settings.namespace,
            "labels": object_labels(driver.name, revision),
            "ownerReferences": owner(driver),
        },
        "immutable": True,
        "data": {"driver.yaml": text},
    }

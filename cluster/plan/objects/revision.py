"""The revision of a Driver: what a node sees of it, hashed, in an immutable ConfigMap.

Pure. `rollout`, `hardware`, `toolkit`, `preflight`, `stages` and where to publish are the
controller's business and stay out: to pause a rollout, or to select one more node, makes no new
revision. Nor do `upgrade` and `unload`: node_policy.py brings them to the nodes. The ConfigMap's
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
from nodeside.contract import API_VERSION
from nodeside.errors import SpecError
from nodeside.spec import Driver, node_parse, to_document
from nodeside.spec.fleet import Rollout, Toolkit
from nodeside.spec.model import Hardware
from nodeside.spec.policy import without_policy


def revision_text(driver: Driver) -> str:
    """The driver.yaml of a revision: canonical, so that equal drivers have equal texts."""
    sources = tuple(replace(each, publish=False) for each in driver.spec.prebuilt.sources)
    seen = replace(
        without_policy(driver.spec),
        rollout=Rollout(),
        hardware=Hardware(),
        toolkit=Toolkit(),
        preflight=(),
        stages=(),
        prebuilt=replace(driver.spec.prebuilt, sources=sources),
    )
    document = to_document(Driver(driver.name, seen))
    return json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"


def revision_of(text: str) -> str:
    """The revision: 12 hex digits of what a node sees."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=1024)
def read_revision(found: RevisionObject) -> Driver | None:
    """The Driver of a revision; None if the ConfigMap is not what its label says.

    A newer controller may have written it, which an older one followed: fields that are unknown
    here are left out, once with a log line, as a node does it. Its pods mount it as it is.
    """
    if revision_of(found.document) != found.revision:
        return None
    try:
        return node_parse(json.loads(found.document), where=f"ConfigMap {found.name}")
    except (SpecError, ValueError):
        return None


def owner(driver: DriverObject) -> list[dict[str, Any]]:
    """The owner reference to a Driver: were the controller gone, the garbage collector cleans."""
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
    """The ConfigMap that a pod of this revision mounts."""
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

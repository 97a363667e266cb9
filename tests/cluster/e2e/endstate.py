"""What a rollout ends in, in words that do not differ from one to the next: no hash, no time.

Earlier revisions, which stay for `nodeside-cluster undo`, are left out.

Two that went well have equal end states, whatever befell the controller on the way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cluster.model.names import REVISION_LABEL
from nodeside.protocol.labels import API_GROUP
from tests.cluster.e2e.scene import DAEMON_SETS, NODE_DRIVERS, PODS, REVISIONS, Scene

_TOLD = ("type", "status", "reason", "message")  # of a condition
_SAID = ("state", "version", "kernel", "reason")  # of a NodeDriver


def end_state(scene: Scene, version: str, name: str = "edu") -> dict[str, Any]:
    """Labels, DaemonSets, pods, revisions, reports and the status of a Driver, as it is now."""
    status = dict(scene.status(name))
    told = [{key: c.get(key) for key in _TOLD} for c in status.pop("conditions", ())]
    daemonsets = scene.items(DAEMON_SETS)
    in_use = {item["metadata"]["labels"][REVISION_LABEL] for item in daemonsets}
    revisions = [item["metadata"] for item in scene.items(REVISIONS)]
    found = {
        "status": status | {"conditions": told},
        "labels": _labels(scene),
        "daemonsets": [item["metadata"]["name"] for item in daemonsets],
        "pods": sorted(_pod(item) for item in scene.items(PODS)),
        "revisions": [r["name"] for r in revisions if r["labels"][REVISION_LABEL] in in_use],
        "reports": sorted(
            (item["metadata"]["name"], *(item.get("status", {}).get(key) for key in _SAID))
            for item in scene.items(NODE_DRIVERS)
        ),
    }
    return _without_names(found, version)


def _labels(scene: Scene) -> dict[str, dict[str, str]]:
    """Ours, but for what a node had before: it differs with whose turn came when."""
    return {
        node["metadata"]["name"]: {
            key: value
            for key, value in node["metadata"].get("labels", {}).items()
            if key.startswith(f"{API_GROUP}/") and not key.endswith(".before")
        }
        for node in scene.items("/api/v1/nodes")
    }


def _pod(pod: Mapping[str, Any]) -> tuple[str, str, bool]:
    image = pod["spec"]["containers"][0]["image"]
    return pod["spec"].get("nodeName", ""), image, "deletionTimestamp" in pod["metadata"]


def _without_names(found: dict[str, Any], version: str) -> dict[str, Any]:
    """The names of the one DaemonSet and the one revision, and the version, in words."""
    text = json.dumps(found, sort_keys=True)
    if len(found["daemonsets"]) == len(found["revisions"]) == 1:
        for kind in ("daemonsets", "revisions"):
            text = text.replace(found[kind][0].rpartition("-")[2], f"<{kind}>")
    text = text.replace(version, "<version>")
    read: dict[str, Any] = json.loads(text)
    read["status"].pop("observedGeneration", None)
    read["status"].pop("previousGoodRevision", None)  # that of the rollout before
    return read

"""Stages of a test: their ConfigMaps, their pods, and what was true at each moment of both.

KWOK runs the pods: they are ready as soon as they run, and have no logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cluster.model.names import ADMITTED_NOTE, NAMESPACE, closed_label, stage_label
from nodeside.protocol.labels import assigned_label, state_label
from nodeside.protocol.node_status import State
from tests.cluster.e2e.scene import Scene
from tests.cluster.e2e.watching import Watching
from tests.controlplane.api_server import APPLY_PATCH
from tests.controlplane.stages import LINGER

ASSIGNED, STATE = assigned_label("edu"), state_label("edu")
FIRST, SECOND, CLOSED = (
    stage_label("edu", "first"),
    stage_label("edu", "second"),
    closed_label("edu"),
)
TWO = [{"name": "first", "manifests": "one"}, {"name": "second", "manifests": "two"}]
_IN = f"namespaces/{NAMESPACE}"
STAGE_DAEMON_SETS = f"/apis/apps/v1/{_IN}/daemonsets?labelSelector=nodeside.io/stage"
STAGE_PODS = f"/api/v1/{_IN}/pods?labelSelector=nodeside.io/stage"
STAGE_JOBS = f"/apis/batch/v1/{_IN}/jobs?labelSelector=nodeside.io/stage"


def clear(scene: Scene, *config_maps: str) -> None:
    """What is left of stages, with or without a controller."""
    at_once = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
    for path in (STAGE_DAEMON_SETS, STAGE_JOBS, STAGE_PODS):
        for item in scene.items(path):
            where = f"{path.partition('?')[0]}/{item['metadata']['name']}"
            scene.control_plane.request("DELETE", where, at_once)
    for name in config_maps:
        scene.control_plane.request("DELETE", f"/api/v1/{_IN}/configmaps/{name}")


def lingering(text: str) -> str:
    """Its pods take a while to end, as one that has a device open may."""
    return text.replace(
        "    metadata:\n      labels:",
        f"    metadata:\n      annotations: {{{LINGER}: 700ms}}\n      labels:",
    )


def write(scene: Scene, name: str, text: str) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"daemonset.yaml": text},
    }
    path = f"/api/v1/{_IN}/configmaps/{name}?fieldManager=tests&force=true"
    scene.control_plane.do("PATCH", path, document, content_type=APPLY_PATCH)


def until_staged(scene: Scene, nodes: int) -> None:
    """The last stage is ready on so many nodes."""

    def holds() -> bool:
        rows = scene.status().get("stages", [])
        return scene.condition("StagesReady")["status"] == "True" and rows[-1]["nodes"] == {
            "wanted": nodes,
            "ready": nodes,
        }

    scene.control_plane.wait_for(holds, f"all stages to be ready on {nodes} nodes")


def stage_pods(scene: Scene) -> list[str]:
    return sorted(told(scene))


def told(scene: Scene) -> dict[str, str | None]:
    """The pods of stages, and in which boot each was told that the stage before is ready."""
    return {
        f"{p['metadata']['labels']['app']} on {p['spec'].get('nodeName')}": (
            p["metadata"].get("annotations", {}).get(ADMITTED_NOTE)
        )
        for p in scene.items(STAGE_PODS)
        if "deletionTimestamp" not in p["metadata"]
    }


class Watched(Watching):
    """What was true at each moment of the nodes and of the pods on them."""

    def _births(self) -> Iterator[tuple[str, str, Mapping[str, str], set[tuple[str, str]]]]:
        """Each pod of a stage as it came: its stage, its node, that node's labels then, and which
        stages had a ready pod on which node. Those that were there at first are not among them."""
        labels: dict[str, Mapping[str, str]] = {}
        ready: dict[str, tuple[str, str]] = {}
        born: set[str] = set()
        for event in self.events:
            item, meta = event.object, event.object["metadata"]
            if event.kind == "Node":
                labels[meta["name"]] = meta.get("labels", {})
            elif event.kind == "Pod" and "nodeside.io/stage" in meta.get("labels", {}):
                stage, node = meta["labels"]["nodeside.io/stage"], _node_of(item)
                if meta["uid"] not in born:
                    born.add(meta["uid"])
                    if event.version:
                        yield stage, node, labels.get(node, {}), set(ready.values())
                if event.deleted or not _is_ready(item):
                    ready.pop(meta["name"], None)
                else:
                    ready[meta["name"]] = (stage, node)

    def check_gates(self) -> None:
        """No pod of a stage ever came to a node where what it rests on was not ready."""
        births = list(self._births())
        assert births
        for stage, node, labels, ready in births:
            assert labels.get(STATE) == State.READY.value, (stage, node, labels)
            assert labels.get(CLOSED) is None, (stage, node, labels)
            if stage == "second":
                assert labels.get(FIRST) == "ready", (stage, node, labels)
                assert ("first", node) in ready, (stage, node, ready)

    def check_ends(self) -> None:
        """No node changed its assignment while a pod of a stage was at work there, or ended."""
        there: dict[str, str] = {}
        assigned: dict[str, str] = {}
        for event in self.events:
            item, meta = event.object, event.object["metadata"]
            if event.kind == "Pod" and "nodeside.io/stage" in meta.get("labels", {}):
                if event.deleted or item.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                    there.pop(meta["name"], None)
                else:
                    there[meta["name"]] = _node_of(item)
            elif event.kind == "Node":
                before, now = assigned.get(meta["name"]), meta.get("labels", {}).get(ASSIGNED)
                if event.version and before and now != before:
                    assert meta["name"] not in there.values(), (meta["name"], there)
                assigned[meta["name"]] = now or ""


def _node_of(pod: Mapping[str, Any]) -> str:
    """Where it is or is to be; "" for one of a Job that may run anywhere."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = affinity["nodeSelectorTerms"]
    return str(term["matchFields"][0]["values"][0]) if "matchFields" in term else ""


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

"""Jobs of stages: their pods run until a test says how they end, as a kubelet would report it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.model.names import NAMESPACE
from tests.cluster.e2e.scene import Scene
from tests.cluster.e2e.staged import STAGE_JOBS, STAGE_PODS
from tests.cluster.fakes.stagejobs import job
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.stages import LINGER, UNENDED


def held(name: str, run: str) -> str:
    """A Job whose pods run until `end`, and which take a while to go."""
    notes = f'{{{UNENDED}: "true", {LINGER}: 700ms}}'
    return job(name, run).replace(
        "  template:\n    spec:",
        f"  template:\n    metadata:\n      annotations: {notes}\n"
        f"      labels: {{app: {name}}}\n    spec:",
    )


def jobs(scene: Scene) -> dict[str, str]:
    """Those of stages that are not going, by the node that they are for, with their names."""
    found = [j["metadata"] for j in scene.items(STAGE_JOBS)]
    there = [meta for meta in found if "deletionTimestamp" not in meta]
    by_node = {meta["annotations"]["nodeside.io/node"]: meta["name"] for meta in there}
    assert len(by_node) == len(there), there
    return by_node


def at_work(scene: Scene) -> dict[str, Mapping[str, Any]]:
    """The running pods of Jobs of stages, by node."""
    return {
        pod["spec"]["nodeName"]: pod
        for pod in scene.items(STAGE_PODS)
        if "batch.kubernetes.io/job-name" in pod["metadata"]["labels"]
        and pod["status"].get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    }


def until_at_work(scene: Scene, *nodes: str) -> None:
    """Pods of Jobs run on these nodes and on no others."""
    plane = scene.control_plane
    plane.wait_for(lambda: set(at_work(scene)) == set(nodes), f"Jobs to run on {nodes}")


def end(scene: Scene, node: str, code: int = 0, message: str = "") -> None:
    """The pod of a Job on a node ends with an exit code."""
    pod = at_work(scene)[node]
    reason = "Error" if code else "Completed"
    terminated = {"exitCode": code, "reason": reason, "message": message}
    container = {
        "name": "main",
        "image": "x",
        "imageID": "x",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": terminated},
    }
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
    scene.control_plane.do("PATCH", path, {"status": status}, content_type=MERGE_PATCH)

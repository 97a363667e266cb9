"""The node side of simulated nodes: its own announcing code, with real tokens of real pods.

For each driver pod that runs, the fleet says what `nodeside driver run` would say in it: with a
token that is bound to this very pod, through `nodeside.driver.announce`. What becomes of a driver
on a node is decided by `outcome`, which a test sets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.manifests import NAMESPACE
from cluster.world import OURS
from nodeside.contract import NodeDriverStatus, Rung, State
from nodeside.driver.announce import Delivery, Pace
from tests.cluster.driverpods import identity
from tests.controlplane.controlplane import ControlPlane

Outcome = Callable[[str, str], State]  # of a node and a driver version

_LOOK = 0.1  # seconds between two looks at the pods
_TELL = 30.0  # seconds to tell the cluster
_QUICK = Pace(settle=0.0, first_retry=0.1, longest_retry=1.0, refused_retry=0.5)


def works(_node: str, _version: str) -> State:
    """A driver that works everywhere."""
    return State.READY


@dataclass
class Fleet:
    """Use as a context manager: the nodes speak inside of it."""

    control_plane: ControlPlane
    directory: Path
    outcome: Outcome = works
    _told: dict[tuple[str, State], None] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Fleet:
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._workers = ThreadPoolExecutor(8)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(_TELL)
        self._workers.shutdown()

    def _run(self) -> None:
        while not self._end.wait(_LOOK):
            list(self._workers.map(self._speak, self._pods()))

    def _pods(self) -> Iterator[Mapping[str, Any]]:
        selector = OURS.replace("=", "%3D")
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}"
        for pod in self.control_plane.do("GET", path)["items"]:
            running = pod.get("status", {}).get("phase") == "Running"
            if running and "deletionTimestamp" not in pod["metadata"]:
                yield pod

    def _speak(self, pod: Mapping[str, Any]) -> None:
        """Once for each thing that a pod has to say."""
        status = self._status(pod)
        if status is None or (pod["metadata"]["uid"], status.state) in self._told:
            return
        where = self.directory / pod["metadata"]["name"]
        delivery = Delivery(identity(self.control_plane, where, pod).api, _QUICK)
        delivery.want(status)
        ends = time.monotonic() + _TELL
        while not self._end.is_set() and time.monotonic() < ends:
            due = delivery.due()
            if due is None:
                self._told[pod["metadata"]["uid"], status.state] = None
                break
            self._end.wait(due)
            delivery.step()
        delivery.api.close()

    def _status(self, pod: Mapping[str, Any]) -> NodeDriverStatus | None:
        """None if the pod is gone, or is for another kernel: then it does nothing."""
        env = {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0]["env"]}
        node = self.control_plane.request("GET", f"/api/v1/nodes/{pod['spec']['nodeName']}")
        if node.status != 200:
            return None
        info = node.document["status"]["nodeInfo"]
        if env["NODESIDE_KERNEL"] != info["kernelVersion"]:
            return None
        driver, version = pod["metadata"]["labels"]["nodeside.io/driver"], self._version(pod)
        state = self.outcome(pod["spec"]["nodeName"], version)
        failed = state is State.FAILED
        return NodeDriverStatus(
            driver=driver,
            node=pod["spec"]["nodeName"],
            state=state,
            version=version,
            kernel=info["kernelVersion"],
            boot_id=info["bootID"],
            reason="BuildFailed" if failed else "",
            message="edu.c:42: error: too few arguments" if failed else "",
            source=None if failed else Rung.BUILT,
            revision=env["NODESIDE_REVISION"],
            modules=("edu",),
        )

    def _version(self, pod: Mapping[str, Any]) -> str:
        """What stands in the pod's driver.yaml, by its image's tag."""
        return str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2]

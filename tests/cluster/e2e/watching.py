"""What really happened, from watches of the API server and not from the controller's own words.

Everything that changed of nodes, DaemonSets, pods, Jobs and NodeDrivers, in the order of their
resource versions, which are comparable over all kinds that live in one etcd.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from cluster.kube.client import Api, Watch, connect
from cluster.kube.resources import DAEMON_SETS, JOBS, NODE_DRIVERS, NODES, PODS, Resource
from cluster.model.names import NAMESPACE
from nodeside.protocol.labels import assigned_label
from tests.controlplane.api_server import MERGE_PATCH, ApiServer

_END = 10.0  # seconds for a closed watch to end


@dataclass(frozen=True)
class Seen:
    """One event. `version` 0: it was so at first. `at` is when we saw it, in monotonic seconds."""

    version: int
    at: float
    kind: str
    deleted: bool
    object: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])


@dataclass
class Watching:
    """Use as a context manager around what is to be watched; ask afterwards."""

    kinds: ClassVar[Mapping[Resource, str]] = {
        NODES: "",
        DAEMON_SETS: NAMESPACE,
        PODS: NAMESPACE,
        JOBS: NAMESPACE,
        NODE_DRIVERS: "",
    }
    control_plane: ApiServer
    driver: str = "edu"
    _events: list[Seen] = field(default_factory=list)
    _watches: list[Watch] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._api = connect(self.control_plane.kubeconfig)
        for kind, namespace in self.kinds.items():
            version = self._begin(self._api, kind, namespace)
            watch = self._api.watch(kind, version, namespace=namespace)
            self._watches.append(watch)
            thread = threading.Thread(target=self._follow, args=(kind, watch), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._catch_up()
        for watch in self._watches:
            watch.close()
        for thread in self._threads:
            thread.join(_END)
        self._api.close()

    def _begin(self, api: Api, kind: Resource, namespace: str) -> str:
        """What is there at first counts as having happened before everything else."""
        began = time.monotonic()

        def keep(item: Mapping[str, Any]) -> None:
            self._events.append(Seen(0, began, kind.kind, False, dict(item)))

        return api.list(kind, keep, namespace=namespace).resource_version

    def _follow(self, kind: Resource, watch: Watch) -> None:
        for event in watch:
            if event.kind != "BOOKMARK":
                version = int(event.object["metadata"]["resourceVersion"])
                gone = event.kind == "DELETED"
                self._events.append(Seen(version, time.monotonic(), kind.kind, gone, event.object))

    def _catch_up(self) -> None:
        """Until we have seen a change that is made now: nothing of before it is missing then."""
        path, key = "/api/v1/nodes?limit=1", "tests.nodeside.io/seen"
        nodes = self.control_plane.do("GET", path)["items"]
        if not nodes:
            return
        name = nodes[0]["metadata"]["name"]
        note = {"metadata": {"annotations": {key: str(time.monotonic())}}}
        made = self.control_plane.do(
            "PATCH", f"/api/v1/nodes/{name}", note, content_type=MERGE_PATCH
        )
        wanted = int(made["metadata"]["resourceVersion"])
        self.control_plane.wait_for(
            lambda: any(e.version >= wanted and e.kind == "Node" for e in self._events[-500:]),
            "the watches to catch up",
        )

    @property
    def events(self) -> list[Seen]:
        """In the order in which they happened."""
        return sorted(self._events, key=lambda event: event.version)

    @property
    def most_unavailable(self) -> int:
        """The largest number of assigned nodes that at one moment had no working driver."""
        return max((len(nodes) for nodes in self._unavailable()), default=0)

    def _unavailable(self) -> Iterator[set[str]]:
        """After each event, the nodes whose assigned revision is not reported as ready."""
        revisions: dict[str, str] = {}
        assigned: dict[str, str] = {}
        working: dict[str, str] = {}
        key = assigned_label(self.driver)
        for event in self.events:
            meta, item = event.object["metadata"], event.object
            if event.kind == "DaemonSet" and "nodeside.io/stage" not in meta["labels"]:
                assignment = meta["name"].rpartition("-")[2]
                revisions[assignment] = meta["labels"].get("nodeside.io/revision", "")
            elif event.kind == "Node":
                assigned[meta["name"]] = meta.get("labels", {}).get(key, "")
            elif item.get("status", {}).get("driver") == self.driver:
                status = item["status"]
                ready = status.get("state") == "ready"
                working[status["node"]] = status.get("revision", "") if ready else ""
            if event.version:
                yield {
                    node
                    for node, assignment in assigned.items()
                    if assignment and working.get(node) != revisions.get(assignment, "?")
                }

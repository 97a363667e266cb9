"""What really happened, from watches of the API server and not from the controller's own words.

Everything that changed of nodes, DaemonSets and NodeDrivers, in the order of their resource
versions, which are comparable over all kinds that live in one etcd.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.api import Api, Watch, connect
from cluster.resources import DAEMON_SETS, NODE_DRIVERS, NODES, Resource
from nodeside.contract import assigned_label
from tests.controlplane.controlplane import ControlPlane

_END = 10.0  # seconds for a closed watch to end
_KINDS = (NODES, DAEMON_SETS, NODE_DRIVERS)


@dataclass
class Watching:
    """Use as a context manager around what is to be watched; ask afterwards."""

    control_plane: ControlPlane
    driver: str = "edu"
    _events: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    _watches: list[Watch] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Watching:
        self._api = connect(self.control_plane.kubeconfig)
        for kind in _KINDS:
            version = self._begin(self._api, kind)
            watch = self._api.watch(kind, version)
            self._watches.append(watch)
            thread = threading.Thread(target=self._follow, args=(kind, watch), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.close()
        for thread in self._threads:
            thread.join(_END)
        self._api.close()

    def _begin(self, api: Api, kind: Resource) -> str:
        """What is there at first counts as having happened before everything else."""

        def keep(item: Mapping[str, Any]) -> None:
            self._events.append((0, kind.kind, "ADDED", dict(item)))

        return api.list(kind, keep).resource_version

    def _follow(self, kind: Resource, watch: Watch) -> None:
        for event in watch:
            if event.kind != "BOOKMARK":
                version = int(event.object["metadata"]["resourceVersion"])
                self._events.append((version, kind.kind, event.kind, event.object))

    @property
    def most_unavailable(self) -> int:
        """The largest number of assigned nodes that at one moment had no working driver."""
        return max((len(nodes) for nodes in self._unavailable()), default=0)

    def changes(self, kind: str) -> int:
        """How often objects of a kind were written."""
        return sum(version > 0 and found == kind for version, found, _, _ in self._events)

    def _unavailable(self) -> Iterator[set[str]]:
        """After each event, the nodes whose assigned revision is not reported as ready."""
        revisions: dict[str, str] = {}
        assigned: dict[str, str] = {}
        working: dict[str, str] = {}
        key = assigned_label(self.driver)
        for version, kind, _, item in sorted(self._events, key=lambda event: event[0]):
            meta = item["metadata"]
            if kind == "DaemonSet":
                assignment = meta["name"].rpartition("-")[2]
                revisions[assignment] = meta["labels"].get("nodeside.io/revision", "")
            elif kind == "Node":
                assigned[meta["name"]] = meta.get("labels", {}).get(key, "")
            elif item.get("status", {}).get("driver") == self.driver:
                status = item["status"]
                ready = status.get("state") == "ready"
                working[status["node"]] = status.get("revision", "") if ready else ""
            if version:
                yield {
                    node
                    for node, assignment in assigned.items()
                    if assignment and working.get(node) != revisions.get(assignment, "?")
                }

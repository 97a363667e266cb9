"""The node side of all nodes in one process: its own announcing code, real tokens of real pods.

For each driver pod that runs, what `nodeside driver run` says of a driver that became ready within
seconds: the label, the NodeDriver and an Event, by `nodeside.driver`'s own announcer, with a token
bound to this pod. Only the connections are shared, since 5,000 nodes have 5,000 processors for
their TLS and we have two.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import requests

from bench.room import BenchError
from cluster.kube.client import Api, connect
from cluster.kube.errors import ApiError
from cluster.kube.resources import NODES, PODS
from cluster.model.names import DRIVER, NAMESPACE, OURS
from nodeside.contract import NodeDriverStatus, Rung, State
from nodeside.driver.announce.api import Cluster
from nodeside.driver.announce.delivery import Delivery, Pace
from nodeside.kube_api import Access
from tests.controlplane.controlplane import ControlPlane

_WORKERS = 12
_QUICK = Pace(settle=0.0, first_retry=0.1, longest_retry=2.0, refused_retry=1.0)
_TELL = 60.0  # seconds for one node to tell everything
_ANSWER = 60.0  # seconds for the process to answer us


@dataclass(frozen=True)
class Heard:
    """What the nodes said so far. `nodes` maps a node to when its label was last acknowledged."""

    calls: Counter[str] = field(default_factory=Counter)
    nodes: Mapping[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    at_rest: bool = True


class Speakers:
    """Use as a context manager, before there are any threads: the process is forked."""

    def __init__(self, control_plane: ControlPlane, directory: Path) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._line = ours
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=_speak, args=(control_plane, directory, theirs), daemon=True
        )

    def __enter__(self) -> Speakers:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join(_ANSWER)

    def heard(self) -> Heard:
        self._line.send("?")
        if not self._line.poll(_ANSWER):
            raise BenchError("the process that plays the nodes does not answer")
        found = self._line.recv()
        assert isinstance(found, Heard)
        return found


def _speak(control_plane: ControlPlane, directory: Path, line: Connection) -> None:
    """The process: answers, while others speak."""
    control_plane.forget_connections()
    voices = _Voices(control_plane, directory)
    threading.Thread(target=voices.follow, daemon=True).start()
    while True:
        line.recv()
        line.send(voices.heard())


class _Session:
    """A connection that many nodes share; each has its own token, and the CA is the same."""

    def __init__(self, ca: str) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        self._ca = ca

    def request(self, method: str, url: str, **more: Any) -> requests.Response:
        return self._session.request(method, url, **{**more, "verify": self._ca})


class _Node(Cluster):
    """What a driver container talks to the API server with, on a shared connection."""

    def __init__(self, access: Access, session: _Session) -> None:
        super().__init__(access)
        self._shared: Any = session

    def _connected(self) -> requests.Session:
        found: requests.Session = self._shared
        return found

    def close(self) -> None:
        """It stays open for the next node."""


class _Voices:
    def __init__(self, control_plane: ControlPlane, directory: Path) -> None:
        self._control_plane = control_plane
        self._directory = directory
        self._api: Api = connect(control_plane.kubeconfig)
        self._own = threading.local()
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._told: dict[str, float] = {}
        self._done: set[str] = set()
        self._waiting = 0
        self._infos: dict[str, Mapping[str, Any]] = {}
        self._workers = ThreadPoolExecutor(_WORKERS)

    def heard(self) -> Heard:
        cpu = time.process_time()
        with self._lock:
            return Heard(Counter(self._calls), dict(self._told), cpu, self._waiting == 0)

    def follow(self) -> None:
        """Every driver pod that runs speaks once, whenever it begins to."""
        self._api.list(NODES, self._remember_node)
        where: dict[str, Any] = {"namespace": NAMESPACE, "selector": OURS}
        while True:
            with suppress(ApiError):
                version = self._api.list(PODS, self._take, **where).resource_version
                for event in self._api.watch(PODS, version, **where):
                    if event.kind in ("ADDED", "MODIFIED"):
                        self._take(event.object)

    def _remember_node(self, node: Mapping[str, Any]) -> None:
        self._infos[node["metadata"]["name"]] = node["status"]["nodeInfo"]

    def _take(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        running = pod.get("status", {}).get("phase") == "Running"
        if not running or "deletionTimestamp" in metadata or metadata["uid"] in self._done:
            return
        self._done.add(metadata["uid"])
        with self._lock:
            self._waiting += 1
        self._workers.submit(self._say, pod)

    def _say(self, pod: Mapping[str, Any]) -> None:
        try:
            status = self._status(pod)
            if status is not None:
                self._deliver(pod, status)
        finally:
            with self._lock:
                self._waiting -= 1

    def _deliver(self, pod: Mapping[str, Any], status: NodeDriverStatus) -> None:
        where = self._directory / pod["metadata"]["uid"]
        where.mkdir(parents=True)
        token = self._control_plane.pod_token(NAMESPACE, DRIVER, pod)  # as the kubelet does
        (where / "token").write_text(token)
        node = _Node(Access(self._control_plane.url, where), self._session())
        delivery = Delivery(_Counted(node, self._count, self._acknowledged), _QUICK)
        delivery.want(status)
        ends = time.monotonic() + _TELL
        while (due := delivery.due()) is not None and time.monotonic() < ends:
            time.sleep(due)
            delivery.step()

    def _session(self) -> _Session:
        if not hasattr(self._own, "session"):
            self._own.session = _Session(str(self._control_plane.ca))
        found: _Session = self._own.session
        return found

    def _count(self, what: str) -> None:
        with self._lock:
            self._calls[what] += 1

    def _acknowledged(self, node: str) -> None:
        with self._lock:
            self._told[node] = time.monotonic()

    def _status(self, pod: Mapping[str, Any]) -> NodeDriverStatus | None:
        """None for a pod of another kernel than the node has: it does nothing."""
        env = {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0]["env"]}
        name = pod["spec"]["nodeName"]
        if env["NODESIDE_KERNEL"] != self._infos.get(name, {}).get("kernelVersion"):
            self._infos[name] = self._api.get(NODES, name)["status"]["nodeInfo"]
        info = self._infos[name]
        if env["NODESIDE_KERNEL"] != info["kernelVersion"]:
            return None
        return NodeDriverStatus(
            driver=pod["metadata"]["labels"]["nodeside.io/driver"],
            node=name,
            state=State.READY,
            version=str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2],
            kernel=info["kernelVersion"],
            boot_id=info["bootID"],
            source=Rung.FETCHED,
            revision=env["NODESIDE_REVISION"],
            modules=("edu",),
        )


@dataclass(frozen=True)
class _Counted:
    """The requests of a node, counted as they are made."""

    api: Cluster
    count: Callable[[str], None]
    acknowledged: Callable[[str], None]

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        self.count("patch nodes")
        uid = self.api.patch_node_labels(node, labels)
        self.acknowledged(node)
        return uid

    def get_node(self, name: str) -> str:
        self.count("get nodes")
        return self.api.get_node(name)

    def apply_node_driver(self, document: Mapping[str, Any]) -> None:
        self.count("patch nodedrivers")
        self.api.apply_node_driver(document)

    def create_event(self, event: Mapping[str, Any]) -> None:
        self.count("create events")
        self.api.create_event(event)

    def close(self) -> None:
        self.api.close()

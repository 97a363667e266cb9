"""The node side of all nodes in one process: its own announcing code, real tokens of real pods.

For each driver pod that runs, what `nodeside driver run` says of a driver that became ready within
seconds: the label, the NodeDriver and an Event, by `nodeside.driver`'s own announcer, with a token
bound to this pod. Only the connections are shared, since 5,000 nodes have 5,000 processors for
their TLS and we have two.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import requests

from bench.room import BenchError
from cluster.kube.client import Api, connect
from cluster.kube.errors import ApiError, NotFound
from cluster.kube.resources import NODES, PODS
from cluster.model.names import DRIVER, NAMESPACE, OURS
from nodeside.driver.announce.api import CALLER, StatusClient
from nodeside.driver.announce.delivery import Delivery, Pace
from nodeside.http.status import KubernetesError
from nodeside.kube.client import Client, PodAccess
from nodeside.protocol.node_status import NodeDriverStatus, Rung, State
from tests.controlplane.controlplane import ControlPlane

_WORKERS = 12
_QUICK = Pace(settle=0.0, first_retry=0.1, longest_retry=2.0, refused_retry=1.0)
_TELL = 60.0  # seconds for one node to tell everything
_WATCH = "the watch of pods"
_ANSWER = 60.0  # seconds for the process to answer us


@dataclass(frozen=True)
class Heard:
    """What the nodes said so far. `nodes` maps a node to when its label was last acknowledged.

    `refused` is the last error of each node whose last request failed; it may try again. `broken`
    is the first reason why a node, or this process, will not go on, "" for none.
    """

    calls: Counter[str] = field(default_factory=Counter)
    nodes: Mapping[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    at_rest: bool = True
    refused: Mapping[str, str] = field(default_factory=dict)
    broken: str = ""

    @property
    def words(self) -> str:
        """How many nodes spoke, and one of those that could not."""
        spoke = f"{len(self.nodes)} nodes spoke"
        return next((f"{spoke}, {node}: {why}" for node, why in self.refused.items()), spoke)


class Speakers:
    """Use as a context manager, before there are any threads: the process is forked."""

    def __init__(self, control_plane: ControlPlane, directory: Path) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._line = ours
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=_speak, args=(control_plane, directory, theirs, ours), daemon=True
        )

    def __enter__(self) -> Speakers:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join(_ANSWER)

    def heard(self) -> Heard:
        try:
            self._line.send("?")
            if not self._line.poll(_ANSWER):
                raise BenchError("the process that plays the nodes does not answer")
            found = self._line.recv()
        except (EOFError, OSError) as exc:
            raise BenchError("the process that plays the nodes has ended") from exc
        assert isinstance(found, Heard)
        return found


def _speak(
    control_plane: ControlPlane, directory: Path, line: Connection, theirs: Connection
) -> None:
    """The process: answers, while others speak. It ends with the one that asks, also if that is
    killed: it has inherited the locks of its temporary directories."""
    theirs.close()
    control_plane.forget_connections()
    voices = _Voices(control_plane, directory)
    threading.Thread(target=voices.follow, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            line.recv()
            line.send(voices.heard())
    os._exit(0)  # without waiting for the others


class _Session:
    """A connection that many nodes share. The CA is the same, so that it stays open."""

    def __init__(self, ca: str) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        self._ca = ca

    def request(self, method: str, url: str, **more: Any) -> requests.Response:
        return self._session.request(method, url, **{**more, "verify": self._ca})


class _Client(Client):
    """That of a node, with its own token; the connection stays open for the next node."""

    def __init__(self, access: PodAccess, session: _Session) -> None:
        super().__init__(access, CALLER)
        self._shared: Any = session

    def _open_session(self) -> requests.Session:
        found: requests.Session = self._shared
        return found


class _Node(StatusClient):
    """What a driver container talks to the API server with."""

    def __init__(self, access: PodAccess, session: _Session) -> None:
        super().__init__(access)
        self._client = _Client(access, session)


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
        self._refused: dict[str, str] = {}
        self._broken = ""
        self._infos: dict[str, Mapping[str, Any]] = {}
        self._workers = ThreadPoolExecutor(_WORKERS)

    def heard(self) -> Heard:
        cpu = time.process_time()
        with self._lock:
            told, refused = dict(self._told), dict(self._refused)
            at_rest = self._waiting == 0
            return Heard(Counter(self._calls), told, cpu, at_rest, refused, self._broken)

    def follow(self) -> None:
        """Every driver pod that runs speaks once, whenever it begins to."""
        try:
            self._follow()
        except Exception as exc:
            self._break(f"nobody follows the pods any more: {exc!r}")

    def _break(self, why: str) -> None:
        with self._lock:
            self._broken = self._broken or why

    def _follow(self) -> None:
        self._api.list(NODES, self._remember_node)
        where: dict[str, Any] = {"namespace": NAMESPACE, "selector": OURS}
        while True:
            try:
                version = self._api.list(PODS, self._take, **where).resource_version
                self._failed(_WATCH, "")
                for event in self._api.watch(PODS, version, **where):
                    if event.kind in ("ADDED", "MODIFIED"):
                        self._take(event.object)
            except ApiError as error:
                self._failed(_WATCH, str(error))

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
        except Exception as exc:
            if not self._is_gone(pod):
                self._break(f"{pod['spec']['nodeName']} said: {exc or repr(exc)}")
        finally:
            with self._lock:
                self._waiting -= 1

    def _deliver(self, pod: Mapping[str, Any], status: NodeDriverStatus) -> None:
        where = self._directory / pod["metadata"]["uid"]
        where.mkdir(parents=True)
        token = self._control_plane.pod_token(NAMESPACE, DRIVER, pod)  # as the kubelet does
        (where / "token").write_text(token)
        node = _Node(PodAccess(self._control_plane.url, where), self._session())
        counted = _Counted(node, status.node, self._count, self._acknowledged, self._failed)
        delivery = Delivery(counted, _QUICK)
        delivery.set_wanted(status)
        ends = time.monotonic() + _TELL
        while (due := delivery.seconds_until_next()) is not None and time.monotonic() < ends:
            time.sleep(due)
            delivery.send_next()
        if due is not None:
            last = self._refused.get(status.node, "nothing")
            raise BenchError(f"not everything within {_TELL:g} s; its last error: {last}")

    def _is_gone(self, pod: Mapping[str, Any]) -> bool:
        """Whether the pod need not speak any more. Its token goes with it."""
        metadata = pod["metadata"]
        try:
            found = self._api.get(PODS, metadata["name"], namespace=NAMESPACE)
        except ApiError as error:
            return isinstance(error, NotFound)
        there: Mapping[str, Any] = found["metadata"]
        return there["uid"] != metadata["uid"] or "deletionTimestamp" in there

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

    def _failed(self, node: str, why: str) -> None:
        """The outcome of a node's last request; "" if it was answered well."""
        with self._lock:
            if why:
                self._refused[node] = why
            else:
                self._refused.pop(node, None)

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

    api: StatusClient
    node: str
    count: Callable[[str], None]
    acknowledged: Callable[[str], None]
    failed: Callable[[str, str], None]

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        with self._request("patch nodes"):
            uid = self.api.patch_node_labels(node, labels)
        self.acknowledged(node)
        return uid

    def get_node(self, name: str) -> str:
        with self._request("get nodes"):
            return self.api.get_node(name)

    def apply_node_driver(self, document: Mapping[str, Any]) -> None:
        with self._request("patch nodedrivers"):
            self.api.apply_node_driver(document)

    def create_event(self, event: Mapping[str, Any]) -> None:
        with self._request("create events"):
            self.api.create_event(event)

    @contextmanager
    def _request(self, what: str) -> Iterator[None]:
        self.count(what)
        try:
            yield
        except KubernetesError as error:
            self.failed(self.node, str(error))
            raise
        self.failed(self.node, "")

    def close(self) -> None:
        self.api.close()

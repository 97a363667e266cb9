"""The node side of simulated nodes: its own announcing code, with real tokens of real pods.

For each driver pod that runs, the fleet does what `nodeside driver run` does in it: look whether
the kernel is the pod's, take the host's locks, act, and tell the cluster, with a token that is
bound to this very pod, through the node's own announcer. What one pod does to the modules wakes
the others on its node, as the kernel's events do, until their SIGTERM. What becomes of a driver on
a node is decided by `outcome`, which a test sets. Each time that a pod acted is kept in `spells`. A
pod that unloads says what `unload` decides, in the words of `nodeside driver unload --wait`, and
ends accordingly.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.kube.client import Api, connect
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import NODES, PODS, Resource
from cluster.model.names import NAMESPACE, OURS, UNLOAD_LABEL
from nodeside.driver.announce.delivery import Delivery, Pace
from nodeside.driver.node.run_directory import hold_lock, hold_pod_lock
from nodeside.errors import ExitCode, Locked
from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.node_status import UNLOADED, NodeDriverStatus, Rung, State
from nodeside.system.host import Host
from tests.cluster.fakes.driverpods import identity
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.stages import LINGER
from tests.patience import patience

Outcome = Callable[[str, str], State]  # of a node and a driver version
Unload = Callable[
    [str], State
]  # of a node: gone (WAITING), held (UNLOADING), or not to be unloaded
Document = Mapping[str, Any]

_LOCK = patience(30.0)  # seconds to wait for the pod of before
_TELL = patience(30.0)  # seconds to tell the cluster
_AGAIN = 1.0  # seconds, after which what failed is tried again
_OFF = patience(60.0)  # seconds for the pods of a node to end what they are doing
_QUICK = Pace(settle=0.0, first_retry=0.1, longest_retry=1.0, refused_retry=0.5)


def works(_node: str, _version: str) -> State:
    """A driver that works everywhere."""
    return State.READY


def goes(_node: str) -> State:
    """Modules that nobody holds."""
    return State.WAITING


HELD = "cannot unload edu: edu is held by 1 open file of dd (pid 4711)"
UNFIT = "toolkit has headers for 5.14.0-1.el9.x86_64, the node runs another kernel"
PERMANENT = "cannot unload edu: it is permanent, that is, it has no exit function"
_WORDS = {  # what the journal of an unload says with each state, and the exit code
    State.WAITING: (UNLOADED, "unloaded", ExitCode.OK),
    State.UNLOADING: ("InUse", HELD, None),
    State.REBOOT_REQUIRED: ("RebootRequired", PERMANENT, ExitCode.REBOOT_REQUIRED),
}


@dataclass(frozen=True)
class Spell:
    """One pod acted on one node, holding its lock, from `began` to `ended` (monotonic seconds)."""

    node: str
    pod: str
    kernel: str
    boot_id: str
    began: float
    ended: float


@dataclass(frozen=True)
class _Kept:
    """A reflected object, whole."""

    name: str
    document: Document


@dataclass
class Fleet:
    """Use as a context manager: the nodes speak inside of it.

    `url` is where they find the API server, "" for the real one. To act `takes` so many seconds,
    and with `linger` a pod is still there for so many after it was deleted; for the first `deaf` of
    them it has not heard that it is to end, and acts as before. Toolkit images in `unfit` have no
    headers of any node's kernel, as their sidecars say.
    """

    control_plane: ControlPlane
    directory: Path
    outcome: Outcome = works
    unload: Unload = goes
    url: str = ""
    takes: float = 0.0
    linger: float = 0.0
    deaf: float = 0.0
    unfit: frozenset[str] = frozenset()
    spells: list[Spell] = field(default_factory=list)
    _told: set[tuple[str, str, State]] = field(default_factory=set)  # by node and pod
    _turns: dict[str, tuple[str, ExitStack]] = field(default_factory=dict)  # by pod: node, its lock
    _deleted: dict[str, float] = field(default_factory=dict)  # pods: since when, monotonic seconds
    _lingering: set[str] = field(default_factory=set)
    _busy: set[str] = field(default_factory=set)  # pods
    _off: set[str] = field(default_factory=set)  # nodes
    _acting: Counter[str] = field(default_factory=Counter)  # pods at work, by node
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _looked: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Fleet:
        self._api = connect(self.control_plane.kubeconfig)
        self._nodes = _reflector(self._api, NODES, self._looked.set)
        self._pods = _reflector(self._api, PODS, self._looked.set, NAMESPACE, OURS)
        self._workers = ThreadPoolExecutor(16)
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        for started in (self._nodes, self._pods, self._thread):
            started.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._looked.set()
        for ended in (self._nodes, self._pods):
            ended.stop()
        for thread in (self._nodes, self._pods, self._thread):
            thread.join(_TELL)
        self._workers.shutdown()
        self._end_turns(lambda _uid, _node: True)
        self._api.close()

    # --- power ------------------------------------------------------------------------------------

    def power_off(self, node: str) -> None:
        """Returns when no pod of the node does anything any more; the lock goes with them."""
        with self._changed:
            self._off.add(node)
            assert self._changed.wait_for(lambda: not self._acting[node], _OFF), node
            self._end_turns(lambda _uid, where: where == node)

    def power_on(self, node: str) -> None:
        """Its pods start again, those of before the reboot too."""
        with self._changed:
            self._off.discard(node)
            self._told = {told for told in self._told if told[0] != node}
        self._looked.set()

    # --- what pods do -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            self._looked.wait(min(_AGAIN, self.deaf / 4) if self.deaf else _AGAIN)
            self._looked.clear()
            self._hear_sigterm()
            for pod in list((self._pods.objects() or {}).values()):
                self._look_at(pod.document)

    def _hear_sigterm(self) -> None:
        """A pod that is to end lets the next one in, once it has done what it is at."""
        pods = [pod.document for pod in (self._pods.objects() or {}).values()]
        staying = {pod["metadata"]["uid"] for pod in pods if not self._ends(pod)}
        with self._changed:
            self._end_turns(lambda uid, _node: uid not in staying | self._busy)

    def _end_turns(self, over: Callable[[str, str], bool]) -> None:
        """Called with the lock, or at the end."""
        for uid, (node, lock) in list(self._turns.items()):
            if over(uid, node):
                lock.close()
                del self._turns[uid]

    def _look_at(self, pod: Document) -> None:
        """Start what there is to do for a pod, unless that is under way, or the pod is to end."""
        node = self._node_of(pod)
        if node is None or self._ends(pod) or pod.get("status", {}).get("phase") != "Running":
            return
        uid, name = pod["metadata"]["uid"], node["metadata"]["name"]
        with self._changed:
            told = (name, uid, self._state(pod, name)) in self._told
            if told or uid in self._busy or name in self._off or self._ending.is_set():
                return
            self._busy.add(uid)
            self._acting[name] += 1
        self._workers.submit(self._work, pod, name)

    def _ends(self, pod: Document) -> bool:
        """Whether it has heard that it is to end."""
        if not _is_ending(pod):
            return False
        since = self._deleted.setdefault(pod["metadata"]["uid"], time.monotonic())
        return time.monotonic() >= since + self.deaf

    def _node_of(self, pod: Document) -> Document | None:
        found = (self._nodes.objects() or {}).get(pod["spec"].get("nodeName", ""))
        return None if found is None else found.document

    def _state(self, pod: Document, node: str) -> State:
        """What a pod is to say."""
        if _toolkit(pod) in self.unfit:
            return State.FAILED
        return self.unload(node) if _unloads(pod) else self.outcome(node, _version(pod))

    def _work(self, pod: Document, node: str) -> None:
        """One actor at a time."""
        host, driver = Host(self.directory / "hosts" / node), _driver(pod)
        try:
            self._make_linger(pod)
            if not _unloads(pod) and self._is_for(pod, node):
                self._take_turn(pod, node, host)
            with hold_lock(host, driver, timeout=_LOCK):
                self._act(pod)
        except Locked:
            pass  # another pod has its turn; looked at again when that one ends
        except AssertionError as error:  # the API server refused what the test itself asked of it
            print(f"fleet: {error}")  # noqa: T201 - shown if the test fails
        finally:
            with self._changed:
                self._busy.discard(pod["metadata"]["uid"])
                self._acting[node] -= 1
                self._changed.notify_all()

    def _is_for(self, pod: Document, node: str) -> bool:
        """Whether the node runs the pod's kernel now."""
        found = self.control_plane.request("GET", f"/api/v1/nodes/{node}")
        info = found.document.get("status", {}).get("nodeInfo", {})
        return _kernel(pod) in (None, info.get("kernelVersion"))

    def _take_turn(self, pod: Document, node: str, host: Host) -> None:
        """Once in a pod's life. Raises Locked."""
        uid = pod["metadata"]["uid"]
        if uid in self._turns:
            return
        with ExitStack() as stack:
            stack.enter_context(hold_pod_lock(host, _driver(pod), timeout=0))
            with self._changed:
                self._turns[uid] = node, stack.pop_all()

    def _wake_others(self, node: str, uid: str) -> None:
        """What a pod did to the modules, the kernel says to all of them."""
        with self._changed:
            self._told = {told for told in self._told if told[0] != node or told[1] == uid}

    def _act(self, pod: Document) -> None:
        """With the lock: look at the kernel as it is now, and say how the driver is."""
        meta, name = pod["metadata"], pod["spec"]["nodeName"]
        found = self.control_plane.request("GET", f"/api/v1/nodes/{name}")
        if found.status != 200:
            return
        info, began = found.document["status"]["nodeInfo"], time.monotonic()
        status = self._status(pod, info)
        if status is None:
            done = True
        else:
            self._ending.wait(self.takes)
            done = self._tell(pod, status)
            spell = (name, meta["uid"], status.kernel, status.boot_id)
            self.spells.append(Spell(*spell, began, time.monotonic()))
            if not _unloads(pod):
                self._wake_others(name, meta["uid"])
        if done:
            self._told.add((name, meta["uid"], status.state if status else self._state(pod, name)))
            if status is not None and _unloads(pod):
                self._end(pod, status.state)
            self._looked.set()  # the outcome may be another one by now

    def _status(self, pod: Document, info: Mapping[str, str]) -> NodeDriverStatus | None:
        """None if the pod is for another kernel: then it does nothing."""
        if _kernel(pod) not in (None, info["kernelVersion"]):
            return None
        node, version = pod["spec"]["nodeName"], _version(pod)
        state = self._state(pod, node)
        failed = state is State.FAILED
        reason, message = (
            ("BuildFailed", "edu.c:42: error: too few arguments") if failed else ("", "")
        )
        if _toolkit(pod) in self.unfit:
            reason, message = FailureKind.NO_HEADERS.reason, UNFIT
        if _unloads(pod):
            reason, message, _ = _WORDS[state]
        return NodeDriverStatus(
            driver=_driver(pod),
            node=node,
            state=state,
            version=version,
            kernel=info["kernelVersion"],
            boot_id=info["bootID"],
            reason=reason,
            message=message,
            source=_source(pod) if state is State.READY else None,
            revision=_env(pod)["NODESIDE_REVISION"],
            toolkit=_toolkit(pod),
            modules=("edu",),
        )

    def _tell(self, pod: Document, status: NodeDriverStatus) -> bool:
        """Whether the cluster knows."""
        where = self.directory / pod["metadata"]["name"]
        delivery = Delivery(identity(self.control_plane, where, pod, url=self.url).api, _QUICK)
        delivery.set_wanted(status)
        ends = time.monotonic() + _TELL
        try:
            while (due := delivery.seconds_until_next()) is not None and time.monotonic() < ends:
                if self._ending.wait(due):
                    return False
                delivery.send_next()
            return due is None
        finally:
            delivery.api.close()

    def _end(self, pod: Document, state: State) -> None:
        """As the kubelet says it of a container that ended."""
        code, meta = _WORDS[state][2], pod["metadata"]
        if code is None:
            return
        ended = {"exitCode": int(code), "reason": "Error" if code else "Completed"}
        container = {"name": "driver", "image": "i", "imageID": "", "ready": False}
        container |= {"restartCount": 0, "state": {"terminated": ended}}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        self.control_plane.do("PATCH", path, {"status": status}, content_type=MERGE_PATCH)

    def _make_linger(self, pod: Document) -> None:
        meta = pod["metadata"]
        if not self.linger or meta["uid"] in self._lingering:
            return
        self._lingering.add(meta["uid"])
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        note = {"metadata": {"annotations": {LINGER: f"{self.linger}s"}}}
        with suppress(AssertionError):
            self.control_plane.do("PATCH", path, note, content_type=MERGE_PATCH)


def _reflector(
    api: Api, resource: Resource, wake: Callable[[], None], namespace: str = "", selector: str = ""
) -> Reflector[_Kept]:
    chosen = Selection(
        resource, lambda item: _Kept(item["metadata"]["name"], item), namespace, selector
    )
    return Reflector(api, chosen, wake)


def _is_ending(pod: Document) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _unloads(pod: Document) -> bool:
    return UNLOAD_LABEL in pod["metadata"]["labels"]


def _env(pod: Document) -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0]["env"]}


def _kernel(pod: Document) -> str | None:
    """The release that it was made for; None: for any."""
    return _env(pod).get("NODESIDE_KERNEL")


def _toolkit(pod: Document) -> str:
    """The image of its sidecar, "" if it has none."""
    return _env(pod).get("NODESIDE_TOOLKIT", "")


def _driver(pod: Document) -> str:
    return str(pod["metadata"]["labels"]["nodeside.io/driver"])


def _source(pod: Document) -> Rung:
    """Without a toolkit there is nothing to do but to fetch."""
    return Rung.BUILT if len(pod["spec"]["containers"]) > 1 else Rung.FETCHED


def _version(pod: Document) -> str:
    """What stands in the pod's driver.yaml, by its image's tag."""
    return str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2]

"""What must hold at every moment, judged by the events that watches brought and by nothing else.

A pod *would act* on a node if it runs there, its DaemonSet's kernel is the node's, and it holds the
host's lock. The first two are seen here; the lock is played by the fleet, whose spells are judged
against the boots that the API server knew.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cluster.model.names import BUILDER, KERNEL_NOTE, MANAGED_BY
from nodeside.protocol.labels import assigned_label
from tests.cluster.e2e.fleet import Spell
from tests.cluster.e2e.watching import Seen


@dataclass(frozen=True)
class Pod:
    """A driver pod at one moment."""

    name: str
    node: str
    kernel: str
    running: bool
    ending: bool


@dataclass
class Moment:
    """What the API server had after an event."""

    at: float = 0.0
    version: int = 0
    nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)  # by DaemonSet, those of the past too
    revisions: dict[str, str] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by node

    def take(self, event: Seen) -> None:
        self.at, self.version = event.at, event.version
        meta = event.object["metadata"]
        match event.kind:
            case "Node":
                self.nodes.pop(event.name, None)
                if not event.deleted:
                    self.nodes[event.name] = event.object
            case "Pod":
                self.pods.pop(event.name, None)
                if not event.deleted and meta.get("labels", {}).get(MANAGED_BY) != BUILDER:
                    self.pods[event.name] = _pod(event.object)
            case "DaemonSet":
                self.kernels[event.name] = meta["annotations"][KERNEL_NOTE]
                self.revisions[event.name] = meta["labels"]["nodeside.io/revision"]
            case "NodeDriver":
                self.reports[event.name.partition(".")[2]] = event.object.get("status") or {}

    def info(self, node: str) -> Mapping[str, str]:
        return dict(self.nodes[node]["status"]["nodeInfo"]) if node in self.nodes else {}

    def on(self, node: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node == node]

    def eligible(self, node: str) -> list[Pod]:
        """Pods that would act if they had the lock."""
        kernel = self.info(node).get("kernelVersion")
        return [pod for pod in self.on(node) if pod.running and pod.kernel == kernel]

    def settled(self, node: str) -> bool:
        """Exactly one pod that is not to end, and it is of this kernel's DaemonSet."""
        staying = [pod for pod in self.on(node) if not pod.ending]
        return [pod.kernel for pod in staying] == [self.info(node).get("kernelVersion")]


def _pod(pod: Mapping[str, Any]) -> Pod:
    meta = pod["metadata"]
    env = {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0]["env"]}
    return Pod(
        meta["name"],
        pod["spec"].get("nodeName", ""),
        env["NODESIDE_KERNEL"],
        pod.get("status", {}).get("phase") == "Running",
        "deletionTimestamp" in meta,
    )


def moments(events: Iterable[Seen]) -> Iterator[tuple[Seen, Moment]]:
    """After each event; the moment is the same object, changed."""
    moment = Moment()
    for event in events:
        moment.take(event)
        yield event, moment


def most_contenders(events: Iterable[Seen]) -> int:
    """How many pods at one moment needed the lock to keep apart."""
    return max(
        len(moment.eligible(node))
        for event, moment in moments(events)
        if event.kind in ("Pod", "Node")
        for node in _concerned(event)
    )


def wrong_acts(spells: Sequence[Spell], events: Sequence[Seen]) -> list[str]:
    """Acts of two pods on one node at a time, for another kernel, or for a boot that was over."""
    boots: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for event in events:
        if event.kind == "Node":
            info = event.object["status"]["nodeInfo"]
            boot = (info["bootID"], info["kernelVersion"])
            if boot not in boots[event.name]:
                boots[event.name].append(boot)
    wrong = []
    by_node = defaultdict(list)
    for spell in sorted(spells, key=lambda spell: spell.began):
        by_node[spell.node].append(spell)
        if (spell.boot_id, spell.kernel) not in boots[spell.node]:
            wrong.append(f"for a kernel that the node did not have: {spell}")
    for node, acts in by_node.items():
        order = [boot_id for boot_id, _ in boots[node]]
        for first, second in pairwise(acts):
            if second.began < first.ended:
                wrong.append(f"two at a time: {first}, {second}")
            if order.index(second.boot_id) < order.index(first.boot_id):
                wrong.append(f"for a boot that was over: {second}")
    return wrong


def taken_back(spells: Sequence[Spell]) -> list[str]:
    """Pods that acted on a node again after another one had acted in the same boot."""
    wrong = []
    last: dict[tuple[str, str], str] = {}
    over: dict[tuple[str, str], set[str]] = defaultdict(set)
    for spell in sorted(spells, key=lambda spell: spell.began):
        where = (spell.node, spell.boot_id)
        before = last.get(where, spell.pod)
        if before != spell.pod:
            over[where].add(before)
        if spell.pod in over[where]:
            wrong.append(f"acted again after it was replaced: {spell}")
        last[where] = spell.pod
    return wrong


def made_twice(events: Iterable[Seen], kind: str) -> list[str]:
    """Names of a kind that were made, went, and were made again."""
    uids: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == kind:
            uids[event.name].add(event.object["metadata"]["uid"])
    return sorted(name for name, made in uids.items() if len(made) > 1)


def builds(events: Iterable[Seen]) -> Counter[tuple[str, str]]:
    """How often each driver image was built with each toolkit image: by Jobs that were made."""
    made: dict[str, tuple[str, str]] = {}
    for event in events:
        if event.kind == "Job":
            pod = event.object["spec"]["template"]["spec"]
            images = {c["name"]: c["image"] for c in (*pod["initContainers"], *pod["containers"])}
            made[event.object["metadata"]["uid"]] = images["finish"], images["answer"]
    return Counter(made.values())


def relapses(events: Sequence[Seen], since: Mapping[str, float]) -> list[str]:
    """Nodes that had exactly their one pod, and then for a moment had not."""
    settled, wrong = set[str](), []
    for event, moment in moments(events):
        for node in since.keys() & set(_concerned(event)):
            if moment.at < since[node]:
                continue
            if moment.settled(node):
                settled.add(node)
            elif node in settled:
                wrong.append(f"{node} at {event.version}: {moment.on(node)}")
    return wrong


def wrong_reports(events: Iterable[Seen]) -> list[str]:
    """NodeDrivers that were written for another kernel or boot than the node had."""
    wrong = []
    for event, moment in moments(events):
        if event.kind != "NodeDriver" or not event.version or event.deleted:
            continue
        said, node = event.object.get("status") or {}, event.name.partition(".")[2]
        info = moment.info(node)
        if info and (said["kernel"], said["bootId"]) != (info["kernelVersion"], info["bootID"]):
            wrong.append(f"{event.name} at {event.version}: {said['kernel']}, node {info}")
    return wrong


def wrong_cordons(events: Iterable[Seen], made: set[int]) -> list[str]:
    """Changes of `unschedulable` that are none of those that the upgrade made itself."""
    wrong, before = [], dict[str, bool]()
    for event in events:
        if event.kind == "Node":
            now = bool(event.object["spec"].get("unschedulable"))
            if before.get(event.name, now) != now and event.version not in made:
                wrong.append(f"{event.name} at {event.version}: unschedulable={now}")
            before[event.name] = now
    return wrong


def settling(events: Sequence[Seen], since: Mapping[str, float]) -> dict[str, float]:
    """By node, the seconds from then until it had exactly its one pod, and kept it to the end.

    A node that has not is not in it.
    """
    found: dict[str, float] = {}
    for event, moment in moments(events):
        for node in since.keys() & set(_concerned(event)):
            if not moment.settled(node):
                found.pop(node, None)
            elif node not in found:
                found[node] = max(0.0, moment.at - since[node])
    return found


def most_taken_down(events: Iterable[Seen], driver: str = "edu") -> int:
    """The most nodes at a time that the controller itself had taken a working driver from.

    That is: sent to another revision of the kernel that runs, and not reported as ready since.
    """
    key, most = assigned_label(driver), 0
    assigned: dict[str, str] = {}
    down: dict[str, str] = {}  # node: boot in which it was taken down
    for event, moment in moments(events):
        if event.kind == "Node":
            node, boot_id = event.name, moment.info(event.name).get("bootID", "")
            now = event.object["metadata"].get("labels", {}).get(key, "")
            before = assigned.get(node, now)
            assigned[node] = now
            if event.version and now != before and _same_kernel(moment, driver, before, now):
                down[node] = boot_id
            if down.get(node, boot_id) != boot_id or event.deleted:
                del down[node]  # rebooted: it is down for another reason
        elif event.kind == "NodeDriver":
            node = event.name.partition(".")[2]
            said = moment.reports[node]
            wanted = moment.revisions.get(f"{driver}-{assigned.get(node, '')}")
            if said.get("state") == "ready" and said.get("revision") == wanted:
                down.pop(node, None)
        most = max(most, len(down))
    return most


def _same_kernel(moment: Moment, driver: str, before: str, now: str) -> bool:
    first, second = (moment.kernels.get(f"{driver}-{each}") for each in (before, now))
    return first is not None and first == second


def _concerned(event: Seen) -> tuple[str, ...]:
    """Nodes that an event is about."""
    if event.kind == "Node":
        return (event.name,)
    return (event.object["spec"].get("nodeName", ""),) if event.kind == "Pod" else ()

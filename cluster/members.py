"""How a Driver stands on each of its nodes: what is observed, put into the words of rollout.py.

Pure; the first half of plan.py. A `Member` is a node that has the hardware of a Driver. Nothing is
believed that is not about this boot and the revision that the node has: a report of an older boot
is void, one for another revision comes from the pod before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.consumers import by_node, evicts
from cluster.fallback import At, cannot_pull
from cluster.hold import FREE, Hold, hold_of
from cluster.pools import Fit, before_label, has_hardware, pool_of
from cluster.rollout import Boot, Health, Place
from cluster.silence import PATIENT, Listener, Silence
from cluster.stagelabels import ending_pods
from cluster.world import Consumer, DriverPod, Node, NodeDriverObject, Pool, World
from nodeside.contract import State, assigned_label
from nodeside.spec import Driver
from nodeside.spec.model import Upgrade

_FAILED, _READY, _REBOOT = State.FAILED.value, State.READY.value, State.REBOOT_REQUIRED.value


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a Driver. `at` is None if nobody knows the assignment.

    `before` is the assignment under which the driver worked there until we changed the node.
    `was_ready` is what the node said last, in whatever boot. `trouble` is what is wrong though the
    node does not say so: its pod cannot start, or nothing is heard; `due` is the wall clock time at
    which that will be said if nothing is heard until then. `consumers` are the pods that have to
    leave before its driver is replaced, `stage_pods` those of stages that are ending there, as
    namespace/name; None: not known. `unpulled` is why its pod cannot have the image of the driver.
    `taken`: another Driver has a module of the newest revision there.
    """

    node: Node
    fit: Fit
    pool: Pool
    assigned: str
    at: At | None
    health: Health
    boot: Boot
    before: str
    was_ready: bool
    report: NodeDriverObject | None
    trouble: str
    due: float = PATIENT.until
    hold: Hold = FREE
    consumers: Sequence[Consumer] | None = ()
    unpulled: str = ""
    stage_pods: Sequence[str] | None = ()
    taken: bool = False

    @property
    def is_vacant(self) -> bool:
        """Whether nothing is left that was in the way of a change."""
        return self.consumers == () and self.stage_pods == ()

    def place(self, newest: str, good: str) -> Place:
        if not self.assigned:
            return Place.NOWHERE
        if self.at is None or self.at.pool != self.pool:
            return Place.MOVED
        if self.at.revision == newest:
            return Place.NEWEST
        return Place.GOOD if self.at.revision == good else Place.STALE


def members(
    world: World, driver: Driver, known: Mapping[str, At], without: Collection[str] = ()
) -> Iterator[Member]:
    """Every node that the Driver is for, in the order of the world's nodes.

    `known` maps assignments to what they stand for. `without` are names that another Driver has.
    """
    hardware, on_reboot = driver.spec.hardware, driver.spec.upgrade is Upgrade.ON_REBOOT
    assigned_key, before_key = assigned_label(driver.name), before_label(driver.name)
    troubles = dict(_troubles(world, driver.name))
    reports, prefix = world.node_drivers, f"{driver.name}."
    listener = Listener(world, driver)
    consumers, ending = by_node(world, evicts(driver)), ending_pods(world, driver.name)
    for node in world.nodes.values():
        labels = node.labels
        assigned = labels.get(assigned_key, "")
        fit = has_hardware(node, hardware, assigned=bool(assigned))
        if not fit.wanted or node.name in without:
            continue
        report = reports.get(prefix + node.name)
        boot = Boot.FRESH if report and report.boot_id != node.boot_id else Boot.RUNNING
        at, before = known.get(assigned), labels.get(before_key, "")
        pod = troubles.get((node.name, assigned)) if troubles else None
        trouble = _words(pod) if pod else ""
        word = _word(node, at, report)
        health = _health(node, word, on_reboot=on_reboot)
        silence = PATIENT
        if health is Health.BUSY:
            silence = _silence(listener, node, assigned, word, trouble)
            health = Health.BROKEN if silence.words else Health.BUSY
        yield Member(
            node=node,
            fit=fit,
            pool=pool_of(node, at.pool if at else None, rebooted=boot is Boot.FRESH),
            assigned=assigned,
            at=at,
            health=health,
            boot=boot,
            before=before,
            was_ready=report is not None and report.state == _READY,
            report=report,
            trouble=trouble or silence.words,
            due=silence.until,
            hold=hold_of(labels, driver.name),
            consumers=None if consumers is None else consumers.get(node.name, ()),
            unpulled=cannot_pull(pod) if pod else "",
            stage_pods=None if ending is None else ending.get(node.name, ()),
        )


def contested(world: World, driver: Driver, rivals: Sequence[Driver]) -> frozenset[str]:
    """Nodes that `rivals`, which have a module in common with `driver` and came first, are for.

    Where this driver is assigned already it stays: to take it away would help nobody.
    """
    own = assigned_label(driver.name)
    return frozenset(
        node.name
        for node in world.nodes.values()
        if own not in node.labels
        and any(
            has_hardware(
                node, rival.spec.hardware, assigned=assigned_label(rival.name) in node.labels
            ).wanted
            for rival in rivals
        )
    )


def _word(node: Node, at: At | None, report: NodeDriverObject | None) -> NodeDriverObject | None:
    """What the node said in this boot, for the revision that it has. Where nobody knows any more
    what was assigned, the node's own word is all there is."""
    if report is None or report.boot_id != node.boot_id:
        return None
    return report if at is None or report.revision == at.revision else None


def _health(node: Node, word: NodeDriverObject | None, *, on_reboot: bool) -> Health:
    if not node.ready:
        return Health.DOWN
    if word is not None and word.state == _READY:
        return Health.WORKING
    # Where a change waits for a reboot by the administrator's wish, to wait is no failure.
    if word is not None and (word.state == _FAILED or (word.state == _REBOOT and not on_reboot)):
        return Health.BROKEN
    return Health.BUSY


def _silence(
    listener: Listener, node: Node, assigned: str, word: NodeDriverObject | None, trouble: str
) -> Silence:
    """How long a node that is on its way may say nothing; it may wait for its reboot for ever."""
    if trouble:
        return Silence(words=trouble)
    if word is not None and word.state == _REBOOT:
        return PATIENT
    return listener.hear(node, assigned, word)


def _troubles(world: World, driver: str) -> Iterator[tuple[tuple[str, str], DriverPod]]:
    """By node and assignment, pods that cannot start."""
    for pod in world.pods.values():
        if pod.waiting and pod.driver == driver and not pod.deleting and pod.unloader is None:
            yield (pod.node, pod.daemonset.rpartition("-")[2]), pod


def _words(pod: DriverPod) -> str:
    why = "; ".join(f"{container}: {why}" for container, why in pod.waiting.items())
    return f"its pod cannot start: {why}"

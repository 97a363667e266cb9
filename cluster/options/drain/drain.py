"""Decides whether a node is drained before its driver is replaced.

plan/context/rollout.py calls it after update.py, which selects the nodes that change. Here each of
these decisions passes, or waits for a cordon, then for the consumers to leave, then for the stage
pods to end. `DRAIN_TABLE` has exactly one row for each `DrainSituation` (a test counts them). A
drain is the only step that takes more than one plan: a node is cordoned, and the next plan looks
again at what runs there, because the scheduler may have bound one more pod in the meantime.

A node is held from its cordon until the driver works with the new revision, or until its change is
called off: the rollout is paused or rolled back, the node goes down, or eviction is disabled. If
the Driver does not evict, it is held while its stages end. A held node counts as unavailable and
keeps its turn, whatever other nodes report meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.driver.drain_state import DrainState
from cluster.driver.nodes import DriverNode
from cluster.driver.update import NodeDecision
from cluster.driver.update_table import Act
from cluster.kube.timestamps import distrust_far_future
from cluster.model.actions import Cordon, EvictPod, LabelNode
from cluster.model.names import closed_label, draining_label, undrained_label
from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import EvictionAnswer, NamespacedName, Node, Snapshot
from cluster.model.states import Boot, Health, Place
from cluster.options.drain.labels import hold_of, seconds_since, timestamp_value
from cluster.options.drain.pods import consumers_by_node, demand_of
from cluster.options.drain.table import (
    ENDS_STAGES,
    Change,
    DrainRow,
    DrainSituation,
    DrainStep,
    DriverState,
    Eviction,
    Hold,
    Occupants,
    Time,
    decide_drain,
)
from nodeside.spec import Driver
from nodeside.spec.fleet import Evict as Policy

Policies = Sequence[Policy]

_ENDS = (DrainStep.RELEASE, DrainStep.GIVE_UP)
_TIMED = (DrainStep.EVICT, DrainStep.END_STAGES, DrainStep.HOLD_FOR_STAGES)
_PASSES = (DrainStep.GO, DrainStep.RELEASE, DrainStep.KEEP_CLOSED)


def drain_states(
    snapshot: Snapshot,
    driver: Driver,
    policies: Policies,
    stage_pods: Mapping[str, Sequence[NamespacedName]] | None,
) -> Callable[[Node], DrainState]:
    """Return a function that says how far a node is drained.

    `policies` are that of the Driver and those of Drivers that come after it. `stage_pods` are
    terminating, by node; None if they are unknown.
    """
    pods = consumers_by_node(snapshot, policies)

    def state_of(node: Node) -> DrainState:
        return replace(
            hold_of(node.labels, driver.name),
            pods=None if pods is None else pods.get(node.name, ()),
            stage_pods=None if stage_pods is None else stage_pods.get(node.name, ()),
        )

    return state_of


@dataclass(frozen=True)
class Drains:
    """The decisions after draining, and the row of the drain table for each node that has one.

    A decision that has to wait changes nothing now. `policies` are that of the Driver and those of
    Drivers that come after it.
    """

    driver: Driver
    decisions: Sequence[NodeDecision]
    policies: Policies = ()
    rows: Mapping[str, DrainRow] = field(default_factory=dict)

    def step_of(self, decision: NodeDecision) -> DrainStep:
        row = self.rows.get(decision.member.node.name)
        return row.step if row else DrainStep.GO

    def reason_of(self, decision: NodeDecision) -> str:
        row = self.rows.get(decision.member.node.name)
        return row.why if row else ""

    @property
    def ending_stages(self) -> Collection[str]:
        """Nodes that keep their revision until their stages have ended."""
        return [name for name, row in self.rows.items() if row.step in ENDS_STAGES]


def decide_drains(
    decisions: Sequence[NodeDecision],
    driver: Driver,
    policies: Policies,
    staged: Collection[str],
    now: float,
) -> Drains:
    """Return the decisions after draining.

    `staged` are nodes where pods of stages exist or may appear.
    """
    rows: dict[str, DrainRow] = {}
    waits: set[str] = set()
    for decision in decisions:
        stages, name = stages_in_the_way(decision, staged), decision.member.node.name
        if policies or stages or decision.member.drain.since:
            rows[name] = decide_drain(_situation_of(decision, driver, policies, now, stages=stages))
            if stages or rows[name].step not in _PASSES:
                waits.add(name)
    after = [
        replace(each, revision=None, before="") if each.member.node.name in waits else each
        for each in decisions
    ]
    return Drains(driver, after, policies, rows)


def pods_to_watch(drains: Drains) -> PodDemand | None:
    """Return the demand for pods to be watched; None while nothing changes."""
    if not drains.policies or not any(
        _has_pods_that_matter(decision) for decision in drains.decisions
    ):
        return None
    return demand_of(*drains.policies)


def cordon_nodes(drains: Drains, now: float) -> Iterator[Cordon]:
    """Yield the cordons. Each holds its node, unless it is held already, and clears a give-up."""
    driver = drains.driver.name
    for decision in drains.decisions if drains.rows else ():
        if drains.step_of(decision) is DrainStep.CORDON:
            hold, node = decision.member.drain, decision.member.node
            labels: dict[str, str | None] = {
                draining_label(driver): hold.since or timestamp_value(now)
            }
            if hold.given_up:
                labels[undrained_label(driver)] = None
            yield Cordon(driver, node.name, labels, drains.reason_of(decision))


def evict_pods(drains: Drains, answers: Mapping[str, EvictionAnswer]) -> Iterator[EvictPod]:
    """Yield an eviction for every consumer that is neither terminating nor in backoff."""
    driver = drains.driver.name
    for decision in drains.decisions if drains.rows else ():
        if drains.step_of(decision) is DrainStep.EVICT:
            for each in decision.member.drain.pods or ():
                answer = answers.get(each.uid)
                if not each.deleting and not (answer and answer.resting):
                    yield EvictPod(driver, decision.member.node.name, *each.pod, each.uid)


def hold_labels(
    drains: Drains, decision: NodeDecision, newest: str, now: float
) -> dict[str, str | None]:
    """Return the changes to the labels that hold a node, except those a cordon makes.

    A node that was given up on and has its turn again starts afresh, as with a cordon. Otherwise it
    would lose its turn again while its stage pods end.
    """
    hold, step, driver = decision.member.drain, drains.step_of(decision), drains.driver.name
    changed: dict[str, str | None] = {}
    if step in _ENDS and hold.since:
        changed[draining_label(driver)] = None
    if step is DrainStep.GIVE_UP:
        return changed | {undrained_label(driver): newest}
    is_timed = hold.since and closed_label(driver) in decision.member.node.labels
    begins = step is DrainStep.HOLD_FOR_STAGES and not is_timed
    if begins:
        changed[draining_label(driver)] = timestamp_value(now)
    ends_stages = step is DrainStep.END_STAGES and hold.is_clear_of_pods
    is_over = hold.given_up != newest or decision.place is Place.NEWEST
    if hold.given_up and (is_over or begins or ends_stages):
        changed[undrained_label(driver)] = None
    return changed


def requeue_after(drains: Drains, newest: str, now: float) -> float:
    """Return the seconds until the next node reaches its timeout; infinity if there is none."""
    limit = _timeout_of(drains.driver)
    left = (
        limit - _seconds_held(decision.member, drains.driver, drains.policies, now)
        for decision in drains.decisions
        if _is_timed(drains, decision, newest)
    )
    return max(0.0, min(left, default=math.inf))


def _situation_of(
    decision: NodeDecision, driver: Driver, policies: Policies, now: float, *, stages: bool
) -> DrainSituation:
    member = decision.member
    return DrainSituation(
        Eviction.YES if policies else Eviction.NO,
        _change_of(decision),
        _hold_on(member),
        _occupants_of(member, stages=stages),
        _driver_state(decision),
        _time_left(decision, driver, policies, now),
    )


def _change_of(decision: NodeDecision) -> Change:
    if decision.revision is None:
        return Change.NOTHING
    return Change.REPLACE if decision.place in (Place.GOOD, Place.STALE) else Change.GIVE


def _hold_on(member: DriverNode) -> Hold:
    if not member.drain.since:
        return Hold.FREE
    return Hold.HELD if member.node.unschedulable else Hold.SLIPPED


def _occupants_of(member: DriverNode, *, stages: bool) -> Occupants:
    drain = member.drain
    if drain.pods is None or (stages and drain.stage_pods is None):
        return Occupants.UNKNOWN
    if drain.pods:
        return Occupants.SOMEBODY
    return Occupants.STAGES if stages else Occupants.NOBODY


def _driver_state(decision: NodeDecision) -> DriverState:
    if decision.member.health is Health.WORKING:
        return DriverState.WORKS
    return DriverState.COMING if decision.place is Place.NEWEST else DriverState.FAULTY


def _time_left(decision: NodeDecision, driver: Driver, policies: Policies, now: float) -> Time:
    member = decision.member
    once = member.drain.given_up == decision.revision
    over = not once and _seconds_held(member, driver, policies, now) >= _timeout_of(driver)
    return Time.UP if over else Time.LEFT


def _timeout_of(driver: Driver) -> float:
    """Return the timeout in seconds; infinity if there is none.

    It applies to stages without eviction too.
    """
    policy = driver.spec.rollout.evict or Policy()
    return policy.timeout_seconds or math.inf


def _is_timed(drains: Drains, decision: NodeDecision, newest: str) -> bool:
    """Return whether the node will be given up on at its timeout."""
    hold, step = decision.member.drain, drains.step_of(decision)
    if step is DrainStep.WAIT:
        return bool(hold.since)
    return step in _TIMED and hold.given_up != newest


def _seconds_held(member: DriverNode, driver: Driver, policies: Policies, now: float) -> float:
    """Return the seconds since the node was held or, if it is not held, since its stages closed.

    Where the Driver evicted when the node was held, and no longer does, its stages are still open.
    """
    node, is_closed = member.node, closed_label(driver.name) in member.node.labels
    if member.drain.since and (is_closed or policies):
        return seconds_since(member.drain.since, now)
    if not node.labelled or not is_closed:
        return 0.0
    return now - distrust_far_future(node.labelled, now)


def _has_pods_that_matter(decision: NodeDecision) -> bool:
    """Return whether the pods of this node affect a decision, now or when its turn comes."""
    if decision.member.drain.since:
        return decision.place is not Place.NEWEST
    replaced = decision.place in (Place.GOOD, Place.STALE)
    return replaced and decision.row.act in (Act.IN_TURN, Act.GIVE_NEWEST, Act.AS_CANARY)


def stages_in_the_way(decision: NodeDecision, busy: Collection[str]) -> bool:
    """Return whether a node has to wait for the end of its stages before it changes.

    After a reboot nothing holds a module: the stages wait for the driver of this boot.
    """
    return (
        decision.revision is not None
        and decision.member.boot is not Boot.REBOOTED
        and decision.place in (Place.GOOD, Place.STALE, Place.NEWEST)
        and decision.member.node.name in busy
    )


def remove_drain_labels(
    snapshot: Snapshot, driver: str, members: Collection[str] = ()
) -> Iterator[LabelNode]:
    """Yield the removal of drain labels from nodes that are not, or no longer, members."""
    held, given_up = draining_label(driver), undrained_label(driver)
    for node in snapshot.nodes.values():
        labels = node.labels
        if (held in labels or given_up in labels) and node.name not in members:
            gone = [key for key in (held, given_up) if key in labels]
            yield LabelNode(driver, node.name, dict.fromkeys(gone), "its change is called off")

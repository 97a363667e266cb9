"""Whatever happens while nodes are emptied: who is never touched, and where it always ends.

Two Drivers evict on the same nodes; people cordon, uncordon, pause and change their minds, budgets
refuse, nodes reboot and go down, controllers die in the middle of a plan. What is checked is kept
apart from what is tested: the histories remember on their own whose cordon is whose.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.model.actions import Action, Cordon, EvictPod, LabelNode, Uncordon
from cluster.model.names import CORDONED, draining_label, undrained_label
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model

NODES = [f"n{number}" for number in range(5)]
DRIVERS = ("edu", "other")
EVICTS = {
    "edu": {"resources": ["example.com/edu"], "timeoutSeconds": 0},
    "other": {"selector": {"uses": "other"}, "timeoutSeconds": 0},
}
MARKS = {CORDONED, *map(draining_label, DRIVERS), *map(undrained_label, DRIVERS)}

nodes = st.sampled_from(NODES)
drivers = st.sampled_from(DRIVERS)


class Emptied(RuleBasedStateMachine):
    """`closed` are nodes that people cordoned, and have not uncordoned; `ours` those we did."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.versions = dict.fromkeys(DRIVERS, 1)
        self.paused = dict.fromkeys(DRIVERS, False)
        self.evicting = dict.fromkeys(DRIVERS, True)
        self.closed: set[str] = set()
        self.ours: set[str] = set()
        self.pods = 0

    @initialize(allowed=st.sampled_from(["1", "2"]), canary=st.integers(0, 1))
    def begin(self, allowed: str, canary: int) -> None:
        self.model.add(NODES)
        self.rollout: dict[str, Any] = {"maxUnavailable": allowed, "canary": canary}
        self.allowed = int(allowed)
        for name in DRIVERS:
            self.apply(name)
        self.rest()
        self.versions["edu"] = 2
        self.apply("edu")

    def apply(self, name: str) -> None:
        rollout = self.rollout | {"paused": self.paused[name]}
        rollout |= {"evict": EVICTS[name]} if self.evicting[name] else {}
        modules = [{"name": name}]
        self.model.apply_driver(
            name, modules=modules, version=str(self.versions[name]), rollout=rollout
        )

    # --- what people do ---

    @rule(name=drivers, version=st.integers(1, 3))
    def give_another_version(self, name: str, version: int) -> None:
        self.versions[name] = version
        self.apply(name)

    @rule(name=drivers, paused=st.booleans())
    def pause_or_resume(self, name: str, paused: bool) -> None:
        self.paused[name] = paused
        self.apply(name)

    @rule(name=drivers, evicting=st.booleans())
    def evict_or_not(self, name: str, evicting: bool) -> None:
        self.evicting[name] = evicting
        self.apply(name)

    @rule(node=nodes)
    def cordon_what_is_open(self, node: str) -> None:
        """It is ours again if it was ours and no plan has seen the node open (docs/upgrade.md)."""
        if not self.model.nodes[node].unschedulable:
            self.model.change(node, unschedulable=True)
            seen = CORDONED not in self.model.nodes[node].labels
            (self.closed if seen else self.ours).add(node)

    @rule(node=nodes)
    def uncordon(self, node: str) -> None:
        self.model.change(node, unschedulable=False)
        self.closed.discard(node)
        self.ours.discard(node)

    # --- what pods do ---

    @rule(node=nodes, kind=st.sampled_from(["edu", "other", "none"]), refuses=st.booleans())
    def schedule(self, node: str, kind: str, refuses: bool) -> None:
        """The scheduler places nothing on a node that is cordoned."""
        if self.model.nodes[node].unschedulable:
            return
        self.pods += 1
        name = f"default/{kind}-{self.pods}"
        resources = frozenset({"example.com/edu"} if kind == "edu" else ())
        labels = {"uses": "other"} if kind == "other" else {}
        self.model.consume(node, name, resources=resources, labels=labels)
        if refuses:
            self.model.refused[name] = "the budget says no"

    @rule()
    def budgets_allow_it(self) -> None:
        self.model.refused.clear()
        self.model.answers.clear()

    @rule(known=st.booleans())
    def know_the_pods_or_not(self, known: bool) -> None:
        self.model.known = known

    # --- what nodes do ---

    @rule(node=nodes, name=drivers, state=st.sampled_from([State.READY] * 4 + [State.FAILED]))
    def report(self, node: str, name: str, state: State) -> None:
        self.model.report(node, state, name)

    @rule(node=nodes, ready=st.booleans())
    def go_down_or_come_up(self, node: str, ready: bool) -> None:
        self.model.change(node, ready=ready)

    @rule(node=nodes)
    def reboot(self, node: str) -> None:
        self.model.reboot(node)

    # --- what the controller does ---

    @rule(crash_after=st.one_of(st.none(), st.integers(0, 5)))
    def plan(self, crash_after: int | None) -> None:
        actions = self.model.plan().actions
        for action in actions if crash_after is None else actions[:crash_after]:
            self.carry_out(action)

    plan_again = rule(crash_after=st.none())(lambda self, crash_after: self.plan(crash_after))
    plan_on = rule(crash_after=st.none())(lambda self, crash_after: self.plan(crash_after))

    def carry_out(self, action: Action) -> None:
        match action:
            case Cordon(node=node) if not self.model.nodes[node].unschedulable:
                self.ours.add(node)
            case Uncordon(node=node):
                assert node not in self.closed, "that cordon is not ours"
                self.ours.discard(node)
            case EvictPod():
                self._check_evicted(action)
            case LabelNode(node=node, labels=labels):
                self._check_emptied(action.driver, node, labels)
            case _:
                pass
        before = {name: self._held(name) for name in DRIVERS}
        self.model.carry_out([action])
        for name in DRIVERS:
            if self._held(name) - before[name]:
                assert len(self._held(name)) <= self.allowed

    def _check_evicted(self, action: EvictPod) -> None:
        """A consumer of this very Driver, on a node that it holds."""
        found = self.model.consumers[f"{action.namespace}/{action.pod}"]
        assert found.name.startswith(f"default/{action.driver}-")
        assert found.node == action.node
        assert action.node in self._held(action.driver)
        assert self.evicting[action.driver]

    def _check_emptied(self, driver: str, node: str, labels: Any) -> None:
        """A driver that works is replaced where nobody uses it, and no pod can come."""
        works = self.model.node_drivers.get(f"{driver}.{node}")
        there = self.model.serving(node, driver)
        if (
            not self.evicting[driver]
            or assigned_label(driver) not in labels
            or works is None
            or there is None
            or (works.state, works.revision) != (State.READY.value, there.revision)
            or works.boot_id != self.model.nodes[node].boot_id
        ):
            return
        users = [c.name for c in self.model.consumers.values() if c.node == node]
        assert not [name for name in users if name.startswith(f"default/{driver}-")]
        assert self.model.nodes[node].unschedulable

    def _held(self, driver: str) -> set[str]:
        key = draining_label(driver)
        return {name for name, node in self.model.nodes.items() if key in node.labels}

    @invariant()
    def what_people_cordoned_stays_cordoned(self) -> None:
        for node in self.closed:
            assert self.model.nodes[node].unschedulable

    # --- the end ---

    def teardown(self) -> None:
        """Once nothing is in the way any more, everybody gets there, and no trace is left."""
        if not self.model.drivers:
            return
        self.model.known = True
        self.model.refused.clear()
        for node in NODES:
            self.model.change(node, ready=True)
        for name in DRIVERS:
            self.paused[name] = False
            self.apply(name)
        self.rest()
        for name in DRIVERS:
            status = self.model.drivers[name].status
            assert status["nodes"]["updated"] == status["nodes"]["ready"] == len(NODES)
        assert not [n for n, node in self.model.nodes.items() if MARKS & node.labels.keys()]
        assert {n for n, node in self.model.nodes.items() if node.unschedulable} == self.closed

    def rest(self) -> None:
        for _ in range(150):
            self.model.answers.clear()
            actions = self.model.plan().actions
            for action in actions:
                self.carry_out(action)
            for name in DRIVERS:
                self.model.report_all(driver=name)
            if not actions and not self.model.plan().actions:
                return
        raise AssertionError("never settled")

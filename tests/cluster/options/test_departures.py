"""Whatever happens, in whatever order: a driver that goes away is forgotten only when it is gone.

Hypothesis makes histories of nodes that leave a Driver and come back, reboot, go down and up, of
holders, of unload pods that fail, of a Driver that is deleted, and of controllers that crash in the
middle of a plan. What is loaded where is remembered apart from what is tested.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from cluster.model.actions import Action, Create, Delete, LabelNode
from cluster.model.snapshot import DriverPod, UnloadPod
from cluster.options.unload.nodes import SILENT_AFTER
from nodeside.errors import ExitCode
from nodeside.protocol.labels import assigned_label, state_label
from nodeside.protocol.node_status import UNLOADED, State
from tests.cluster.fakes.model import PCI, Model
from tests.cluster.plan.histories import often

NODES = [f"n{number}" for number in range(4)]
SELECTOR = "example.com/edu"
ASSIGNED, STATE = assigned_label("edu"), state_label("edu")
_STEP = 20.0  # seconds from plan to plan
_ENOUGH = 60  # plans

node_names = st.sampled_from(NODES)


class Fate(Enum):
    """What comes of an unload pod."""

    DONE = "done"
    HELD = "held"
    REFUSED = "refused"
    CRASHED = "crashed"


@dataclass
class Cluster(Model):
    """With kubelets: a pod that runs is still there after its deletion, until its node ends it."""

    now: float = 0.0

    def _do(self, action: Action) -> None:
        if isinstance(action, Delete) and action.resource.kind == "Pod":
            pod = self.pods[action.name]
            if pod.node in self.nodes and isinstance(pod, UnloadPod) and not pod.phase:
                self.pods[action.name] = replace(pod, deleting=True)
                return
        super()._do(action)
        if isinstance(action, Create):
            name = action.document["metadata"]["name"]
            self.pods[name] = replace(self.pods[name], created=self.now)


class Departures(RuleBasedStateMachine):
    """`loaded` are nodes with the module in the kernel; `refused` those where it cannot go."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.loaded: set[str] = set()
        self.refused: set[str] = set()

    @initialize(selected=st.lists(node_names, unique=True, min_size=1))
    def begin(self, selected: list[str]) -> None:
        self.cluster.add(NODES, labels={PCI: "true"})
        for name in selected:
            self.cluster.relabel(name, {SELECTOR: "yes"})
        self.cluster.apply_driver(hardware={"nodeSelector": {SELECTOR: "yes"}})
        self.plan(None)
        for name in NODES:
            self.kubelet(name)

    # --- what people do ---

    @rule(name=node_names, value=st.sampled_from(["yes", None]))
    def select(self, name: str, value: str | None) -> None:
        self.cluster.relabel(name, {SELECTOR: value})

    @rule(sure=st.sampled_from([True, False, False, False]))
    def delete_perhaps(self, sure: bool) -> None:
        if sure:
            self.delete_the_driver()

    def delete_the_driver(self) -> None:
        if "edu" in self.cluster.drivers:
            self.cluster.delete_driver()

    # --- what nodes do ---

    @rule(name=node_names)
    def kubelet(self, name: str) -> None:
        """Pods come and go as the DaemonSets say; a driver pod that has the lock loads."""
        if not self.cluster.nodes[name].ready:
            return
        for pod in self._pods(name):
            if pod.deleting or (isinstance(pod, DriverPod) and not self._is_served(name)):
                del self.cluster.pods[pod.name]
        if self._is_served(name) and not self._driver_pods(name):
            pod = DriverPod(f"p-{name}", driver="edu", node=name, daemonset="edu-1")
            self.cluster.pods[pod.name] = pod
        if self._driver_pods(name) and not self._unloading(name):
            self._load(name)

    @rule(name=node_names, fate=st.sampled_from([*[Fate.DONE] * 3, *Fate]))
    def unload(self, name: str, fate: Fate) -> None:
        """An unload pod does something, if it has the lock."""
        pods = [pod for pod in self._unloading(name) if not pod.deleting]
        if not pods or self._driver_pods(name) or not self.cluster.nodes[name].ready:
            return
        fate = Fate.REFUSED if name in self.refused else fate
        if f"edu.{name}" not in self.cluster.node_drivers:
            fate = Fate.CRASHED
        if fate is Fate.HELD:
            self.cluster.say(name, State.UNLOADING, "InUse", "held by dd")
        elif fate is Fate.DONE:
            self.loaded.discard(name)
            self.cluster.say(name, State.WAITING, UNLOADED, "unloaded")
            self._end(pods[0])
        elif fate is Fate.REFUSED:
            self.refused.add(name)
            self.cluster.say(name, State.REBOOT_REQUIRED, "RebootRequired", "permanent")
            self._end(pods[0], ExitCode.REBOOT_REQUIRED)
        else:
            self._end(pods[0], 52)

    @rule(name=node_names)
    def reboot(self, name: str) -> None:
        self.cluster.reboot(name)
        self.loaded.discard(name)
        self.refused.discard(name)
        for pod in self._unloading(name):
            self._end(pod, 255)

    @rule(name=node_names, ready=st.booleans())
    def go_down_or_come_up(self, name: str, ready: bool) -> None:
        self.cluster.change(name, ready=ready)

    # --- what the controller does ---

    @rule(crash_after=st.one_of(st.none(), st.integers(0, 4)))
    def plan(self, crash_after: int | None) -> None:
        self.cluster.now += _STEP
        actions = self.cluster.plan(now=self.cluster.now).actions
        done = actions if crash_after is None else actions[:crash_after]
        for action in done:
            self._check(action)
            self.cluster.carry_out([action])

    plan_again = rule()(lambda self: self.plan(None))

    def _check(self, action: Action) -> None:
        if isinstance(action, Create):
            name = next(n for n in NODES if f"'{n}'" in str(action.document["spec"]["affinity"]))
            assert self.cluster.nodes[name].ready
            assert not self._driver_pods(name), "the two would fight"
        for name in self._forgotten(action):
            node = self.cluster.nodes[name]
            excused = not node.ready or name in self.refused or name in self._named
            assert name not in self.loaded or (excused and self._is_going), name

    def _forgotten(self, action: Action) -> Iterable[str]:
        """Nodes of which something that a node said is taken away."""
        if isinstance(action, LabelNode) and action.labels.get(STATE, "") is None:
            yield action.node
        if isinstance(action, Delete) and action.resource.kind == "NodeDriver":
            name = action.name.partition(".")[2]
            if name in self.cluster.nodes:
                yield name

    def teardown(self) -> None:
        """Once nothing is in the way any more, a deleted Driver is gone, and so are its modules."""
        if "edu" not in self.cluster.drivers:
            return
        for name in NODES:
            self.cluster.change(name, ready=True)
        self.plan(None)
        self.delete_the_driver()
        for _ in range(_ENOUGH):
            self.plan(None)
            for name in NODES:
                self.kubelet(name)
                self.unload(name, Fate.DONE)
            if "edu" not in self.cluster.drivers:
                break
        assert "edu" not in self.cluster.drivers, "it never ends"
        assert self.loaded <= self.refused | self._named
        self.plan(None)
        for name in NODES:
            self.kubelet(name)
            assert not {ASSIGNED, STATE} & set(self.cluster.nodes[name].labels)
        assert not self.cluster.pods
        assert not self.cluster.node_drivers
        assert not self.cluster.revisions

    # --- what is remembered ---

    @property
    def _named(self) -> set[str]:
        """Nodes that the last word on the Driver names: they were down then, or refused."""
        notes = [say.note for say in self.cluster.said if say.reason == "ModulesStay"]
        return {name for name in NODES for note in notes if name in note}

    @property
    def _is_going(self) -> bool:
        found = self.cluster.drivers.get("edu")
        return found is None or found.deleting

    def _load(self, name: str) -> None:
        self.loaded.add(name)
        self.cluster.relabel(name, {STATE: "ready"})
        self.cluster.report(name)

    def _pods(self, name: str) -> list[DriverPod | UnloadPod]:
        return [pod for pod in self.cluster.pods.values() if pod.node == name]

    def _driver_pods(self, name: str) -> list[DriverPod]:
        return [pod for pod in self._pods(name) if isinstance(pod, DriverPod)]

    def _unloading(self, name: str) -> list[UnloadPod]:
        """Unload pods that have not ended."""
        pods = self._pods(name)
        return [pod for pod in pods if isinstance(pod, UnloadPod) and not pod.phase]

    def _is_served(self, name: str) -> bool:
        return self.cluster.serving(name) is not None

    def _end(self, pod: UnloadPod, code: int = 0) -> None:
        phase = "Failed" if code else "Succeeded"
        words = f"exit code {int(code)}"
        self.cluster.pods[pod.name] = replace(pod, phase=phase, code=int(code), ended=words)


TestDepartures = Departures.TestCase
TestDepartures.settings = often(40)


def test_an_unload_pod_is_slow_at_the_very_moment_that_was_announced() -> None:
    """Where nothing happens, nobody looks a second time for want of a fraction of a second."""
    history = Departures()
    history.begin(selected=["n2"])
    history.select(name="n2", value=None)
    history.plan(None)
    history.kubelet(name="n2")

    for _ in range(int(SILENT_AFTER / _STEP) + 4):
        history.plan(None)

    assert "has not reported" in history.cluster.condition("Progressing")["message"]

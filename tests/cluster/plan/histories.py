"""Whatever happens, in whatever order: what a rollout never does, and where it always ends.

Hypothesis makes histories of a cluster: reboots, new kernels, new and broken revisions, pauses,
labels that vanish, nodes that come, go and fail, controllers that crash in the middle of a plan.
What is checked is kept apart from what is tested: the histories remember on their own which nodes
worked and what was done to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from cluster.model.actions import Action, EmitEvent, LabelNode, SetStatus
from cluster.model.names import before_label
from cluster.model.snapshot import Node, NodeReport, Snapshot
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import NOTHING_SERVED, State
from tests.cluster.fakes.model import EDU, PCI, Model, serving
from tests.tries import tries

NODES = [f"n{number}" for number in range(8)]
KERNELS = ["6.1.0-50-amd64", "6.1.0-51-amd64", "6.1.0-51-amd64+rt"]
ASSIGNED = assigned_label("edu")

node_names = st.sampled_from(NODES)
_FATE = st.sampled_from([*[State.READY] * 6, State.FAILED, State.BUILDING, None])
FATES = st.lists(_FATE, min_size=len(NODES), max_size=len(NODES))


class History(RuleBasedStateMachine):
    """`worked` are nodes that were ready in this boot; `harmed` those that we changed while ready,
    and that have not been ready, rebooted or taken down since; `kernel_then` is the kernel that a
    node had when it was assigned."""

    upgrade = "live"

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.spec: dict[str, Any] = {}
        self.worked: set[str] = set()
        self.harmed: set[str] = set()
        self.kernel_then: dict[str, str] = {}
        self.assigned_once: set[str] = set()

    @initialize(
        count=st.integers(1, len(NODES)),
        allowed=st.sampled_from(["1", "2", "3", "40%"]),
        canary=st.integers(0, 2),
        failed=st.sampled_from(["1", "2", "30%"]),
        installed=st.booleans(),
    )
    def begin(self, count: int, allowed: str, canary: int, failed: str, installed: bool) -> None:
        """Often in the middle of things: everything works, and a new version is there."""
        self.model.add(NODES[:count])
        self.allowed, self.canary = allowed, canary
        self.rollout = {"maxUnavailable": allowed, "canary": canary, "maxFailed": failed}
        self.apply(version="1", rollout=self.rollout, upgrade=self.upgrade)
        if installed:
            for _ in range(2):
                self.plan(None)
                self.everybody_is_ready()
            self.plan(None)
            self.apply(version="2")

    def apply(self, **fields: Any) -> None:
        self.spec = {**self.spec, **fields}
        self.model.apply_driver(**self.spec)

    # --- what people do ---

    @rule(version=st.integers(1, 4))
    def give_another_version(self, version: int) -> None:
        self.apply(version=str(version))

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.apply(rollout={**self.rollout, "paused": paused})

    @rule(data=st.data())
    def delete_a_daemonset_by_hand(self, data: st.DataObject) -> None:
        if self.model.daemonsets:
            name = data.draw(st.sampled_from(sorted(self.model.daemonsets)))
            self.harmed -= {n for n in self.model.nodes if self._is_served_by(n, name)}
            del self.model.daemonsets[name]

    # --- what nodes do ---

    @rule(name=node_names)
    def join(self, name: str) -> None:
        if name not in self.model.nodes:
            self.model.add([name])

    @rule(name=node_names)
    def vanish(self, name: str) -> None:
        if name in self.model.nodes:
            del self.model.nodes[name]
            self.model.node_drivers.pop(f"edu.{name}", None)
            self._forget(name)

    @rule(name=node_names, kernel=st.sampled_from([None, *KERNELS]))
    def reboot(self, name: str, kernel: str | None) -> None:
        if name in self.model.nodes:
            self.model.reboot(name, **({"kernel": kernel} if kernel else {}))
            self._forget(name)

    @rule(name=node_names, ready=st.booleans())
    def go_down_or_come_up(self, name: str, ready: bool) -> None:
        if name in self.model.nodes:
            self.model.change(name, ready=ready)
            if not ready:
                self.harmed.discard(name)

    @rule(name=node_names, value=st.sampled_from(["true", None]))
    def flap(self, name: str, value: str | None) -> None:
        if name in self.model.nodes:
            self.model.relabel(name, {PCI: value})

    @rule(name=node_names, state=st.sampled_from(list(State)))
    def report(self, name: str, state: State) -> None:
        if name in self.model.nodes:
            self.model.report(name, state)
            self._look(name)
            if state is State.FAILED and not self._good():
                self.worked.discard(name)  # a first installation may be corrected at once

    @rule()
    def everybody_is_ready(self) -> None:
        self.model.report_all()
        for name in self.model.nodes:
            self._look(name)

    # --- what the controller does ---

    @rule(fates=FATES)
    def go_on(self, fates: list[State | None]) -> None:
        """What mostly happens: a plan, and what became of it on each node."""
        self.plan(None)
        for name, fate in zip(NODES, fates, strict=True):
            if fate is not None:
                self.report(name, fate)

    go_on_too = rule(fates=FATES)(lambda self, fates: self.go_on(fates))
    go_on_again = rule(fates=FATES)(lambda self, fates: self.go_on(fates))
    go_on_always = rule(fates=FATES)(lambda self, fates: self.go_on(fates))

    @rule(crash_after=st.one_of(st.none(), st.integers(0, 6)))
    def plan(self, crash_after: int | None) -> None:
        before = self.model.snapshot
        actions = self.model.plan().actions
        changed = self.carry_out(actions[:crash_after], before)
        if crash_after is None:
            self._check_gifts(changed, before.nodes)
            report = self.model.plan().actions
            assert all(isinstance(action, SetStatus | EmitEvent) for action in report), report
            self.model.carry_out(report)
            twice = [action.words for action in self.model.plan(now=60.0).actions]
            assert twice == [], twice
            self._check_daemonsets()

    def carry_out(self, done: Sequence[Action], seen: Snapshot) -> list[LabelNode]:
        """Do what was planned of what was `seen`; the nodes that are assigned by it."""
        changed = [a for a in done if isinstance(a, LabelNode) and ASSIGNED in a.labels]
        works = {name for name in self.model.nodes if self._works(name)}
        works &= {name for name in seen.nodes if self._works(name, seen)}
        self.harmed |= {action.node for action in changed if action.node in works}
        self.harmed -= {a.node for a in done if isinstance(a, LabelNode) and _is_forgiven(a)}
        self.harmed -= {name for name in self.harmed if self._fails_with_the_good_one(name)}
        self.check_budget({action.node for action in changed} & works, seen)
        self.model.carry_out(done)
        self._check_running(changed)
        self.kernel_then |= {action.node: seen.nodes[action.node].kernel for action in changed}
        return changed

    def check_budget(self, changed: set[str], seen: Snapshot) -> None:
        if not changed:
            return
        allowed = {"1": 1, "2": 2, "3": 3, "40%": max(1, len(_members(seen)) * 40 // 100)}
        assert len(self.harmed) <= allowed[self.allowed]

    def _check_gifts(self, changed: list[LabelNode], before: Mapping[str, Node]) -> None:
        """New and moved nodes get the good revision, as soon as there is one.

        Before that, no more nodes have the newest than are to try it.
        """
        good, newest = self._good(), self.model.drivers["edu"].status["revision"]
        given = [self.model.revision(action.node) for action in changed]
        if not good and self.canary and newest in given:
            assert sum(self._has(name, newest) for name in self.model.nodes) <= self.canary
        for action in changed:
            old = before[action.node]
            known = old.labels.get(ASSIGNED) and old.kernel == self.kernel_then.get(action.node)
            if good and not known and self.upgrade == "live":
                assert self.model.revision(action.node) == good

    def _check_daemonsets(self) -> None:
        """Each has a node, and each node that is assigned has one, unless everything is held."""
        used = {node.labels.get(ASSIGNED) for node in self.model.nodes.values()} - {None}
        there = {found.assignment for found in self.model.daemonsets.values()}
        held = self.spec["rollout"].get("paused") and not self._good()
        assert there <= used if held else there == used

    def _check_running(self, changed: list[LabelNode]) -> None:
        """With onReboot a node where the driver worked in this boot is not touched."""
        if self.upgrade == "onReboot":
            assert not self.worked & {action.node for action in changed}

    @invariant()
    def no_node_loses_its_assignment(self) -> None:
        for name in self.assigned_once & set(self.model.nodes):
            assert ASSIGNED in self.model.nodes[name].labels
        self.assigned_once |= {n for n, node in self.model.nodes.items() if ASSIGNED in node.labels}
        self.assigned_once &= set(self.model.nodes)

    def teardown(self) -> None:
        """Once nothing is in the way any more, everybody gets there."""
        if not self.model.drivers:
            return
        self.apply(rollout={**self.rollout, "paused": False})
        for name in list(self.model.nodes):
            self.model.change(name, ready=True)
            self.model.relabel(name, {PCI: "true"})
        self._settle_ready()
        if self.upgrade == "onReboot":
            self._reboot_one_by_one()
        status = self.model.drivers["edu"].status
        assert {self.model.revision(name) for name in self.model.nodes} <= {status["revision"]}
        assert status["nodes"]["ready"] == len(self.model.nodes)

    def _reboot_one_by_one(self) -> None:
        """The canaries come first; who rebooted before them reboots once more."""
        for name in [*self.model.nodes, *self.model.nodes]:
            self.model.reboot(name)
            self._settle_ready()

    def _settle_ready(self) -> None:
        for _ in range(100):
            actions = self.model.plan().actions
            self.model.carry_out(actions)
            self.model.report_all()
            if not actions and not self.model.plan().actions:
                return
        raise AssertionError("never settled")

    # --- what is remembered ---

    def _fails_with_the_good_one(self, name: str) -> bool:
        """It failed with a revision that is good elsewhere, so it did not work before this one."""
        report = self.model.node_drivers.get(f"edu.{name}")
        failed = report is not None and report.state == State.FAILED.value
        return failed and self.model.revision(name) == self._good()

    def _is_served_by(self, node: str, daemonset: str) -> bool:
        there = self.model.serving(node)
        return there is not None and there.name == daemonset

    def _has(self, name: str, revision: str) -> bool:
        found = self.model.serving(name)
        kernel = self.model.nodes[name].kernel
        return found is not None and (found.revision, found.pool.kernel) == (revision, kernel)

    def _good(self) -> str:
        return str(self.model.drivers["edu"].status.get("lastGoodRevision", ""))

    def _works(self, name: str, seen: Snapshot | None = None) -> bool:
        """Whether the driver works there, told in this boot by the pod that is there."""
        snapshot = seen or self.model.snapshot
        node, report = snapshot.nodes[name], snapshot.node_drivers.get(f"edu.{name}")
        there = serving(snapshot, name)
        return (
            node.ready
            and report is not None
            and there is not None
            and report.boot_id == node.boot_id
            and report.revision == there.revision
            and report.state == State.READY.value
        )

    def _look(self, name: str) -> None:
        if self._works(name):
            self.worked.add(name)
            self.harmed.discard(name)

    def _forget(self, name: str) -> None:
        self.worked.discard(name)
        self.harmed.discard(name)
        if name not in self.model.nodes:
            self.kernel_then.pop(name, None)
            self.assigned_once.discard(name)


def _members(seen: Snapshot) -> list[str]:
    return [n for n, node in seen.nodes.items() if PCI in node.labels or ASSIGNED in node.labels]


def _is_forgiven(action: LabelNode) -> bool:
    """The rollout that a node failed in is over: it is no more among those that worked before."""
    return dict(action.labels) == {before_label("edu"): None}


class OnReboot(History):
    upgrade = "onReboot"


LIARS = NODES[:3]
_IMAGES = ["", "evil.example.com/toolkit:1", "registry.example.com/toolkits:6.1.0-51-amd64"]
_TEXTS = ["", NOTHING_SERVED, "WrongKernel", "a" * 300, "\0\x1b[2J", "\ud800"]


class Liars(History):
    """Some nodes say whatever they like, of themselves: admission lets them say nothing else.

    Whatever it is, nobody runs an image that only a node has named, no plan is an error, and the
    budget of the honest nodes is kept. Once the liars are gone, everybody gets there. Some writes
    of a status are refused besides, which holds nothing up but the status.
    """

    @rule(
        name=st.sampled_from(LIARS),
        boot=st.sampled_from(["own", "", "n5-1", "n0-7"]),
        kernel=st.sampled_from([*KERNELS, "", "9.9.9-evil"]),
        revision=st.sampled_from(["own", "newest", "", "0" * 12]),
        state=st.sampled_from([*(state.value for state in State), "", "root"]),
        source=st.sampled_from(["built", "loaded", "", "evil"]),
        toolkit=st.sampled_from(_IMAGES),
        text=st.sampled_from(_TEXTS),
    )
    def lie(self, name: str, boot: str, revision: str, text: str, **fields: Any) -> None:
        if name not in self.model.nodes:
            return
        told = {"own": self.model.revision(name), "newest": self._good()}
        self.model.node_drivers[f"edu.{name}"] = NodeReport(
            name=f"edu.{name}",
            driver="edu",
            node=name,
            boot_id=self.model.nodes[name].boot_id if boot == "own" else boot,
            revision=told.get(revision, revision),
            reason=text,
            message=text,
            **fields,
        )
        self._look(name)
        self.worked.discard(name)  # nothing is promised to it

    @rule()
    def status_is_refused(self) -> None:
        """All else is done all the same."""
        actions = [each for each in self.model.plan().actions if not isinstance(each, SetStatus)]
        self.carry_out(actions, self.model.snapshot)

    @invariant()
    def nobody_runs_what_a_node_has_named(self) -> None:
        images = {found.toolkit for found in self.model.daemonsets.values()} - {""}
        assert all(image.startswith("registry.example.com/toolkits:") for image in images)
        for found in self.model.daemonsets.values():
            assert found.toolkit in ("", _toolkit_for(found.pool.kernel)), found

    def teardown(self) -> None:
        """The liars leave, and what they cost a version is not forgotten: so there is another."""
        for name in LIARS:
            self.vanish(name)
        if self.model.drivers and self.model.nodes:
            self.apply(version="99")
            super().teardown()


def _toolkit_for(kernel: str) -> str:
    return str(EDU["toolkit"]["imageTemplate"]).replace("{kernel}", kernel.replace("+", "_"))


LIFE = settings(
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def often(count: int) -> settings:
    """So many histories of forty steps each."""
    return settings(LIFE, max_examples=tries(count))

"""Whatever happens while stages end on nodes: what is never replaced under them, and where it ends.

One Driver with two stages; people change versions, budgets and minds, pods take a while to end or
never do, nodes fail, lie, reboot and go down, controllers die in the middle of a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from cluster.model.actions import Action, LabelNode
from cluster.model.names import CORDONED, before_label
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.drains import DRAINING, EVICT, UNDRAINED
from tests.cluster.fakes.model import Model, pod_of
from tests.cluster.fakes.stagedriver import CLOSED, STATE, TWO, daemonset, up, with_stages
from tests.cluster.fakes.stagejobs import complete, job, with_job

NODES = [f"n{number}" for number in range(4)]
_ASSIGNED = assigned_label("edu")
_FORGIVEN = {before_label("edu"): None}  # the rollout in which it failed is over
_MARKS = {CORDONED, CLOSED, DRAINING, UNDRAINED}

nodes = st.sampled_from(NODES)


class Staged(RuleBasedStateMachine):
    """`taken` are nodes whose driver worked until we changed it, and does not work yet."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.now = 1000.0
        self.spec: dict[str, Any] = {"version": "1"}
        self.rollout: dict[str, Any] = {}
        self.states: dict[str, State] = {}
        self.stuck: set[str] = set()
        self.taken: set[str] = set()

    @initialize(allowed=st.integers(1, 2), canary=st.integers(0, 1))
    def begin(self, allowed: int, canary: int) -> None:
        self.rollout = {"maxUnavailable": str(allowed), "canary": canary, "maxFailed": "4"}
        self.model = self.at_first(rollout=self.rollout, version="1")
        self.apply(version="2")

    def at_first(self, **spec: Any) -> Model:
        return up(with_stages(len(NODES), **spec))

    def apply(self, **changes: Any) -> None:
        self.spec |= changes
        self.model.apply_driver(stages=TWO, rollout=dict(self.rollout), **self.spec)

    # --- what people do ---

    @rule(version=st.integers(1, 3))
    def give_another_version(self, version: int) -> None:
        self.apply(version=str(version))

    @rule(allowed=st.integers(0, 3))
    def give_another_budget(self, allowed: int) -> None:
        self.rollout["maxUnavailable"] = str(allowed)
        self.apply()

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.rollout["paused"] = paused
        self.apply()

    @rule(evicts=st.booleans())
    def evict_or_not(self, evicts: bool) -> None:
        self.rollout.pop("evict", None)
        self.rollout |= {"evict": EVICT} if evicts else {}
        self.apply()

    # --- what nodes and their pods do ---

    @rule(node=nodes, state=st.sampled_from([State.READY, State.FAILED, State.WAITING]))
    def begin_to_say(self, node: str, state: State) -> None:
        self.states[node] = state

    @rule(node=nodes, stuck=st.booleans())
    def hold_on_to_a_pod_or_let_it_go(self, node: str, stuck: bool) -> None:
        (self.stuck.add if stuck else self.stuck.discard)(node)

    @rule(node=nodes, ready=st.booleans())
    def go_down_or_come_up(self, node: str, ready: bool) -> None:
        self.model.change(node, ready=ready)
        self.taken.discard(node)

    @rule(node=nodes)
    def reboot(self, node: str) -> None:
        self.model.reboot(node)
        self.taken.discard(node)

    @rule(unknown=st.sampled_from(["", "no permission"]))
    def know_the_stages_or_not(self, unknown: str) -> None:
        assert self.model.stages is not None
        self.model.stages = replace(self.model.stages, unknown=unknown)

    @rule(seconds=st.sampled_from([10.0, 1800.0, 3700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # --- what the controller, Kubernetes and the nodes do, in turn ---

    @rule(crash_after=st.one_of(st.none(), st.integers(0, 4)))
    def go_on(self, crash_after: int | None) -> None:
        self.plan(crash_after)
        self.kubernetes()
        self.everybody_speaks()

    go_on_again = rule(crash_after=st.none())(lambda self, crash_after: self.go_on(crash_after))
    go_on_then = rule(crash_after=st.none())(lambda self, crash_after: self.go_on(crash_after))

    def plan(self, crash_after: int | None = None) -> tuple[Action, ...]:
        actions = self.model.plan(self.now).actions
        before = {name: node.labels for name, node in self.model.nodes.items()}
        replaced = [self._carry_out(a) for a in actions[:crash_after]]
        assert sum(replaced) <= int(self.rollout["maxUnavailable"]), "it may have been lowered"
        for name, node in self.model.nodes.items():
            if node.labels != before[name]:
                self.model.change(name, labelled=self.now)
        return actions

    def _carry_out(self, action: Action) -> bool:
        """Return whether it replaces a driver that works."""
        held, replaced = self._held(), set()
        if isinstance(action, LabelNode) and action.labels.get(_ASSIGNED):
            replaced = {action.node} if self._works(action.node) else set()
            assert not any(self._pods(node) for node in replaced), "its driver is in use"
            self.taken |= replaced
        if isinstance(action, LabelNode) and dict(action.labels) == _FORGIVEN:
            self.taken.discard(action.node)
        self.taken -= {node for node in self.taken - replaced if self._failed_with_the_good(node)}
        self.model.carry_out([action])
        if replaced - held or self._held() - held:
            assert len(self.taken | self._held()) <= int(self.rollout["maxUnavailable"])
        return bool(replaced)

    def kubernetes(self) -> None:
        """Every pod takes a round to end, and some never end."""
        assert self.model.stages is not None
        if self.model.stages.unknown:
            return
        before = self.model.stages.pods
        self.model.play_stages()
        left = self.model.stages.pods
        ending = {
            name: replace(pod, deleting=True)
            for name, pod in before.items()
            if (name not in left or pod.deleting)
            and (not pod.deleting or pod.node in self.stuck or not self._is_up(pod.node))
        }
        self.model.stages = replace(self.model.stages, pods={**left, **ending})

    def everybody_speaks(self) -> None:
        for name in NODES:
            if self._is_up(name) and self.model.serving(name):
                state = self.states.get(name, State.READY)
                self.model.report(name, state)
                self.model.relabel(name, {STATE: state.value})
            if self._works(name):
                self.taken.discard(name)

    def _is_up(self, node: str) -> bool:
        return self.model.nodes[node].ready

    def _held(self) -> set[str]:
        return {name for name, node in self.model.nodes.items() if DRAINING in node.labels}

    def _pods(self, node: str) -> list[str]:
        assert self.model.stages is not None
        pods = self.model.stages.pods.items()
        return [name for name, pod in pods if pod.node == node and not pod.over]

    def _works(self, node: str) -> bool:
        said, there = self.model.node_drivers.get(f"edu.{node}"), self.model.serving(node)
        return (
            said is not None
            and there is not None
            and self._is_up(node)
            and said.boot_id == self.model.nodes[node].boot_id
            and (said.state, said.revision) == (State.READY.value, there.revision)
        )

    def _failed_with_the_good(self, node: str) -> bool:
        """Return whether it failed with what is good elsewhere, and so did not fail by a change."""
        good = self.model.drivers["edu"].status.get("lastGoodRevision", "")
        return not self._works(node) and self.model.revision(node) == good

    # --- the end ---

    def nothing_is_in_the_way(self) -> None:
        """What helps everybody to get there in the end."""

    def teardown(self) -> None:
        """Once nothing is in the way any more, everybody gets there, and no trace is left."""
        if not self.model.drivers:
            return
        self.stuck.clear()
        self.states.clear()
        self.know_the_stages_or_not("")
        for name in NODES:
            self.model.change(name, ready=True)
        self.rollout |= {"paused": False, "maxUnavailable": "1"}
        self.apply(version="9")
        for _ in range(200):
            before = self.model.stages
            actions = self.plan()
            self.kubernetes()
            self.everybody_speaks()
            if not actions and self.model.stages == before and not self.plan():
                break
            self.nothing_is_in_the_way()
            self.now += 1
        else:
            raise AssertionError("never settled")
        status = self.model.drivers["edu"].status
        assert status["nodes"]["updated"] == status["nodes"]["ready"] == len(NODES)
        assert not [n for n, node in self.model.nodes.items() if _MARKS & node.labels.keys()]
        assert not [n for n, node in self.model.nodes.items() if node.unschedulable]


class StagedWithJobs(Staged):
    """The first stage has a DaemonSet and two Jobs, of which one runs on each node."""

    def at_first(self, **spec: Any) -> Model:
        manifests = "---".join((daemonset("plugin"), job(), job("register", "once")))
        return complete(with_job(len(NODES), manifests, **spec))

    @rule(data=st.data(), why=st.sampled_from(["", "BackoffLimitExceeded"]))
    def end_a_job(self, data: st.DataObject, why: str) -> None:
        found = sorted(self._running())
        if found:
            self.model.end_job(data.draw(st.sampled_from(found)), why)

    @rule(data=st.data())
    def delete_a_job(self, data: st.DataObject) -> None:
        found = sorted(each.name for each in self.model.stage_jobs())
        if found:
            del self.model.jobs[data.draw(st.sampled_from(found))]

    @rule(version=st.integers(1, 3))
    def write_other_manifests(self, version: int) -> None:
        texts = (daemonset("plugin"), job(), job("register", "once"))
        text = "---".join(texts).replace("selftest:1", f"selftest:{version}")
        self.model.config_map("one", job_yaml=text)

    def plan(self, crash_after: int | None = None) -> tuple[Action, ...]:
        actions = super().plan(crash_after)
        works = [each.run for each in self.model.stage_jobs() if not each.finished]
        places = [(run.job, run.node) for run in works]
        assert len(places) == len(set(places)), "two of a Job are at work"
        return actions

    def _running(self) -> Iterator[str]:
        """The Jobs that have a pod."""
        assert self.model.stages is not None
        pods = self.model.stages.pods
        for each in self.model.stage_jobs():
            if not each.finished and pod_of(each) in pods:
                yield each.name

    def nothing_is_in_the_way(self) -> None:
        """Every Job comes to a good end; one that failed is deleted by a person."""
        for name in list(self._running()):
            self.model.end_job(name)
        for name in [each.name for each in self.model.stage_jobs() if each.why]:
            del self.model.jobs[name]

    def teardown(self) -> None:
        super().teardown()
        jobs = self.model.stage_jobs()
        if self.model.drivers:
            assert all(each.has_completed for each in jobs)
            where = sorted(each.run.node for each in jobs if each.run)
            assert where == ["", *NODES]

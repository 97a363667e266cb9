"""A cluster in memory for plans: it does what a plan says, and plays what nodes say.

What is applied goes through the same `*_from` as what the API server answers. There is no pod and
no clock in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from cluster.kube.resources import JOBS
from cluster.model.actions import (
    Action,
    Annotate,
    Apply,
    Cordon,
    Create,
    Delete,
    EmitEvent,
    EvictPod,
    LabelNode,
    Plan,
    SetFinalizers,
    SetStatus,
    Uncordon,
)
from cluster.model.names import ADMITTED_NOTE, CORDONED, OUTCOME_NOTE, STAGE_LABEL
from cluster.model.parse import daemonset_from, driver_from, job_from, revision_from
from cluster.model.parse_pods import pod_from
from cluster.model.parse_stages import stage_item_from
from cluster.model.snapshot import (
    BuildJob,
    BuildPod,
    Consumer,
    DaemonSetObject,
    DriverObject,
    DriverPod,
    EvictionAnswer,
    ImageStreams,
    NamespacedName,
    Node,
    NodeReport,
    Occupancy,
    RevisionObject,
    Settings,
    Snapshot,
    StageJob,
    ToolkitLabels,
    UnloadPod,
    has_stages,
)
from cluster.model.stages import Rendered, StagePod, Stages, Template, TemplateSource
from cluster.model.waiting import Waiting
from cluster.plan.planner import Planner, plan
from cluster.render.templates import StageInvalid, render_to_documents
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict, read_outcome
from nodeside.protocol.labels import API_VERSION, assigned_label, node_driver_name
from nodeside.protocol.node_status import Rung, State
from nodeside.spec.fleet import DEVICES_STAGE
from tests.tries import is_tried

KERNEL = "6.1.0-50-amd64"
_ROUNDED = 1e-6  # seconds: a moment of the wall clock less another
OS_IMAGE = "Debian GNU/Linux 12 (bookworm)"
PCI = "feature.node.kubernetes.io/pci-1234.present"
EDU: dict[str, Any] = {
    "version": "1.0.0",
    "image": "registry.example.com/drivers/edu:1.0.0",
    "modules": [{"name": "edu"}],
    "hardware": {"pci": [{"vendor": "1234", "device": "11e8"}]},
    "toolkit": {"imageTemplate": "registry.example.com/toolkits:{kernel}"},
}


def document(name: str = "edu", **spec: Any) -> dict[str, Any]:
    """A Driver as the API server would give it: `EDU` with other fields."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Driver",
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1},
        "spec": {**EDU, **spec},
    }


def pod_of(job: BuildJob | StageJob) -> str:
    """The name of the pod of a stage's Job."""
    return f"{job.name}-{job.uid}"


def _chosen(daemonset: Mapping[str, Any], node: Node) -> bool:
    """Whether the node selector and the gate of a DaemonSet let its pod onto a node."""
    pod = daemonset["spec"]["template"]["spec"]
    if any(node.labels.get(key) != value for key, value in pod["nodeSelector"].items()):
        return False
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = affinity["nodeSelectorTerms"]
    [away] = term["matchExpressions"]
    assert away["operator"] == "NotIn"
    return node.labels.get(away["key"]) not in away["values"]


def serving(snapshot: Snapshot, node: str, driver: str = "edu") -> DaemonSetObject | None:
    """The DaemonSet whose pod is on a node: the label decides, as in Kubernetes."""
    assigned = snapshot.nodes[node].labels.get(assigned_label(driver))
    found = (
        each
        for each in snapshot.daemonsets.values()
        if each.driver == driver and each.assignment == assigned
    )
    return next(found, None)


class RenderedAtOnce(dict[Template, Rendered]):
    """What templates give, without a process: whatever a plan asks for is known."""

    def get(self, template: Template, default: Any = None) -> Any:
        return _rendered(template)


@lru_cache(maxsize=256)
def _rendered(template: Template) -> Rendered:
    try:
        values = json.loads(template.values)
        return Rendered(render_to_documents(template.config_map, dict(template.files), values))
    except StageInvalid as error:
        return Rendered(error=str(error))


@dataclass
class Model:
    """Mappings of a `Snapshot` that can be changed."""

    nodes: dict[str, Node] = field(default_factory=dict)
    drivers: dict[str, DriverObject] = field(default_factory=dict)
    daemonsets: dict[str, DaemonSetObject] = field(default_factory=dict)
    node_drivers: dict[str, NodeReport] = field(default_factory=dict)
    pods: dict[str, DriverPod | UnloadPod] = field(default_factory=dict)
    revisions: dict[str, RevisionObject] = field(default_factory=dict)
    policies: dict[str, RevisionObject] = field(default_factory=dict)
    jobs: dict[str, BuildJob | StageJob] = field(default_factory=dict)
    build_pods: dict[str, BuildPod] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)  # Jobs, each time that one is made
    image_streams: ImageStreams = None
    toolkit_labels: dict[str, ToolkitLabels] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    stages: Stages | None = None
    consumers: dict[str, Consumer] = field(default_factory=dict)
    known: bool = True
    registers: bool = True  # the kubelet knows what device agents offer
    refused: dict[str, str] = field(default_factory=dict)
    answers: dict[str, EvictionAnswer] = field(default_factory=dict)
    said: list[EmitEvent] = field(default_factory=list)
    rolled_out: set[str] = field(default_factory=set)
    uids: int = 0
    planner: Planner = field(default_factory=Planner)
    plans: int = 0  # so many were made

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(
            dict(self.nodes),
            dict(self.drivers),
            dict(self.daemonsets),
            dict(self.node_drivers),
            dict(self.pods),
            {**self.revisions, **self.policies},
            self.image_streams,
            self.settings,
            jobs=dict(self.jobs),
            build_pods=dict(self.build_pods),
            stages=self._stages and replace(self._stages, rendered=RenderedAtOnce()),
            occupancy=Occupancy(dict(self.consumers), self.known, answers=dict(self.answers)),
            toolkit_labels=dict(self.toolkit_labels),
        )

    @property
    def _stages(self) -> Stages | None:
        """As the view has it: looked for from the first Driver with stages on."""
        if self.stages is None and any(has_stages(found) for found in self.drivers.values()):
            self.stages = Stages()
        return self.stages

    # --- what people and nodes do ---

    def add(self, names: Iterable[str], *, kernel: str = KERNEL, **fields: Any) -> None:
        for name in names:
            usual = Node(
                name=name,
                uid=f"uid-{name}",
                labels={PCI: "true"},
                kernel=kernel,
                os_image=OS_IMAGE,
                architecture="x86_64",
                boot_id=f"{name}-1",
                ready=True,
            )
            self.nodes[name] = replace(usual, **fields)

    def apply_driver(self, name: str = "edu", **spec: Any) -> None:
        found, old = driver_from(document(name, **spec)), self.drivers.get(name)
        if old is not None:
            found = replace(
                found,
                generation=old.generation + 1,
                finalizers=old.finalizers,
                status=old.status,
            )
        self.drivers[name] = found

    def relabel(self, name: str, labels: dict[str, str | None]) -> None:
        node = self.nodes[name]
        merged = {**node.labels, **labels}
        kept = {key: value for key, value in merged.items() if value is not None}
        self.nodes[name] = replace(node, labels=kept)

    def change(self, name: str, **fields: Any) -> None:
        self.nodes[name] = replace(self.nodes[name], **fields)

    def reboot(self, name: str, **fields: Any) -> None:
        node = self.nodes[name]
        stem, _, count = node.boot_id.rpartition("-")
        self.change(name, boot_id=f"{stem}-{int(count) + 1}", **fields)

    def report(
        self, name: str, state: State = State.READY, driver: str = "edu", **said: Any
    ) -> None:
        """The pod of the DaemonSet that the node is assigned to says how it is; no pod, no word."""
        found = self.serving(name, driver)
        if found is None or found.pool.kernel != self.nodes[name].kernel:
            return
        source = Rung.BUILT.value if state is State.READY else ""
        key = node_driver_name(driver, name)
        self.node_drivers[key] = NodeReport(
            name=key,
            driver=driver,
            node=name,
            state=state.value,
            boot_id=self.nodes[name].boot_id,
            kernel=self.nodes[name].kernel,
            revision=found.revision,
            source=source,
            toolkit=found.toolkit,
            **said,
        )

    def delete_driver(self, name: str = "edu") -> None:
        self.drivers[name] = replace(self.drivers[name], deleting=True)

    def stage_jobs(self) -> list[StageJob]:
        return [job for job in self.jobs.values() if isinstance(job, StageJob)]

    def unloads(self) -> dict[str, UnloadPod]:
        """The unload pods, by node."""
        return {pod.node: pod for pod in self.pods.values() if isinstance(pod, UnloadPod)}

    def end_unload(self, node: str, code: int = 0, ended: str = "") -> None:
        """The unload pod of a node ends."""
        pod = self.unloads()[node]
        phase = "Failed" if code else "Succeeded"
        self.pods[pod.name] = replace(pod, phase=phase, code=code, ended=ended)

    def say(self, node: str, state: State, reason: str = "", message: str = "") -> None:
        """What the unload pod of a node says, in this boot."""
        key = node_driver_name("edu", node)
        self.node_drivers[key] = replace(
            self.node_drivers[key],
            state=state.value,
            reason=reason,
            message=message,
            boot_id=self.nodes[node].boot_id,
        )

    def consume(self, node: str, name: str = "default/train-0", **fields: Any) -> None:
        """A pod that a Driver may want to be gone runs on a node."""
        pod = NamespacedName(*name.split("/"))
        usual = Consumer(pod, f"uid-{name}", node, frozenset({"example.com/edu"}))
        self.consumers[name] = replace(usual, **fields)

    def report_all(self, state: State = State.READY, driver: str = "edu") -> None:
        for name in self.nodes:
            self.report(name, state, driver)

    def end_build(
        self, decision: BuildVerdict = BuildVerdict.PUBLISHED, name: str = "", **said: Any
    ) -> None:
        """A Job, the only one that runs, comes to its end, and its pod says this."""
        [found] = [j for j in self.jobs.values() if name in ("", j.name) and not j.finished]
        outcome = BuildOutcome(decision, **{"kernel": KERNEL, **said})
        self.build_pods[found.name] = BuildPod(
            f"{found.name}-x", job=found.name, driver=found.driver, outcome=outcome
        )
        self.jobs[found.name] = replace(found, finished=True)

    # --- what a plan does ---

    def plan(self, now: float = 0.0, seen: Snapshot | None = None) -> Plan:
        """One that remembers earlier looks plans the same; it may want to look again too early.

        `seen` is what is known of the cluster if that is not what there is.
        """
        snapshot = seen or self.snapshot
        again, self.plans = self.planner(snapshot, now), self.plans + 1
        if not is_tried(self.plans):
            return again
        made = plan(snapshot, now)
        waits = [
            math.inf if each.requeue_after is None else each.requeue_after for each in (again, made)
        ]
        assert waits[0] <= waits[1] + _ROUNDED
        assert replace(again, requeue_after=None) == replace(made, requeue_after=None)
        return made

    def settle(self) -> tuple[Action, ...]:
        """Carry a plan out; the next one at most reports what it did, and the third is empty."""
        first = self.plan()
        self.carry_out(first.actions)
        report = self.plan().actions
        assert all(isinstance(action, SetStatus | EmitEvent) for action in report), [
            a.words for a in report
        ]
        self.carry_out(report)
        again = self.plan(now=60.0)
        assert again.actions == (), f"planned twice: {[a.words for a in again.actions]}"
        return first.actions

    def settle_deleting(self) -> tuple[Action, ...]:
        """One step of a deletion: what is gone must be seen to be gone before the next."""
        actions = self.plan().actions
        self.carry_out(actions)
        return actions

    def settle_ready(self, rounds: int = 100) -> None:
        """Let the nodes get ready after each plan, until nothing is left to do."""
        for _ in range(rounds):
            if not self.settle():
                return
            self.report_all()
        raise AssertionError(f"not settled after {rounds} rounds")

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Apply():
                self._apply(dict(action.document))
            case Create():
                self._create(dict(action.document))
            case Delete():
                self._delete(action)
            case LabelNode():
                self.relabel(action.node, dict(action.labels))
            case Annotate():
                self._annotate(action)
            case Cordon() | Uncordon() | EvictPod():
                self._drain(action)
            case SetStatus():
                driver = self.drivers[action.driver]
                self.drivers[action.driver] = replace(driver, status=action.status)
            case SetFinalizers():
                self._set_finalizers(action)
            case EmitEvent():
                self.said.append(action)

    def _annotate(self, action: Annotate) -> None:
        if action.resource == JOBS:
            assert action.key == OUTCOME_NOTE
            found = self.jobs[action.name]
            assert isinstance(found, BuildJob)
            self.jobs[action.name] = replace(found, outcome=read_outcome(action.value))
            return
        assert action.key == ADMITTED_NOTE
        assert self.stages is not None
        pod = self.stages.pods[action.name]
        assert (pod.uid, pod.node) == (action.uid, action.node)
        told = {**self.stages.pods, pod.name: replace(pod, admitted=action.value)}
        self.stages = replace(self.stages, pods=told)

    def _drain(self, action: Cordon | Uncordon | EvictPod) -> None:
        """As drain_requests.py does: a cordon is ours only if the node had none."""
        if isinstance(action, EvictPod):
            self._evict(action)
            return
        labels = dict(action.labels)
        if isinstance(action, Uncordon):
            self.relabel(action.node, labels)
            if action.opens:
                self.change(action.node, unschedulable=False)
            return
        if not self.nodes[action.node].unschedulable:
            labels[CORDONED] = "true"
        self.relabel(action.node, labels)
        self.change(action.node, unschedulable=True)

    def _evict(self, action: EvictPod) -> None:
        """The pod ends at once, or a budget refuses."""
        name = f"{action.namespace}/{action.pod}"
        assert self.consumers[name].uid == action.uid
        if refusal := self.refused.get(name):
            self.answers[action.uid] = EvictionAnswer(refusal)
        else:
            del self.consumers[name]

    def _create(self, wanted: dict[str, Any]) -> None:
        name = wanted["metadata"]["name"]
        if wanted["kind"] == "Job":
            self._apply_job(wanted)
        else:
            assert name not in self.pods, "there is one already"
            self.pods[name] = pod_from(wanted)

    def _apply_job(self, wanted: dict[str, Any]) -> None:
        name = wanted["metadata"]["name"]
        assert name not in self.jobs, "a Job cannot be changed"
        self.uids += 1
        self.made.append(name)
        self.jobs[name] = replace(job_from(wanted), uid=f"uid-{self.uids}")

    def _apply(self, wanted: dict[str, Any]) -> None:
        self.uids += 1
        wanted["metadata"] = {**wanted["metadata"], "uid": f"uid-{self.uids}"}
        name = wanted["metadata"]["name"]
        if STAGE_LABEL in wanted["metadata"].get("labels", {}):
            self._put_stage_object(wanted)
        elif wanted["kind"] == "DaemonSet":
            self.daemonsets[name] = daemonset_from(wanted)
        elif wanted["kind"] == "Job":
            self._apply_job(wanted)
        else:
            assert wanted["kind"] == "ConfigMap"
            if not wanted.get("immutable"):
                self.policies[name] = revision_from(wanted)
                return
            assert name not in self.revisions, "an immutable ConfigMap cannot be changed"
            made = revision_from(wanted)
            self.revisions[name] = replace(made, created=f"{self.uids:09}")

    def _put_stage_object(self, wanted: dict[str, Any]) -> None:
        assert self.stages is not None
        made = stage_item_from(wanted["kind"], wanted).object
        if made.kind == "Deployment":
            made = replace(made, rolled_out=made.name in self.rolled_out, progress="0 of 1")
        objects = {**self.stages.objects, (made.kind, made.name): made}
        self.stages = replace(self.stages, objects=objects)

    def config_map(self, name: str, **files: str) -> None:
        """A ConfigMap as a person writes it; `_` in a file name stands for a dot."""
        stages = self.stages or Stages()
        source = TemplateSource(name, {key.replace("_", "."): text for key, text in files.items()})
        self.stages = replace(stages, sources={**stages.sources, name: source})

    def play_stages(self, ready: bool = True, **waiting: Waiting) -> None:
        """Do what the controllers of DaemonSets and Jobs do.

        There are pods of DaemonSets where node labels say so, and only there. A Job that is not
        finished has one, on its node, or on the first that is ready.
        """
        assert self.stages is not None
        before = self.stages.pods
        pods = {p.name: p for p in self.stages.pods.values() if p.job and self._has(p)}
        for job in self.stage_jobs():
            if not job.finished and pod_of(job) not in pods:
                pods[pod_of(job)] = StagePod(
                    name=pod_of(job),
                    uid=f"uid-{pod_of(job)}",
                    driver=job.driver,
                    stage=job.run.stage,
                    node=job.run.node or next(n.name for n in self.nodes.values() if n.ready),
                    job=job.uid,
                    run_of=job.run.job,
                    run_on=job.run.node,
                    ready=True,
                )
        for (kind, name), found in self.stages.objects.items():
            for node in self.nodes.values() if kind == "DaemonSet" else ():
                if not _chosen(found.document, node):
                    continue
                pod = StagePod(
                    name=f"{name}-{node.name}",
                    uid=f"uid-{name}-{node.name}",
                    container="main",
                    driver=found.driver,
                    stage=found.stage,
                    node=node.name,
                    daemonset=name,
                    ready=ready,
                    waiting=waiting,
                )
                if pod.name in before:
                    pod = replace(pod, admitted=before[pod.name].admitted)
                pods[pod.name] = pod
                self._register(pod)
        self.stages = replace(self.stages, pods=pods)

    def _has(self, pod: StagePod) -> bool:
        return pod.job in {job.uid for job in self.jobs.values()}

    def end_job(self, name: str, why: str = "", last: str = "") -> None:
        """A Job of a stage comes to its end, and this is what is seen of its pod."""
        assert self.stages is not None
        found, key = self.jobs[name], pod_of(self.jobs[name])
        self.jobs[name] = replace(found, finished=True, why=why)
        pod = replace(self.stages.pods[key], over=True, ready=False, failure=last)
        self.stages = replace(self.stages, pods={**self.stages.pods, key: pod})

    def _register(self, pod: StagePod) -> None:
        """As a device agent does it that is ready."""
        found = self.drivers.get(pod.driver)
        if pod.ready and pod.stage == DEVICES_STAGE and found and found.driver and self.registers:
            node = self.nodes[pod.node]
            offered = {each.resource: 1 for each in found.driver.spec.devices}
            self.nodes[pod.node] = replace(
                node,
                capacity={**offered, **node.capacity},
                allocatable={**offered, **node.allocatable},
            )

    def _delete(self, action: Delete) -> None:
        key = (action.resource.kind, action.name)
        if self.stages is not None and key in self.stages.objects:
            left = {k: each for k, each in self.stages.objects.items() if k != key}
            self.stages = replace(self.stages, objects=left)
            return
        of: dict[str, dict[str, Any]] = {
            "DaemonSet": self.daemonsets,
            "ConfigMap": self.policies if action.name in self.policies else self.revisions,
            "NodeDriver": self.node_drivers,
            "Pod": self.pods,
            "Job": self.jobs,
        }
        gone = of[action.resource.kind].pop(action.name)
        assert action.uid in ("", getattr(gone, "uid", ""))

    def _set_finalizers(self, action: SetFinalizers) -> None:
        driver = self.drivers[action.driver]
        if driver.deleting and not action.finalizers:
            del self.drivers[action.driver]
        else:
            self.drivers[action.driver] = replace(driver, finalizers=action.finalizers)

    # --- what is there ---

    def serving(self, node: str, driver: str = "edu") -> DaemonSetObject | None:
        return serving(self.snapshot, node, driver)

    def revision(self, node: str, driver: str = "edu") -> str:
        found = self.serving(node, driver)
        return found.revision if found else ""

    def condition(self, type: str, driver: str = "edu") -> dict[str, Any]:
        found: list[dict[str, Any]] = self.drivers[driver].status["conditions"]
        return next(condition for condition in found if condition["type"] == type)

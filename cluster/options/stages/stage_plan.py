"""The stages of a Driver: where each may run, what is applied, and when it must end.

Pure. On each node the stages come one after the other. Pods of the first run where the driver's
state label is `ready`, pods of the next where the label of the previous stage is. The controller
sets these labels when a stage's pods on a node are ready, and removes them when the driver no
longer works there. A pod restart removes none: otherwise one restart of a device plugin would end
all later stages.

A device plugin holds the device. So before a node gets another revision, or the driver leaves it,
one label closes all stages on it. The node proceeds only when their pods are gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cluster.driver.nodes import DriverNode
from cluster.driver.pools import os_parts
from cluster.model.log_pattern import PatternRefused, compile_pattern
from cluster.model.names import STAGE_READY, assignment_of, closed_label, stage_label
from cluster.model.snapshot import (
    Node,
    has_stages,
)
from cluster.model.stage_order import awaited_resources, stages_of
from cluster.model.stages import (
    FramedDocuments,
    Key,
    LogMatch,
    Rendered,
    StageObject,
    StagePod,
    Stages,
    Template,
    key_of,
)
from cluster.model.states import Health
from cluster.model.waiting import waiting_message
from cluster.options.devices.agent_manifests import device_agent
from cluster.options.stages.inputs import StageInputs
from cluster.options.stages.job_runs import JobManifest, JobRuns
from cluster.options.stages.manifests import Frame, frame_built_in, frame_documents, gate_labels
from cluster.options.stages.pods import has_leftovers
from cluster.options.stages.stage_state import Document, StageState
from cluster.render.templates import StageInvalid
from nodeside.protocol.labels import assigned_label
from nodeside.spec import Driver
from nodeside.spec.fleet import DEVICES_STAGE, Stage


class _BeingRead(StageInvalid):
    """What a stage reads is not read yet, but will be in a moment."""


@dataclass(frozen=True)
class StagePlan:
    """The stages of a Driver in a snapshot. Each property is computed once."""

    inputs: StageInputs

    @property
    def driver(self) -> str:
        return self.inputs.driver.name

    @cached_property
    def observed_stages(self) -> Stages:
        return self.inputs.snapshot.stages or Stages(unknown="the stages have not been read yet")

    @cached_property
    def is_active(self) -> bool:
        """Returns whether stages are used, or some are left, and their objects are known."""
        if self.observed_stages.unknown:
            return False
        return has_stages(self.inputs.resource) or has_leftovers(self.inputs.snapshot, self.driver)

    @cached_property
    def owned_objects(self) -> Mapping[Key, StageObject]:
        return {
            k: each
            for k, each in self.observed_stages.objects.items()
            if each.driver == self.driver
        }

    @cached_property
    def pods(self) -> Mapping[tuple[str, str], tuple[StagePod, ...]]:
        """Returns the pods of DaemonSets that are not terminating, by DaemonSet and node."""
        pods: dict[tuple[str, str], tuple[StagePod, ...]] = {}
        for pod in self.observed_stages.pods.values():
            if pod.driver == self.driver and pod.daemonset and not pod.deleting:
                pods[pod.daemonset, pod.node] = (*pods.get((pod.daemonset, pod.node), ()), pod)
        return pods

    @cached_property
    def working_members(self) -> Sequence[DriverNode]:
        """Returns members where stages may run: the driver works and is not about to change."""
        ending = {member.node.name for member in self.inputs.ending}
        return tuple(
            m for m in self.members if m.health is Health.WORKING and m.node.name not in ending
        )

    @cached_property
    def members(self) -> Sequence[DriverNode]:
        """Returns the nodes of the Driver as this plan leaves them."""
        return self.inputs.announced

    @cached_property
    def healths(self) -> Mapping[str, Health]:
        return {member.node.name: member.health for member in self.members}

    @cached_property
    def runs(self) -> JobRuns:
        snapshot, nodes = self.inputs.snapshot, self.inputs.snapshot.nodes
        pods: dict[str, list[StagePod]] = {}
        for pod in self.observed_stages.pods.values():
            up = not pod.node or (pod.node in nodes and nodes[pod.node].ready)
            if pod.job and pod.driver == self.driver and up:
                pods.setdefault(pod.job, []).append(pod)
        return JobRuns(
            self.driver,
            snapshot.settings.namespace,
            self._revision,
            {m.node.name: m.at.revision for m in self.members if m.at},
            snapshot.stage_jobs_of(self.driver),
            pods,
            {node.name for node in nodes.values() if node.ready},
        )

    @cached_property
    def steps(self) -> tuple[StageState, ...]:
        steps: list[StageState] = []
        for stage in stages_of(self.inputs.driver.spec):
            before = [step.name for step in steps if step.on_nodes]
            step = self._render_stage(stage, before[-1] if before else "", steps)
            steps.append(replace(step, opened=self._may_open(step, steps)))
        return tuple(steps)

    @property
    def templates(self) -> frozenset[Template]:
        """Returns the templates that have to be rendered."""
        steps = self.steps if self.is_active else ()
        return frozenset(step.template for step in steps if step.template)

    def _render_stage(self, stage: Stage, after: str, earlier: Sequence[StageState]) -> StageState:
        existing = {
            key: each for key, each in self.owned_objects.items() if each.stage == stage.name
        }
        past = tuple(job.run for job in self.runs.every if job.run.stage == stage.name)
        step = StageState(stage, after, existing=existing, past=past)
        try:
            _check_log_pattern(step)
            if stage.name == DEVICES_STAGE:
                documents, skipped = self._frame_device_agent(stage, after)
            else:
                template = self._template_of(stage)
                step = replace(step, template=template)
                rendered = self.observed_stages.rendered.get(template)
                if rendered is None:
                    return replace(step, error="its templates are being rendered", awaited=True)
                documents, skipped = self._frame_documents(stage, after, rendered)
            jobs = tuple(JobManifest(stage.name, d) for d in documents if d["kind"] == "Job")
            documents = tuple(each for each in documents if each["kind"] != "Job")
            self._check_owned(documents, stage, earlier)
        except StageInvalid as error:
            return replace(step, error=str(error), awaited=isinstance(error, _BeingRead))
        awaited = awaited_resources(stage, self._declaring_driver.spec)
        return replace(step, documents=documents, jobs=jobs, skipped=skipped, resources=awaited)

    def _template_of(self, stage: Stage) -> Template:
        source = self.observed_stages.sources.get(stage.manifests)
        if source is None:
            where = self.inputs.snapshot.settings.namespace
            raise StageInvalid(f"there is no ConfigMap {stage.manifests} in namespace {where}")
        files = tuple(sorted(source.files.items()))
        return Template(source.name, files, json.dumps(self.template_values(stage), sort_keys=True))

    @property
    def _revision(self) -> str:
        return self.inputs.revision

    @property
    def _good_driver(self) -> Driver:
        return self.inputs.drivers.get(self._revision, self.inputs.driver)

    @property
    def _declaring_driver(self) -> Driver:
        """Returns the Driver as of the revision whose devices are offered.

        It is the newest revision if the one that new nodes get declares no devices yet.
        """
        return self._good_driver if self._good_driver.spec.devices else self.inputs.driver

    def _frame_device_agent(self, stage: Stage, after: str) -> FramedDocuments:
        """Return the objects of the stage `devices`."""
        if not self.inputs.snapshot.settings.agent_image:
            raise StageInvalid(
                "the controller knows no image of the device agent: give it --agent-image IMAGE "
                "(nodeside-cluster install --agent-image IMAGE)"
            )
        frame, cache = self._frame_of(stage, after), self.inputs.framed
        driver = self._declaring_driver
        cached = cache.get(stage.name)
        absent = self.observed_stages.absent
        if cached and cached[1] == (frame, driver, absent):
            return cached[2]
        documents = device_agent(driver, frame.settings, self.inputs.driver.spec.pods)
        framed = frame_built_in(frame, documents, absent)
        cache[stage.name] = None, (frame, driver, absent), framed
        return framed

    def _frame_documents(self, stage: Stage, after: str, rendered: Rendered) -> FramedDocuments:
        """Return the objects to apply and messages about those left out."""
        if rendered.error:
            raise StageInvalid(rendered.error)
        frame, cache = self._frame_of(stage, after), self.inputs.framed
        cached = cache.get(stage.name)
        if cached and cached[0] is rendered and cached[1] == (frame, self.observed_stages.absent):
            return cached[2]
        framed = frame_documents(
            frame, stage.manifests, rendered.documents, self.observed_stages.absent
        )
        cache[stage.name] = rendered, (frame, self.observed_stages.absent), framed
        return framed

    def _frame_of(self, stage: Stage, after: str) -> Frame:
        inputs = self.inputs
        return Frame(inputs.owner, self._good_driver, stage.name, after, inputs.snapshot.settings)

    def template_values(self, stage: Stage) -> dict[str, Any]:
        """Return the values for the templates."""
        inputs, driver = self.inputs, self._good_driver
        return {
            "driver": {
                "name": driver.name,
                "version": driver.spec.version,
                "image": driver.spec.image,
                "pci": [
                    {"vendor": each.vendor, "device": each.device}
                    for each in driver.spec.hardware.pci
                ],
            },
            "cluster": {"version": self.observed_stages.cluster_version},
            "revision": self._revision,
            "namespace": inputs.snapshot.settings.namespace,
            "stage": {"name": stage.name},
            "pools": self._pools_values,
            "reads": self._read_values(stage),
        }

    def _read_values(self, stage: Stage) -> dict[str, dict[str, Any]]:
        """Return what the stage reads. Raises StageInvalid for what is not there."""
        namespace = self.inputs.snapshot.settings.namespace
        config_maps, secrets, services = {}, {}, {}
        for each in stage.reads:
            if each.secret:
                secret = self.observed_stages.secrets.get(each.secret)
                if secret is None:
                    raise _BeingRead("its Secrets are being read")
                if secret.data is None:
                    raise StageInvalid(secret.error)
                secrets[each.secret] = dict(secret.data)
            elif each.config_map:
                source = self.observed_stages.sources.get(each.config_map)
                if source is None:
                    raise StageInvalid(f"there is no ConfigMap {each.config_map} in {namespace}")
                config_maps[each.config_map] = dict(source.files)
            else:
                found = self.observed_stages.services.get(each.service)
                if found is None:
                    raise StageInvalid(f"there is no Service {each.service} in {namespace}")
                services[each.service] = {
                    "host": f"{each.service}.{namespace}.svc",
                    "clusterIP": found.cluster_ip,
                    "port": found.port,
                    "ports": dict(found.ports),
                }
        return {"configMaps": config_maps, "secrets": secrets, "services": services}

    @cached_property
    def _pools_values(self) -> list[dict[str, Any]]:
        return [self._pool_values(name) for name in sorted(self.inputs.desired)]

    def _pool_values(self, daemonset: str) -> dict[str, Any]:
        """Return the values of a pool with one revision, which one DaemonSet serves."""
        at = self.inputs.desired[daemonset]
        driver = self.inputs.drivers.get(at.revision, self.inputs.driver)
        assigned = assignment_of(daemonset)
        return {
            "name": assigned,
            "architecture": at.pool.architecture,
            "osVersion": at.pool.os_version,
            "os": os_parts(at.pool.os_version),
            "kernel": at.pool.kernel,
            "toolkit": self.inputs.toolkits.get(at.pool, ""),
            "revision": at.revision,
            "version": driver.spec.version,
            "image": driver.spec.image,
            "nodeSelector": {assigned_label(self.driver): assigned},
        }

    def _check_owned(
        self, documents: Sequence[Document], stage: Stage, earlier: Sequence[StageState]
    ) -> None:
        """Raise StageInvalid if an object belongs to someone else or to another stage."""
        owners = {key_of(each): step.name for step in earlier for each in step.documents}
        for document in documents:
            kind, name = key = key_of(document)
            if key in owners:
                raise StageInvalid(f"{kind} {name} is in stage {owners[key]} already")
            other = self.observed_stages.objects.get(key)
            if other is not None and other.driver != self.driver:
                owner = f"belongs to driver {other.driver}" if other.driver else "is in no stage"
                where = f"ConfigMap {stage.manifests}: " if stage.manifests else ""
                advice = "choose another name" if where else "rename that one"
                raise StageInvalid(f"{where}{kind} {name} exists already and {owner}; {advice}")

    def _may_open(self, step: StageState, earlier: Sequence[StageState]) -> bool:
        """Return whether a stage may be applied.

        A stage that was applied once stays. A new stage waits until the previous one is ready on
        some node; if that one has no pods on nodes, only its Deployments have to be ready.
        """
        if step.existing or step.past or step.error:
            return bool(step.existing or step.past)
        if not earlier:
            return bool(self.working_members)
        last = earlier[-1]
        if (
            last.error
            or not last.opened
            or any(self.unfinished_messages(last))
            or any(self.pods_without_line(last))
        ):
            return False
        passed = self._passed_by(last) if last.on_nodes else self.working_members
        return bool(passed)

    def _passed_by(self, step: StageState) -> list[DriverNode]:
        return [member for member in self.working_members if self.has_passed(step, member.node)]

    def pods_to_admit(self) -> Iterator[tuple[StagePod, Node]]:
        """Yield pods that may start: the stage before is ready on their node.

        A pod waits until it is told so in this boot: the labels that let it run on the node may be
        of an earlier boot. Pods that are told already are left out.
        """
        steps = {step.name: step for step in self.steps}
        after = {s.name: steps[s.after] for s in self.steps if s.after and not s.error}
        if not after:
            return
        nodes = {member.node.name: member.node for member in self.working_members}
        for pod in self.observed_stages.pods.values():
            node = nodes.get(pod.node)
            if pod.driver != self.driver or pod.stage not in after or pod.deleting or pod.over:
                continue
            if node is None:
                continue
            before = after[pod.stage]
            is_ready = node.labels.get(stage_label(self.driver, before.name)) == STAGE_READY
            if is_ready and self.has_passed(before, node) and pod.admitted != node.boot_id:
                yield pod, node

    # --- on one node ---

    def has_passed(self, step: StageState, node: Node) -> bool:
        """Return whether the stage is or was ready on a node; either admits later stages."""
        if step.after and stage_label(self.driver, step.after) not in node.labels:
            return False
        if node.labels.get(stage_label(self.driver, step.name)) == STAGE_READY:
            return all(self.runs.has_completed(job, node) for job in self._jobs_for(step, node))
        applied = not step.error and step.opened and all(k in step.existing for k in step.keys)
        return (
            applied
            and closed_label(self.driver) not in node.labels
            and not self.missing_message(step, node)
        )

    def missing_message(self, step: StageState, node: Node) -> str:
        """Return what is not ready of a stage on a node, "" if everything is."""
        is_for, is_new = False, stage_label(self.driver, step.name) not in node.labels
        for daemonset, selector in step.daemonsets:
            if not self.selects_node(step, selector, node):
                continue
            is_for = True
            pods = self.pods.get((daemonset, node.name), ())
            if not pods:
                return f"DaemonSet {daemonset} has no pod there yet"
            for pod in pods:
                if not pod.ready:
                    return _not_ready_message(pod)
                if is_new and (words := self.missing_line_message(step, pod)):
                    return words
        for job in self._jobs_for(step, node):
            is_for = True
            if words := self.runs.missing_message(job, node):
                return words
        return missing_resource_message(step, node) if is_for and is_new else ""

    def selects_node(self, step: StageState, selector: Mapping[str, str], node: Node) -> bool:
        """Return whether a nodeSelector admits a node, leaving the gate aside."""
        gate = gate_labels(self.driver, step.after)
        return all(node.labels.get(k) == value for k, value in selector.items() if k not in gate)

    def _jobs_for(self, step: StageState, node: Node) -> Iterator[JobManifest]:
        """Yield the Jobs that run on each node and are meant for this one."""
        return (
            job for job in step.jobs if job.per_node and self.selects_node(step, job.selector, node)
        )

    def unfinished_messages(self, step: StageState) -> Iterator[str]:
        """Yield what a stage lacks apart from its pods on each node."""
        yield from step.unfinished_messages
        for job in step.jobs:
            if not job.per_node and (words := self.runs.missing_message(job)):
                yield words

    def missing_line_message(self, step: StageState, pod: StagePod) -> str:
        """Return which log line of a ready pod is missing, "" if none is awaited."""
        wait = step.log
        match = self.observed_stages.logs.get(pod.uid, LogMatch())
        if wait is None or match.matched:
            return ""
        late = f" after {wait.timeout_seconds} s" if match.late else " yet"
        words = f"no line in the log of pod {pod.name} matches {wait.log!r}{late}"
        return f"{words}: {match.error}" if match.error else words

    def pods_without_line(self, step: StageState) -> Iterator[tuple[StagePod, str]]:
        """Yield a stage's Deployment pods whose awaited log line is missing."""
        for pod in self.observed_stages.pods.values() if step.log else ():
            owned = (pod.driver, pod.stage) == (self.driver, step.name)
            up = pod.ready and not pod.deleting and not (pod.daemonset or pod.job)
            if owned and up and (words := self.missing_line_message(step, pod)):
                yield pod, words


def _check_log_pattern(step: StageState) -> None:
    """Raise StageInvalid if RE2 cannot search for the line that the stage waits for."""
    try:
        if step.log is not None:
            compile_pattern(step.log.log)
    except PatternRefused as error:
        raise StageInvalid(str(error), where="waitFor.log") from error


def missing_resource_message(step: StageState, node: Node) -> str:
    """Return which awaited resource the kubelet does not offer, "" if none."""
    for name, least in step.resources.items():
        count = node.allocatable.get(name)
        if count is None:
            return f"the kubelet offers no {name} yet"
        if count < least:
            return f"the kubelet offers {count} of {name}, at least {least} are awaited"
    return ""


def _not_ready_message(pod: StagePod) -> str:
    waiting = waiting_message(pod.waiting)
    return f"pod {pod.name} is not ready" + (f": {waiting}" if waiting else "")

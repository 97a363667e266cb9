"""What follows a driver: which stage may be where, what of it is applied, and when it must go.

Pure. On each node the stages come one after the other: pods of the first go where the driver's
state label says `ready`, pods of the next where the label of the one before says so. These labels
are the controller's: set when the pods of a stage on a node are ready, taken away when the driver
no longer works there. A pod that restarts takes none away, or one restart of a device plugin would
end everything behind it.

A device plugin holds the device. So before a node is given another revision, or the driver leaves
it, all stages on it are closed by one label, and only when their pods are gone the node goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cluster.kube.comparison import drifted
from cluster.kube.managed_fields import Overwrite, over, strangers
from cluster.model.log_pattern import refusal
from cluster.model.names import APPLIED_NOTE, READY, closed_label, stage_label
from cluster.model.snapshot import Node, uses
from cluster.model.stages import (
    Framed,
    Key,
    LogSight,
    Rendered,
    StageObject,
    StagePod,
    Stages,
    Template,
)
from cluster.model.states import Health
from cluster.plan.objects.daemonset import digest
from cluster.plan.stages.manifests import Frame, gate_labels, objects
from cluster.render.templates import StageInvalid
from nodeside.contract import assigned_label
from nodeside.spec.fleet import Stage

if TYPE_CHECKING:
    from cluster.plan.nodes.members import Member
    from cluster.plan.rollout.context import DriverContext

Document = Mapping[str, Any]


@dataclass(frozen=True)
class StageState:
    """A stage as it is wanted and as it is. `after` is the stage before with pods on nodes.

    `error` says why the documents are none; `awaited`: they are being rendered. `opened`: it may be
    applied, or was already.
    """

    stage: Stage
    after: str
    documents: tuple[Document, ...] = ()
    skipped: tuple[str, ...] = ()
    error: str = ""
    awaited: bool = False
    opened: bool = False
    template: Template | None = None
    found: Mapping[Key, StageObject] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.stage.name

    @cached_property
    def daemonsets(self) -> tuple[tuple[str, Mapping[str, str]], ...]:
        """Each by name with the labels that its author asks of a node."""
        return tuple(
            (each["metadata"]["name"], each["spec"]["template"]["spec"].get("nodeSelector", {}))
            for each in self.documents
            if each["kind"] == "DaemonSet"
        )

    @property
    def on_nodes(self) -> bool:
        """Whether it has, or had when it could still be read, pods on nodes."""
        there = any(kind == "DaemonSet" for kind, _ in self.found)
        return there if self.error else bool(self.daemonsets)

    @property
    def behind(self) -> tuple[str, ...]:
        """What is not applied yet or not rolled out, in words."""
        return tuple(filter(None, (self._behind(each) for each in self.documents)))

    def _behind(self, document: Document) -> str:
        name = f"{document['kind']} {document['metadata']['name']}"
        there = self.found.get(key_of(document))
        if there is None:
            return f"{name} is not there yet"
        return "" if there.rolled_out else f"{name}: {there.progress}"


def key_of(document: Document) -> Key:
    return document["kind"], document["metadata"]["name"]


@dataclass(frozen=True)
class StagePlan:
    """The stages of a Driver in a world. Each thing is computed once."""

    context: DriverContext

    @property
    def driver(self) -> str:
        return self.context.driver.name

    @cached_property
    def seen(self) -> Stages:
        return self.context.snapshot.stages or Stages(unknown="nobody looked for them yet")

    @property
    def active(self) -> bool:
        """Whether there is anything to do at all, and enough is known to do it."""
        return uses(self.context.found) and not self.seen.unknown

    @cached_property
    def mine(self) -> Mapping[Key, StageObject]:
        return {k: each for k, each in self.seen.objects.items() if each.driver == self.driver}

    @cached_property
    def pods(self) -> Mapping[tuple[str, str], tuple[StagePod, ...]]:
        """By DaemonSet and node, those that are not ending."""
        found: dict[tuple[str, str], tuple[StagePod, ...]] = {}
        for pod in self.seen.pods.values():
            if pod.driver == self.driver and pod.daemonset and not pod.deleting:
                found[pod.daemonset, pod.node] = (*found.get((pod.daemonset, pod.node), ()), pod)
        return found

    @cached_property
    def working(self) -> Sequence[Member]:
        """Members on which stages may be: the driver works, and is not about to change."""
        held = {member.node.name for member in self.context.held}
        return tuple(
            m
            for m in self.context.members
            if m.health is Health.WORKING and m.node.name not in held
        )

    @cached_property
    def steps(self) -> tuple[StageState, ...]:
        steps: list[StageState] = []
        for stage in self.context.driver.spec.stages:
            before = [step.name for step in steps if step.on_nodes]
            step = self._rendered(stage, before[-1] if before else "", steps)
            steps.append(replace(step, opened=self._may_open(step, steps)))
        return tuple(steps)

    @property
    def templates(self) -> frozenset[Template]:
        """What is to be rendered, to go on."""
        steps = self.steps if self.active else ()
        return frozenset(step.template for step in steps if step.template)

    def _rendered(self, stage: Stage, after: str, earlier: Sequence[StageState]) -> StageState:
        found = {key: each for key, each in self.mine.items() if each.stage == stage.name}
        step = StageState(stage, after, found=found)
        try:
            template = self._template(stage)
            step = replace(step, template=template)
            rendered = self.seen.rendered.get(template)
            if rendered is None:
                return replace(step, error="its templates are being rendered", awaited=True)
            documents, skipped = self._framed(stage, after, rendered)
            self._check_owned(documents, stage, earlier)
        except StageInvalid as error:
            return replace(step, error=str(error))
        return replace(step, documents=documents, skipped=skipped)

    def _template(self, stage: Stage) -> Template:
        source = self.seen.sources.get(stage.manifests)
        if source is None:
            where = self.context.snapshot.settings.namespace
            raise StageInvalid(f"there is no ConfigMap {stage.manifests} in namespace {where}")
        if wrong := stage.wait_for and refusal(stage.wait_for.log):
            raise StageInvalid(f"waitFor.log: {wrong}")
        files = tuple(sorted(source.files.items()))
        return Template(source.name, files, json.dumps(self.values(stage), sort_keys=True))

    def _framed(self, stage: Stage, after: str, rendered: Rendered) -> Framed:
        """What is to be applied, and what is left out."""
        if rendered.error:
            raise StageInvalid(rendered.error)
        frame, kept = self._frame(stage, after), self.context.memory.framed
        before = kept.get(stage.name)
        if before and before[0] is rendered and before[1] == (frame, self.seen.absent):
            return before[2]
        made = objects(frame, stage.manifests, rendered.documents, self.seen.absent)
        kept[stage.name] = rendered, (frame, self.seen.absent), made
        return made

    def _frame(self, stage: Stage, after: str) -> Frame:
        """Stages are of the revision that new nodes get: a canary must not replace all of them."""
        context = self.context
        driver = context.revisions.get(context.standing.good, context.driver)
        return Frame(context.owner, driver, stage.name, after, context.snapshot.settings)

    def values(self, stage: Stage) -> dict[str, Any]:
        """What templates know."""
        context = self.context
        good = context.standing.good or context.newest
        driver = context.revisions.get(good, context.driver)
        return {
            "driver": {
                "name": driver.name,
                "version": driver.spec.version,
                "image": driver.spec.image,
            },
            "revision": good,
            "namespace": context.snapshot.settings.namespace,
            "stage": {"name": stage.name},
            "pools": self._pools,
        }

    @cached_property
    def _pools(self) -> list[dict[str, Any]]:
        return [self._pool(name) for name in sorted(self.context.wanted)]

    def _pool(self, daemonset: str) -> dict[str, Any]:
        """A pool of nodes with one revision: what a DaemonSet of the driver is for."""
        at = self.context.wanted[daemonset]
        driver = self.context.revisions.get(at.revision, self.context.driver)
        resolution = self.context.resolutions.get(at.pool)
        assigned = daemonset.rpartition("-")[2]
        return {
            "name": assigned,
            "architecture": at.pool.architecture,
            "osVersion": at.pool.os_version,
            "kernel": at.pool.kernel,
            "toolkit": resolution.image if resolution else "",
            "revision": at.revision,
            "version": driver.spec.version,
            "image": driver.spec.image,
            "nodeSelector": {assigned_label(self.driver): assigned},
        }

    def _check_owned(
        self, documents: Sequence[Document], stage: Stage, earlier: Sequence[StageState]
    ) -> None:
        """Nobody's object is overwritten, and none has two stages."""
        taken = {key_of(each): step.name for step in earlier for each in step.documents}
        for document in documents:
            kind, name = key = key_of(document)
            if key in taken:
                raise StageInvalid(f"{kind} {name} is in stage {taken[key]} already")
            there = self.seen.objects.get(key)
            if there is not None and there.driver != self.driver:
                whose = f"driver {there.driver}'s" if there.driver else "no stage's"
                raise StageInvalid(
                    f"ConfigMap {stage.manifests}: there is a {kind} {name} already, and it is "
                    f"{whose}; choose another name"
                )

    def _may_open(self, step: StageState, earlier: Sequence[StageState]) -> bool:
        """What was applied once stays; a new stage waits until the one before is ready somewhere.

        What has no pods on nodes waits for its Deployments alone.
        """
        if step.found or step.error:
            return bool(step.found)
        if not earlier:
            return bool(self.working)
        last = earlier[-1]
        if last.error or not last.opened or last.behind or any(self.silent(last)):
            return False
        passed = self._passed_by(last) if last.on_nodes else self.working
        return bool(passed)

    def _passed_by(self, step: StageState) -> list[Member]:
        return [member for member in self.working if self.passed(step, member.node)]

    # --- on one node ---

    def passed(self, step: StageState, node: Node) -> bool:
        """Whether the stage is ready on a node, or was, which is enough for those behind it."""
        if step.after and stage_label(self.driver, step.after) not in node.labels:
            return False
        if node.labels.get(stage_label(self.driver, step.name)) == READY:
            return True
        applied = not step.error and step.opened and all(k in step.found for k in _keys(step))
        return (
            applied and closed_label(self.driver) not in node.labels and not self.lacks(step, node)
        )

    def lacks(self, step: StageState, node: Node) -> str:
        """What of a stage is not ready on a node, "" if nothing."""
        for daemonset, selector in step.daemonsets:
            gate = gate_labels(self.driver, step.after)
            asked = {key: value for key, value in selector.items() if key not in gate}
            if any(node.labels.get(key) != value for key, value in asked.items()):
                continue  # its author leaves this node out
            pods = self.pods.get((daemonset, node.name), ())
            if not pods:
                return f"DaemonSet {daemonset} has no pod there yet"
            for pod in pods:
                if not pod.ready:
                    return _not_ready(pod)
                if stage_label(self.driver, step.name) not in node.labels and (
                    words := self.unsaid(step, pod)
                ):
                    return words
        return ""

    def unsaid(self, step: StageState, pod: StagePod) -> str:
        """What a pod that is ready has not said yet, "" if nothing is waited for."""
        wait = step.stage.wait_for
        sight = self.seen.logs.get(pod.uid, LogSight())
        if wait is None or sight.matched:
            return ""
        late = f" after {wait.timeout_seconds} s" if sight.late else " yet"
        words = f"no line in the log of pod {pod.name} matches {wait.log!r}{late}"
        return f"{words}: {sight.words}" if sight.words else words

    def silent(self, step: StageState) -> Iterator[tuple[StagePod, str]]:
        """Pods of Deployments of a stage that have not said what is waited for."""
        for pod in self.seen.pods.values() if step.stage.wait_for else ():
            mine = (pod.driver, pod.stage) == (self.driver, step.name)
            up = pod.ready and not pod.deleting and not pod.daemonset
            if mine and up and (words := self.unsaid(step, pod)):
                yield pod, words


def _keys(step: StageState) -> Iterator[Key]:
    return (key_of(document) for document in step.documents)


def _not_ready(pod: StagePod) -> str:
    waiting = "; ".join(f"{container}: {why}" for container, why in pod.waiting.items())
    return f"pod {pod.name} is not ready" + (f": {waiting}" if waiting else "")


# --- objects -------------------------------------------------------------------------------------


def to_apply(staging: StagePlan) -> Iterator[tuple[Document, Overwrite | None]]:
    """What is wanted and not so, in order of the stages, and what it is applied over."""
    for step in staging.steps:
        for document in step.documents if step.opened else ():
            there = staging.mine.get(key_of(document))
            if there is not None and there.deleting:
                continue
            edited = _differs(document, there, step) if there else None
            if there is None or edited:
                yield document, edited


def _differs(document: Document, there: StageObject, step: StageState) -> Overwrite | None:
    applied = document["metadata"]["annotations"][APPLIED_NOTE]
    marked = (there.applied, there.stage) == (applied, step.name)
    if marked and not drifted(document, there.document) and not strangers(there.kept, document):
        return None
    return over(there.kept, document, edited=marked)


def to_prune(staging: StagePlan) -> Iterator[StageObject]:
    """What no stage has any more, workloads first. Of one that cannot be read nothing goes."""
    kept = {key for step in staging.steps for key in _keys(step)}
    unread = {step.name for step in staging.steps if step.error}
    gone = [
        each
        for key, each in staging.mine.items()
        if key not in kept and each.stage not in unread and not each.deleting
    ]
    return iter(sorted(gone, key=end_order))


def end_order(found: StageObject) -> tuple[bool, str, str]:
    return found.kind not in ("DaemonSet", "Deployment"), found.kind, found.name


def content(staging: StagePlan) -> str:
    """A hash of what there is to write: trouble with it is over when it is something else."""
    return digest({"documents": [list(step.documents) for step in staging.steps]})

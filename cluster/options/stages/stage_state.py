"""The desired and actual state of one stage. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cluster.model.snapshot import StageRun
from cluster.model.stages import Key, StageObject, Template, key_of
from cluster.options.stages.job_runs import JobManifest
from nodeside.spec.fleet import Stage, WaitFor

Document = Mapping[str, Any]


@dataclass(frozen=True)
class StageState:
    """The desired and actual state of a stage. `after` is the previous stage with pods on nodes.

    `error` says why there are no documents; `awaited` means that they will be there soon: they are
    being rendered, or what they need is being read. `opened` means that the stage may be applied,
    or was applied already. `resources` are how many of each resource are awaited on each of its
    nodes. `jobs` are not applied themselves, see job_runs.py; `past` are the runs that exist.
    """

    stage: Stage
    after: str
    documents: tuple[Document, ...] = ()
    jobs: tuple[JobManifest, ...] = ()
    past: tuple[StageRun, ...] = ()
    skipped: tuple[str, ...] = ()
    error: str = ""
    awaited: bool = False
    opened: bool = False
    template: Template | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    existing: Mapping[Key, StageObject] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def log(self) -> WaitFor | None:
        """Returns the log line that is awaited."""
        wait = self.stage.wait_for
        return wait if wait and wait.log else None

    @cached_property
    def daemonsets(self) -> tuple[tuple[str, Mapping[str, str]], ...]:
        """Returns the DaemonSets by name with the node labels that their author selects."""
        return tuple(
            (each["metadata"]["name"], each["spec"]["template"]["spec"].get("nodeSelector", {}))
            for each in self.documents
            if each["kind"] == "DaemonSet"
        )

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        return tuple(key_of(document) for document in self.documents)

    @property
    def on_nodes(self) -> bool:
        """Returns whether the stage has pods on nodes, or had while it could still be read."""
        if self.error:
            had = any(kind == "DaemonSet" for kind, _ in self.existing)
            return had or any(run.node for run in self.past)
        return bool(self.daemonsets) or any(job.per_node for job in self.jobs)

    @property
    def unfinished_messages(self) -> tuple[str, ...]:
        """Returns messages about objects that are not applied or not rolled out yet."""
        return tuple(filter(None, (self._unfinished_message(each) for each in self.documents)))

    def _unfinished_message(self, document: Document) -> str:
        name = f"{document['kind']} {document['metadata']['name']}"
        existing = self.existing.get(key_of(document))
        if existing is None:
            return f"{name} does not exist yet"
        return "" if existing.rolled_out else f"{name}: {existing.progress}"

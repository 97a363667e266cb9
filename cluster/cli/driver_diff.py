"""`nodeside-cluster diff`: what `kubectl apply` of a file with Drivers would do, before it is done.

The API server is asked for the object that it would store (a dry run: defaults, admission, what
others have set). That object is put into a snapshot of the cluster in place of the present one, and
the two snapshots are planned with the functions of the controller. Nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from cluster.cache.cache import read_once
from cluster.cache.stages import read_once as read_stages
from cluster.cli.driver_diff_nodes import (
    CHANGING,
    UNLOADED,
    NodeGroup,
    Turn,
    as_if_built,
    holder_policies,
    node_groups,
)
from cluster.cli.driver_documents import DriverDocument, DriverFile, OtherDocument
from cluster.cli.explain import with_controller_data
from cluster.driver.revisions import revision_of, revision_text
from cluster.driver.rollout_state import RolloutState
from cluster.kube.client import Api, DryRun
from cluster.kube.errors import ApiError, Forbidden, NoSuchKind, NotFound
from cluster.kube.merge_patch import apply_merge_patch, make_three_way_patch
from cluster.kube.resources import DRIVERS
from cluster.model.actions import Apply, Delete, Plan
from cluster.model.json_fields import part
from cluster.model.names import STAGE_LABEL
from cluster.model.parse import driver_from
from cluster.model.parse_stages import stage_item_from
from cluster.model.snapshot import DriverObject, Settings, Snapshot
from cluster.options.build_once.job_manifest import SharedBuild
from cluster.options.drain.pods import demand_of
from cluster.options.stages.changes import objects_to_apply, objects_to_delete
from cluster.plan.context.context import Contexts, DriverContext
from cluster.plan.plan_driver import desired_builds
from cluster.plan.planner import plan
from nodeside.errors import ExitCode, SpecError
from nodeside.protocol.timestamps import rfc3339
from nodeside.spec import Driver, DriverSpec, to_document
from nodeside.spec.model import UnloadPolicy, Upgrade
from nodeside.spec.schema import Section, shape_of

Document = Mapping[str, Any]

_LAST = "kubectl.kubernetes.io/last-applied-configuration"
_KUBECTL = "kubectl"  # the field manager of `kubectl apply --server-side`


class Presence(Enum):
    """What the Driver of a file is in the cluster."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    DELETING = "deleting"


class RevisionKind(Enum):
    """Whether an apply gives nodes something new."""

    SAME = "same"
    NEW = "new"
    EARLIER = "earlier"  # one that the cluster still has


@dataclass(frozen=True)
class FieldChange:
    """A field of the document, by its path. None stands for a field that is not there.

    `default` is what a field means that is not there. `makes_revision`: nodes see it.
    """

    path: str
    before: Any
    after: Any
    default: Any = None
    makes_revision: bool = False


@dataclass(frozen=True)
class Admission:
    """What the API server says of the write. `not_asked` is why it could not be asked."""

    refused: str = ""
    warnings: tuple[str, ...] = ()
    not_asked: str = ""


@dataclass(frozen=True)
class RevisionChange:
    kind: RevisionKind
    before: str
    before_version: str
    after: str
    after_version: str


@dataclass(frozen=True)
class PlannedBuild:
    """Where the modules for a kernel come from: a Job, or each node by itself.

    `kernel` is "" if it is that of the toolkit image.
    """

    kernel: str
    architecture: str
    os_version: str
    toolkit: str
    job: str = ""
    how: str = ""


@dataclass(frozen=True)
class ObjectChange:
    """An object that an apply creates, changes or deletes. Those of a stage come last."""

    verb: str
    kind: str
    name: str
    stage: str = ""


@dataclass(frozen=True)
class DriverDiff:
    """What an apply does to a Driver. `rollout` and `revision` are None for one that is deleted.

    `stays` are fields that the file does not have and that stay. `unloads` and `notes` are
    sentences.
    """

    driver: str
    presence: Presence
    fields: tuple[FieldChange, ...] = ()
    stays: tuple[FieldChange, ...] = ()
    admission: Admission = Admission()
    revision: RevisionChange | None = None
    spec: DriverSpec | None = None
    rollout: RolloutState | None = None
    members: int = 0
    nodes: tuple[NodeGroup, ...] = ()
    builds: tuple[PlannedBuild, ...] = ()
    unloads: tuple[str, ...] = ()
    objects: tuple[ObjectChange, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return self.presence is Presence.NEW or bool(self.fields or self.objects)


@dataclass(frozen=True)
class FileDiff:
    """What an apply of a file does. `others` name its documents that are not compared."""

    drivers: tuple[DriverDiff, ...]
    others: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code as `diff` has it; of a file that the API server refuses, that error's."""
        if any(each.admission.refused for each in self.drivers):
            return ExitCode.CLUSTER
        return int(any(each.changes for each in self.drivers))


@dataclass(frozen=True)
class Wanted:
    """A Driver of the file, and what it would be in the cluster. `found` is what it is now."""

    file: Driver
    found: DriverObject | None
    document: Document
    result: DriverObject
    result_document: Document
    admission: Admission = Admission()


# --- the cluster ---------------------------------------------------------------------------------


def diff(api: Api, settings: Settings, file: DriverFile) -> FileDiff:
    """Read the cluster once, and compare it with what it would be after an apply of the file."""
    before = read_once(api, settings)
    before = replace(before, now=api.now())
    wanted = [_ask_api_server(api, each, before.now) for each in file.drivers]
    after = read_stages(api, with_wanted(before, wanted))
    after, used = with_templates(after, file.others)
    drivers = [each.driver for each in (*_valid(before, wanted), *_valid(after, wanted))]
    policies = holder_policies(driver for driver in drivers if driver is not None)
    pods = demand_of(*policies) if policies else None
    after = with_controller_data(api, after, pods)
    before = with_controller_data(api, before)
    done = rolled_out(after, wanted)
    if done.stages is not None:
        done = with_controller_data(api, done)
    others = tuple(each.words for each in file.others if each not in used)
    return FileDiff(compare(before, after, done, wanted), others)


def _valid(snapshot: Snapshot, wanted: Sequence[Wanted]) -> Iterator[DriverObject]:
    names = (each.file.name for each in wanted)
    yield from (snapshot.drivers[name] for name in names if name in snapshot.drivers)


def with_wanted(before: Snapshot, wanted: Sequence[Wanted]) -> Snapshot:
    """Return the snapshot with the Drivers of the file."""
    return replace(
        before, drivers={**before.drivers, **{each.file.name: each.result for each in wanted}}
    )


def with_templates(
    snapshot: Snapshot, others: Sequence[OtherDocument]
) -> tuple[Snapshot, Sequence[OtherDocument]]:
    """Return the snapshot with the ConfigMaps of the file that stages read, and these."""
    if snapshot.stages is None:
        return snapshot, ()
    named = {
        stage.manifests
        for found in snapshot.drivers.values()
        for stage in (found.driver.spec.stages if found.driver else ())
    }
    sources, used = dict(snapshot.stages.sources), []
    for each in others:
        metadata = part(each.data, "metadata")
        place = each.data.get("kind"), metadata.get("namespace")
        if place == ("ConfigMap", snapshot.settings.namespace) and metadata.get("name") in named:
            source = stage_item_from("ConfigMap", each.data).source
            if source is not None:
                sources[source.name] = source
                used.append(each)
    return replace(snapshot, stages=replace(snapshot.stages, sources=sources)), used


def rolled_out(after: Snapshot, wanted: Sequence[Wanted]) -> Snapshot:
    """Return the snapshot in which the rollouts are over: stages follow the last good revision."""
    done = dict(after.drivers)
    for each in wanted:
        found = after.drivers[each.file.name]
        if found.driver is not None:
            good = revision_of(revision_text(found.driver))
            done[found.name] = replace(found, status={**found.status, "lastGoodRevision": good})
    return replace(after, drivers=done)


def _ask_api_server(api: Api, file: DriverDocument, now: float) -> Wanted:
    """Return what an apply of the document would store.

    Without the right to ask, that is computed as kubectl computes it.
    """
    try:
        live: Document | None = api.get(DRIVERS, file.driver.name)
    except NoSuchKind:
        raise
    except NotFound:
        live = None
    patch = {} if live is None else make_three_way_patch(_last_applied(live), file.data, live)
    stored: Document = file.data if live is None else apply_merge_patch(live, patch)
    admission = Admission()
    try:
        answer = _dry_run(api, file.data, live, patch)
    except ApiError as error:
        admission = _admission_of(error)
        if admission.not_asked and live is not None and _is_applied_by_server(live):
            words = f"{admission.not_asked}; it knows which fields of the cluster would go"
            admission = Admission(not_asked=words)
    else:
        if answer is not None:
            stored, admission = answer.object, Admission(warnings=answer.warnings)
    return wanted_of(file.driver, live, stored, now, admission)


def _dry_run(api: Api, wanted: Document, live: Document | None, patch: Document) -> DryRun | None:
    """Send what kubectl would send; None if that is nothing."""
    if live is None:
        return api.try_create(wanted)
    if _is_applied_by_server(live):
        return api.try_apply(wanted, _KUBECTL)
    return api.try_merge_patch(wanted, patch) if patch else None


def _admission_of(error: ApiError) -> Admission:
    """Return a refusal of the write. Raises the error if it says nothing about the write."""
    if error.concerns_all:
        raise error
    if isinstance(error, Forbidden) and not error.concerns_one:
        return Admission(not_asked=str(error))
    return Admission(refused=str(error))


def _last_applied(live: Document) -> Document:
    """Return what kubectl applied last, empty if it is not known."""
    text = part(part(live, "metadata"), "annotations").get(_LAST)
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _is_applied_by_server(live: Document) -> bool:
    fields = part(live, "metadata").get("managedFields") or ()
    return any(
        (each.get("operation"), each.get("manager"), each.get("subresource", ""))
        == ("Apply", _KUBECTL, "")
        for each in fields
    )


def wanted_of(
    file: Driver,
    live: Document | None,
    stored: Document,
    now: float,
    admission: Admission = Admission(),
) -> Wanted:
    """Return a Driver as the API server would store it. Raises SpecError if that is invalid."""
    result, found = driver_from(stored), None if live is None else driver_from(live)
    if result.driver is None:
        words = f"with what the cluster has of it, driver {file.name} has mistakes"
        raise SpecError(f"{words}: {result.mistakes}", hint=f"kubectl edit driver {file.name}")
    if found is None:
        created = result.created or rfc3339(now)
        result = replace(result, created=created, generation=result.generation or 1)
    else:
        is_changed = part(stored, "spec") != part(live or {}, "spec")
        generation = max(result.generation, found.generation + is_changed)
        result = replace(result, generation=generation, status=found.status)
    return Wanted(file, found, live or {}, result, stored, admission)


# --- the comparison ------------------------------------------------------------------------------


def compare(
    before: Snapshot, after: Snapshot, done: Snapshot, wanted: Sequence[Wanted]
) -> tuple[DriverDiff, ...]:
    """Compare the cluster as it is, with the Drivers of the file, and once all is `done`. Pure."""
    plans = plan(before, before.now), plan(after, after.now)
    contexts = Contexts(before), Contexts(after), Contexts(done)
    return tuple(_compare_driver(each, contexts, plans) for each in wanted)


def _compare_driver(
    wanted: Wanted, contexts: tuple[Contexts, Contexts, Contexts], plans: tuple[Plan, Plan]
) -> DriverDiff:
    found, result = wanted.found, wanted.result
    assert result.driver is not None  # see wanted_of
    fields = tuple(_changed_fields(wanted))
    made = DriverDiff(
        wanted.file.name,
        _presence(found, fields),
        fields,
        tuple(_fields_that_stay(wanted)),
        wanted.admission,
        spec=result.driver.spec,
    )
    if result.deleting:
        return made
    after = contexts[1].context_of(result, result.driver)
    before = contexts[0].context_of(found, found.driver) if found and found.driver else None
    last = contexts[2].snapshot.drivers[wanted.file.name]
    done = contexts[2].context_of(last, result.driver)
    revision = _revision_change(before, after)
    rollout = as_if_built(after)
    nodes = node_groups(before, after, rollout)
    builds = tuple(_planned_builds(before, after, nodes))
    return replace(
        made,
        revision=revision,
        rollout=rollout.state,
        members=len(after.members),
        nodes=nodes,
        builds=builds,
        unloads=tuple(_unloads(before, after, nodes)),
        objects=(
            *_object_changes(after.snapshot, wanted.file.name, plans),
            *_stage_changes(before, done),
        ),
        notes=tuple(_notes(found, after, nodes)),
    )


def _presence(found: DriverObject | None, fields: Sequence[FieldChange]) -> Presence:
    if found is None:
        return Presence.NEW
    if found.deleting:
        return Presence.DELETING
    return Presence.CHANGED if fields else Presence.UNCHANGED


def _changed_fields(wanted: Wanted) -> Iterator[FieldChange]:
    """Yield the fields that differ in meaning: a default that is written out is no change."""
    found, result = wanted.found, wanted.result
    if found is None:
        return
    assert result.driver is not None
    if found.driver is not None:
        seen = _paths(_seen_by_nodes(found.driver), _seen_by_nodes(result.driver))
        yield from _field_changes(found.driver, result.driver, seen)
    else:
        old, new = part(wanted.document, "spec"), part(wanted.result_document, "spec")
        for path, before, after in _differences(old, new, "spec"):
            yield FieldChange(path, before, after)
    for key in ("labels", "annotations"):
        old, new = (
            dict(part(part(each, "metadata"), key))
            for each in (wanted.document, wanted.result_document)
        )
        old.pop(_LAST, None)
        new.pop(_LAST, None)
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                yield FieldChange(f"metadata.{key}[{name}]", old.get(name), new.get(name))


def _fields_that_stay(wanted: Wanted) -> Iterator[FieldChange]:
    assert wanted.result.driver is not None
    if wanted.found is not None:
        yield from _field_changes(wanted.file, wanted.result.driver, frozenset())


def _field_changes(
    old: Driver, new: Driver, makes_revision: frozenset[str]
) -> Iterator[FieldChange]:
    specs = to_document(old)["spec"], to_document(new)["spec"]
    for path, before, after in _differences(*specs, "spec"):
        yield FieldChange(path, before, after, default_of(path), path in makes_revision)


def _seen_by_nodes(driver: Driver) -> Document:
    found: Document = json.loads(revision_text(driver))["spec"]
    return found


def _paths(old: Document, new: Document) -> frozenset[str]:
    return frozenset(path for path, _, _ in _differences(old, new, "spec"))


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost fields that differ. A list of another length differs as a whole."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]")
    elif isinstance(old, Mapping) and old and new is None:
        for key in old:
            yield from _differences(old[key], None, f"{path}.{key}")
    elif isinstance(new, Mapping) and new and old is None:
        for key in new:
            yield from _differences(None, new[key], f"{path}.{key}")
    else:
        yield path, old, new


def default_of(path: str) -> Any:
    """Return what a field of a Driver means that is not there; None if that is nothing."""
    shape: Any = shape_of(DriverSpec)
    default: Any = None
    for name in path.split(".")[1:]:
        field = shape.field(name) if isinstance(shape, Section) else None
        if field is None:
            return None
        shape, default = field.shape, field.default
    value = getattr(default, "value", default)
    return value if isinstance(value, bool | int | float | str) and value != "" else None


def _revision_change(before: DriverContext | None, after: DriverContext) -> RevisionChange:
    newest, version = after.revisions.newest, after.driver.spec.version
    if before is None:
        return RevisionChange(RevisionKind.NEW, "", "", newest, version)
    old, old_version = before.revisions.newest, before.driver.spec.version
    kind = RevisionKind.SAME if old == newest else RevisionKind.NEW
    if kind is RevisionKind.NEW and newest in before.revisions.drivers:
        kind = RevisionKind.EARLIER
    return RevisionChange(kind, old, old_version, newest, version)


def _planned_builds(
    before: DriverContext | None, after: DriverContext, nodes: Sequence[NodeGroup]
) -> Iterator[PlannedBuild]:
    """Yield the Jobs that an apply adds, then the builds on the nodes that change."""
    old = desired_builds(before) if before is not None else {}
    for name, build in desired_builds(after).items():
        if name not in old and name not in after.snapshot.jobs:
            yield _job_build(after, name, build)
    newest = after.revisions.newest
    shared = {at.pool for at in after.supply.builds if at.revision == newest}
    pools = dict.fromkeys(group.pool for group in nodes if group.turn in CHANGING)
    for pool in pools if after.driver.spec.modules else ():
        toolkit = after.toolkits.resolutions[pool].image
        if pool in shared or not toolkit:
            continue
        prebuilt = after.driver.spec.prebuilt
        first = "its image, " if prebuilt.image else "a bundle, " if prebuilt.sources else ""
        how = f"{first and f'{first}else '}on each node that has no such build yet"
        yield PlannedBuild(pool.kernel, pool.architecture, pool.os_version, toolkit, how=how)


def _job_build(after: DriverContext, name: str, build: SharedBuild) -> PlannedBuild:
    how = "one Job" if build.publish else "one Job, a test (spec.preflight)"
    pools = [
        at.pool
        for at, state in after.supply.builds.items()
        if state.build.name == name and at.revision == build.revision
    ]
    kernel = build.kernel or (pools[0].kernel if pools else "")
    os_version = pools[0].os_version if pools else ""
    return PlannedBuild(kernel, build.architecture, os_version, build.toolkit, name, how)


def _unloads(
    before: DriverContext | None, after: DriverContext, nodes: Sequence[NodeGroup]
) -> Iterator[str]:
    """Yield what is unloaded: where the driver is replaced, and on nodes that it leaves."""
    if before is None:
        return
    spec = after.driver.spec
    old = [module.name for module in before.driver.spec.modules]
    new = [module.name for module in spec.modules]
    kept = ", ".join(name for name in old if name in new)
    gone = ", ".join(name for name in old if name not in new)
    if any(each.loaded for each in nodes if each.turn in CHANGING):
        if spec.upgrade is Upgrade.ON_REBOOT:
            yield "nothing: each node changes at its next reboot"
        elif spec.unload.policy is UnloadPolicy.NEVER:
            yield "nothing: unload.policy is never; what differs is replaced by a reboot"
        else:
            if kept:
                yield f"{kept}, and loaded again, on each node where it differs"
            if gone:
                yield f"{gone}, for good"
    if old and any(each.why == UNLOADED for each in nodes):
        yield f"{', '.join(old)}, for good, on the nodes that it leaves"


def _object_changes(
    snapshot: Snapshot, name: str, plans: tuple[Plan, Plan]
) -> Iterator[ObjectChange]:
    """Yield the objects that only the plan after the apply touches; builds are told elsewhere."""
    old, new = ([each for each in made.actions if each.driver == name] for made in plans)
    there = {*snapshot.daemonsets, *snapshot.revisions}
    for action in new:
        match action:
            case _ if action in old:
                pass
            case Apply(document=document) if document["kind"] in ("ConfigMap", "DaemonSet"):
                metadata = document["metadata"]
                if STAGE_LABEL not in metadata["labels"]:
                    verb = "change" if metadata["name"] in there else "create"
                    yield ObjectChange(verb, document["kind"], metadata["name"])
            case Delete(resource=resource, name=gone) if gone in there:
                yield ObjectChange("delete", resource.kind, gone)
            case _:
                pass


def _stage_changes(before: DriverContext | None, done: DriverContext) -> Iterator[ObjectChange]:
    """Yield the objects of stages that differ at the end, unless they do already."""
    pending = set(_stage_differences(before)) if before is not None else set()
    yield from (each for each in _stage_differences(done) if each not in pending)


def _stage_differences(context: DriverContext) -> Iterator[ObjectChange]:
    if not context.uses_stages or not context.staging.is_active:
        return
    staging = context.staging
    there = staging.owned_objects
    for step in staging.steps:
        for document in (*step.documents, *(job.document for job in step.jobs)):
            kind, name = document["kind"], document["metadata"]["name"]
            is_there = bool(step.past) if kind == "Job" else (kind, name) in there
            if not is_there:
                yield ObjectChange("create", kind, name, step.name)
    for document, _ in objects_to_apply(staging):
        kind, name = document["kind"], document["metadata"]["name"]
        if (kind, name) in there:
            yield ObjectChange("change", kind, name, there[kind, name].stage)
    for each in objects_to_delete(staging):
        yield ObjectChange("delete", each.kind, each.name, each.stage)


def _notes(
    found: DriverObject | None, after: DriverContext, nodes: Sequence[NodeGroup]
) -> Iterator[str]:
    name = after.driver.name
    if found is not None and found.driver is None:
        yield f"its document in the cluster has mistakes, which end: {found.mistakes}"
    if after.driver.spec.rollout.paused:
        yield f"it is paused: no node changes before nodeside-cluster resume {name}"
    if after.uses_stages and after.staging.is_active:
        for step in after.staging.steps:
            if step.error:
                yield f"stage {step.name}: {step.error}"
    if not any(each.loaded for each in nodes if each.turn is not Turn.WAITS):
        return
    if trouble := after.snapshot.occupancy.trouble:
        yield f"which pods hold the device is not known: {trouble}"
    elif not holder_policies([after.driver]):
        yield "which pods hold the device is not known: neither devices nor rollout.evict say so"

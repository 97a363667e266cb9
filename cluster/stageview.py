"""What stages consist of as it stands in the cluster: watched from the first Driver that has any.

Without stages nothing of this runs: no list, no watch. Called by view.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cluster.api import Api
from cluster.apierror import NotFound
from cluster.documents import pod_from, unless_mirror
from cluster.kept import kept_from
from cluster.model.names import (
    APPLIED_NOTE,
    DRIVER_LABEL,
    MANAGED_BY,
    MANAGER,
    STAGE_LABEL,
    STAGE_MANAGER,
)
from cluster.reflector import Reflector, Selection
from cluster.renderings import Renderings
from cluster.resources import CONFIG_MAPS, PODS, Resource
from cluster.stage import ALLOWED, OPTIONAL, Key, Source, StageObject, StagePod, Stages, Template
from cluster.stagelabels import logs_wanted, uses
from cluster.stagelogs import StageLogs
from cluster.world import World

_UNREAD = "the objects of stages have not been read yet"


@dataclass(frozen=True, slots=True)
class Found:
    """An object, or a ConfigMap's files, or both: a stage may not name its own ConfigMap."""

    name: str
    object: StageObject
    source: Source | None = None

    @property
    def uid(self) -> str:
        return self.object.uid


def used(world: World) -> bool:
    """Whether any Driver has stages, or had some that may have left something."""
    return any(uses(found) for found in world.drivers.values())


class StageView:
    """Reflectors that start when they are needed, and then stay."""

    def __init__(self, api: Api, namespace: str, wake: Callable[[], None]) -> None:
        self._reflectors: dict[Resource, Reflector[Found]] = {
            resource: Reflector(api, _selection(resource, namespace), wake) for resource in ALLOWED
        }
        selection = Selection(PODS, _POD, namespace=namespace, selector=STAGE_LABEL)
        self._pods: Reflector[StagePod] = Reflector(api, selection, wake)
        self._logs = StageLogs(api, namespace, wake)
        self._renderings = Renderings(wake)
        self._started = False

    @property
    def _every(self) -> tuple[Reflector[Any], ...]:
        return (*self._reflectors.values(), self._pods)

    def added(self, world: World) -> World:
        """The world with what is known of stages, if anybody has some."""
        if not self._started and not used(world):
            return world
        if not self._started:
            self._started = True
            for reflector in self._every:
                reflector.start()
        world = replace(world, stages=self._stages())
        self._logs.want(logs_wanted(world))
        assert world.stages is not None
        logs, rendered = self._logs.seen(), self._renderings.known()
        return replace(world, stages=replace(world.stages, logs=logs, rendered=rendered))

    def render(self, templates: Collection[Template]) -> bool:
        """From now on know what these give; whether that is news."""
        return self._renderings.want(templates)

    def renew(self, since: float) -> None:
        """As the reflectors do it."""
        for reflector in self._every if self._started else ():
            reflector.renew(since)

    def wait_current(self, timeout: float) -> bool:
        """Whether that was done, or is in trouble: stages hold nothing else up."""
        ends = time.monotonic() + timeout
        every = self._every if self._started else ()
        return all(
            each.health().trouble or each.wait_current(max(0.0, ends - time.monotonic()))
            for each in every
        )

    def stop(self) -> None:
        if self._started:
            for reflector in self._every:
                reflector.stop()
            self._logs.stop()
            self._renderings.stop()

    def join(self, timeout: float) -> None:
        """Those that are not done by then are daemons."""
        if self._started:
            for reflector in self._every:
                reflector.join(timeout / len(self._every))

    def _stages(self) -> Stages:
        healths = [reflector.health() for reflector in self._every]
        if not all(health.synced for health in healths):
            trouble = (health.trouble for health in healths if health.trouble)
            return Stages(unknown=next(trouble, _UNREAD))
        found = {resource: each.objects() for resource, each in self._reflectors.items()}
        return _stages(found, self._pods.objects() or {})


def read_once(api: Api, world: World) -> World:
    """The same by one list of each kind, for a command that looks once."""
    if not used(world):
        return world
    namespace = world.settings.namespace
    found: dict[Resource, Mapping[str, Found] | None] = {}
    for resource in ALLOWED:
        try:
            page = api.list(resource, _trim(resource), namespace=namespace)
            found[resource] = {item.name: item for item in page.items}
        except NotFound:
            if resource not in OPTIONAL:
                raise
            found[resource] = None
    pods = api.list(PODS, _POD, namespace=namespace, selector=STAGE_LABEL).items
    return replace(world, stages=_stages(found, {pod.name: pod for pod in pods}))


def _selection(resource: Resource, namespace: str) -> Selection[Found]:
    """All objects of the namespace: one that is somebody else's must not be overwritten."""
    return Selection(resource, _trim(resource), namespace=namespace, optional=resource in OPTIONAL)


def _stages(
    found: Mapping[Resource, Mapping[str, Found] | None], pods: Mapping[str, StagePod]
) -> Stages:
    objects: dict[Key, StageObject] = {
        (resource.kind, each.name): each.object
        for resource, items in found.items()
        for each in (items or {}).values()
    }
    config_maps = found[CONFIG_MAPS] or {}
    return Stages(
        objects=objects,
        sources={each.name: each.source for each in config_maps.values() if each.source},
        pods=pods,
        absent=frozenset(resource.kind for resource, items in found.items() if items is None),
    )


# --- from the API server's JSON ------------------------------------------------------------------


def _trim(resource: Resource) -> Callable[[Mapping[str, Any]], Found]:
    def trim(data: Mapping[str, Any]) -> Found:
        return found_from(resource.kind, data)

    return trim


def found_from(kind: str, data: Mapping[str, Any]) -> Found:
    metadata = data.get("metadata") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    name, manager = str(metadata.get("name")), labels.get(MANAGED_BY)
    if manager != STAGE_MANAGER:
        files = data.get("data") or {} if kind == "ConfigMap" and manager != MANAGER else None
        source = None if files is None else Source(name, dict(files))
        return Found(name, StageObject(kind, name), source)
    rolled_out, progress = _rollout(data) if kind == "Deployment" else (True, "")
    body = {key: value for key, value in data.items() if key not in ("metadata", "status")}
    made = StageObject(
        kind=kind,
        name=name,
        uid=str(metadata.get("uid", "")),
        driver=str(labels.get(DRIVER_LABEL, "")),
        stage=str(labels.get(STAGE_LABEL, "")),
        applied=str(notes.get(APPLIED_NOTE, "")),
        deleting="deletionTimestamp" in metadata,
        rolled_out=rolled_out,
        progress=progress,
        document=body,
        kept=kept_from(data),
    )
    return Found(name, made)


def _rollout(data: Mapping[str, Any]) -> tuple[bool, str]:
    """As `kubectl rollout status` has it."""
    spec, status = data.get("spec") or {}, data.get("status") or {}
    wanted = int(spec.get("replicas", 1))
    updated, available = (int(status.get(f"{w}Replicas") or 0) for w in ("updated", "available"))
    seen = int(status.get("observedGeneration") or 0)
    current = seen >= int((data.get("metadata") or {}).get("generation") or 0)
    done = current and updated >= wanted and available >= wanted
    return done, f"{min(updated, available)} of {wanted} replicas available"


def stage_pod_from(data: Mapping[str, Any]) -> StagePod:
    pod = pod_from(data)
    labels = (data.get("metadata") or {}).get("labels") or {}
    containers = (data.get("spec") or {}).get("containers") or ()
    conditions = (data.get("status") or {}).get("conditions") or ()
    return StagePod(
        name=pod.name,
        uid=pod.uid,
        driver=pod.driver,
        stage=str(labels.get(STAGE_LABEL, "")),
        node=pod.node,
        daemonset=pod.daemonset,
        container=str(containers[0].get("name", "") if containers else ""),
        deleting=pod.deleting,
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        waiting=pod.waiting,
    )


_POD = unless_mirror(stage_pod_from)

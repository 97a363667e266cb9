"""Watches the objects of stages in the cluster as soon as a Driver has stages.

Without stages nothing is listed or watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cluster.cache.renderings import Renderings
from cluster.cache.secrets import Secrets, read_secret, secrets_wanted
from cluster.cache.stage_logs import StageLogs, logs_to_read
from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.reflector import Reflector, Selection
from cluster.kube.resources import CLUSTER_VERSIONS, CONFIG_MAPS, PODS, SERVICES, Resource
from cluster.model.names import STAGE_LABEL
from cluster.model.parse_pods import skip_mirror_pods
from cluster.model.parse_stages import (
    ClusterVersion,
    StageItem,
    cluster_version_from,
    stage_item_from,
    stage_pod_from,
)
from cluster.model.snapshot import DriverObject, Snapshot, has_stages
from cluster.model.stages import OPTIONAL, WATCHED, Key, StageObject, StagePod, Stages, Template

_UNREAD = "the objects of stages have not been read yet"


def any_has_stages(drivers: Iterable[DriverObject]) -> bool:
    """Return whether any Driver has stages, or had stages that may have left objects."""
    return any(has_stages(driver) for driver in drivers)


class StageView:
    """The reflectors for stages, which start on first use and keep running."""

    def __init__(self, api: Api, namespace: str, wake: Callable[[], None]) -> None:
        self._reflectors: dict[Resource, Reflector[StageItem]] = {
            resource: Reflector(api, _select_objects(resource, namespace), wake)
            for resource in WATCHED
        }
        self._pods: Reflector[StagePod] = Reflector(api, _select_pods(namespace), wake)
        self._version: Reflector[ClusterVersion] = Reflector(api, _VERSION, wake)
        self._logs = StageLogs(api, namespace, wake)
        self._renderings = Renderings(wake)
        self._secrets = Secrets(api, namespace, wake)
        self._started = False

    @property
    def _all_reflectors(self) -> tuple[Reflector[Any], ...]:
        return (*self._reflectors.values(), self._pods, self._version)

    def watch_if_used(self, drivers: Iterable[DriverObject]) -> None:
        """Begin to watch if any of these Drivers has stages."""
        if not self._started and any_has_stages(drivers):
            self._started = True
            for reflector in self._all_reflectors:
                reflector.start()

    def add_to_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the state of stages, if any Driver has stages."""
        self.watch_if_used(snapshot.drivers.values())
        if not self._started:
            return snapshot
        snapshot = replace(snapshot, stages=self._current_stages())
        self._logs.poll_logs(logs_to_read(snapshot))
        assert snapshot.stages is not None
        self._secrets.read_secrets(secrets_wanted(snapshot))
        stages = replace(
            snapshot.stages,
            logs=self._logs.get_matches(),
            rendered=self._renderings.get_rendered(),
            secrets=self._secrets.get_secrets(),
        )
        return replace(snapshot, stages=stages)

    def render_templates(self, templates: Collection[Template]) -> bool:
        """Request these templates and no others; return whether more of them are rendered now."""
        return self._renderings.keep_templates(templates)

    def renew_lists(self, since: float) -> None:
        """Renew the lists of all reflectors, see Reflector.renew_list."""
        for reflector in self._all_reflectors if self._started else ():
            reflector.renew_list(since)

    def wait_current(self, timeout: float) -> bool:
        """Wait until each reflector is current or has failed: one that fails holds up no plan."""
        ends = time.monotonic() + timeout
        every = self._all_reflectors if self._started else ()
        return all(each.wait_tried(max(0.0, ends - time.monotonic())) for each in every)

    def stop(self) -> None:
        if self._started:
            for reflector in self._all_reflectors:
                reflector.stop()
            self._logs.stop()
            self._renderings.stop()
            self._secrets.stop()

    def join(self, timeout: float) -> None:
        """Wait for the threads to end; those still running are daemon threads."""
        if self._started:
            for reflector in self._all_reflectors:
                reflector.join(timeout / len(self._all_reflectors))

    def _current_stages(self) -> Stages:
        # Where the ClusterVersion may not be read, templates that name the version have an empty
        # one. In an outage they wait: with an empty one, the stage would have another revision.
        may_read = self._version.health().refusal is None
        healths = [
            each.health() for each in self._all_reflectors if may_read or each is not self._version
        ]
        if not all(health.synced for health in healths):
            trouble = (health.trouble for health in healths if health.trouble)
            return Stages(unknown=next(trouble, _UNREAD))
        items = {resource: each.objects() for resource, each in self._reflectors.items()}
        return _combine_stages(items, self._pods.objects() or {}, self._version.objects())


def read_once(api: Api, snapshot: Snapshot) -> Snapshot:
    """Add the state of stages with one list of each kind, for a one-shot command."""
    if not any_has_stages(snapshot.drivers.values()):
        return snapshot
    namespace = snapshot.settings.namespace
    items: dict[Resource, Mapping[str, StageItem] | None] = {}
    for resource in WATCHED:
        items[resource] = _select_objects(resource, namespace).list_once(api)
    pods = _select_pods(namespace).list_once(api) or {}
    version: Mapping[str, ClusterVersion] | None = None
    try:
        version = _VERSION.list_once(api)
    except ApiError as error:
        if error.retryable:
            raise
    names = sorted(secrets_wanted(snapshot))
    secrets = {name: read_secret(api, namespace, name) for name in names}
    return replace(snapshot, stages=replace(_combine_stages(items, pods, version), secrets=secrets))


def _select_objects(resource: Resource, namespace: str) -> Selection[StageItem]:
    """Select all objects of the namespace, so that foreign ones are seen and not overwritten."""
    return Selection(
        resource, _item_parser(resource), namespace=namespace, optional=resource in OPTIONAL
    )


def _select_pods(namespace: str) -> Selection[StagePod]:
    return Selection(PODS, _POD, namespace=namespace, selector=STAGE_LABEL)


def _combine_stages(
    by_kind: Mapping[Resource, Mapping[str, StageItem] | None],
    pods: Mapping[str, StagePod],
    versions: Mapping[str, ClusterVersion] | None,
) -> Stages:
    objects: dict[Key, StageObject] = {
        (resource.kind, each.name): each.object
        for resource, items in by_kind.items()
        for each in (items or {}).values()
    }
    config_maps = by_kind[CONFIG_MAPS] or {}
    return Stages(
        objects=objects,
        sources={each.name: each.source for each in config_maps.values() if each.source},
        pods=pods,
        absent=frozenset(resource.kind for resource, items in by_kind.items() if items is None),
        cluster_version=next((each.version for each in (versions or {}).values()), ""),
        services={
            each.name: each.address
            for each in (by_kind[SERVICES] or {}).values()
            if each.address is not None
        },
    )


# --- from the API server's JSON ------------------------------------------------------------------


def _item_parser(resource: Resource) -> Callable[[Mapping[str, Any]], StageItem]:
    def trim(data: Mapping[str, Any]) -> StageItem:
        return stage_item_from(resource.kind, data)

    return trim


_POD = skip_mirror_pods(stage_pod_from)
_VERSION = Selection(CLUSTER_VERSIONS, cluster_version_from, optional=True)

"""The cached cluster state: one reflector per kind, combined into a Snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from cluster.cache.drain_pods import ConsumerCache
from cluster.cache.image_labels import TagLabels
from cluster.cache.image_streams import ImageStreamFilter
from cluster.cache.node_filter import node_filter_of
from cluster.cache.stages import StageView
from cluster.cache.stages import read_once as read_stages
from cluster.kube import resources
from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.kube.reflector import Reflector, Selection, WatchHealth
from cluster.kube.resources import Resource
from cluster.model import parse
from cluster.model.lookup_cache import LookupCache
from cluster.model.names import BUILDER, JOBS_OF_OURS, MANAGED_BY, OURS
from cluster.model.parse_pods import build_pod_from, pod_from, skip_mirror_pods
from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import Node, NotListed, Settings, Snapshot, Tag
from cluster.model.stages import Template

Parser = Callable[[Mapping[str, Any]], Any]
Selections = dict[str, Selection[Any]]

_JOIN = 2.0  # seconds for all threads to end; they are daemon threads


def select_kinds(namespace: str, streams: Parser = parse.image_stream_from) -> Selections:
    """Return the selection for each field of Snapshot that a reflector fills."""
    ours: dict[str, Any] = {"namespace": namespace, "selector": OURS}
    return {
        "nodes": Selection(resources.NODES, parse.node_from),
        "drivers": Selection(resources.DRIVERS, parse.driver_from),
        "daemonsets": Selection(resources.DAEMON_SETS, parse.daemonset_from, **ours),
        "jobs": Selection(
            resources.JOBS, parse.job_from, namespace=namespace, selector=JOBS_OF_OURS
        ),
        "build_pods": Selection(
            resources.PODS,
            skip_mirror_pods(build_pod_from),
            namespace=namespace,
            selector=f"{MANAGED_BY}={BUILDER}",
            about="build pods",
        ),
        "node_drivers": Selection(
            resources.NODE_DRIVERS,
            parse.node_driver_from,
            crowd=lambda report: report.node,
        ),
        "pods": Selection(
            resources.PODS,
            skip_mirror_pods(pod_from),
            **ours,
            about="driver pods",
        ),
        "revisions": Selection(resources.CONFIG_MAPS, parse.revision_from, **ours),
        "image_streams": Selection(resources.IMAGE_STREAMS, streams, optional=True),
    }


class ClusterCache:
    """All reflectors. Use as a context manager: they run inside it."""

    def __init__(self, api: Api, settings: Settings, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._stages = StageView(api, settings.namespace, wake)
        self._consumers = ConsumerCache(api, wake, namespace=settings.namespace)
        self._tag_labels = TagLabels(api)
        self._streams = ImageStreamFilter()
        self._lookups = LookupCache()  # kept between snapshots
        chosen = select_kinds(settings.namespace, self._streams.parse_if_named)
        chosen["nodes"] = replace(chosen["nodes"], is_news=self._is_news)
        self._reflectors = {
            field: Reflector(api, selection, wake) for field, selection in chosen.items()
        }
        self._by_resource: dict[Resource, Reflector[Any]] = {
            selection.resource: self._reflectors[field] for field, selection in chosen.items()
        }

    def _is_news(self, before: Node, after: Node) -> bool:
        """Return whether the change of a node wakes the controller.

        A new Driver cannot be missed: it wakes the controller itself, and the node is stored
        already, since this is called after storing it.
        """
        drivers = self._reflectors["drivers"].objects() or {}
        return node_filter_of(drivers.values()).is_relevant_change(before, after)

    def __enter__(self) -> ClusterCache:
        for reflector in self._reflectors.values():
            reflector.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumers.stop()
        for reflector in self._reflectors.values():
            reflector.stop()
        self._stages.stop()
        ends = time.monotonic() + _JOIN
        for reflector in self._reflectors.values():
            reflector.join(max(0.0, ends - time.monotonic()))
        self._stages.join(max(0.0, ends - time.monotonic()))

    def wait_synced(self, timeout: float) -> bool:
        """Wait until every kind is listed; until then the absence of an object means nothing.

        Optional kinds are not waited for; nothing is concluded from them until they are listed.
        """
        ends = time.monotonic() + timeout
        return all(
            reflector.wait_synced(max(0.0, ends - time.monotonic()))
            for reflector in self._reflectors.values()
            if not reflector.health().optional
        )

    def renew_lists(self, since: float) -> None:
        """List again every kind whose last list is older than `since` (monotonic clock)."""
        for reflector in self._reflectors.values():
            reflector.renew_list(since)
        self._stages.renew_lists(since)

    def refresh_watches(self, timeout: float, *, optional: bool = True) -> bool:
        """Retry failed watches at once and return whether everything is up to date.

        Without `optional`, optional kinds are not checked. The objects of stages are always waited
        for: a plan without them would report that they are not known.
        """
        ends = time.monotonic() + timeout
        for reflector in self._reflectors.values():
            if reflector.health().trouble:
                reflector.retry_now()
        current = all(
            reflector.wait_current(max(0.0, ends - time.monotonic()))
            for reflector in self._reflectors.values()
            if optional or not reflector.health().optional
        )
        self._stages.watch_if_used((self._reflectors["drivers"].objects() or {}).values())
        return current and self._stages.wait_current(max(0.0, ends - time.monotonic()))

    def make_snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        drivers = self._reflectors["drivers"].objects() or {}
        self._streams.follow_drivers(drivers.values(), self._reflectors["image_streams"])
        objects: dict[str, Any] = {
            field: _objects_of(reflector) for field, reflector in self._reflectors.items()
        }
        snapshot = Snapshot(
            **objects,
            settings=self._settings,
            occupancy=self._consumers.occupancy(),
            toolkit_labels=self._tag_labels.known_labels,
            toolkits_pending=self._tag_labels.pending,
            index=self._lookups,
        )
        return self._stages.add_to_snapshot(snapshot)

    def watch_pods(self, demand: PodDemand | None) -> None:
        """Watch these pods of the cluster; None: a plan needs none."""
        self._consumers.watch_pods(demand)

    def stop_watching_pods(self) -> None:
        """Stop watching pods of the cluster at once: no more plans are made."""
        self._consumers.stop()

    def learn_labels(self, tags: Collection[Tag]) -> bool:
        """Read the labels of these tags' images within a short time limit.

        Return whether anything changed.
        """
        return self._tag_labels.learn_labels(tags)

    def render_templates(self, templates: Collection[Template]) -> bool:
        """Render these templates of stages within a short time limit.

        Return whether more of them are rendered now. Slower ones wake the controller later.
        """
        return self._stages.render_templates(templates)

    def requeue_after(self) -> float | None:
        """Return the seconds until the next look at image labels or the end of the watch of pods.

        None if neither is due.
        """
        waits = (self._tag_labels.requeue_after(), self._consumers.expires_in())
        return min((wait for wait in waits if wait is not None), default=None)

    def health(self) -> list[WatchHealth]:
        return [reflector.health() for reflector in self._reflectors.values()]

    def wait_written(self, written: Mapping[Resource, str], timeout: float) -> bool:
        """Wait until our own writes are observed: a plan made before that would repeat them."""
        ends = time.monotonic() + timeout
        return all(
            self._by_resource[resource].wait_seen(version, max(0.0, ends - time.monotonic()))
            for resource, version in written.items()
            if resource in self._by_resource
        )

    def wait_gone(self, resource: Resource, name: str, uid: str, timeout: float) -> bool:
        """Wait until an object that we deleted is observed as gone or being deleted."""
        reflector = self._by_resource.get(resource)
        return reflector is None or reflector.wait_gone(name, uid, timeout)


def _objects_of(reflector: Reflector[Any]) -> Mapping[str, Any] | NotListed | None:
    """Return the objects of a kind, or NotListed if an optional kind is not listed yet."""
    health = reflector.health()
    if health.optional and not health.synced:
        return NotListed(health.trouble or "the API server has not answered yet")
    return reflector.objects()


def read_once(api: Api, settings: Settings) -> Snapshot:
    """Make a Snapshot with one list of each kind, for a one-shot command."""
    wanted = select_kinds(settings.namespace)
    objects: dict[str, Any] = {field: _list_once(api, each) for field, each in wanted.items()}
    return read_stages(api, Snapshot(**objects, settings=settings))


def _list_once(api: Api, selection: Selection[Any]) -> Mapping[str, Any] | NotListed | None:
    try:
        return selection.list_once(api)
    except ApiError as error:
        if not selection.optional:
            raise
        return NotListed(str(error))

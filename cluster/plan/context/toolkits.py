"""The toolkit image of each pool of a Driver. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from cluster.driver.deadlines import NodeDeadline, NodeDeadlines
from cluster.driver.nodes import DriverNode, has_found_no_modules
from cluster.driver.toolkit_image import (
    KERNEL_UNKNOWN,
    NO_CURRENT_IMAGE,
    CurrentImage,
    Evidence,
    Resolution,
    resolve_toolkit_image,
    tags_to_read,
)
from cluster.model.snapshot import DaemonSetObject, NotListed, Pool, Snapshot, Tag
from cluster.options.preflight import tags_for
from nodeside.spec import Driver


@dataclass(frozen=True)
class Toolkits:
    """The toolkit images of a Driver's pools. `members` are the nodes as observed."""

    snapshot: Snapshot
    driver: Driver
    daemonsets: Sequence[DaemonSetObject]
    members: Sequence[DriverNode]

    @property
    def are_streams_unread(self) -> bool:
        """Whether the image streams have not been read."""
        return isinstance(self.snapshot.image_streams, NotListed)

    @cached_property
    def resolutions(self) -> Mapping[Pool, Resolution]:
        """The toolkit image of each pool."""
        return {p: self._resolve_pool(p) if p.kernel else KERNEL_UNKNOWN for p in self._pools}

    @cached_property
    def _pools(self) -> frozenset[Pool]:
        return frozenset(member.pool for member in self.members)

    def _resolve_pool(self, pool: Pool) -> Resolution:
        current = self._current_images.get(pool, NO_CURRENT_IMAGE)
        streams = self.snapshot.image_streams
        return resolve_toolkit_image(
            pool, self.driver.spec.toolkit, streams, self._evidence, current
        )

    @cached_property
    def _current_images(self) -> Mapping[Pool, CurrentImage]:
        own = (d for d in self.daemonsets if d.toolkit and not d.fell_back)
        return {d.pool: CurrentImage(d.toolkit, d.link) for d in own}

    @cached_property
    def _evidence(self) -> Evidence:
        return Evidence(self.snapshot.toolkit_labels, self.snapshot.toolkits_pending)

    @cached_property
    def tags(self) -> frozenset[Tag]:
        """The tags whose images this plan needs resolved."""
        streams, spec = self.snapshot.image_streams, self.driver.spec
        own = (tags_to_read(pool, spec.toolkit, streams, self._evidence) for pool in self._pools)
        found = frozenset(chain.from_iterable(own))
        if not spec.preflight:
            return found
        architectures = {pool.architecture for pool in self._pools}
        return found.union(tags_for(self.driver, spec.preflight, self.snapshot, architectures))

    def correction_deadline(self, member: DriverNode) -> NodeDeadline | None:
        """Return the deadline of a node that failed and whose next pod has another toolkit image.

        None if there is no other image.
        """
        report, image = member.current_report, self.resolutions[member.pool].image
        if report is None or member.stuck_pod is not None or not image:
            return None
        builds = member.at is not None and member.at.builds and has_found_no_modules(member)
        if member.refused_toolkit in ("", image) and not builds:
            return None
        deadlines = NodeDeadlines(self.snapshot, self.driver)
        return deadlines.correction_deadline(member.node, member.assigned, report, image)

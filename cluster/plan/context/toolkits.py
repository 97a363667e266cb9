"""The toolkit image of each pool of a Driver, and the images that its nodes refuse. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from cluster.driver.deadlines import NodeDeadline, NodeDeadlines
from cluster.driver.nodes import DriverNode
from cluster.driver.toolkit_evidence import (
    Evidence,
    Refusals,
    Witness,
    heard,
    lasting,
    refuses,
    remembered,
    together,
    upheld,
)
from cluster.driver.toolkit_image import (
    NO_PROOF,
    NOT_TOLD,
    NOTHING_KEPT,
    CurrentImage,
    Resolution,
    proven,
    resolve,
    tags_to_read,
)
from cluster.model.snapshot import EMPTY, DaemonSetObject, NotListed, Pool, Snapshot, Tag
from cluster.model.states import Health
from cluster.options.preflight import tags
from nodeside.spec import Driver


@dataclass(frozen=True)
class Toolkits:
    """`members` are the nodes as observed."""

    snapshot: Snapshot
    driver: Driver
    daemonsets: Sequence[DaemonSetObject]
    members: Sequence[DriverNode]

    @cached_property
    def refusals(self) -> Refusals:
        """Toolkit images that nodes refuse or refused before, minus those that built after all."""
        before = remembered(self.daemonsets)
        broken = (m for m in self.members if m.health is Health.BROKEN)
        if not before and not any(m.word and refuses(m.node, m.word) for m in broken):
            return {}
        witnesses = tuple(self._witnesses())
        return together(upheld(before, witnesses), heard(witnesses))

    def refused(self, pool: Pool) -> Mapping[str, str]:
        return self.refusals.get((pool.kernel, pool.architecture), EMPTY)

    def _witnesses(self) -> Iterator[Witness]:
        """Yield the nodes that are up, with the toolkit image of their pod, "" if unknown."""
        images = {(d.assignment, d.pool.kernel): d.toolkit for d in self.daemonsets}
        for member in self.members:
            if member.health is not Health.DOWN:
                image = images.get((member.assigned, member.node.kernel), "")
                yield Witness(member.node, image, member.word)

    @property
    def unseen(self) -> bool:
        """Whether the image streams have not been read."""
        return isinstance(self.snapshot.image_streams, NotListed)

    @cached_property
    def resolutions(self) -> Mapping[Pool, Resolution]:
        """The toolkit image of each pool."""
        resolved, evidence = dict(self._without_others), dict(self._evidence_of_pools)
        proof = proven(self.snapshot) if self._lacking else NO_PROOF
        for pool in self._lacking:
            if images := proof.get((pool.kernel, pool.architecture), ()):
                evidence[pool] = replace(evidence[pool], proven=images)
                resolved[pool] = self._resolve_pool(pool, evidence[pool])
            image = resolved[pool].image
            if not image or evidence[pool].against(image, pool):
                last = replace(evidence[pool], refused=self._refused_for_good(pool))
                resolved[pool] = self._resolve_pool(pool, last)
        return resolved | {pool: NOT_TOLD for pool in self._pools if not pool.kernel}

    @property
    def asks_others(self) -> bool:
        """Whether the image of a pool depends on what other Drivers have built."""
        return bool(self._lacking)

    @cached_property
    def _evidence_of_pools(self) -> Mapping[Pool, Evidence]:
        return {pool: self._evidence_for(pool) for pool in self._pools if pool.kernel}

    @cached_property
    def _without_others(self) -> Mapping[Pool, Resolution]:
        return {
            pool: self._resolve_pool(pool, each) for pool, each in self._evidence_of_pools.items()
        }

    @cached_property
    def _lacking(self) -> Sequence[Pool]:
        """Pools without an image that is beyond doubt."""
        resolved = self._without_others.items()
        return [pool for pool, each in resolved if not each.image or each.in_doubt]

    @cached_property
    def _pools(self) -> frozenset[Pool]:
        return frozenset(member.pool for member in self.members)

    def _resolve_pool(self, pool: Pool, evidence: Evidence) -> Resolution:
        streams, lost = self.snapshot.image_streams, pool in self._without_daemonsets
        current = self._current.get(pool, NOTHING_KEPT)
        return resolve(pool, self.driver.spec.toolkit, streams, evidence, current, lost=lost)

    @cached_property
    def _current(self) -> Mapping[Pool, CurrentImage]:
        return {d.pool: CurrentImage(d.toolkit, d.link) for d in self.daemonsets if d.toolkit}

    def _evidence_for(self, pool: Pool) -> Evidence:
        snapshot, refused = self.snapshot, self.refused(pool)
        return Evidence(snapshot.toolkit_labels, refused, pending=snapshot.toolkits_pending)

    def _refused_for_good(self, pool: Pool) -> Mapping[str, str]:
        """Return the lasting refusals, without images that only few nodes refused.

        Those are retried if nothing else serves.
        """
        nodes = Counter((m.node.kernel, m.node.architecture) for m in self.members)
        return lasting(self.refused(pool), nodes[pool.kernel, pool.architecture])

    @cached_property
    def _without_daemonsets(self) -> frozenset[Pool]:
        """Pools that have nodes but whose DaemonSet was deleted externally."""
        used = (m.at.pool for m in self.members if m.at)
        return frozenset(used) - {each.pool for each in self.daemonsets}

    @cached_property
    def tags(self) -> frozenset[Tag]:
        """The tags whose images this plan needs resolved."""
        streams, spec = self.snapshot.image_streams, self.driver.spec
        own = (
            tags_to_read(each, spec.toolkit, streams, self._evidence_for(each))
            for each in self._pools
        )
        found = frozenset(chain.from_iterable(own))
        if not spec.preflight:
            return found
        architectures = {pool.architecture for pool in self._pools}
        return found.union(tags(self.driver, spec.preflight, self.snapshot, architectures))

    def correction(self, member: DriverNode) -> NodeDeadline | None:
        """Return the deadline of a node whose next pod gets another toolkit image than the refused
        one; None if that is not the case."""
        word = member.word
        if member.pod is not None or word is None or not refuses(member.node, word):
            return None
        if self.resolutions[member.pool].image in ("", word.toolkit):
            return None
        return NodeDeadlines(self.snapshot, self.driver).correction_deadline(member.assigned, word)

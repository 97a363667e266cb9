"""The revisions of a Driver, its DaemonSets, and the assignments that its nodes can have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from cluster.model.snapshot import Assignment, DaemonSetObject, DriverObject, Snapshot, assignment
from cluster.plan.builds.kernel_images import at_of
from cluster.plan.nodes.pools import pool_of
from cluster.plan.objects.revision import read_revision, revision_of, revision_text
from nodeside.protocol.labels import assigned_label
from nodeside.spec import Driver


@dataclass(frozen=True)
class Revisions:
    snapshot: Snapshot
    resource: DriverObject
    driver: Driver

    @cached_property
    def text(self) -> str:
        """The driver.yaml of the newest revision."""
        return revision_text(self.driver)

    @cached_property
    def newest(self) -> str:
        return revision_of(self.text)

    @cached_property
    def good(self) -> str:
        """The last good revision; "" if there is none that can still be assigned."""
        good = str(self.resource.status.get("lastGoodRevision") or "")
        return good if good in self.drivers else ""

    @cached_property
    def drivers(self) -> Mapping[str, Driver]:
        """The Driver as of every revision that can still be assigned to a node."""
        name = self.driver.name
        own = (each for each in self.snapshot.revisions.values() if each.driver == name)
        read = {each.revision: read_revision(each) for each in own}
        readable = {revision: driver for revision, driver in read.items() if driver is not None}
        return readable | {self.newest: self.driver}

    @cached_property
    def daemonsets(self) -> Sequence[DaemonSetObject]:
        name = self.driver.name
        return tuple(each for each in self.snapshot.daemonsets.values() if each.driver == name)

    @cached_property
    def assignments(self) -> Mapping[str, Assignment]:
        """Assignments by name: those of existing DaemonSets, and those of deleted DaemonSets with
        which nodes are still labelled."""
        served = ((each.assignment, at_of(each)) for each in self.daemonsets)
        existing = {name: at for name, at in served if self.name_of(at) == name}
        key = assigned_label(self.driver.name)
        lost = {
            pool_of(node)
            for node in self.snapshot.nodes.values()
            if (assigned := node.labels.get(key)) is not None and assigned not in existing
        }
        has_images = any(driver.spec.prebuilt.image for driver in self.drivers.values())
        either = (False, True) if has_images else (False,)
        ats = (Assignment(*each) for each in product(lost, self.drivers, either))
        return existing | {self.name_of(at): at for at in ats}

    def name_of(self, at: Assignment) -> str:
        return assignment(self.driver.name, at.pool, at.revision, builds=at.builds)

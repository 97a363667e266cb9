"""The manifests whose build-ids could prove loaded modules to be the wanted ones.

A manifest is enough for that: what is compared is in the kernel already, so no file of a bundle is
read. What was fetched must be trusted as driver.yaml says today. Called by `bringup.observe`;
`plan.loaded_rung` compares.
"""

from __future__ import annotations

from nodeside.contract import LoadedRecord, Rung
from nodeside.driver.bundle import BundleManifest
from nodeside.driver.compatible import of_same_source
from nodeside.driver.rungs import ask_sources
from nodeside.driver.task import Task
from nodeside.driver.trust import distrust


def acceptable_manifests(task: Task, record: LoadedRecord | None) -> tuple[BundleManifest, ...]:
    """Those in the cache: of the wanted bundle, and of a compatible one that we loaded."""
    found = []
    own = task.cache.described(task.tag, task.name)
    if own is not None and own.manifest.key == task.key:
        found.append(own)
    if record is not None and record.source is Rung.COMPATIBLE and record.key != task.key:
        tags = [
            cached.tag
            for cached in task.cache.manifests(task.name)
            if cached.manifest.key == record.key and of_same_source(task, cached.manifest)
        ]
        found += [each for tag in tags if (each := task.cache.described(tag, task.name))]
    return tuple(each.manifest for each in found if not distrust(task, each))


def remote_manifest(task: Task) -> BundleManifest | None:
    """That of the wanted bundle, from a prebuilt source."""
    return ask_sources(task).manifest

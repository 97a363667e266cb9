"""Observes a node: what is in the kernel, what we know of having loaded, and what could prove it.

A loaded module is proven to be the wanted one by its build-id, so manifests are enough, and no file
of a bundle is read. What was fetched must be trusted as driver.yaml says today. `plan.loaded_rung`
compares.
"""

from __future__ import annotations

from nodeside.contract import LoadedModule, LoadedRecord, Rung
from nodeside.driver.bringup.installation import wanted_modules
from nodeside.driver.bundle.bundle import BundleManifest
from nodeside.driver.bundle.trust import trust_mark
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.ladder import plan
from nodeside.driver.ladder.compatible import of_same_source
from nodeside.driver.ladder.rungs import ask_sources
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.run_directory import read_loaded


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
    return tuple(each.manifest for each in found if not task.distrust(each))


def remote_manifest(task: Task) -> BundleManifest | None:
    """That of the wanted bundle, from a prebuilt source."""
    return ask_sources(task).manifest


def observe(task: Task, loader: Loader, *, ask: bool = True) -> plan.Observed:
    """What is in the kernel, what we know of having loaded, and what could prove it right.

    `ask`: prebuilt sources are asked for a proof that the cache does not have.
    """
    record = read_loaded(task.host, task.name, task.boot_id)
    in_kernel = {
        name: state
        for name in task.wanted.names
        if (state := loader.modules.with_parameters(name)) is not None
    }
    for module in record.modules if record else ():
        state = loader.modules.state(module.name)
        if state is not None and state.build_id == module.build_id:
            in_kernel.setdefault(module.name, state)
    manifests = acceptable_manifests(task, record)
    if ask and in_kernel and not manifests and task.sources:
        remote = remote_manifest(task)
        manifests = (remote,) if remote is not None else ()
    proves = record is None or record.trust == trust_mark(task.trust)
    return plan.Observed(in_kernel, record, manifests, record_proves=proves)


def loaded_now(task: Task, known: plan.Observed) -> tuple[tuple[LoadedModule, ...], str]:
    """The modules that must be loaded for this task; why they are not proven to be, or ""."""
    proof, why = plan.loaded_rung(task.wanted, known)
    if proof is not None:
        return wanted_modules(task, proof), ""
    if known.manifests:
        return wanted_modules(task, known.manifests[0]), why
    return tuple(LoadedModule(name, "", {}) for name in task.wanted.names), why

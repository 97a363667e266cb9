"""Observe a node: loaded modules, our record of them, and manifests that could prove them right.

The build-id proves that a loaded module is the desired one. Manifests are therefore enough, and no
file of a bundle is read. A fetched bundle must satisfy the trust in the current driver.yaml.
`plan.prove_loaded` does the comparison.
"""

from __future__ import annotations

from nodeside.driver.bringup.installation import wanted_modules
from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.bundle.trust import trust_mark
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.ladder import plan
from nodeside.driver.ladder.compatible import of_same_source
from nodeside.driver.ladder.rungs import ask_sources
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.loaded_record import LoadedModule, LoadedRecord
from nodeside.driver.node.run_directory import read_loaded
from nodeside.protocol.node_status import Rung


def acceptable_manifests(task: Task, record: LoadedRecord | None) -> tuple[BundleManifest, ...]:
    """Return the cached manifests of the desired bundle and of a compatible one that we loaded."""
    described = []
    own = task.cache.describe(task.tag, task.name)
    if own is not None and own.manifest.key == task.key:
        described.append(own)
    if record is not None and record.source is Rung.COMPATIBLE and record.key != task.key:
        tags = [
            cached.tag
            for cached in task.cache.list_manifests(task.name)
            if cached.manifest.key == record.key and of_same_source(task, cached.manifest)
        ]
        described += [bundle for tag in tags if (bundle := task.cache.describe(tag, task.name))]
    return tuple(bundle.manifest for bundle in described if not task.distrust_reason(bundle))


def remote_manifest(task: Task) -> BundleManifest | None:
    """Return the manifest of the desired bundle from a prebuilt source, or None."""
    return ask_sources(task).manifest


def observe(task: Task, loader: Loader, *, query_sources: bool = True) -> plan.Observed:
    """Return the loaded modules, our record of them, and what could prove them right.

    `query_sources`: whether prebuilt sources are queried for a proof that the cache does not have.
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
    if query_sources and in_kernel and not manifests and task.sources:
        remote = remote_manifest(task)
        manifests = (remote,) if remote is not None else ()
    proves = record is None or record.trust == trust_mark(task.trust)
    return plan.Observed(in_kernel, record, manifests, record_proves=proves)


def loaded_by_nodeside(task: Task, record: LoadedRecord | None, loader: Loader) -> tuple[str, ...]:
    """Return the modules of this driver in the kernel that nodeside loaded, in load order.

    A module of the same name may be the kernel's own, for instance because a build has failed.
    """
    recorded = {module.name: module.build_id for module in record.modules} if record else {}
    cached = {m.build_id for c in task.cache.list_manifests(task.name) for m in c.manifest.modules}
    ours = []
    for name in dict.fromkeys((*recorded, *task.wanted.names)):
        state = loader.modules.state(name)
        if state is None:
            continue
        expected = recorded.get(name)
        comparable = bool(expected and state.build_id)
        is_recorded = expected is not None and (not comparable or expected == state.build_id)
        if is_recorded or (state.build_id and state.build_id in cached):
            ours.append(name)
    return tuple(ours)


def expected_modules(task: Task, observed: plan.Observed) -> tuple[tuple[LoadedModule, ...], str]:
    """Return the modules that this task wants loaded, and why they are not proven to be; or ""."""
    proof, why = plan.prove_loaded(task.wanted, observed)
    if proof is not None:
        return wanted_modules(task, proof), ""
    if observed.manifests:
        return wanted_modules(task, observed.manifests[0]), why
    return tuple(LoadedModule(name, "", {}) for name in task.wanted.names), why

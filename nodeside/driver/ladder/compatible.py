"""The compatible rung: a bundle for another kernel whose imported symbols all match this one.

With CONFIG_MODVERSIONS the kernel compares CRCs of symbols instead of the release in vermagic. This
module makes the same comparison before the load, for bundles in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeside.driver.bundle.bundle import Bundle, read_manifest
from nodeside.driver.bundle.manifest import BundleError, BundleManifest
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.result import await_sidecar
from nodeside.driver.kernel.checks import Refusal, check_before_load
from nodeside.driver.ladder.plan import RungFinding
from nodeside.driver.ladder.task import Task
from nodeside.driver.ladder.usable import usable_finding
from nodeside.driver.module.elf import NotAModule
from nodeside.driver.module.modulefile import ModuleFile, read_modules
from nodeside.driver.module.symvers import (
    KernelSymbol,
    compare_symbols,
    parse_symvers,
    read_kernel_symbols,
)
from nodeside.driver.node.facts import read_facts
from nodeside.text.shortlist import shortlist

_LISTED = 3  # mismatched symbols listed in the verdict


def look_for_compatible(task: Task, listener: Listener | None) -> RungFinding:
    """Find a cached bundle of the same source for another kernel whose symbols all match this one.

    The kernel's symbol list may come from the toolkit. Without a listener, do not wait for it.
    """
    candidates = [
        c for c in task.cache.list_manifests(task.name) if of_same_source(task, c.manifest)
    ]
    if not candidates:
        return RungFinding("the cache holds no bundle of this source for another kernel")
    symbols = _read_symbols(task, listener)
    if symbols is None:
        return RungFinding(
            "neither the node nor a toolkit has the symbol list (Module.symvers) of this kernel"
        )
    symbols = {**symbols, **parse_symvers(task.symbols.text)}
    reasons = []
    for candidate in candidates:
        finding = _compare_bundle(task, candidate.tag, candidate.manifest, symbols)
        if finding.bundle is not None:
            return finding
        reasons.append(f"the one for {candidate.manifest.kernel.release} {finding.why}")
    return RungFinding("; ".join(reasons))


def of_same_source(task: Task, manifest: BundleManifest) -> bool:
    """Return whether a bundle differs from the wanted one only in its kernel."""
    return (
        manifest.source_digest == task.source_digest
        and manifest.settings == task.settings
        and manifest.certificate == task.certificate
        and manifest.kernel.architecture == task.kernel.architecture
        and manifest.kernel != task.kernel
    )


def _read_symbols(task: Task, listener: Listener | None) -> Mapping[str, KernelSymbol] | None:
    """Return this kernel's symbols, or None if there is no symbol list.

    Waits for the sidecar if the list can only come from a toolkit.
    """
    release, shared = task.kernel.release, task.config.shared
    symbols = read_kernel_symbols(task.host, release, shared)
    if symbols is None and shared is not None and listener is not None:
        await_sidecar(shared, task.boot_id, listener.patience, listener.stopping)
        symbols = read_kernel_symbols(task.host, release, shared)
    return symbols


def _compare_bundle(
    task: Task, tag: str, manifest: BundleManifest, symbols: Mapping[str, KernelSymbol]
) -> RungFinding:
    """Return the verified bundle if this kernel would load its modules; else the reason why not."""
    result = _read_bundle(task, tag, manifest.key)
    if isinstance(result, RungFinding):
        return result
    bundle, modules = result
    if refusals := _refusals_besides_symbols(task, modules):
        return RungFinding(f"does not fit: {refusals[0].message}")
    if mismatches := compare_symbols(modules, symbols):
        return RungFinding(f"differs in {shortlist((each.symbol for each in mismatches), _LISTED)}")
    count = sum(len(module.imports) for module in modules)
    why = f"built for {manifest.kernel.release}; all {count} imported symbols have this kernel's "
    finding = usable_finding(task, bundle, f"{why}CRCs")
    return finding if finding.bundle is not None else RungFinding(f"cannot be used: {finding.why}")


def _read_bundle(
    task: Task, tag: str, key: str
) -> tuple[Bundle, Sequence[ModuleFile]] | RungFinding:
    """Return an intact, trusted bundle of the cache with its modules; else the problem."""
    try:
        bundle = task.cache.peek_bundle(tag, key, task.name)
    except BundleError as error:
        return RungFinding(f"is damaged: {error}")
    if bundle is None:
        return RungFinding("was removed from the cache")
    if problem := task.distrust_reason(read_manifest(bundle.directory)):
        return RungFinding(problem)
    try:
        return bundle, read_modules([bundle.module_path(m.name) for m in bundle.manifest.modules])
    except NotAModule as error:
        return RungFinding(f"cannot be read: {error}")


def _refusals_besides_symbols(task: Task, modules: Sequence[ModuleFile]) -> tuple[Refusal, ...]:
    """Return the refusals not caused by symbols: machine, vermagic, MODVERSIONS."""
    refusals = check_before_load(modules, task.driver.spec.modules, read_facts(task.host))
    return tuple(r for r in refusals if r.check in ("machine", "vermagic", "modversions"))

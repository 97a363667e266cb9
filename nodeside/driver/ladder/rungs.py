"""Tries one rung of the ladder: cache, prebuilt sources, other kernels' bundles, a build.

`plan.climb_ladder` decides which rung to try; `try_rung` tries it and describes the result. If it
serves, a verified bundle is then in the node's cache. The steps after a build are in `assemble.py`,
the comparison with another kernel's bundle in `compatible.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from nodeside import log
from nodeside.driver.bundle.bundle import Bundle, read_manifest
from nodeside.driver.bundle.manifest import BundleError
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.request import (
    note_refusal,
    refuse_repetition,
    request_build,
    sole_builder,
    withdraw_request,
)
from nodeside.driver.handoff.result import await_result
from nodeside.driver.handoff.source import drop_sources, provide_source
from nodeside.driver.ladder import plan
from nodeside.driver.ladder.task import Task
from nodeside.driver.ladder.usable import usable_finding
from nodeside.errors import NodesideError
from nodeside.protocol.build_records import BuildRequest
from nodeside.protocol.node_status import Rung
from nodeside.protocol.shared_directory import SharedDir, request_id
from nodeside.system.files import UntrustedFile, publish_bytes

if TYPE_CHECKING:
    from nodeside.driver.store.base import FetchOptions, WantedBundle
    from nodeside.driver.store.sources import ManifestOutcome


def try_rung(task: Task, rung: Rung, listener: Listener) -> plan.RungFinding:
    """Try one rung. The build raises its errors; the other rungs only report why they failed."""
    match rung:
        case Rung.CACHED:
            return look_in_cache(task)
        case Rung.FETCHED:
            return fetch_bundle(task)
        case Rung.COMPATIBLE:
            from nodeside.driver.ladder.compatible import (
                look_for_compatible,  # late: few drivers allow it
            )

            return look_for_compatible(task, listener)
        case Rung.BUILT:
            return build_bundle(task, listener)
        case Rung.LOADED:
            raise AssertionError("the loaded rung is decided from what is in the kernel")
    assert_never(rung)


def look_in_cache(task: Task) -> plan.RungFinding:
    """Look up the wanted bundle in the node's cache, which sets a damaged one aside."""
    return _cached_finding(task, task.cache.look_up_bundle(task.tag, task.key, task.name))


def peek_in_cache(task: Task) -> plan.RungFinding:
    """Look up the wanted bundle like `look_in_cache`, but leave a damaged one where it is."""
    try:
        bundle = task.cache.peek_bundle(task.tag, task.key, task.name)
    except BundleError as problem:
        return plan.RungFinding(f"the bundle {task.tag} is damaged: {problem}")
    return _cached_finding(task, bundle)


def _cached_finding(task: Task, bundle: Bundle | None) -> plan.RungFinding:
    if bundle is None:
        return plan.RungFinding(f"no bundle {task.tag} in {task.cache.root}")
    if problem := task.distrust_reason(read_manifest(bundle.directory)):
        return plan.RungFinding(f"the cache holds {bundle.directory.name}, which {problem}")
    return usable_finding(task, bundle, f"the cache holds {bundle.directory.name}")


def fetch_bundle(task: Task) -> plan.RungFinding:
    """Try the prebuilt sources in order; verify the bundle and adopt it into the cache."""
    from nodeside.driver.store import sources  # late: imports requests

    with task.cache.staging_directory() as staging:
        outcome = sources.fetch_first(
            task.sources,
            _wanted_bundle(task),
            task.trust,
            fetch_options(task),
            staging,
            inspect=_check_readable,
        )
        if outcome.bundle is None:
            return plan.RungFinding(outcome.why)
        finding = usable_finding(task, outcome.bundle, outcome.description)
        if finding.bundle is None:
            return finding
        bundle = task.cache.adopt_bundle(outcome.bundle.directory)
    return plan.RungFinding(outcome.description, bundle)


def _check_readable(bundle: Bundle) -> None:
    """Raise NotAModule if a module of the bundle cannot be read.

    Otherwise the cache would keep a bundle that cannot be loaded.
    """
    from nodeside.driver.module.modulefile import read_modules

    read_modules([bundle.directory / file.file for file in bundle.manifest.modules])


def ask_sources(task: Task) -> ManifestOutcome:
    """Ask the prebuilt sources for the wanted bundle's manifest; return it with their results."""
    from nodeside.driver.store import sources

    wanted = _wanted_bundle(task)
    return sources.find_manifest(task.sources, wanted, task.trust, fetch_options(task))


def fetch_options(task: Task) -> FetchOptions:
    """Return the limits of driver.yaml, with the CA and credentials of the task's Config."""
    from nodeside.driver.store import base

    prebuilt = task.driver.spec.prebuilt
    return base.FetchOptions(
        timeout=float(prebuilt.timeout_seconds),
        size_limit=prebuilt.size_limit_mib << 20,
        ca_file=task.config.ca_file,
        credentials_file=task.config.credentials_file,
    )


def _wanted_bundle(task: Task) -> WantedBundle:
    from nodeside.driver.store import base

    return base.WantedBundle(task.name, task.version, task.kernel, task.key)


def build_bundle(task: Task, listener: Listener) -> plan.RungFinding:
    """Let the sidecar build the modules, then sign them and put the bundle into the cache."""
    shared = task.config.shared
    assert shared is not None  # plan.why_closed has seen to it
    if task.signing is not None:
        from nodeside.driver.module.signing import require_pair

        # Checked before a build of up to an hour, whose modules are of no use without the key.
        require_pair(task.path(task.signing.key), task.path(task.signing.certificate))
    with sole_builder(shared):
        if not listener.repeat_failed:
            refuse_repetition(shared, request_of(task))
        provide_inputs(task, shared)
        if task.variant:
            log.fact("this kernel has a build of its own", variant=task.variant)
        request = request_build(shared, request_of(task))
        from nodeside.driver.ladder.assemble import (
            assemble_bundle,  # late: the sidecar builds meanwhile
        )

        try:
            result = await_result(shared, request, listener)
            bundle = assemble_bundle(task, shared, result)
        except KeyboardInterrupt:  # Ctrl-C. After SIGTERM the next run waits for the same build.
            withdraw_request(shared, request.id)
            raise
        except (BundleError, UntrustedFile) as error:
            # Otherwise every retry would get the same result, or repeat the same build.
            withdraw_request(shared, request.id)
            note_refusal(shared, request, error)
            raise
        withdraw_request(shared, request.id)
        drop_sources(shared, keep={task.source_digest, task.symbols.digest})
    compiler = result.toolchain.compiler if result.toolchain else "an unnamed compiler"
    return plan.RungFinding(f"the toolkit built it with {compiler}", bundle)


def find_earlier_error(task: Task) -> NodesideError | None:
    """Return why an equal build failed for good in this boot, None if none did."""
    try:
        if task.config.shared is not None:
            refuse_repetition(task.config.shared, request_of(task))
    except NodesideError as error:
        return error
    return None


def provide_inputs(task: Task, shared: SharedDir) -> None:
    """Put the inputs of a build into the shared directory: source, other drivers' symbols."""
    provide_source(task.source, shared, task.source_digest, task.not_source)
    if task.symbols.digest:
        publish_bytes(shared.symbols / task.symbols.digest, task.symbols.text.encode())


def request_of(task: Task) -> BuildRequest:
    """Return the build request, with the id of the first attempt."""
    return BuildRequest(
        id=request_id(task.key, 1),
        driver=task.name,
        version=task.version,
        kernel=task.kernel,
        boot_id=task.boot_id,
        source=task.source_digest,
        settings=task.settings,
        timeout=float(task.driver.spec.build.timeout_seconds),
    )

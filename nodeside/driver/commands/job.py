"""The driver's half of a build Job: `order` runs before the toolkit's part, `finish` after it.

Each is `nodeside driver order` or `finish` in a container of its own, and ends when it is done.
`nodeside/protocol/build_job.py` shows all steps. They do what a node does for itself: same key,
same request, same checks, same signing, same bundle. `finish` trusts only two things: the order,
which lies where the vendor's code cannot write, and its own copy of the build output.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nodeside import log
from nodeside.driver.commands.bundles import publish_target
from nodeside.driver.commands.outcome import CommandOutput, as_document, dry_run_outcome
from nodeside.driver.handoff.request import (
    ToolkitBuildFailed,
    read_answer,
    request_build,
    sole_builder,
)
from nodeside.driver.ladder import rungs
from nodeside.driver.ladder.task import Config, Task, read_driver, resolve_task
from nodeside.driver.module.signing import HASHES, BadSignature
from nodeside.errors import NodesideError, UsageError
from nodeside.protocol.build_job import (
    BuildOrder,
    BuildOutcome,
    BuildVerdict,
    choose_kernel,
    termination_message,
)
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import disk_errors
from nodeside.system.host import Kernel
from nodeside.values import frozen


class StepMissing(NodesideError):
    """The previous step left no result, or none for what driver.yaml says now."""

    reason = "StepMissing"


@frozen
class OrderOptions:
    """What an order asks for. The kernel is selected by release, by variant, or as the only one.

    `publish`: whether to publish, to `to`; "" means the store in driver.yaml. `rebuild`: build
    even if the store has the bundle, and replace that one.
    """

    release: str = ""
    variant: str | None = None
    publish: bool = True
    to: str = ""
    rebuild: bool = False


def order_build(config: Config, options: OrderOptions, *, dry_run: bool = False) -> CommandOutput:
    """Write source and build request to the shared directory.

    Without `options.rebuild`, only if the store lacks the bundle.
    """
    read_driver(config)  # first: report mistakes in it before anything else
    shared = _require_shared(config)
    boot_id = config.host.boot_id
    kernels = shared.read_kernels(boot_id)
    if kernels is None:
        raise StepMissing(
            f"{shared.root} has no list of the kernels that the toolkit image has headers for",
            hint="run first, in the toolkit image: toolkit.pyz kernels --shared DIR",
        )
    chosen = choose_kernel(kernels, release=options.release, variant=options.variant)
    kernel = Kernel(chosen.release, chosen.version, config.host.kernel.architecture)
    task = resolve_task(config, kernel)
    to = options.to or _find_own_store(task) if options.publish else ""
    ordered = BuildOrder(
        *(boot_id, kernel, task.key, task.tag, to),
        digest=_find_digest_in_store(task, to) if to and not options.rebuild else "",
        signature_hash=chosen.signature_hash,
        rebuild=options.rebuild,
    )
    if dry_run:
        return dry_run_outcome(
            task, "do nothing" if ordered.digest else f"ask the toolkit for {task.tag}"
        )
    if not ordered.digest:
        with sole_builder(shared):
            rungs.provide_inputs(task, shared)
            ordered = replace(ordered, request=request_build(shared, rungs.request_of(task)).id)
    shared.publish_order(ordered)
    rows = [("kernel", kernel.release), ("bundle", ordered.tag), ("store", ordered.to or "none")]
    rows.append(("request", ordered.request or f"none: the store has it ({ordered.digest})"))
    return CommandOutput(as_document(ordered), rows)


def finish_build(config: Config) -> tuple[CommandOutput, BuildOutcome]:
    """Check, sign and publish the toolkit's result. Raises ToolkitBuildFailed and others."""
    task, ordered = _read_order(config)
    outcome = (
        _publish_result(task, _require_shared(config), ordered)
        if ordered.request
        else _published_outcome(ordered)
    )
    rows = [("bundle", outcome.tag), ("verdict", outcome.verdict.value), ("how", outcome.message)]
    rows.append(("digest", outcome.digest))
    return CommandOutput(as_document(outcome), rows), outcome


def preview_finish(config: Config) -> CommandOutput:
    """Return what `finish_build` would do, in words."""
    task, ordered = _read_order(config)
    if not ordered.request:
        return dry_run_outcome(task, "do nothing: the store has it")
    replacing = ", replacing another one of that tag" if ordered.rebuild else ""
    step = f"publish to {ordered.to}{replacing}" if ordered.to else "publish nothing"
    return dry_run_outcome(task, "check, sign", step)


def _read_order(config: Config) -> tuple[Task, BuildOrder]:
    """Return the task and its order. Raises StepMissing if the task changed since the order."""
    read_driver(config)
    shared = _require_shared(config)
    ordered = shared.read_order(config.host.boot_id)
    if ordered is None:
        raise StepMissing(
            f"nothing was ordered in {shared.root}", hint="nodeside driver order --shared DIR"
        )
    if ordered.signature_hash in HASHES:
        config = replace(config, signature_hash=ordered.signature_hash)
    task = resolve_task(config, ordered.kernel)
    if task.key != ordered.key:
        raise StepMissing(
            f"{ordered.tag} was ordered, but driver.yaml and its source now give {task.tag}",
            hint="order again: nodeside driver order --shared DIR",
        )
    return task, ordered


@contextmanager
def record_outcome(path: Path | None, kernel: str = "") -> Iterator[list[BuildOutcome]]:
    """Write the outcome that the block appends, or the failure that it raises, to `path`."""
    started, outcomes = time.monotonic(), list[BuildOutcome]()
    try:
        yield outcomes
    except NodesideError as error:
        outcomes.append(_failure_outcome(error, kernel))
        raise
    finally:
        if path is not None and outcomes:
            seconds = round(time.monotonic() - started, 2)
            with disk_errors(path):  # a termination message exists already; no rename over it
                path.write_text(termination_message(replace(outcomes[-1], seconds=seconds)))


def ordered_kernel(config: Config) -> str:
    """Return the ordered kernel release, for a failure report; "" if it is not known."""
    try:
        ordered = config.shared.read_order(config.host.boot_id) if config.shared else None
    except NodesideError:
        return ""
    return ordered.kernel.release if ordered else ""


def _publish_result(task: Task, shared: SharedDir, ordered: BuildOrder) -> BuildOutcome:
    from nodeside.driver.ladder.assemble import assemble_bundle
    from nodeside.driver.store.publish import publish_bundle

    result = read_answer(shared, ordered.request, ordered.boot_id)
    if result is None:
        raise StepMissing(
            f"build {ordered.request} has no answer",
            hint="run first, in the toolkit image: toolkit.pyz answer --shared DIR",
        )
    if not result.succeeded:
        raise ToolkitBuildFailed(result)
    bundle = assemble_bundle(task, shared, result)
    verdict, text = BuildVerdict.BUILT, f"built into {bundle.directory}"
    if ordered.to:
        source, fetching = publish_target(task, ordered.to), rungs.fetch_options(task)
        published = publish_bundle(bundle, source, fetching, overwrite=ordered.rebuild)
        verdict, text = BuildVerdict.PUBLISHED, str(published)
        if published.already:
            verdict = BuildVerdict.PRESENT
    return BuildOutcome(verdict, ordered.kernel.release, ordered.tag, bundle.digest, message=text)


def _published_outcome(ordered: BuildOrder) -> BuildOutcome:
    text = f"{ordered.to}:{ordered.tag} was already published"
    kernel = ordered.kernel.release
    return BuildOutcome(BuildVerdict.PRESENT, kernel, ordered.tag, ordered.digest, message=text)


def _failure_outcome(error: NodesideError, kernel: str) -> BuildOutcome:
    first, refused = "", False
    if isinstance(error, ToolkitBuildFailed):
        kind = error.result.failure
        first, refused = error.first_error, kind is not None and kind.of_the_driver
    return BuildOutcome(
        BuildVerdict.REFUSED if refused else BuildVerdict.BROKEN,
        kernel,
        reason=error.reason,
        message=str(error),
        hint=error.hint,
        first_error=first,
    )


def _find_own_store(task: Task) -> str:
    """Return the store to which bundles are published according to driver.yaml."""
    source = publish_target(task, None)
    if source.oci:
        return f"{'oci+http' if source.insecure else 'oci'}:{source.oci}"
    return source.directory or source.http


def _find_digest_in_store(task: Task, to: str) -> str:
    """Return the digest of the wanted bundle in the store.

    "" if it is not there or not signed as driver.yaml requires. Raises FetchError, BundleError.
    """
    from nodeside.driver.store.base import WantedBundle
    from nodeside.driver.store.sources import make_acceptance, open_source

    wanted = WantedBundle(task.name, task.version, task.kernel, task.key)
    with open_source(publish_target(task, to), rungs.fetch_options(task)) as store:
        described = store.describe(task.tag)
    if described is None:
        return ""
    try:
        make_acceptance(wanted, task.trust)(described)
    except BadSignature as problem:  # no node would accept it; `publish` decides what is replaced
        log.warning(str(problem), store=to, tag=task.tag)
        return ""
    return described.digest


def _require_shared(config: Config) -> SharedDir:
    if config.shared is None:
        raise UsageError(
            "no shared directory to build in",
            hint="use --shared DIR, a directory that `nodeside driver provide` has filled",
        )
    return config.shared

"""The verbs of `nodeside driver` that end with a bundle: fetch, build, publish.

Each verb is one function, made of the same parts as the container's own run, and returns what is
printed. The verbs touch neither kernel nor cluster, so nothing that does is imported: a build of
one second should not wait for imports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.commands.console import SIDECAR_TIMEOUT, make_listener
from nodeside.driver.commands.outcome import (
    CommandOutput,
    as_document,
    dry_run_outcome,
    identity_fields,
)
from nodeside.driver.ladder import rungs
from nodeside.driver.ladder.plan import RungFinding
from nodeside.driver.ladder.task import OWN_BUNDLES, Config, Task
from nodeside.errors import ExitCode, NodesideError, SpecError, UsageError
from nodeside.spec.model import PrebuiltSource

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SPELLINGS = "use --to oci:REPOSITORY, oci+http:REPOSITORY (plain HTTP) or a directory"


class NothingFetched(NodesideError):
    """No source had the bundle, or none delivered it."""

    exit_code = ExitCode.FETCH
    reason = "NothingFetched"
    retryable = True


class NothingCached(NodesideError):
    """The requested bundle is not in the cache."""

    exit_code = ExitCode.FETCH
    reason = "NothingCached"


def fetch(task: Task) -> CommandOutput:
    """Fetch the bundle into the cache, unless it is there already."""
    if not task.sources:
        raise SpecError(
            "driver.yaml names no prebuilt sources", hint="add spec.prebuilt.sources, or build"
        )
    cached = rungs.look_in_cache(task)
    finding = cached if cached.bundle is not None else rungs.fetch_bundle(task)
    if finding.bundle is None:
        raise NothingFetched(
            f"no source delivered {task.tag}: {finding.why}",
            hint=f"build it: nodeside driver build -f {task.config.driver_file}",
        )
    return _bundle_outcome(task, finding.bundle, finding)


def would_fetch(task: Task) -> CommandOutput:
    """Return whether a source has the bundle."""
    if rungs.peek_in_cache(task).bundle is not None:
        return dry_run_outcome(task, "fetch nothing: the cache has it")
    if not task.sources:
        return dry_run_outcome(task, "fail: driver.yaml names no prebuilt sources")
    answer = rungs.ask_sources(task)
    if answer.manifest is None:
        return dry_run_outcome(task, f"fail: {'; '.join(str(line) for line in answer.results)}")
    return dry_run_outcome(task, f"fetch it: {answer.results[-1]}")


def build(task: Task, *, local: bool = False, again: bool = False) -> CommandOutput:
    """Build the bundle into the cache, unless it is there. `local`: start a sidecar here."""
    finding = RungFinding("") if again else rungs.look_in_cache(task)
    if finding.bundle is None:
        with _toolkit_config(task.config, local=local) as config:
            finding = rungs.build_bundle(
                replace(task, config=config), make_listener(SIDECAR_TIMEOUT)
            )
    assert finding.bundle is not None  # a build raises or returns a bundle
    return _bundle_outcome(task, finding.bundle, finding)


def would_build(task: Task, *, local: bool = False, again: bool = False) -> CommandOutput:
    """Return whether and where the bundle would be built."""
    if not again and rungs.peek_in_cache(task).bundle is not None:
        return dry_run_outcome(task, "build nothing: the cache has it")
    if not local and task.config.shared is None:
        return dry_run_outcome(task, "fail: no toolkit to build with (--shared or --local)")
    where = "with this machine's compiler" if local else "in the toolkit sidecar"
    return dry_run_outcome(
        task, f"build {', '.join(task.wanted.names)} from {task.source}, {where}"
    )


@contextmanager
def _toolkit_config(config: Config, *, local: bool) -> Iterator[Config]:
    """Yield the config with the shared directory of a sidecar. Raises UsageError."""
    if local:
        from nodeside.driver.handoff.local_sidecar import local_sidecar

        with local_sidecar() as shared:
            yield replace(config, shared=shared)
    elif config.shared is None:
        raise UsageError(
            "no toolkit to build with",
            hint="use --shared DIR for a toolkit sidecar, or --local for this machine's compiler",
        )
    elif not config.shared.root.is_dir():
        raise UsageError(
            f"{config.shared.root} does not exist: expected the directory of a toolkit sidecar",
            hint="check the path, or build with this machine's compiler: --local",
        )
    else:
        yield config


def publish(task: Task, to: str | None, *, overwrite: bool) -> CommandOutput:
    """Publish the cached bundle for this kernel."""
    from nodeside.driver.store.publish import publish_bundle

    source = publish_target(task, to)
    bundle = require_cached(task, rungs.look_in_cache(task))
    published = publish_bundle(bundle, source, rungs.fetch_options(task), overwrite=overwrite)
    return CommandOutput(as_document(published), [("published", str(published))])


def would_publish(task: Task, to: str | None, *, overwrite: bool) -> CommandOutput:
    """Return where the bundle would be published."""
    source = publish_target(task, to)
    bundle = require_cached(task, rungs.peek_in_cache(task))
    where = source.oci or source.directory or source.http
    replacing = ", replacing another one of that tag" if overwrite else ""
    return dry_run_outcome(task, f"publish {task.tag} ({bundle.digest}) to {where}{replacing}")


def require_cached(task: Task, finding: RungFinding) -> Bundle:
    """Return the bundle that was found in the cache. Raises NothingCached."""
    if finding.bundle is None:
        raise NothingCached(
            f"nothing to use: {finding.why}",
            hint=f"nodeside driver build -f {task.config.driver_file}",
        )
    return finding.bundle


def publish_target(task: Task, to: str | None) -> PrebuiltSource:
    """Return where to publish: `to` from the command line, else a source of driver.yaml.

    That is the source with `publish`, else the first one. Raises UsageError if there is none.
    """
    if to is None:
        sources = [source for source in task.sources if source != OWN_BUNDLES]
        if not sources:
            raise UsageError(
                "driver.yaml names no prebuilt sources to publish to",
                hint="name a target: --to oci:registry.example.com/team/driver, or a directory",
            )
        return next((source for source in sources if source.publish), sources[0])
    return parse_target(to)


def parse_target(to: str) -> PrebuiltSource:
    """Parse `--to`. Raises UsageError if it names neither a registry nor a directory."""
    kind, colon, rest = to.partition(":")
    if colon and kind in ("oci", "docker"):  # as skopeo and others write it: oci://, docker://
        return PrebuiltSource(oci=rest.removeprefix("//"))
    if colon and kind == "oci+http":
        return PrebuiltSource(oci=rest.removeprefix("//"), insecure=True)
    if colon and kind in ("http", "https"):
        return PrebuiltSource(http=to)
    host, slash, path = to.partition("/")
    if _SCHEME.match(to):
        raise UsageError(f"cannot publish to {to!r}: {kind}:// is not supported", hint=_SPELLINGS)
    if slash and path and _looks_like_host(host) and not Path(host).is_dir():
        raise UsageError(
            f"{to!r} looks like a repository of a registry, but would become a directory",
            hint=f"--to oci:{to} for the registry (oci+http: for plain HTTP), --to ./{to} for a "
            "directory",
        )
    return PrebuiltSource(directory=to)


def _looks_like_host(name: str) -> bool:
    """Return whether docker would take a name for a registry's host."""
    return name == "localhost" or ":" in name or "." in name.strip(".")


def _bundle_outcome(task: Task, bundle: Bundle, finding: RungFinding) -> CommandOutput:
    manifest = bundle.manifest
    modules = [
        {"name": m.name, "buildId": m.build_id, "sha256": m.sha256, "size": m.size}
        for m in manifest.modules
    ]
    document = {
        **identity_fields(task),
        "digest": bundle.digest,
        "path": str(bundle.directory),
        "how": finding.why,
        "modules": modules,
        "toolchain": as_document(manifest.toolchain) if manifest.toolchain else None,
    }
    rows = [
        ("bundle", task.tag),
        ("how", finding.why),
        ("path", str(bundle.directory)),
        ("digest", bundle.digest),
    ]
    rows += [
        ("module", f"{m.name}  {m.size} bytes, build-id {m.build_id}") for m in manifest.modules
    ]
    return CommandOutput(document, rows)

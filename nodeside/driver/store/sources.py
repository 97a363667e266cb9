"""Tries the prebuilt sources of a driver.yaml in order: the entry point to every kind of store.

`fetch_first` records the result of each source, for the table that explains the ladder. Data from a
source is hostile until `archive.unpack_bundle` has unpacked it, it has proved to be the wanted
bundle, and it satisfies the trust that driver.yaml requires (`trust.py`). The stores are imported
late, since `requests` takes 15 MiB, and most starts of a driver need no network.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from nodeside import log
from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.bundle.manifest import BundleError, BundleManifest, StoredManifest
from nodeside.driver.bundle.trust import check_trust
from nodeside.driver.store.base import (
    Accept,
    Fetched,
    FetchError,
    FetchOptions,
    Store,
    WantedBundle,
)
from nodeside.errors import Bug, NodesideError, NoSpace, SpecError, SystemRefused
from nodeside.spec.model import PrebuiltSource, Trust
from nodeside.values import frozen

_WORDS_LIMIT = 1000  # characters of a message; some of its text is from the store


def open_source(source: PrebuiltSource, options: FetchOptions) -> Store:
    """Return the store for a source of driver.yaml. Raises SpecError."""
    named = [kind for kind in ("oci", "http", "directory") if getattr(source, kind)]
    if len(named) != 1:
        raise SpecError(
            f"a prebuilt source needs exactly one of oci, http, directory; "
            f"got {', '.join(named) or 'none'}"
        )
    if source.oci:
        from nodeside.driver.store.oci import OciStore

        return OciStore(source.oci, options, insecure=source.insecure)
    if source.http:
        from nodeside.driver.store.http_directory import HttpStore

        return HttpStore(source.http, options)
    from nodeside.driver.store.directory import DirectoryStore

    return DirectoryStore(Path(source.directory), options)


class SourceAnswer(Enum):
    """The kind of result from one source."""

    SERVED = "served"
    NOT_THERE = "not-there"
    FAILED = "failed"
    REFUSED = "refused"  # the source delivered an unacceptable bundle


@frozen
class SourceResult:
    """The result from one source, with a message for the table."""

    where: str
    answer: SourceAnswer
    message: str
    retryable: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@frozen
class FetchOutcome:
    """The result of a fetch. `description` tells where the bundle is from and why it is trusted."""

    bundle: Bundle | None
    description: str
    results: tuple[SourceResult, ...]

    @property
    def retryable(self) -> bool:
        """Return whether a later retry may succeed although nobody changes anything."""
        return any(result.retryable for result in self.results)

    @property
    def why(self) -> str:
        """Return why no source served the bundle, in one line."""
        return "; ".join(str(result) for result in self.results) or "no sources"


@frozen
class ManifestOutcome:
    """The manifest of the wanted bundle (None if no source has it), and each source's result."""

    manifest: BundleManifest | None
    results: tuple[SourceResult, ...]


def fetch_first(
    sources: Sequence[PrebuiltSource],
    wanted: WantedBundle,
    trust: Trust,
    options: FetchOptions,
    into: Path,
    *,
    inspect: Callable[[Bundle], object] = lambda _: None,
) -> FetchOutcome:
    """Fetch the wanted bundle from the first source that has an acceptable one.

    The bundle is stored at `into`/bundle and verified; `into` is a staging directory of the cache.
    A source that fails, delivers an unacceptable bundle or meets a bug of nodeside is logged and
    skipped. `inspect` may raise to refuse a verified bundle. Raises NoSpace and SystemRefused,
    since another source would not help.
    """
    results: list[SourceResult] = []
    target = into / "bundle"
    for source in sources:
        where = _source_name(source)
        try:
            with open_source(source, options) as store:
                where = store.where
                answer = store.fetch(wanted.tag, target, make_acceptance(wanted, trust))
                if isinstance(answer, Fetched):
                    inspect(answer.bundle)
                    _verify_modules(answer.bundle, trust)
                    why = _trust_in_words(trust, confidential=store.confidential)
                    message = f"served {wanted.tag}, {why}"
                    results.append(SourceResult(where, SourceAnswer.SERVED, message))
                    origin = f"{answer.description}, {why}"
                    return FetchOutcome(answer.bundle, origin, tuple(results))
            results.append(SourceResult(where, SourceAnswer.NOT_THERE, answer.why))
        except (NoSpace, SystemRefused):
            shutil.rmtree(target, ignore_errors=True)
            raise
        except Exception as exc:
            shutil.rmtree(target, ignore_errors=True)
            results.append(_failed_result(where, exc))
    return FetchOutcome(None, "", tuple(results))


def find_manifest(
    sources: Sequence[PrebuiltSource], wanted: WantedBundle, trust: Trust, options: FetchOptions
) -> ManifestOutcome:
    """Fetch the wanted bundle's manifest, without modules, from the first source that has it."""
    results: list[SourceResult] = []
    for source in sources:
        where = _source_name(source)
        try:
            with open_source(source, options) as store:
                where = store.where
                described = store.describe(wanted.tag)
                if described is None:
                    results.append(
                        SourceResult(where, SourceAnswer.NOT_THERE, f"has no {wanted.tag}")
                    )
                    continue
            make_acceptance(wanted, trust)(described)
            results.append(SourceResult(where, SourceAnswer.SERVED, f"has {wanted.tag}"))
            return ManifestOutcome(described.manifest, tuple(results))
        except Exception as exc:
            results.append(_failed_result(where, exc))
    return ManifestOutcome(None, tuple(results))


def make_acceptance(wanted: WantedBundle, trust: Trust) -> Accept:
    """Return the check that a manifest has to pass, before any module is fetched."""

    def accept(described: StoredManifest) -> None:
        check_trust(described, trust)
        manifest = described.manifest
        for what, actual, expected in (
            ("driver", manifest.driver, wanted.driver),
            ("kernel", manifest.kernel.release, wanted.kernel.release),
            ("kernel build", manifest.kernel.version, wanted.kernel.version),
            ("architecture", manifest.kernel.architecture, wanted.kernel.architecture),
            ("key", manifest.key, wanted.key),
        ):
            if actual != expected:
                raise BundleError(f"the bundle is for {what} {actual}, expected {expected}")

    return accept


def _verify_modules(bundle: Bundle, trust: Trust) -> None:
    """Check the signatures of the modules if a certificate is given.

    Raises the errors of `signing.verify_module`.
    """
    if trust.certificate:
        from nodeside.driver.module.signing import verify_module

        for module in bundle.manifest.modules:
            verify_module(bundle.directory / module.file, Path(trust.certificate))


def _trust_in_words(trust: Trust, *, confidential: bool) -> str:
    """Return why a verified bundle is trusted; say so if nothing proves its origin."""
    reasons = []
    if trust.digests:
        reasons.append("its digest is pinned")
    if trust.certificate:
        reasons.append(f"manifest and modules are signed by the key of {trust.certificate}")
    if reasons:
        return " and ".join(reasons)
    if confidential:
        return "trusted because of where it came from (no digest, no certificate)"
    log.warning("prebuilt modules came over plain HTTP and nothing proves their origin")
    return "not authenticated: plain HTTP, no digest, no certificate"


def _failed_result(where: str, problem: Exception) -> SourceResult:
    exc = problem if isinstance(problem, NodesideError) else Bug(problem)
    if exc is not problem:
        log.traceback(problem)
    answer = SourceAnswer.FAILED if isinstance(exc, FetchError) else SourceAnswer.REFUSED
    message = str(exc)
    if len(message) > _WORDS_LIMIT:
        message = f"{message[:_WORDS_LIMIT]}…"
    log.warning("cannot use a prebuilt source", source=where, why=message, hint=exc.hint)
    return SourceResult(where, answer, message, exc.retryable)


def _source_name(source: PrebuiltSource) -> str:
    from nodeside.http.failures import safe_url

    http = safe_url(source.http) if source.http else ""
    return source.oci or http or source.directory or "an unnamed source"

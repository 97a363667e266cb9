"""Asks the prebuilt sources of a driver.yaml in order: the door to every kind of store.

`fetch_first` keeps what each source said, for the table that explains the ladder. What a source
delivers is hostile until `archive.unpack` has unpacked it, it is the bundle that was asked for, and
it satisfies the trust that driver.yaml asks for (`trust.py`). The kinds of stores are imported
late: `requests` costs 15 MiB, and most starts of a driver need no network.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nodeside import log
from nodeside.driver.bundle.bundle import Bundle, BundleManifest, Described
from nodeside.driver.bundle.manifest import BundleError
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

_WORDS_LIMIT = 1000  # characters of what one source said: some of them are the store's


def open_source(source: PrebuiltSource, options: FetchOptions) -> Store:
    """The store that a source of driver.yaml names. Raises SpecError."""
    named = [kind for kind in ("oci", "http", "directory") if getattr(source, kind)]
    if len(named) != 1:
        raise SpecError(
            f"a prebuilt source needs exactly one of oci, http, directory; got {named or 'none'}"
        )
    if source.oci:
        from nodeside.driver.store.oci import OciStore

        return OciStore(source.oci, options, insecure=source.insecure)
    if source.http:
        from nodeside.driver.store.http_directory import HttpStore

        return HttpStore(source.http, options)
    from nodeside.driver.store.directory import DirectoryStore

    return DirectoryStore(Path(source.directory), options)


class Answer(Enum):
    """What came of asking one source."""

    SERVED = "served"
    NOT_THERE = "not-there"
    FAILED = "failed"
    REFUSED = "refused"  # it delivered something that is not acceptable


@dataclass(frozen=True)
class SourceSaid:
    """What one source said, in words, for the table."""

    where: str
    answer: Answer
    message: str
    retryable: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True)
class FetchOutcome:
    """What came of asking all sources. `description` says where from, and why it is trusted."""

    bundle: Bundle | None
    description: str
    said: tuple[SourceSaid, ...]

    @property
    def retryable(self) -> bool:
        """Whether asking again later may help without anybody changing anything."""
        return any(said.retryable for said in self.said)

    @property
    def why(self) -> str:
        """Why nothing was served, all sources in one line."""
        return "; ".join(str(said) for said in self.said) or "no sources"


@dataclass(frozen=True)
class ManifestOutcome:
    """The manifest of the wanted bundle, if a source has it, and what each source said."""

    manifest: BundleManifest | None
    said: tuple[SourceSaid, ...]


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

    It appears at `into`/bundle, verified; `into` is a staging directory of the cache. A source that
    fails or delivers something unacceptable is said and passed over, and so is one that brings a
    bug of ours to light. `inspect` may refuse a
    verified bundle by raising. Raises NoSpace and SystemRefused, which no other source would cure.
    """
    said: list[SourceSaid] = []
    target = into / "bundle"
    for source in sources:
        where = _where(source)
        try:
            with open_source(source, options) as store:
                where = store.where
                answer = store.fetch(wanted.tag, target, acceptance(wanted, trust))
                if isinstance(answer, Fetched):
                    inspect(answer.bundle)
                    how = _trusted(answer.bundle, trust, confidential=store.confidential)
                    said.append(SourceSaid(where, Answer.SERVED, f"served {wanted.tag}, {how}"))
                    return FetchOutcome(answer.bundle, f"{answer.description}, {how}", tuple(said))
            said.append(SourceSaid(where, Answer.NOT_THERE, answer.why))
        except (NoSpace, SystemRefused):
            shutil.rmtree(target, ignore_errors=True)
            raise
        except Exception as exc:
            shutil.rmtree(target, ignore_errors=True)
            said.append(_failed(where, exc))
    return FetchOutcome(None, "", tuple(said))


def find_manifest(
    sources: Sequence[PrebuiltSource], wanted: WantedBundle, trust: Trust, options: FetchOptions
) -> ManifestOutcome:
    """The manifest of the wanted bundle from the first source that has it; no modules."""
    said: list[SourceSaid] = []
    for source in sources:
        where = _where(source)
        try:
            with open_source(source, options) as store:
                where = store.where
                described = store.describe(wanted.tag)
                if described is None:
                    said.append(SourceSaid(where, Answer.NOT_THERE, f"has no {wanted.tag}"))
                    continue
            acceptance(wanted, trust)(described)
            said.append(SourceSaid(where, Answer.SERVED, f"has {wanted.tag}"))
            return ManifestOutcome(described.manifest, tuple(said))
        except Exception as exc:
            said.append(_failed(where, exc))
    return ManifestOutcome(None, tuple(said))


def acceptance(wanted: WantedBundle, trust: Trust) -> Accept:
    """What must be true of a bundle's manifest, before its modules are even fetched."""

    def accept(described: Described) -> None:
        check_trust(described, trust)
        manifest = described.manifest
        for what, is_, should in (
            ("driver", manifest.driver, wanted.driver),
            ("kernel", manifest.kernel.release, wanted.kernel.release),
            ("kernel build", manifest.kernel.version, wanted.kernel.version),
            ("architecture", manifest.kernel.architecture, wanted.kernel.architecture),
            ("key", manifest.key, wanted.key),
        ):
            if is_ != should:
                raise BundleError(f"the bundle is for {what} {is_}, asked for {should}")

    return accept


def _trusted(bundle: Bundle, trust: Trust, *, confidential: bool) -> str:
    """Why the bundle is trusted, in words. Raises what `signing.verify` raises."""
    reasons = []
    if trust.digests:
        reasons.append("its digest is pinned")
    if trust.certificate:
        from nodeside.driver.module.signing import verify

        for module in bundle.manifest.modules:
            verify(bundle.directory / module.file, Path(trust.certificate))
        reasons.append(f"manifest and modules are signed by the key of {trust.certificate}")
    if reasons:
        return " and ".join(reasons)
    if confidential:
        return "trusted because of where it came from (no digest, no certificate)"
    log.warning("prebuilt modules came over plain HTTP and nothing proves their origin")
    return "not authenticated: plain HTTP, no digest, no certificate"


def _failed(where: str, problem: Exception) -> SourceSaid:
    exc = problem if isinstance(problem, NodesideError) else Bug(problem)
    if exc is not problem:
        log.traceback(problem)
    answer = Answer.FAILED if isinstance(exc, FetchError) else Answer.REFUSED
    words = str(exc)
    if len(words) > _WORDS_LIMIT:
        words = f"{words[:_WORDS_LIMIT]}…"
    log.warning("a prebuilt source did not serve", source=where, problem=words, hint=exc.hint)
    return SourceSaid(where, answer, words, exc.retryable)


def _where(source: PrebuiltSource) -> str:
    from nodeside.driver.http.failures import shown

    http = shown(source.http) if source.http else ""
    return source.oci or http or source.directory or "a source without a name"

"""Where prebuilt bundles may be found: the one interface to OCI registries, HTTP and directories.

`fetch_first` asks the sources of a driver.yaml in order and keeps what each of them said, for the
table that explains the ladder. What a source delivers is hostile until it has been unpacked by
`archive.unpack`, is the bundle that was asked for, and satisfies the trust that driver.yaml asks
for (`trust.py`). Called by the fetch rung and by `publish.py`. The kinds of stores are imported
late: `requests` costs 15 MiB, and most starts of a driver need no network.
"""

from __future__ import annotations

import re
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nodeside import log
from nodeside.contract import store_tag
from nodeside.driver.bundle import SIGNATURE, Bundle, BundleManifest, Described
from nodeside.driver.manifest import BundleError, same_modules
from nodeside.driver.trust import check_trust
from nodeside.errors import Bug, ExitCode, NodesideError, NoSpace, SpecError, SystemRefused
from nodeside.host import Kernel
from nodeside.records import TEMPORARY_PREFIX
from nodeside.spec.model import PrebuiltSource, Trust

_WORDS_LIMIT = 1000  # characters of what one source said: some of them are the store's
_CHECKSUM = re.compile(r"^([0-9a-fA-F]{64})\b")


class FetchError(NodesideError):
    """A source could not deliver; not that it has no such bundle. `reason` says of what kind.

    `after` is how many seconds the server asked to wait before the next try, if it did.
    """

    exit_code = ExitCode.FETCH
    reason = "FetchFailed"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "FetchFailed",
        hint: str = "",
        retryable: bool = False,
        after: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, retryable=retryable)
        self.reason = reason
        self.after = after


@dataclass(frozen=True)
class FetchOptions:
    """How to talk to a store. Times are in seconds, sizes in bytes.

    `timeout` is the deadline of one fetch or publish as a whole, `stall_timeout` how long a server
    may send nothing, `backoff` the first pause between two attempts. With `ca_file`, only
    certificates signed by it are trusted. `credentials_file` is a docker config.json. Proxies come
    from the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).
    """

    timeout: float = 300.0
    size_limit: int = 1 << 30
    ca_file: Path | None = None
    credentials_file: Path | None = None
    connect_timeout: float = 10.0
    stall_timeout: float = 30.0
    backoff: float = 0.5


@dataclass(frozen=True)
class WantedBundle:
    """The bundle that is asked for; another one is refused, whatever its tag says."""

    driver: str
    version: str
    kernel: Kernel
    key: str

    @property
    def tag(self) -> str:
        return store_tag(self.version, self.kernel, self.key)


@dataclass(frozen=True)
class Fetched:
    """A bundle that was fetched and is whole."""

    bundle: Bundle
    description: str


@dataclass(frozen=True)
class NotThere:
    """The source answered, and has no such bundle."""

    why: str


@dataclass(frozen=True)
class Published:
    """A bundle is in a store under `tag`; `already` if it was before."""

    where: str
    tag: str
    digest: str
    already: bool

    def __str__(self) -> str:
        done = "is there already" if self.already else "published"
        return f"{self.where}:{self.tag} {done} ({self.digest})"


Accept = Callable[[Described], None]
"""Raises BundleError or SigningError for a manifest that is not acceptable."""


class Store(AbstractContextManager["Store"]):
    """One source. Use as a context manager: connections are closed at the end."""

    where: str  # for people: oci:registry.example.com/team/edu
    confidential: bool  # whether the transport proves which server answered

    def manifest(self, tag: str) -> BundleManifest | None:
        """The manifest of the bundle with this tag, without its modules."""
        described = self.describe(tag)
        return described.manifest if described else None

    @abstractmethod
    def describe(self, tag: str) -> Described | None:
        """The manifest of the bundle with this tag, and its signature, or None. Raises
        FetchError."""

    @abstractmethod
    def fetch(self, tag: str, to: Path, accept: Accept) -> Fetched | NotThere:
        """Make the bundle with this tag appear at `to`, whole or not at all.

        Temporary files go beside `to`. `accept` is called as early as the store can. Raises
        FetchError, BundleError, NoSpace, SystemRefused.
        """

    @abstractmethod
    def publish(self, bundle: Bundle, tag: str, *, overwrite: bool = False) -> Published:
        """Put a bundle there. Raises FetchError; BundleError if another one has the tag."""


def open_source(source: PrebuiltSource, options: FetchOptions) -> Store:
    """The store that a source of driver.yaml names. Raises SpecError."""
    named = [kind for kind in ("oci", "http", "directory") if getattr(source, kind)]
    if len(named) != 1:
        raise SpecError(
            f"a prebuilt source needs exactly one of oci, http, directory; got {named or 'none'}"
        )
    if source.oci:
        from nodeside.driver.oci import OciStore

        return OciStore(source.oci, options, insecure=source.insecure)
    if source.http:
        from nodeside.driver.http_store import HttpStore

        return HttpStore(source.http, options)
    from nodeside.driver.directory_store import DirectoryStore

    return DirectoryStore(Path(source.directory), options)


def already_there(there: Described, bundle: Bundle, where: str, tag: str) -> Published | None:
    """Success if what is there holds the same files; BundleError if it is another bundle.

    None: the same files without a signature, which this bundle has, so that it takes their place.
    """
    if there.digest == bundle.digest or same_modules(there.manifest, bundle.manifest):
        unsigned = not there.signature and (bundle.directory / SIGNATURE).exists()
        return None if unsigned else Published(where, tag, there.digest, already=True)
    raise BundleError(
        f"{where} has another bundle under {tag}: {there.digest}, this one is {bundle.digest}",
        hint="publish with --overwrite to replace it, or raise the version of the driver",
    )


def checksum_in(file: bytes) -> str:
    """The digest that a `.sha256` begins with, as `sha256sum` writes it; empty if it has none."""
    match = _CHECKSUM.match(file[:200].decode("ascii", errors="replace").strip())
    return match[1].lower() if match else ""


@contextmanager
def download_place(to: Path, tag: str) -> Iterator[Path]:
    """Where to download the archive of a bundle that shall appear at `to`; nothing stays there."""
    archive = to.parent / f"{TEMPORARY_PREFIX}{tag}.tar.gz"
    try:
        yield archive
    finally:
        with suppress(FileNotFoundError):
            archive.unlink()


# --- asking several sources in order -----------------------------------------------------------


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
        from nodeside.driver.signing import verify

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
    from nodeside.driver.http_trouble import shown

    http = shown(source.http) if source.http else ""
    return source.oci or http or source.directory or "a source without a name"

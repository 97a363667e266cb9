"""The common interface of stores: OCI registries, HTTP servers and directories.

`sources.py` opens the stores of a driver.yaml and decides which of their data is used.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from nodeside.driver.bundle.bundle import SIGNATURE, Bundle
from nodeside.driver.bundle.manifest import BundleError, StoredManifest, same_modules
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.bundle_key import store_tag
from nodeside.system.files import TEMPORARY_PREFIX
from nodeside.system.host import Kernel
from nodeside.values import frozen

_CHECKSUM = re.compile(r"^([0-9a-fA-F]{64})\b")


class FetchError(NodesideError):
    """Failure to get data from a source. A missing bundle is not a FetchError.

    `reason` is the kind of failure. `after` is the delay in seconds that the server requested
    before the next attempt, or None.
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


@frozen
class FetchOptions:
    """Options for access to a store. Times are in seconds, sizes in bytes.

    `timeout` is the deadline for a whole fetch or publish, `stall_timeout` is the longest time a
    server may send nothing, and `backoff` is the first pause between two attempts. With `ca_file`,
    only certificates signed by it are trusted. `credentials_file` is a docker config.json. Proxies
    come from the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).
    """

    timeout: float = 300.0
    size_limit: int = 1 << 30
    ca_file: Path | None = None
    credentials_file: Path | None = None
    connect_timeout: float = 10.0
    stall_timeout: float = 30.0
    backoff: float = 0.5


@frozen
class WantedBundle:
    """The requested bundle. Any other bundle is refused, even under the same tag."""

    driver: str
    version: str
    kernel: Kernel
    key: str

    @property
    def tag(self) -> str:
        return store_tag(self.version, self.kernel, self.key)


@frozen
class Fetched:
    """A bundle that was fetched completely."""

    bundle: Bundle
    description: str


@frozen
class NotThere:
    """A response that the source does not have the bundle."""

    why: str


@frozen
class Published:
    """The result of a publish: the bundle is in the store under `tag`.

    `already` means that it existed before.
    """

    where: str
    tag: str
    digest: str
    already: bool

    def __str__(self) -> str:
        outcome = "already exists" if self.already else "published"
        return f"{self.where}:{self.tag} {outcome} ({self.digest})"


Accept = Callable[[StoredManifest], None]
"""A check that raises BundleError or SigningError if a manifest is not acceptable."""


class Store(AbstractContextManager["Store"]):
    """One source. Use as a context manager; connections are closed on exit."""

    where: str  # for display: oci:registry.example.com/team/edu
    confidential: bool  # whether the transport authenticates the server

    @abstractmethod
    def describe(self, tag: str) -> StoredManifest | None:
        """Return the manifest and signature of the bundle with this tag, or None.

        Fetches no modules. Raises FetchError.
        """

    @abstractmethod
    def fetch(self, tag: str, to: Path, accept: Accept) -> Fetched | NotThere:
        """Fetch the bundle with this tag to `to`, completely or not at all.

        Temporary files are created next to `to`. `accept` is called as early as the store can.
        Raises FetchError, BundleError, NoSpace, SystemRefused.
        """

    @abstractmethod
    def publish(self, bundle: Bundle, tag: str, *, overwrite: bool = False) -> Published:
        """Publish a bundle. Raises FetchError; BundleError if another bundle has the tag."""


def already_published(
    existing: StoredManifest, bundle: Bundle, where: str, tag: str
) -> Published | None:
    """Return success if the published bundle holds the same files as this one.

    None means that the same files are in the store without a signature and this bundle has one, so
    it replaces them. Raises BundleError if another bundle has the tag.
    """
    if existing.digest == bundle.digest or same_modules(existing.manifest, bundle.manifest):
        unsigned = not existing.signature and (bundle.directory / SIGNATURE).exists()
        return None if unsigned else Published(where, tag, existing.digest, already=True)
    raise BundleError(
        f"{where} has another bundle under {tag}: {existing.digest}; this one is {bundle.digest}",
        hint="publish with --overwrite to replace it, or raise the version of the driver",
    )


def parse_checksum(file: bytes) -> str:
    """Return the digest at the start of a `.sha256` file (`sha256sum` format); "" if none."""
    match = _CHECKSUM.match(file[:200].decode("ascii", errors="replace").strip())
    return match[1].lower() if match else ""


@contextmanager
def download_place(to: Path, tag: str) -> Iterator[Path]:
    """Yield a temporary path next to `to` for the archive of a bundle; it is removed on exit."""
    archive = to.parent / f"{TEMPORARY_PREFIX}{tag}.tar.gz"
    try:
        yield archive
    finally:
        with suppress(FileNotFoundError):
            archive.unlink()

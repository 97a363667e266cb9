"""Where prebuilt bundles may be found: the one interface to OCI registries, HTTP and directories.

`fetch_first` asks the sources of a driver.yaml in order and keeps what each of them said, for the
table that explains the ladder. What a source delivers is hostile until it has been unpacked by
`archive.unpack`, is the bundle that was asked for, and satisfies the trust that driver.yaml asks
for (`trust.py`). The kinds of stores are imported late: `requests` costs 15 MiB, and most starts of
a driver need no network.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nodeside.contract import store_tag
from nodeside.driver.bundle.bundle import SIGNATURE, Bundle, BundleManifest, Described
from nodeside.driver.bundle.manifest import BundleError, same_modules
from nodeside.errors import ExitCode, NodesideError
from nodeside.files import TEMPORARY_PREFIX
from nodeside.host import Kernel

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

"""Bundles in a directory served over HTTP(S): <base>/<tag>.tar.gz. Read-only.

If <tag>.tar.gz.sha256 exists too (in `sha256sum` format), the archive must have that digest. It
comes from the same server, so it only proves that the archive was not damaged in transit.
Credentials are sent only if the server asks for them. They come from the credentials file and are
sent over https only: over plain HTTP, any server that answers for the host's name could get the
password.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlsplit

from nodeside.driver.bundle.archive import peek_manifest, unpack_bundle
from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.bundle.manifest import StoredManifest
from nodeside.driver.store.addresses import origin
from nodeside.driver.store.base import (
    Accept,
    Fetched,
    FetchError,
    FetchOptions,
    NotThere,
    Published,
    download_place,
    parse_checksum,
)
from nodeside.driver.store.credentials import Credentials, find_credentials
from nodeside.driver.store.transport import ServedStore, Transport
from nodeside.errors import SpecError
from nodeside.http.failures import safe_url

_CHECKSUM_LIMIT = 4096


class HttpStore(ServedStore):
    """A directory on an HTTP(S) server. Use as a context manager."""

    def __init__(self, base: str, options: FetchOptions) -> None:
        try:
            parts, address = urlsplit(base), origin(base, user_allowed=True)
        except ValueError:
            raise SpecError(f"invalid URL: {safe_url(base)!r}") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise SpecError(
                f"expected an http:// or https:// URL of a directory, got {safe_url(base)!r}"
            )
        if "@" in parts.netloc:
            raise SpecError(
                f"a URL of {address.host} contains a user name or password",
                hint="put them into the credentials file (a docker config.json)",
            )
        self._base = base.rstrip("/")
        self._host = parts.netloc
        self._options = options
        self._transport = Transport(options, base)
        self.where = self._base
        self.confidential = address.scheme == "https"

    def _make_authorization(self) -> BasicAuthorization | None:
        credentials = find_credentials(self._options.credentials_file, self._host)
        return BasicAuthorization(credentials, self._transport) if credentials else None

    def describe(self, tag: str) -> StoredManifest | None:
        return self._transport.retry_call(lambda: self._fetch_described(tag))

    def fetch(self, tag: str, to: Path, accept: Accept) -> Fetched | NotThere:
        url = self._archive_url(tag)
        sha256, limit = self._fetch_checksum(url), self._options.size_limit
        with download_place(to, tag) as archive:
            if not self._transport.download(url, archive, limit=limit, sha256=sha256):
                return NotThere(f"404 for {tag}.tar.gz")
            bundle = unpack_bundle(archive, to, limit, what=url, accept=accept)
        return Fetched(bundle, f"{url} ({bundle.digest})")

    def publish(
        self,
        bundle: Bundle,  # noqa: ARG002
        tag: str,  # noqa: ARG002
        *,
        overwrite: bool = False,  # noqa: ARG002
    ) -> Published:
        raise FetchError(
            f"{self.where}: an HTTP directory is read-only",
            reason="ReadOnly",
            hint="publish to a local directory that the server serves, or to an OCI registry",
        )

    def _fetch_described(self, tag: str) -> StoredManifest | None:
        url = self._archive_url(tag)
        with self._transport.stream_body(url) as body:
            if body is None:
                return None
            return peek_manifest(body, self._options.size_limit, url)

    def _archive_url(self, tag: str) -> str:
        return f"{self._base}/{quote(tag, safe='')}.tar.gz"

    def _fetch_checksum(self, url: str) -> str:
        """Return the published sha256 of the archive at `url`, or "" if there is none.

        Raises FetchError if the file does not begin with a digest.
        """
        reply = self._transport.get_document(f"{url}.sha256", limit=_CHECKSUM_LIMIT)
        if reply is None:
            return ""
        sha256 = parse_checksum(reply.body)
        if not sha256:
            raise FetchError(f"{url}.sha256 does not begin with a sha256", reason="WrongDigest")
        return sha256


class BasicAuthorization:
    """Basic authentication, sent only after a challenge and never over plain HTTP."""

    def __init__(self, credentials: Credentials, transport: Transport) -> None:
        self._credentials = credentials
        self._transport = transport
        self._challenged = False

    def header(self) -> str:
        return self._credentials.basic if self._challenged else ""

    def answer_challenge(self, challenge: str) -> bool:
        self._challenged = challenge.lower().startswith("basic") and not self._challenged
        if self._challenged and self._transport.insecure:
            raise FetchError(
                "the server asks for a password over plain HTTP",
                reason="Unauthorized",
                hint="credentials are sent to https:// URLs only",
            )
        return self._challenged

"""Bundles in an OCI registry (OCI distribution specification 1.1, Docker Registry HTTP API v2).

A bundle is an artifact: an image manifest whose config is the bundle's `manifest.json` and whose
only layer is the bundle's archive.

    <repository>:<tag>                    image manifest, artifactType ...bundle.v1; its annotation
                                          io.nodeside.manifest.p7s is the manifest's signature
      config  ...bundle.config.v1+json    manifest.json: its digest is the digest of the bundle
      layer   tar+gzip                    the same manifest.json, its .p7s, modules/*.ko

A client that needs only the manifest fetches a few kilobytes. A pinned digest is compared and a
signature is verified before any module is fetched. `skopeo copy` copies such an artifact to another
registry unchanged.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from nodeside.driver.bundle.archive import pack_bundle, unpack_bundle
from nodeside.driver.bundle.bundle import MANIFEST, Bundle, read_manifest
from nodeside.driver.bundle.manifest import (
    MANIFEST_LIMIT,
    SIGNATURE_LIMIT,
    BundleError,
    StoredManifest,
    digest_of,
    parse_manifest,
)
from nodeside.driver.store.addresses import next_address
from nodeside.driver.store.base import (
    Accept,
    Fetched,
    FetchError,
    FetchOptions,
    NotThere,
    Published,
    already_published,
    download_place,
)
from nodeside.driver.store.credentials import find_credentials
from nodeside.driver.store.registry_auth import RegistryAuthorization, parse_repository
from nodeside.driver.store.transport import ServedStore, Transport
from nodeside.system.digests import sha256_and_size
from nodeside.system.files import disk_errors
from nodeside.system.scratch import scratch_directory
from nodeside.values import frozen

ARTIFACT_TYPE = "application/vnd.nodeside.bundle.v1"
CONFIG_TYPE = "application/vnd.nodeside.bundle.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"

SIGNATURE_ANNOTATION = "io.nodeside.manifest.p7s"  # base64
_IMAGE_LIMIT = 4 << 20  # bytes; registries allow no larger manifest
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@frozen
class _Blob:
    """A descriptor of an image manifest."""

    digest: str
    size: int

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:")


@frozen
class _Image:
    config: _Blob
    layer: _Blob
    signature: bytes


class OciStore(ServedStore):
    """A repository of an OCI registry. Use as a context manager. `insecure` means plain HTTP."""

    def __init__(self, repository: str, options: FetchOptions, *, insecure: bool = False) -> None:
        self._repository = parse_repository(repository)
        self._options = options
        self._url = self._repository.url("http" if insecure else "https")
        self._transport = Transport(options, self._url)
        self.where = str(self._repository)
        self.confidential = not insecure

    def _make_authorization(self, *, push: bool = False) -> RegistryAuthorization:
        repository = self._repository
        file = self._options.credentials_file
        credentials = find_credentials(file, repository.host, repository.path)
        return RegistryAuthorization(repository, credentials, self._transport, push=push)

    def describe(self, tag: str) -> StoredManifest | None:
        image = self._fetch_image(tag)
        return self._fetch_described(image, tag) if image else None

    def fetch(self, tag: str, to: Path, accept: Accept) -> Fetched | NotThere:
        image = self._fetch_image(tag)
        if image is None:
            return NotThere(f"no tag {tag} there")
        described = self._fetch_described(image, tag)
        accept(described)
        limit, name = self._options.size_limit, self._image_name(tag)
        with download_place(to, tag) as archive:
            self._download_layer(image.layer, archive)
            bundle = unpack_bundle(archive, to, limit, what=name, accept=_same_as(described))
        return Fetched(bundle, f"{name} ({bundle.digest})")

    def publish(self, bundle: Bundle, tag: str, *, overwrite: bool = False) -> Published:
        self._transport.authorization = self._make_authorization(push=True)
        existing = self.describe(tag) if not overwrite else None
        if existing and (done := already_published(existing, bundle, self.where, tag)):
            return done
        with scratch_directory("publish") as scratch, disk_errors(scratch):
            archive = scratch / f"{tag}.tar.gz"
            pack_bundle(bundle, archive)
            config = _blob_of(bundle.directory / MANIFEST)
            layer = _blob_of(archive)
            self._upload_blob(config, bundle.directory / MANIFEST)
            self._upload_blob(layer, archive)
        described = read_manifest(bundle.directory)
        self._put_image(_image_manifest(described, tag, config, layer), tag)
        return Published(self.where, tag, bundle.digest, already=False)

    # --- reading ------------------------------------------------------------------------------

    def _fetch_image(self, tag: str) -> _Image | None:
        url = f"{self._url}/manifests/{tag}"
        reply = self._transport.get_document(url, limit=_IMAGE_LIMIT, accept=MANIFEST_TYPE)
        if reply is None:
            return None
        announced = reply.headers.get("Docker-Content-Digest", "")
        if _DIGEST.fullmatch(announced) and announced != digest_of(reply.body):
            raise FetchError(
                f"{self._image_name(tag)}: the image manifest is not what the registry announced",
                reason="WrongDigest",
                retryable=True,
            )
        return _parse_image(reply.body, self._image_name(tag))

    def _fetch_described(self, image: _Image, tag: str) -> StoredManifest:
        url = f"{self._url}/blobs/{image.config.digest}"
        if image.config.size > MANIFEST_LIMIT:
            raise BundleError(
                f"{self._image_name(tag)}: the manifest has {image.config.size} bytes, "
                f"at most {MANIFEST_LIMIT} are read"
            )
        reply = self._transport.get_document(url, limit=MANIFEST_LIMIT)
        if reply is None:
            raise FetchError(
                f"{self._image_name(tag)}: the registry has lost the blob of the manifest"
            )
        if digest_of(reply.body) != image.config.digest:
            raise FetchError(
                f"{self._image_name(tag)}: the manifest has digest {digest_of(reply.body)}, "
                f"expected {image.config.digest}",
                reason="WrongDigest",
            )
        return StoredManifest(
            parse_manifest(reply.body, self._image_name(tag)), reply.body, image.signature
        )

    def _download_layer(self, layer: _Blob, to: Path) -> None:
        url = f"{self._url}/blobs/{layer.digest}"
        limit = self._options.size_limit
        if not self._transport.download(url, to, limit=limit, size=layer.size, sha256=layer.sha256):
            raise FetchError(f"{self.where}: the registry has lost the blob {layer.digest}")

    # --- writing ------------------------------------------------------------------------------

    def _upload_blob(self, blob: _Blob, path: Path) -> None:
        url = f"{self._url}/blobs/{blob.digest}"
        if self._transport.retry_call(lambda: self._transport.send_request("HEAD", url)) is None:
            self._transport.retry_call(lambda: self._upload_once(blob, path))

    def _upload_once(self, blob: _Blob, path: Path) -> None:
        """Start an upload, then send the whole blob in one request."""
        started = self._transport.send_request(
            "POST", f"{self._url}/blobs/uploads/", headers={"Content-Length": "0"}
        )
        location = started.headers.get("Location", "") if started else ""
        if not location:
            raise FetchError(f"{self.where}: the registry does not accept uploads here")
        url = next_address(f"{self._url}/", location)
        url += ("&" if urlsplit(url).query else "?") + urlencode({"digest": blob.digest})
        headers = {"Content-Type": "application/octet-stream"}
        if self._transport.send_request("PUT", url, headers=headers, body=path) is None:
            raise FetchError(f"{self.where}: the registry has lost the upload", retryable=True)

    def _put_image(self, manifest: bytes, tag: str) -> None:
        url = f"{self._url}/manifests/{tag}"
        headers = {"Content-Type": MANIFEST_TYPE}
        self._transport.retry_call(
            lambda: self._transport.send_request("PUT", url, headers=headers, body=manifest)
        )
        reply = self._transport.get_document(url, limit=_IMAGE_LIMIT, accept=MANIFEST_TYPE)
        if reply is None or reply.body != manifest:
            raise FetchError(
                f"{self._image_name(tag)}: the registry does not return what was published",
                hint="another publisher may have replaced it: publish again",
            )

    def _image_name(self, tag: str) -> str:
        return f"{self._repository}:{tag}"


def _same_as(described: StoredManifest) -> Accept:
    """Return a check that an archive holds the manifest that was accepted before the download.

    The signature must be the same too, because it stays with the bundle.
    """

    def accept(archived: StoredManifest) -> None:
        if archived.digest != described.digest:
            raise BundleError(
                f"the archive holds a bundle with digest {archived.digest}, "
                f"the registry's config says {described.digest}"
            )
        if archived.signature != described.signature:
            raise BundleError("the archive and the image manifest hold different signatures")

    return accept


def _parse_image(data: bytes, what: str) -> _Image:
    """Parse the image manifest of a bundle. Raises BundleError for any other image."""
    try:
        image = json.loads(data)
        config, layers = image["config"], image["layers"]
        kind = config["mediaType"]
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        raise BundleError(f"{what} is not an image manifest, so it is not a bundle") from exc
    if kind != CONFIG_TYPE:
        raise BundleError(f"{what} is not a bundle: its config is of type {kind!r:.120}")
    if not isinstance(layers, list) or len(layers) != 1:
        raise BundleError(f"{what} is not a bundle: expected exactly one layer")
    signature = _decode_signature(image.get("annotations"), what)
    return _Image(_parse_descriptor(config, what), _parse_descriptor(layers[0], what), signature)


def _decode_signature(annotations: Any, what: str) -> bytes:
    """Return the signature from the annotations of an image manifest, b"" if there is none.

    Raises BundleError if it is malformed or too large.
    """
    text = annotations.get(SIGNATURE_ANNOTATION, "") if isinstance(annotations, dict) else ""
    try:
        signature = base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise BundleError(f"{what}: the annotation {SIGNATURE_ANNOTATION} is not base64") from None
    if len(signature) > SIGNATURE_LIMIT:
        raise BundleError(
            f"{what}: the signature has {len(signature)} bytes, at most {SIGNATURE_LIMIT} are read"
        )
    return signature


def _parse_descriptor(record: Any, what: str) -> _Blob:
    digest = record.get("digest") if isinstance(record, dict) else None
    size = record.get("size") if isinstance(record, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BundleError(f"{what}: expected a sha256 digest, got {digest!r:.80}")
    if type(size) is not int or not 0 <= size < 1 << 63:
        raise BundleError(f"{what}: expected a size in bytes, got {size!r:.40}")
    return _Blob(digest, size)


def _image_manifest(described: StoredManifest, tag: str, config: _Blob, layer: _Blob) -> bytes:
    manifest, signature = described.manifest, described.signature
    signed = {SIGNATURE_ANNOTATION: base64.b64encode(signature).decode()} if signature else {}
    image = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": config.digest, "size": config.size},
        "layers": [
            {
                "mediaType": LAYER_TYPE,
                "digest": layer.digest,
                "size": layer.size,
                "annotations": {"org.opencontainers.image.title": f"{tag}.tar.gz"},
            }
        ],
        "annotations": {
            "org.opencontainers.image.title": manifest.driver,
            "org.opencontainers.image.version": manifest.version,
            "org.opencontainers.image.created": manifest.created,
            "io.nodeside.kernel": manifest.kernel.release,
            "io.nodeside.architecture": manifest.kernel.architecture,
            "io.nodeside.key": manifest.key,
            **signed,
        },
    }
    return json.dumps(image, sort_keys=True).encode()


def _blob_of(path: Path) -> _Blob:
    sha256, size = sha256_and_size(path)
    return _Blob(f"sha256:{sha256}", size)

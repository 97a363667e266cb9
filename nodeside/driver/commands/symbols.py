"""`--symbols-of`: bundles of other drivers, named by hand or by the controller."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nodeside.driver.bundle.bundle import read_manifest
from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.commands.bundles import parse_target
from nodeside.errors import UsageError

_DIGEST = "@sha256:"


def manifests_at(
    places: Iterable[str], *, ca_file: Path | None, credentials_file: Path | None
) -> tuple[BundleManifest, ...]:
    """Return the manifests of bundles: each in a directory of its own, or in a store.

    `oci:REPOSITORY:TAG` and `https://…/TAG` are in a store; `@sha256:…` behind it is the digest
    that the bundle must have. Raises UsageError, FetchError and BundleError.
    """
    return tuple(_find_manifest(place, ca_file, credentials_file) for place in places)


def _find_manifest(
    place: str, ca_file: Path | None, credentials_file: Path | None
) -> BundleManifest:
    if Path(place).is_dir():
        return read_manifest(Path(place)).manifest
    from nodeside.driver.store.base import FetchOptions
    from nodeside.driver.store.sources import open_source

    where, at, digest = place.partition(_DIGEST)
    separator = "/" if where.startswith("http") else ":"
    store, _, tag = where.rpartition(separator)
    if not tag or ":" not in store:
        raise UsageError(
            f"--symbols-of {place}: expected the directory of a bundle, oci:REPOSITORY:TAG or "
            "https://HOST/…/TAG",
            hint="where a bundle is: nodeside driver build prints its path",
        )
    options = FetchOptions(ca_file=ca_file, credentials_file=credentials_file)
    with open_source(parse_target(store), options) as source:
        described = source.describe(tag)
    if described is None:
        raise UsageError(f"--symbols-of {place}: there is no such bundle")
    if at and described.digest != f"sha256:{digest}":
        raise UsageError(f"--symbols-of {place}: the store has {described.digest}")
    return described.manifest

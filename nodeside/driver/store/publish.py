"""Publishes a bundle for other nodes to an OCI registry or a directory.

Publishing the same bundle twice succeeds, and the result reports that it was already published. A
bundle that must be signed but is not is refused here, so that it never gets into a store.
"""

from __future__ import annotations

from nodeside.driver.bundle.bundle import Bundle, read_manifest, verify_bundle
from nodeside.driver.bundle.manifest import BundleError
from nodeside.driver.store.base import FetchOptions, Published
from nodeside.driver.store.sources import open_source
from nodeside.protocol.bundle_key import store_tag
from nodeside.spec.model import PrebuiltSource


def publish_bundle(
    bundle: Bundle, source: PrebuiltSource, options: FetchOptions, *, overwrite: bool = False
) -> Published:
    """Verify a bundle and publish it to the store under its own tag.

    Raises BundleError if another bundle has that tag (unless `overwrite`), FetchError, NoSpace.
    """
    verify_bundle(bundle)
    manifest = bundle.manifest
    unsigned = [module.name for module in manifest.modules if not module.signer]
    if manifest.certificate and unsigned:
        raise BundleError(
            f"{', '.join(unsigned)} not signed, but the bundle is for signed modules",
            hint="build again with spec.signing: nodeside driver build",
        )
    if manifest.certificate and not read_manifest(bundle.directory).signature:
        raise BundleError(
            "the manifest is not signed, but the bundle is for signed modules",
            hint="build again: nodeside driver build --again",
        )
    tag = store_tag(manifest.version, manifest.kernel, manifest.key)
    with open_source(source, options) as store:
        return store.publish(bundle, tag, overwrite=overwrite)

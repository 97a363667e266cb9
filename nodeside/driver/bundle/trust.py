"""Decides whether a manifest can be trusted, according to `spec.prebuilt.trust`.

A manifest from a store is checked before anything else from there is used. Cached bundles are
checked again on every use, so tightened trust settings also apply to bundles fetched earlier.
Bundles built on this node need no trust. A signed module proves nothing about its manifest: an old
module in a forged manifest is a replay. So the manifest itself must be signed, and it lists every
file with its sha256.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nodeside.driver.bundle.cache import Cache
from nodeside.driver.bundle.manifest import BundleError, StoredManifest
from nodeside.errors import NodesideError
from nodeside.spec.model import Trust


def check_trust(described: StoredManifest, trust: Trust) -> None:
    """Check a manifest against the trust settings.

    Raises BundleError if its digest is not pinned, SigningError if it is not signed as required.
    """
    if trust.digests and described.digest not in trust.digests:
        raise BundleError(
            f"the bundle has the digest {described.digest}, which is not among those pinned in "
            "spec.prebuilt.trust.digests",
            hint=f"if it is the right one, add {described.digest} there",
        )
    if trust.certificate:
        from nodeside.driver.module.signing import verify_manifest  # late: most drivers do not sign

        verify_manifest(described.data, described.signature, Path(trust.certificate))


def distrust_reason(trust: Trust, cache: Cache, driver: str, described: StoredManifest) -> str:
    """Return why a cached bundle of a driver may not be used, as a clause; "" if it may."""
    if trust == Trust() or cache.built_here(driver, described.digest):
        return ""
    try:
        check_trust(described, trust)
    except NodesideError as problem:
        return f"does not meet spec.prebuilt.trust: {problem}"
    return ""


def trust_mark(trust: Trust) -> str:
    """Return a hash of the trust settings for `loaded.json`; "" if no trust is configured.

    Raises SigningError if the certificate cannot be read: nothing can be verified without it, but
    the loaded modules must not be replaced for that reason.
    """
    if trust == Trust():
        return ""
    certificate = ""
    if trust.certificate:
        from nodeside.driver.module.signing import read_certificate

        certificate = read_certificate(Path(trust.certificate)).digest
    settings = [sorted(trust.digests), certificate]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()

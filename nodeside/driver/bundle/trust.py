"""Whether what a manifest says may be believed: `spec.prebuilt.trust`, in one place.

Asked of what a store says before anything of it is used, and again of what the cache holds from
then on: a trust that was tightened is the trust of what was fetched before, too. What was built
here needs none. A signed module proves nothing about the manifest that it comes with: an old one in
a forged manifest is a replay. So it is the manifest that must be signed, and it names every file by
its sha256.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nodeside.driver.bundle.cache import Cache
from nodeside.driver.bundle.manifest import BundleError, Described
from nodeside.errors import NodesideError
from nodeside.spec.model import Trust


def check_trust(described: Described, trust: Trust) -> None:
    """Raises BundleError for a digest that is not pinned, SigningError for a manifest that is not
    signed as it must be."""
    if trust.digests and described.digest not in trust.digests:
        raise BundleError(
            f"the bundle has the digest {described.digest}, which is not among those pinned in "
            "spec.prebuilt.trust.digests",
            hint=f"if it is the right one, add {described.digest} there",
        )
    if trust.certificate:
        from nodeside.driver.module.signing import verify_manifest  # late: most drivers do not sign

        verify_manifest(described.data, described.signature, Path(trust.certificate))


def distrust(trust: Trust, cache: Cache, driver: str, described: Described) -> str:
    """Why a bundle of a driver in the cache may not be used; "" if it may."""
    if trust == Trust() or cache.built_here(driver, described.digest):
        return ""
    try:
        check_trust(described, trust)
    except NodesideError as problem:
        return f"not as spec.prebuilt.trust asks: {problem}"
    return ""


def trust_mark(trust: Trust) -> str:
    """What `loaded.json` remembers of the trust under which modules were loaded; "" for none.

    Raises SigningError for a certificate that cannot be read: without it nothing can be judged, and
    that is no reason to replace what is loaded.
    """
    if trust == Trust():
        return ""
    certificate = ""
    if trust.certificate:
        from nodeside.driver.module.signing import certificate_digest

        certificate = certificate_digest(Path(trust.certificate))
    asked = [sorted(trust.digests), certificate]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

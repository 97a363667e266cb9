"""Names of devices in a ResourceSlice: DNS labels; no two devices share one. Pure.

A name is made from the resource and the id alone. Nothing else in driver.yaml changes it: else a
device that a claim has would be published anew under another name.
"""

from __future__ import annotations

import hashlib
import re

_LONGEST = 63  # characters of a DNS label, RFC 1123
_DIGEST = 12  # hexadecimal digits


def device_name(resource: str, device_id: str) -> str:
    """Return the name for an id of inventory.py, such as edu-00-06-0-47d5b5925eb3.

    The digest tells apart what reads the same: resources of two domains, ids with other signs.
    """
    digest = hashlib.sha256(f"{resource} {device_id}".encode()).hexdigest()[:_DIGEST]
    words = re.sub("[^a-z0-9]+", "-", f"{resource.rpartition('/')[2]}-{device_id}".lower())
    return f"{words.strip('-')[: _LONGEST - len('-') - _DIGEST].strip('-')}-{digest}"

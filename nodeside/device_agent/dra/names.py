"""Names of devices in a ResourceSlice: DNS labels, and two devices never have one. Pure.

Each form has a beginning of its own, so that none can be taken for another:

    pci-0000-00-06-0     the device 00:06.0, a PCI function
    pci-0000-00-06-0-2   the second device of that function
    id-video0            a device without a PCI function whose id is a label already
    x-<id>-<digest>      any other
    s3-<name>            the fourth share of a device
"""

from __future__ import annotations

import hashlib
import re

_LONGEST = 63  # characters of a DNS label, RFC 1123
_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<slot>[0-9a-f]{2})"
    r"\.(?P<function>[0-7])(?P<more>-[0-9]+)?"
)
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SHARE = re.compile(r"(?P<id>.*)::(?P<number>[0-9]+)")
_DIGEST = 12  # hexadecimal digits


def device_name(device_id: str, resource: str = "") -> str:
    """Return the name for an id of inventory.py.

    Where a driver has several resources, ids of two of them may be the same, so the `resource` is
    part of the name then.
    """
    share = _SHARE.fullmatch(device_id)
    if share:
        beginning = f"s{share['number']}-"
        return beginning + _name(share["id"], resource, _LONGEST - len(beginning))
    return _name(device_id, resource, _LONGEST)


def _name(device_id: str, resource: str, longest: int) -> str:
    if not resource:
        pci = _PCI.fullmatch(device_id)
        parts = pci and (pci["domain"] or "0000", pci["bus"], pci["slot"], pci["function"])
        plain = f"pci-{'-'.join(parts)}{pci['more'] or ''}" if pci and parts else f"id-{device_id}"
        if _LABEL.fullmatch(plain) and len(plain) <= longest:
            return plain
    digest = hashlib.sha256(f"{resource} {device_id}".encode()).hexdigest()[:_DIGEST]
    words = re.sub("[^a-z0-9]+", "-", f"{resource.rpartition('/')[2]}-{device_id}".lower())
    return f"x-{words.strip('-')[: longest - len('x--') - _DIGEST].strip('-')}-{digest}"

"""The PCI ids in the device tables of modules, as their aliases have them."""

from __future__ import annotations

import re
from collections.abc import Iterable

# scripts/mod/file2alias.c
_PCI = re.compile(r"pci:v0000([0-9A-F]{4})d(?:0000([0-9A-F]{4})|\*)")


def pci_ids(aliases: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return vendor and device of each alias of a PCI device, sorted.

    The device is "" if a module is for every device of a vendor.
    """
    found = (_PCI.match(alias) for alias in aliases)
    return tuple(sorted({(m[1].lower(), (m[2] or "").lower()) for m in found if m}))

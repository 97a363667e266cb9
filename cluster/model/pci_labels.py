"""The labels of Node Feature Discovery about PCI devices, by vendor. Pure.

feature.node.kubernetes.io/pci-<fields>.present. NFD's deviceLabelFields sets the fields: any of
class, vendor, device, subsystem_vendor, subsystem_device, in this order, joined by `_`.
https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/features.html#pci
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Final

# By vendor, the keys of its labels, each with the device id, "" if the label has none.
DeviceKeys = Mapping[str, tuple[tuple[str, str], ...]]

_PCI: Final = re.compile(r"feature\.node\.kubernetes\.io/pci-([0-9a-f_]+)\.present")
_LIMIT: Final = 512  # labels of one node; a kubelet may set thousands


def device_keys(keys: Iterable[str]) -> DeviceKeys:
    """Return the keys of device labels; those beyond the limit are ignored."""
    about = (key for key in keys if "/pci-" in key and _PCI.fullmatch(key))
    return _group_by_vendor(tuple(islice(about, _LIMIT)))


@lru_cache(maxsize=64)  # most nodes have the same devices as many others
def _group_by_vendor(keys: tuple[str, ...]) -> DeviceKeys:
    found: dict[str, list[tuple[str, str]]] = {}
    for key in keys:
        fields = key.partition("/pci-")[2].removesuffix(".present").split("_")
        for vendor in dict.fromkeys(fields[:2]):  # the first, or the second after a class
            following = fields[fields.index(vendor) + 1 :]
            found.setdefault(vendor, []).append((key, following[0] if following else ""))
    return {vendor: tuple(each) for vendor, each in found.items()}

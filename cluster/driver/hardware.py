"""Selection of nodes with a Driver's hardware by the labels of Node Feature Discovery."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from cluster.driver.pools import has_version
from cluster.model.labelmap import devices_of
from cluster.model.names import KERNEL_LABEL, OSTREE_LABEL
from cluster.model.snapshot import Node
from cluster.model.status_schema import DEVICE_LIMIT
from nodeside.spec.model import Hardware
from nodeside.spec.pci import PciId

_OS_LABEL, _LINUX = "kubernetes.io/os", "linux"  # a label that every kubelet sets
_NOT_IN_A_VALUE = re.compile(r"[^-A-Za-z0-9_.]")
_NFD = re.compile(r"^([a-z0-9.-]+\.)?feature\.node\.kubernetes\.io/")


class Match(Enum):
    """The result of matching a Driver to a node."""

    HAS = "has the hardware"
    KEPT = "is assigned, and its labels of Node Feature Discovery are absent"
    LACKS = "lacks a label of the hardware"
    FOREIGN = "does not run Linux"
    CONTRADICTED = "has a label that rules it out"

    @property
    def is_selected(self) -> bool:
        return self in (Match.HAS, Match.KEPT)


def stale_nfd_label(node: Node) -> str:
    """Return how Node Feature Discovery contradicts the kubelet, "" if it does not.

    Nothing depends on it. A kubelet that does not report kernel or version is not contradicted.
    """
    labelled = node.labels.get(KERNEL_LABEL, "")
    if labelled and node.kernel and labelled not in (node.kernel, _nfd_value(node.kernel)):
        return f"the label {KERNEL_LABEL} still says {labelled}, the kubelet says {node.kernel}"
    ostree = node.labels.get(OSTREE_LABEL, "")
    if ostree and has_version(node.os_image) and ostree not in node.os_image.split():
        return f"the label {OSTREE_LABEL} still says {ostree}, the kubelet says {node.os_image}"
    return ""


def _nfd_value(release: str) -> str:
    """Return a kernel release as Node Feature Discovery writes it into the label's value.

    `+` and all else that a value cannot hold becomes `_`; then `-`, `_` and `.` at both ends go.
    https://github.com/kubernetes-sigs/node-feature-discovery/tree/master/source/kernel
    """
    return _NOT_IN_A_VALUE.sub("_", release).strip("-_.")


def match_hardware(
    node: Node, hardware: Hardware, *, assigned: bool, former: tuple[PciId, ...] = ()
) -> Match:
    """Return how the hardware selector of a Driver matches a node.

    An `assigned` node leaves only if a label *says* so: a selector key has another value or, if it
    is not a key of Node Feature Discovery, is missing; or a device label has a value other than
    `true`. A removed device looks exactly like a removed Node Feature Discovery. In that case the
    administrator decides, by removing the label `assigned`. `former` are devices that the spec no
    longer names: a node also leaves if only such a device is still labelled.
    """
    if node.labels.get(_OS_LABEL, _LINUX) != _LINUX:
        return Match.FOREIGN
    matches = [
        _match_label(node.labels, key, value, assigned=assigned)
        for key, value in hardware.node_selector.items()
    ]
    if hardware.pci:
        matches.append(_match_devices(node.labels, hardware.pci, former, assigned=assigned))
    if len(matches) == 1:
        return matches[0]  # the usual case, and this is asked for every node
    return max(matches, key=_SEVERITY.__getitem__, default=Match.HAS)


def selected_devices(hardware: Hardware, status: Mapping[str, Any]) -> list[str]:
    """Return every device the Driver selects or selected, as in its status; current ones first."""
    current = [f"{each.vendor}:{each.device}".rstrip(":") for each in hardware.pci]
    return list(dict.fromkeys([*current, *(status.get("devices") or ())]))[:DEVICE_LIMIT]


def former_devices(hardware: Hardware, status: Mapping[str, Any]) -> tuple[PciId, ...]:
    """Return the devices in the status that the Driver no longer selects."""
    ids = (PciId(*str(each).split(":")[:2]) for each in status.get("devices") or ())
    return tuple(each for each in ids if each not in hardware.pci)


def similar_label(nodes: Iterable[Node], key: str, value: str) -> str:
    """Return a node's label that is similar to one that no node has, "" if there is none."""
    from difflib import get_close_matches  # late: only a Driver without nodes needs it

    labels = [node.labels for node in islice(nodes, _LOOKED_AT)]
    if other := next((each[key] for each in labels if each.get(key, value) != value), ""):
        return f"{key}={other}"
    keys = {each for some in labels for each in some}
    return next(iter(get_close_matches(key, sorted(keys), n=1, cutoff=_NEAR)), "")


def near_device(nodes: Iterable[Node], ids: tuple[PciId, ...]) -> str:
    """Return the label of another device of the same vendor as one that no node has, "" if none."""
    wanted = {(each.vendor, each.device) for each in ids}
    near = (
        key
        for node in islice(nodes, _LOOKED_AT)
        for vendor in dict.fromkeys(each.vendor for each in ids)
        for key, device in devices_of(node.labels).get(vendor, ())
        if device and (vendor, device) not in wanted and node.labels[key] == "true"
    )
    return next(near, "")


_LOOKED_AT: Final = 100  # nodes
_NEAR: Final = 0.8  # of difflib's ratio: one letter of a label's name may be missing
_SEVERITY: Final = {Match.HAS: 0, Match.KEPT: 1, Match.LACKS: 2, Match.CONTRADICTED: 3}


def _match_label(labels: Mapping[str, str], key: str, value: str, *, assigned: bool) -> Match:
    current = labels.get(key)
    if current == value:
        return Match.HAS
    if current is not None:
        return Match.CONTRADICTED
    if not assigned:
        return Match.LACKS
    return Match.KEPT if _NFD.match(key) else Match.CONTRADICTED


def _match_devices(
    labels: Mapping[str, str],
    selected: tuple[PciId, ...],
    former: tuple[PciId, ...],
    *,
    assigned: bool,
) -> Match:
    if any(labels.get(key) == "true" for key in _usual_labels(selected)):
        return Match.HAS
    values = _label_values(labels, selected)
    if "true" in values:
        return Match.HAS
    if values or (assigned and "true" in _label_values(labels, former)):
        return Match.CONTRADICTED
    return Match.KEPT if assigned else Match.LACKS


def _label_values(labels: Mapping[str, str], ids: tuple[PciId, ...]) -> list[str]:
    """Return the values of all labels about one of these devices.

    A label without a device id, or an id without one, covers the whole vendor.
    """
    found = devices_of(labels)
    return [
        labels[key]
        for each in ids
        for key, device in found.get(each.vendor, ())
        if not device or each.device in ("", device)
    ]


@lru_cache(maxsize=64)
def _usual_labels(selected: tuple[PciId, ...]) -> tuple[str, ...]:
    """Return the labels without a class, which can be looked up without scanning all labels."""
    ids = [device.vendor for device in selected]
    ids += [f"{device.vendor}_{device.device}" for device in selected if device.device]
    return tuple(f"feature.node.kubernetes.io/pci-{each}.present" for each in ids)

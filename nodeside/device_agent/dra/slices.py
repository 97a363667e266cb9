"""Devices as ResourceSlices (resource.k8s.io/v1), and what has to be written. Pure.

The devices of a node are one pool, named after the node. A slice has 128 devices at most, so the
pool is spread over several. A device stays in its slice: then a change concerns one slice, and the
generation of the pool changes only with the number of slices.

Limits: staging/src/k8s.io/api/resource/v1/types.go of Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from nodeside.device_agent.inventory import OfferedDevice
from nodeside.values import frozen

API = "resource.k8s.io/v1"
PAGE = 128  # devices of a slice
MOST = 128 * PAGE  # devices of a node: an API server checks each of them, and a scheduler too
_VALUE = 64  # bytes of an attribute
_STANDARD = "resource.kubernetes.io"  # deviceattribute/attribute.go
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_SHORT = re.compile(r"[0-9a-f]{2}:.*")  # an address without its domain
# https://semver.org, as apis/resource/validation/validation.go has it
_NUMBER, _WORD = r"(0|[1-9]\d*)", r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_WORD}(\.{_WORD})*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)

Document = Mapping[str, Any]


@frozen
class SlicePool:
    """The pool of a DRA driver on a node, and the uid of the Node, which owns the slices."""

    driver: str
    node: str
    node_uid: str


@frozen
class Write:
    """What to do to a slice: "create", "update" or "delete"; `document` is the whole slice."""

    verb: str
    document: Document

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])


# --- one device ---------------------------------------------------------------------------------


def device_document(
    name: str,
    offered: OfferedDevice,
    *,
    resource: str,
    version: str,
    ids: tuple[str, str] = ("", ""),
    left_out: Iterable[str] = (),
) -> Document:
    """Return a device of a slice. `ids` are those of its PCI function, vendor and device.

    `left_out` are attributes that change all the time, such as counters.
    """
    found = offered.device
    attributes: dict[str, Document] = {
        key: typed_attribute(value)
        for key, value in found.attributes.items()
        if key not in set(left_out)
    }
    attributes["resource"] = _string_attribute(resource)
    attributes["driverVersion"] = (
        {"version": version}
        if len(version) <= _VALUE and _SEMVER.fullmatch(version)
        else _string_attribute(version)
    )
    if found.address:
        attributes[f"{_STANDARD}/pciBusID"] = _string_attribute(full_address(found.address))
    if found.pci_root:
        attributes[f"{_STANDARD}/pcieRoot"] = _string_attribute(found.pci_root)
    if found.numa_node >= 0:
        attributes["numaNode"] = {"int": found.numa_node}
    if all(ids):
        attributes["vendor"], attributes["device"] = map(_string_attribute, ids)
    return {"name": name, "attributes": attributes}


def full_address(address: str) -> str:
    """Return the address of a PCI function with its domain."""
    return f"0000:{address}" if _SHORT.fullmatch(address) else address


def typed_attribute(text: str) -> Document:
    """Return an attribute: a decimal number without leading zeros is an integer of 64 bits."""
    if _INTEGER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
        return {"int": int(text)}
    return _string_attribute(text)


def _string_attribute(text: str) -> Document:
    """Return a string of at most 64 bytes, without what cannot be shown or sent."""
    shown = "".join(c for c in text[: 4 * _VALUE] if c.isprintable())
    return {"string": shown.encode(errors="ignore")[:_VALUE].decode(errors="ignore")}


# --- all of them --------------------------------------------------------------------------------


def plan_writes(
    pool: SlicePool, stored: Sequence[Document], devices: Sequence[Document]
) -> list[Write]:
    """Return what makes the stored slices of a pool say what devices there are.

    `stored` are whole slices of this driver and node, as the API server has them; nobody else
    should write them, but somebody may have. Without devices, there are no slices.
    """
    wanted = {each["name"]: each for each in devices[:MOST]}
    ours = {
        each["metadata"]["name"]: each for each in stored if _pool_of(each).get("name") == pool.node
    }
    taken = {each["metadata"]["name"] for each in stored}
    layout = lay_out(
        {name: _device_names(each) for name, each in ours.items()},
        list(wanted),
        _free_names(pool, taken),
    )
    generation = _next_generation(ours, layout)
    found = []
    for name, members in layout.items():
        spec = {
            "driver": pool.driver,
            "nodeName": pool.node,
            "pool": {
                "name": pool.node,
                "generation": generation,
                "resourceSliceCount": len(layout),
            },
            "devices": [wanted[each] for each in members],
        }
        if (write := _plan_write(pool, name, spec, ours.get(name))) is not None:
            found.append(write)
    gone = [each for each in stored if each["metadata"]["name"] not in layout]
    return [*found, *(Write("delete", each) for each in gone)]


def lay_out(
    before: Mapping[str, Sequence[str]], names: Sequence[str], free: Iterator[str]
) -> Mapping[str, Sequence[str]]:
    """Return which devices are in which slice. Those that are in one stay there.

    A slice that becomes empty is used again, or left out. `free` are names for new slices.
    """
    left = dict.fromkeys(names)
    layout: dict[str, list[str]] = {}
    for name, members in sorted(before.items()):
        kept = [each for each in dict.fromkeys(members) if each in left][:PAGE]
        for each in kept:
            del left[each]
        if kept:
            layout[name] = kept
    free = chain((name for name in sorted(before) if name not in layout), free)
    waiting = list(left)
    for members in layout.values():
        room = PAGE - len(members)
        members.extend(waiting[:room])
        waiting = waiting[room:]
    for start in range(0, len(waiting), PAGE):
        layout[next(free)] = waiting[start : start + PAGE]
    return layout


def _free_names(pool: SlicePool, taken: Container[str]) -> Iterator[str]:
    """Yield names of slices that do not exist yet: `<driver>-<node>-<number>`.

    No other driver and node have the same ones, as the name of a driver ends with a domain; the
    admission policy of the device agent takes only such names, of three digits at most. A name has
    253 characters at most, so that of a node has 196; a kubelet's, which is a label too, has 63.
    """
    names = (f"{pool.driver}-{pool.node}-{number}" for number in count())
    return (name for name in names if name not in taken)


def _next_generation(ours: Mapping[str, Document], layout: Mapping[str, object]) -> int:
    """Return the generation of the pool: a new one if its slices are others than before."""
    pools = [_pool_of(each) for each in ours.values()]
    known = [each["generation"] for each in pools if isinstance(each.get("generation"), int)]
    newest = max(known, default=0)
    same = ours.keys() == layout.keys() and all(
        each.get("generation") == newest and each.get("resourceSliceCount") == len(layout)
        for each in pools
    )
    return newest if same else newest + 1


def _plan_write(pool: SlicePool, name: str, spec: Document, old: Document | None) -> Write | None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": pool.node, "uid": pool.node_uid}
    metadata: dict[str, Any] = {"name": name, "ownerReferences": [owner]}
    document = {"apiVersion": API, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    if old is None:
        return Write("create", document)
    if old.get("spec") == spec and old["metadata"].get("ownerReferences") == [owner]:
        return None
    metadata["resourceVersion"] = old["metadata"].get("resourceVersion", "")
    return Write("update", document)


def mapping_at(document: Document, key: str) -> Document:
    """Return the mapping at a key, an empty one if there is none."""
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _pool_of(stored: Document) -> Document:
    return mapping_at(mapping_at(stored, "spec"), "pool")


def _device_names(stored: Document) -> list[str]:
    devices = stored["spec"].get("devices")
    return [str(each.get("name")) for each in devices or () if isinstance(each, Mapping)]

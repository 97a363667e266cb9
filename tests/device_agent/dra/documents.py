"""Devices, claims and slices for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodeside.device_agent.dra.slices import Document, SlicePool, Write, device_document
from nodeside.device_agent.inventory import OfferedDevice
from nodeside.devices.discovery import FoundDevice

UID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
OTHER_UID = "ffffffff-4f50-6172-8394-a5b6c7d8e9f0"
POOL = SlicePool("edu.nodeside.io", "n1", "uid-of-n1")


def offered(id_: str = "00:06.0", **more: Any) -> OfferedDevice:
    return OfferedDevice(id_, FoundDevice(id_.partition("::")[0], **more))


def plain(*names: str) -> list[Document]:
    """Devices of slices."""
    return [
        device_document(name, offered(), resource="example.com/edu", version="1.0")
        for name in names
    ]


def carried_out(stored: Sequence[Document], writes: Sequence[Write]) -> list[Document]:
    """What an API server has after some writes."""
    found = {each["metadata"]["name"]: each for each in stored}
    for write in writes:
        assert (write.name in found) == (write.verb != "create")
        if write.verb == "delete":
            del found[write.name]
        else:
            version = str(int(found.get(write.name, ZERO)["metadata"]["resourceVersion"]) + 1)
            metadata = {**write.document["metadata"], "resourceVersion": version}
            found[write.name] = {**write.document, "metadata": metadata}
    return list(found.values())


ZERO: Mapping[str, Any] = {"metadata": {"resourceVersion": "0"}}


def claim(*results: Mapping[str, Any], uid: str = UID, name: str = "one") -> dict[str, Any]:
    """A ResourceClaim as the API server has it, allocated unless there are no results."""
    metadata = {"name": name, "namespace": "default", "uid": uid}
    allocation = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    return {"kind": "ResourceClaim", "metadata": metadata, "status": allocation}


def result(device: str, request: str = "main", **more: Any) -> dict[str, Any]:
    """A device that was allocated."""
    return {"request": request, "driver": POOL.driver, "pool": POOL.node, "device": device, **more}

"""The messages of the kubelet's device plugin API, v1beta1.

`api/deviceplugin.proto` states them. It is compiled to a descriptor set, `api/deviceplugin.binpb`,
from which the classes are made at import: generated Python code would pin one version of protobuf.
The pool is our own, since others have files of the same name.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

_FILE = files("nodeside.device_agent") / "api" / "deviceplugin.binpb"


def _descriptors() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_FILE.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _descriptors()


def _message(name: str) -> Any:
    """Return the class of a message."""
    descriptor = _POOL.FindMessageTypeByName(f"{VERSION}.{name}")
    if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_POOL).GetPrototype(descriptor)  # type: ignore[attr-defined]


Empty: Final = _message("Empty")
DevicePluginOptions: Final = _message("DevicePluginOptions")
RegisterRequest: Final = _message("RegisterRequest")
ListAndWatchResponse: Final = _message("ListAndWatchResponse")
Device: Final = _message("Device")
TopologyInfo: Final = _message("TopologyInfo")
NUMANode: Final = _message("NUMANode")
PreStartContainerRequest: Final = _message("PreStartContainerRequest")
PreStartContainerResponse: Final = _message("PreStartContainerResponse")
PreferredAllocationRequest: Final = _message("PreferredAllocationRequest")
PreferredAllocationResponse: Final = _message("PreferredAllocationResponse")
ContainerPreferredAllocationResponse: Final = _message("ContainerPreferredAllocationResponse")
AllocateRequest: Final = _message("AllocateRequest")
AllocateResponse: Final = _message("AllocateResponse")
ContainerAllocateResponse: Final = _message("ContainerAllocateResponse")
DeviceSpec: Final = _message("DeviceSpec")

"""The messages of the kubelet's APIs: device plugin, v1beta1; pod resources, DRA and plugin
registration, v1.

`api/*.proto` states them. Each is compiled to a descriptor set, `api/*.binpb`, from which the
classes are made at import: generated Python code would pin one version of protobuf. The pools are
our own, since others have files of the same name.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

_API = files("nodeside.device_agent") / "api"


def _pool(name: str) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    data = (_API / f"{name}.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _class(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    """Return the class of a message."""
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # type: ignore[attr-defined]


_PLUGIN, _PODS = _pool("deviceplugin"), _pool("podresources")
_DRA, _HEALTH, _REGISTRATION = _pool("dra"), _pool("drahealth"), _pool("pluginregistration")


def _message(name: str) -> Any:
    return _class(_PLUGIN, f"{VERSION}.{name}")


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
Mount: Final = _message("Mount")

ListPodResourcesRequest: Final = _class(_PODS, "v1.ListPodResourcesRequest")
ListPodResourcesResponse: Final = _class(_PODS, "v1.ListPodResourcesResponse")


def _dra(name: str) -> Any:
    return _class(_DRA, f"{DRA_PACKAGE}.{name}")


def _registration(name: str) -> Any:
    return _class(_REGISTRATION, f"pluginregistration.{name}")


DRA_PACKAGE: Final = "k8s.io.kubelet.pkg.apis.dra.v1"
NodePrepareResourcesRequest: Final = _dra("NodePrepareResourcesRequest")
NodePrepareResourcesResponse: Final = _dra("NodePrepareResourcesResponse")
NodePrepareResourceResponse: Final = _dra("NodePrepareResourceResponse")
DraDevice: Final = _dra("Device")
NodeUnprepareResourcesRequest: Final = _dra("NodeUnprepareResourcesRequest")
NodeUnprepareResourcesResponse: Final = _dra("NodeUnprepareResourcesResponse")
NodeUnprepareResourceResponse: Final = _dra("NodeUnprepareResourceResponse")

NodeWatchResourcesRequest: Final = _class(_HEALTH, "v1alpha1.NodeWatchResourcesRequest")
DeviceHealth: Final = _class(_HEALTH, "v1alpha1.DeviceHealth")
DeviceIdentifier: Final = _class(_HEALTH, "v1alpha1.DeviceIdentifier")
NodeWatchResourcesResponse: Final = _class(_HEALTH, "v1alpha1.NodeWatchResourcesResponse")

InfoRequest: Final = _registration("InfoRequest")
PluginInfo: Final = _registration("PluginInfo")
RegistrationStatus: Final = _registration("RegistrationStatus")
RegistrationStatusResponse: Final = _registration("RegistrationStatusResponse")

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


def _load_pool(name: str) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    data = (_API / f"{name}.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _message_class(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    """Return the class of a message."""
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # type: ignore[attr-defined]


_PLUGIN, _PODS = _load_pool("deviceplugin"), _load_pool("podresources")
_DRA, _HEALTH, _REGISTRATION = (
    _load_pool("dra"),
    _load_pool("drahealth"),
    _load_pool("pluginregistration"),
)


def _plugin_message(name: str) -> Any:
    return _message_class(_PLUGIN, f"{VERSION}.{name}")


Empty: Final = _plugin_message("Empty")
DevicePluginOptions: Final = _plugin_message("DevicePluginOptions")
RegisterRequest: Final = _plugin_message("RegisterRequest")
ListAndWatchResponse: Final = _plugin_message("ListAndWatchResponse")
Device: Final = _plugin_message("Device")
TopologyInfo: Final = _plugin_message("TopologyInfo")
NUMANode: Final = _plugin_message("NUMANode")
PreStartContainerRequest: Final = _plugin_message("PreStartContainerRequest")
PreStartContainerResponse: Final = _plugin_message("PreStartContainerResponse")
PreferredAllocationRequest: Final = _plugin_message("PreferredAllocationRequest")
PreferredAllocationResponse: Final = _plugin_message("PreferredAllocationResponse")
ContainerPreferredAllocationResponse: Final = _plugin_message(
    "ContainerPreferredAllocationResponse"
)
AllocateRequest: Final = _plugin_message("AllocateRequest")
AllocateResponse: Final = _plugin_message("AllocateResponse")
ContainerAllocateResponse: Final = _plugin_message("ContainerAllocateResponse")
DeviceSpec: Final = _plugin_message("DeviceSpec")
Mount: Final = _plugin_message("Mount")

ListPodResourcesRequest: Final = _message_class(_PODS, "v1.ListPodResourcesRequest")
ListPodResourcesResponse: Final = _message_class(_PODS, "v1.ListPodResourcesResponse")


def _dra_message(name: str) -> Any:
    return _message_class(_DRA, f"{DRA_PACKAGE}.{name}")


def _registration_message(name: str) -> Any:
    return _message_class(_REGISTRATION, f"pluginregistration.{name}")


DRA_PACKAGE: Final = "k8s.io.kubelet.pkg.apis.dra.v1"
NodePrepareResourcesRequest: Final = _dra_message("NodePrepareResourcesRequest")
NodePrepareResourcesResponse: Final = _dra_message("NodePrepareResourcesResponse")
NodePrepareResourceResponse: Final = _dra_message("NodePrepareResourceResponse")
DraDevice: Final = _dra_message("Device")
NodeUnprepareResourcesRequest: Final = _dra_message("NodeUnprepareResourcesRequest")
NodeUnprepareResourcesResponse: Final = _dra_message("NodeUnprepareResourcesResponse")
NodeUnprepareResourceResponse: Final = _dra_message("NodeUnprepareResourceResponse")

NodeWatchResourcesRequest: Final = _message_class(_HEALTH, "v1alpha1.NodeWatchResourcesRequest")
DeviceHealth: Final = _message_class(_HEALTH, "v1alpha1.DeviceHealth")
DeviceIdentifier: Final = _message_class(_HEALTH, "v1alpha1.DeviceIdentifier")
NodeWatchResourcesResponse: Final = _message_class(_HEALTH, "v1alpha1.NodeWatchResourcesResponse")

InfoRequest: Final = _registration_message("InfoRequest")
PluginInfo: Final = _registration_message("PluginInfo")
RegistrationStatus: Final = _registration_message("RegistrationStatus")
RegistrationStatusResponse: Final = _registration_message("RegistrationStatusResponse")

"""One resource on one socket: a device plugin as the kubelet knows it (v1beta1).

Threads of the server call the methods; the agent's main thread says what is offered.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nodeside import log
from nodeside.device_agent import messages
from nodeside.device_agent.allocation import make_grant, prefer_ids
from nodeside.device_agent.inventory import OfferedDevice
from nodeside.device_agent.registration import KUBELET_SOCKET, NotRegistered, file_prefix
from nodeside.device_agent.rpc import (
    CallFailed,
    Feed,
    PreconditionFailed,
    RpcServer,
    Unary,
    call_method,
)
from nodeside.errors import NodesideError
from nodeside.spec.devices import Device

SERVICE = "v1beta1.DevicePlugin"
_DEADLINE = 5.0  # seconds for a registration; a pod has ten to end


class Plugin:
    """The plugin of one resource; nothing listens before `start`."""

    def __init__(self, device: Device, directory: Path) -> None:
        self.resource = device.resource
        self._give = device.give
        self._directory = directory
        self._prefix = file_prefix(device.resource)
        self._offered: Mapping[str, OfferedDevice] = {}
        self._counting = threading.Lock()
        self.registrations = self.allocations = 0  # since the start
        self._list = Feed(self._list_response, messages.Empty)
        self._server = RpcServer({SERVICE: self._rpc_methods()})
        self._socket: Path | None = None

    # --- for the main thread

    def offer(self, offered: Mapping[str, OfferedDevice]) -> None:
        """Send the devices to the kubelet, unless nothing that it sees of them has changed."""
        is_news = _visible_state(offered) != _visible_state(self._offered)
        self._offered = offered
        if is_news:
            self._list.send_again()

    def start(self) -> None:
        """Listen on a new socket. Raises OSError if it cannot be made.

        An older kubelet knows a stream by the name of its socket: with the same name, it would take
        the end of the old stream for that of the new one.
        """
        self.stop()
        for left in self._directory.glob(f"{self._prefix}-*.sock"):  # we hold the resource's lock
            left.unlink(missing_ok=True)
        path = self._directory / f"{self._prefix}-{secrets.token_hex(4)}.sock"
        self._server.start(path)
        self._socket = path

    def stop(self) -> None:
        """End the streams: the kubelet gives away no device until somebody registers again."""
        self._server.stop()
        self._socket = None

    @property
    def endpoint(self) -> str:
        """The name of the socket, "" if the kubelet or somebody else has removed it."""
        return self._socket.name if self._socket and self._socket.exists() else ""

    @property
    def is_watched(self) -> bool:
        """Whether the kubelet listens to what is offered."""
        return self._list.is_watched

    def register(self) -> None:
        """Tell the kubelet where this plugin listens; the kubelet calls it before it answers.

        Raises NotRegistered with the kubelet's words.
        """
        request = messages.RegisterRequest(
            version=messages.VERSION,
            endpoint=self.endpoint,
            resource_name=self.resource,
            options=_plugin_options(),
        )
        socket = self._directory / KUBELET_SOCKET
        method = "/v1beta1.Registration/Register"
        try:
            call_method(socket, method, request, messages.Empty, timeout=_DEADLINE)
        except CallFailed as error:
            raise NotRegistered(str(error)) from error
        self.registrations += 1

    # --- for the server's threads

    def _rpc_methods(self) -> Mapping[str, Unary | Feed]:
        return {
            "GetDevicePluginOptions": Unary(lambda _: _plugin_options(), messages.Empty),
            "ListAndWatch": self._list,
            "GetPreferredAllocation": Unary(
                self._answer_preferred, messages.PreferredAllocationRequest
            ),
            "Allocate": Unary(self._answer_allocate, messages.AllocateRequest),
            "PreStartContainer": Unary(  # never asked for
                lambda _: messages.PreStartContainerResponse(), messages.PreStartContainerRequest
            ),
        }

    def _list_response(self) -> Any:
        devices = [_device_message(each) for each in self._offered.values()]
        return messages.ListAndWatchResponse(devices=devices)

    def _answer_allocate(self, request: Any) -> Any:
        try:
            responses = [
                self._container_response(list(each.devices_ids))
                for each in request.container_requests
            ]
        except NodesideError as error:  # the kubelet shows the words to the pod
            log.warning("a container gets no device", resource=self.resource, why=error)
            raise PreconditionFailed(str(error)) from error
        return messages.AllocateResponse(container_responses=responses)

    def _container_response(self, ids: Sequence[str]) -> Any:
        found = make_grant(self._give, self._offered, ids)
        log.fact("devices are given", resource=self.resource, devices=",".join(ids))
        with self._counting:
            self.allocations += 1
        return messages.ContainerAllocateResponse(
            envs=found.environment,
            devices=[
                messages.DeviceSpec(container_path=node, host_path=node, permissions="rw")
                for node in found.nodes
            ],
            mounts=[
                messages.Mount(
                    container_path=mount.container_path or mount.host_path,
                    host_path=mount.host_path,
                    read_only=mount.read_only,
                )
                for mount in self._give.mounts
            ],
        )

    def _answer_preferred(self, request: Any) -> Any:
        offered = self._offered
        return messages.PreferredAllocationResponse(
            container_responses=[
                messages.ContainerPreferredAllocationResponse(
                    deviceIDs=prefer_ids(
                        offered,
                        list(each.available_deviceIDs),
                        list(each.must_include_deviceIDs),
                        each.allocation_size,
                    )
                )
                for each in request.container_requests
            ]
        )


def _plugin_options() -> Any:
    """Return what this plugin can do: asked for by a kubelet since 1.25, told to older ones."""
    return messages.DevicePluginOptions(get_preferred_allocation_available=True)


def _visible_state(offered: Mapping[str, OfferedDevice]) -> Sequence[tuple[str, bool, int]]:
    """Return what the kubelet sees of the devices."""
    return [(id_, each.device.healthy, each.device.numa_node) for id_, each in offered.items()]


def _device_message(each: OfferedDevice) -> Any:
    numa = each.device.numa_node
    nodes = [] if numa < 0 else [messages.NUMANode(ID=numa)]
    return messages.Device(
        ID=each.id,
        health=messages.HEALTHY if each.device.healthy else messages.UNHEALTHY,
        topology=messages.TopologyInfo(nodes=nodes) if nodes else None,
    )

"""One resource on one socket: a device plugin as the kubelet knows it (v1beta1).

gRPC's threads call the methods; the agent's main thread says what is offered. Only the newest
stream of ListAndWatch is served: there is one kubelet, and each stream takes a thread.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from nodeside import log
from nodeside.device_agent import messages
from nodeside.device_agent.allocation import given, preferred
from nodeside.device_agent.inventory import Offered
from nodeside.device_agent.registration import KUBELET_SOCKET, NotRegistered, file_prefix
from nodeside.errors import NodesideError
from nodeside.spec.devices import Device

RESEND = 30.0  # seconds after which the list is sent again, which repairs what the kubelet forgot
SERVICE = "v1beta1.DevicePlugin"
_THREADS = 8
_AT_ONCE = 16  # calls; more are refused
_DEADLINE = 5.0  # seconds for a registration; a pod has ten to end
_GRACE = 1.0  # seconds for calls that are being served when the server stops


class Plugin:
    """The plugin of one resource; nothing listens before `start`."""

    def __init__(self, device: Device, directory: Path) -> None:
        self.resource = device.resource
        self._give = device.give
        self._directory = directory
        self._prefix = file_prefix(device.resource)
        self._offered: Mapping[str, Offered] = {}
        self._changed = threading.Condition()
        self._version = 0
        self._stream: object = None  # of the newest ListAndWatch that has not ended
        self.registrations = self.allocations = 0  # since the start
        self._server: Any = None
        self._socket: Path | None = None

    # --- for the main thread

    def offer(self, offered: Mapping[str, Offered]) -> None:
        """Tell the kubelet what there is now; of what it does not see, nothing is sent."""
        with self._changed:
            is_news = _seen(offered) != _seen(self._offered)
            self._offered = offered
            if is_news:
                self._version += 1
                self._changed.notify_all()

    def start(self) -> None:
        """Listen on a new socket, since a server that stops removes the file of its successor.

        Raises OSError or RuntimeError if that cannot be made.
        """
        self.stop()
        for left in self._directory.glob(f"{self._prefix}-*.sock"):  # we hold the resource's lock
            left.unlink(missing_ok=True)
        path = self._directory / f"{self._prefix}-{secrets.token_hex(4)}.sock"
        server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="plugin"),
            handlers=[self._handlers()],
            maximum_concurrent_rpcs=_AT_ONCE,
        )
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._server, self._socket = server, path

    def stop(self) -> None:
        """End the streams: the kubelet gives away no device until somebody registers again."""
        with self._changed:
            self._stream = None
            self._changed.notify_all()
        if self._server is not None:
            self._server.stop(_GRACE).wait()
        self._server = self._socket = None

    @property
    def endpoint(self) -> str:
        """The name of the socket, "" if the kubelet or somebody else has removed it."""
        return self._socket.name if self._socket and self._socket.exists() else ""

    @property
    def is_watched(self) -> bool:
        """Whether the kubelet listens to what is offered."""
        return self._stream is not None

    def register(self) -> None:
        """Tell the kubelet where it listens; it calls back before it answers.

        Raises NotRegistered with the kubelet's words.
        """
        request = messages.RegisterRequest(
            version=messages.VERSION,
            endpoint=self.endpoint,
            resource_name=self.resource,
            options=_options(),
        )
        with grpc.insecure_channel(f"unix:{self._directory / KUBELET_SOCKET}") as channel:
            call: Any = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=messages.Empty.FromString,
            )
            try:
                call(request, timeout=_DEADLINE)
            except grpc.RpcError as error:
                raise NotRegistered(str(error.details())) from error
        self.registrations += 1

    # --- for gRPC's threads

    def _handlers(self) -> Any:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetDevicePluginOptions": _handler(unary, self._get_options, messages.Empty),
                "ListAndWatch": _handler(stream, self._list_and_watch, messages.Empty),
                "GetPreferredAllocation": _handler(
                    unary, self._prefer, messages.PreferredAllocationRequest
                ),
                "Allocate": _handler(unary, self._allocate, messages.AllocateRequest),
                "PreStartContainer": _handler(
                    unary, self._pre_start, messages.PreStartContainerRequest
                ),
            },
        )

    def _get_options(self, _request: Any, _context: Any) -> Any:
        return _options()

    def _pre_start(self, _request: Any, _context: Any) -> Any:
        return messages.PreStartContainerResponse()  # never asked for

    def _list_and_watch(self, _request: Any, context: Any) -> Iterator[Any]:
        mine = object()
        with self._changed:
            self._stream = mine
            self._changed.notify_all()  # an older one ends
        try:
            if not context.add_callback(self._wake):
                return  # it has ended already
            while context.is_active() and self._stream is mine:
                version, response = self._listed()
                yield response
                self._wait(context, mine, version)
        finally:
            with self._changed:
                if self._stream is mine:
                    self._stream = None

    def _listed(self) -> tuple[int, Any]:
        with self._changed:
            version, offered = self._version, self._offered
        devices = [_device(each) for each in offered.values()]
        return version, messages.ListAndWatchResponse(devices=devices)

    def _wait(self, context: Any, mine: object, version: int) -> None:
        def holds() -> bool:
            ended = self._stream is not mine or not context.is_active()
            return ended or self._version != version

        with self._changed:
            self._changed.wait_for(holds, RESEND)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _allocate(self, request: Any, context: Any) -> Any:
        try:
            responses = [self._given(list(each.devices_ids)) for each in request.container_requests]
        except NodesideError as error:  # the kubelet shows the words to the pod
            log.warning("a container gets no device", resource=self.resource, error=error)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return messages.AllocateResponse(container_responses=responses)

    def _given(self, ids: Sequence[str]) -> Any:
        found = given(self._give, self._offered, ids)
        log.fact("devices are given", resource=self.resource, devices=",".join(ids))
        with self._changed:
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

    def _prefer(self, request: Any, _context: Any) -> Any:
        offered = self._offered
        return messages.PreferredAllocationResponse(
            container_responses=[
                messages.ContainerPreferredAllocationResponse(
                    deviceIDs=preferred(
                        offered,
                        list(each.available_deviceIDs),
                        list(each.must_include_deviceIDs),
                        each.allocation_size,
                    )
                )
                for each in request.container_requests
            ]
        )


def _options() -> Any:
    """Return what this plugin can do: asked for by a kubelet since 1.25, told to older ones."""
    return messages.DevicePluginOptions(get_preferred_allocation_available=True)


def _handler(kind: Callable[..., Any], method: Callable[..., Any], request: Any) -> Any:
    return kind(
        method,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def _seen(offered: Mapping[str, Offered]) -> Sequence[tuple[str, bool, int]]:
    """Return what the kubelet sees of the devices."""
    return [(id_, each.device.healthy, each.device.numa_node) for id_, each in offered.items()]


def _device(each: Offered) -> Any:
    numa = each.device.numa_node
    nodes = [] if numa < 0 else [messages.NUMANode(ID=numa)]
    return messages.Device(
        ID=each.id,
        health=messages.HEALTHY if each.device.healthy else messages.UNHEALTHY,
        topology=messages.TopologyInfo(nodes=nodes) if nodes else None,
    )

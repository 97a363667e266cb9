"""A kubelet as a device plugin sees it, with another gRPC library than ours: grpcio.

It is a process of its own: pytest forks, and one that uses grpcio must not.

It does what Kubernetes does since 1.25 (pkg/kubelet/cm/devicemanager/plugin/v1beta1): in `Register`
it calls the plugin back, then it watches it. Lines of JSON on stdin are calls, those on stdout what
happens: `{"registered": resource}`, `{"list": {id: health}}`, `{"ended": resource}`, and answers.

Its start costs half a second of a processor. So one process can be many kubelets, one after the
other (`move`), of which none knows anything of those before it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.patience import patience

LONG = patience(60.0)  # seconds
Kind = TypeVar("Kind", bound="PlayedKubelet")


@dataclass
class PlayedKubelet:
    """The process, and what its kubelet has said so far."""

    process: subprocess.Popen[str]
    said: list[dict[str, Any]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _moves: int = 0

    def move(self, directory: Path, **how: Any) -> None:
        """Be a new kubelet, that of `directory`, which has said nothing yet."""
        self._moves += 1
        self.begin(directory=str(directory), number=self._moves, **how)
        self.until(lambda each: each.get("serving") == self._moves)

    def listen(self) -> None:
        """Keep what it says, in a thread."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # it is closed, since the test has ended
            for line in self.process.stdout:
                said = json.loads(line)
                with self._changed:
                    if "serving" in said:  # those before it say nothing any more
                        self.said.clear()
                    self.said.append(said)
                    self._changed.notify_all()

    def until(self, holds: Callable[[dict[str, Any]], bool], after: int = 0) -> dict[str, Any]:
        """Return the first thing that it says, or has said, of which something holds."""

        def found() -> dict[str, Any] | None:
            return next((each for each in self.said[after:] if holds(each)), None)

        with self._changed:
            result = self._changed.wait_for(found, LONG)
        assert result is not None, self.said
        return result

    def until_registered(self, resource: str, after: int = 0) -> None:
        self.until(lambda each: each.get("registered") == resource, after)

    def until_list(self, devices: Mapping[str, str], after: int = 0) -> None:
        """It is told of these devices, by their health."""
        self.until(lambda each: each.get("list") == devices, after)

    def call(self, **call: Any) -> Any:
        """Call the plugin and return its answer."""
        after = len(self.said)
        self.begin(**call)
        return self.until(lambda each: "answer" in each, after)["answer"]

    def begin(self, **call: Any) -> None:
        """Call the plugin, and do not wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()


@contextmanager
def played_kubelet(directory: Path) -> Iterator[PlayedKubelet]:
    """A kubelet whose own socket stays if it is killed."""
    with kubelet_process("tests.device_agent.played_kubelet", PlayedKubelet) as kubelet:
        kubelet.move(directory)
        yield kubelet


@contextmanager
def kubelet_process(module: str, kind: type[Kind]) -> Iterator[Kind]:
    """A process that is no kubelet yet."""
    with subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        kubelet = kind(process)
        kubelet.listen()
        try:
            yield kubelet
        finally:
            process.kill()


# --- in its process -------------------------------------------------------------------------------


class Voice:
    """How a kubelet says what happens, until it ends."""

    def __init__(self) -> None:
        self._saying = threading.Lock()
        self._has_ended = False

    def say(self, **words: Any) -> None:
        with self._saying:
            if not self._has_ended:
                print(json.dumps(words), flush=True)  # noqa: T201

    def fall_silent(self) -> None:
        with self._saying:
            self._has_ended = True


class _Kubelet(Voice):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.channels: dict[str, Any] = {}
        self.pods: Any = None
        self.server: Any = None

    def start(self) -> None:
        """As a kubelet does: it removes the sockets that are there."""
        import grpc

        from nodeside.device_agent import messages

        for left in self.directory.glob("*.sock"):
            left.unlink()
        self.server = server = grpc.server(ThreadPoolExecutor(4))
        handler: Any = grpc.unary_unary_rpc_method_handler(
            self.register,
            request_deserializer=messages.RegisterRequest.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        lists: Any = grpc.unary_unary_rpc_method_handler(
            lambda _request, _context: self.pods or messages.ListPodResourcesResponse(),
            request_deserializer=messages.ListPodResourcesRequest.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        handlers = grpc.method_handlers_generic_handler
        server.add_generic_rpc_handlers(
            [
                handlers("v1beta1.Registration", {"Register": handler}),
                handlers("v1.PodResourcesLister", {"List": lists}),  # a real one has another socket
            ]
        )
        server.add_insecure_port(f"unix:{self.directory / 'kubelet.sock'}")
        server.start()

    def end(self) -> None:
        self.fall_silent()
        self.server.stop(None).wait()
        for channel in list(self.channels.values()):
            channel.close()

    def register(self, request: Any, context: Any) -> Any:
        import grpc

        from nodeside.device_agent import messages

        if request.version != messages.VERSION:
            context.abort(grpc.StatusCode.UNKNOWN, f"version {request.version} is not supported")
        self.channels[request.resource_name] = channel = grpc.insecure_channel(
            f"unix:{self.directory / request.endpoint}"
        )
        options = self.method(channel, "GetDevicePluginOptions", messages.DevicePluginOptions)(
            messages.Empty(), timeout=10
        )
        assert options == request.options
        self.say(registered=request.resource_name)
        watch = threading.Thread(target=self.watch, args=(channel, request.resource_name))
        watch.daemon = True
        watch.start()
        return messages.Empty()

    def watch(self, channel: Any, resource: str) -> None:
        import grpc

        from nodeside.device_agent import messages

        stream = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages.ListAndWatchResponse.FromString,
        )(messages.Empty())
        try:
            for response in stream:
                numa = {d.ID: d.topology.nodes[0].ID for d in response.devices if d.topology.nodes}
                self.say(list={d.ID: d.health for d in response.devices}, numa=numa)
        except grpc.RpcError:
            pass
        self.say(ended=resource)

    def method(self, channel: Any, name: str, answer: Any) -> Any:
        return channel.unary_unary(
            f"/v1beta1.DevicePlugin/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def obey(self, call: Mapping[str, Any]) -> Any:
        """Call a plugin: by `resource`, with `allocate` or `prefer`, or open `streams`.

        With `pods`, those are the pods that have devices.
        """
        import grpc
        from google.protobuf.json_format import MessageToDict, ParseDict

        from nodeside.device_agent import messages

        if "pods" in call:
            self.pods = ParseDict(
                {"pod_resources": call["pods"]}, messages.ListPodResourcesResponse()
            )
            return len(call["pods"])
        channel = self.channels[call["resource"]]
        if "streams" in call:
            for _ in range(call["streams"]):
                threading.Thread(
                    target=self.watch, args=(channel, call["resource"]), daemon=True
                ).start()
            return call["streams"]
        request, name, answer = (
            (messages.AllocateRequest(), "Allocate", messages.AllocateResponse)
            if "allocate" in call
            else (
                messages.PreferredAllocationRequest(),
                "GetPreferredAllocation",
                messages.PreferredAllocationResponse,
            )
        )
        ParseDict({"container_requests": call.get("allocate", call.get("prefer"))}, request)
        try:
            found = self.method(channel, name, answer)(request, timeout=10)
        except grpc.RpcError as error:
            return {"error": error.details()}
        return MessageToDict(found, preserving_proto_field_name=True)["container_responses"]


def be_kubelets(kind: Callable[..., Any]) -> None:
    """Be one for each `move`, as `kind` makes it of what the move says."""
    kubelet: Any = None
    for line in sys.stdin:
        call = json.loads(line)
        if "directory" not in call:
            kubelet.say(answer=kubelet.obey(call))
            continue
        if kubelet is not None:
            kubelet.end()
        number = call.pop("number")
        kubelet = kind(Path(call.pop("directory")), **call)
        kubelet.start()
        kubelet.say(serving=number)


if __name__ == "__main__":
    be_kubelets(_Kubelet)

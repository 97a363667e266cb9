"""A kubelet as a DRA driver sees it, in a process of its own, since one that uses grpcio must
not fork, as pytest does.

It does what Kubernetes 1.36 does (pkg/kubelet/pluginmanager, pkg/kubelet/cm/dra): it looks for
sockets in its registry, asks who is there, and says whether it takes the driver, whose health it
watches.
Lines of JSON on stdin are calls, those on stdout what happens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.device_agent.dra.documents import UID
from tests.device_agent.played_kubelet import (
    PlayedKubelet,
    Voice,
    be_kubelets,
    kubelet_process,
)

SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
REGISTRATION = "/pluginregistration.Registration"


class DraKubelet(PlayedKubelet):
    """The process, and what it has said."""

    def until_registered(self, resource: str = "edu.nodeside.io", after: int = 0) -> None:
        super().until_registered(resource, after)

    def prepare(self, *names: str, uid: str = UID) -> Any:
        """Return its answer for the claims default/<name>: by uid, or {"error": …}."""
        claims = [{"namespace": "default", "name": name, "uid": uid} for name in names]
        return self.call(prepare=claims)

    def unprepare(self, *uids: str) -> Any:
        claims = [{"namespace": "default", "name": "one", "uid": uid} for uid in uids]
        return self.call(unprepare=claims)


@contextmanager
def dra_kubelet_process() -> Iterator[DraKubelet]:
    """A process that is no kubelet yet: `move(registry, refuses="")`.

    `refuses` is what it says to each driver instead of taking it.
    """
    with kubelet_process("tests.device_agent.dra.played_kubelet", DraKubelet) as kubelet:
        yield kubelet


# --- in its process -------------------------------------------------------------------------------


class _Kubelet(Voice):
    def __init__(self, registry: Path, refuses: str = "") -> None:
        super().__init__()
        self.registry, self.refuses = registry, refuses
        self.channel: Any = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self.watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.fall_silent()
        self._ended.set()
        self._thread.join()
        if self.channel is not None:
            self.channel.close()

    def watch(self) -> None:
        """See which sockets come and go; a real one is told by inotify."""
        known: dict[Path, tuple[int, int]] = {}
        while not self._ended.wait(0.05):
            found = {
                path: (status.st_ino, status.st_ctime_ns)
                for path in self.registry.glob("*")
                if path.is_socket() and (status := path.stat())
            }
            for path, identity in found.items():
                if known.get(path) != identity:
                    self._register(path)
            for path in known.keys() - found.keys():
                self.say(gone=path.name)
            known = found

    def _register(self, path: Path) -> None:
        import grpc

        from nodeside.device_agent import messages

        with grpc.insecure_channel(f"unix:{path}") as channel:
            try:
                request, answer = messages.InfoRequest(), messages.PluginInfo
                info = _method(channel, f"{REGISTRATION}/GetInfo", answer)(request, timeout=10)
            except grpc.RpcError as error:
                self.say(unanswered=str(error))
                return
            assert info.type == "DRAPlugin"
            assert list(info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
            assert Path(info.endpoint).is_socket()  # it serves before it announces
            if self.channel is not None:
                self.channel.close()
            self.channel = grpc.insecure_channel(f"unix:{info.endpoint}")
            threading.Thread(target=self._watch_health, args=(self.channel,), daemon=True).start()
            status = messages.RegistrationStatus(
                plugin_registered=not self.refuses, error=self.refuses
            )
            name, answer = "NotifyRegistrationStatus", messages.RegistrationStatusResponse
            _method(channel, f"{REGISTRATION}/{name}", answer)(status, timeout=10)
        self.say(registered=info.name)

    def _watch_health(self, channel: Any) -> None:
        import grpc

        from nodeside.device_agent import messages

        stream = channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )(messages.NodeWatchResourcesRequest())
        with suppress(grpc.RpcError):
            for each in stream:
                self.say(health={d.device.device_name: d.message or d.health for d in each.devices})

    def obey(self, call: Mapping[str, Any]) -> Any:
        import grpc
        from google.protobuf.json_format import MessageToDict, ParseDict

        from nodeside.device_agent import messages

        name, kind, answer = (
            ("Prepare", messages.NodePrepareResourcesRequest, messages.NodePrepareResourcesResponse)
            if "prepare" in call
            else (
                "Unprepare",
                messages.NodeUnprepareResourcesRequest,
                messages.NodeUnprepareResourcesResponse,
            )
        )
        request = ParseDict({"claims": call.get("prepare", call.get("unprepare"))}, kind())
        try:
            method = _method(self.channel, f"{SERVICE}/Node{name}Resources", answer)
            found = method(request, timeout=30)
        except grpc.RpcError as error:
            return {"error": error.details()}
        return MessageToDict(found, preserving_proto_field_name=True).get("claims", {})


def _method(channel: Any, name: str, answer: Any) -> Any:
    return channel.unary_unary(
        name,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )


if __name__ == "__main__":
    be_kubelets(_Kubelet)

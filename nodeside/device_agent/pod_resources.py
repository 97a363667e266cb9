"""Which container has which devices, as the kubelet says: its pod resources API, v1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeside import log
from nodeside.device_agent import messages, rpc
from nodeside.errors import NodesideError

_DEADLINE = 2.0  # seconds
_LARGEST = 16 << 20  # bytes of an answer; the kubelet's own clients take as much


class NoAnswer(NodesideError):
    """The kubelet could not be asked which container has which devices."""

    reason = "NoAnswer"


@dataclass(frozen=True, order=True)
class PodContainer:
    """A container of a pod."""

    namespace: str
    pod: str
    name: str


Holders = Mapping[str, Mapping[str, Sequence[PodContainer]]]
"""Who has the devices, by resource and the kubelet's ids, or by DRA driver and names in slices.

Containers share the devices of one claim.
"""


class PodResources:
    """The kubelet's answers, by the socket of its pod resources API.

    A failure is logged once until the kubelet answers again.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._trouble = ""

    def find_holders(self) -> Holders:
        """Return who has which devices. Raises NoAnswer."""
        answer = self._ask_kubelet()
        self._trouble = ""
        found: dict[str, dict[str, list[PodContainer]]] = {}
        for pod in answer.pod_resources:
            for container in pod.containers:
                holder = PodContainer(pod.namespace, pod.name, container.name)
                given = [
                    (each.resource_name, id_)
                    for each in container.devices
                    for id_ in each.device_ids
                ]
                given += [
                    (each.driver_name, each.device_name)
                    for claim in container.dynamic_resources
                    for each in claim.claim_resources
                ]
                for kind, name in given:
                    found.setdefault(kind, {}).setdefault(name, []).append(holder)
        return found

    def _ask_kubelet(self) -> Any:
        method, request = "/v1.PodResourcesLister/List", messages.ListPodResourcesRequest()
        answer = messages.ListPodResourcesResponse
        try:
            return rpc.call_method(
                self._socket, method, request, answer, timeout=_DEADLINE, largest=_LARGEST
            )
        except rpc.CallFailed as error:
            self._log_trouble(f"{self._socket}: {error}")
            raise NoAnswer(f"{self._socket}: {error}") from error

    def _log_trouble(self, trouble: str) -> None:
        if not self._trouble:
            log.warning("cannot ask the kubelet which containers have the devices", why=trouble)
        self._trouble = trouble

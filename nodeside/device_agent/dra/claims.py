"""What a ResourceClaim was allocated of our devices, and its CDI specification. Pure.

Sources: staging/src/k8s.io/api/resource/v1/types.go of Kubernetes; SPEC.md of the Container Device
Interface.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeside.device_agent.allocation import ContainerGrant
from nodeside.device_agent.dra.slices import mapping_at
from nodeside.errors import NodesideError
from nodeside.protocol.labels import API_GROUP
from nodeside.spec.devices import Mount
from nodeside.values import frozen

CDI_VERSION = "0.5.0"  # the first in which a device's name may begin with a digit
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # apis/resource/validation
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MOST = 256  # devices of a claim; the API server takes 32


class ClaimUnfit(NodesideError):
    """A claim cannot be prepared here; the kubelet shows the words to the pod, and tries again."""

    reason = "ClaimUnfit"


@frozen
class AllottedDevice:
    """A device that a request of a claim was allocated. Raises ClaimUnfit for an invalid name."""

    request: str
    device: str

    def __post_init__(self) -> None:
        for name in (self.request, self.device):
            if not _LABEL.fullmatch(name):
                raise ClaimUnfit(f"{name[:64]!r} is no DNS label")


@frozen
class Claim:
    """A ResourceClaim, and what it was allocated of our devices in this node's pool."""

    uid: str
    namespace: str
    name: str
    devices: tuple[AllottedDevice, ...]

    @property
    def by_request(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the devices by request."""
        found: dict[str, list[str]] = {}
        for each in self.devices:
            found.setdefault(each.request, []).append(each.device)
        return found


@frozen
class Edits:
    """What a container gets for a request."""

    given: tuple[tuple[ContainerGrant, tuple[Mount, ...]], ...]

    def document(self) -> dict[str, Any]:
        """Return CDI's containerEdits, {} if it gets nothing.

        Of two variables of one name, the last one holds.
        """
        env = {name: text for each, _ in self.given for name, text in each.environment.items()}
        nodes = dict.fromkeys(node for each, _ in self.given for node in each.nodes)
        mounts = dict.fromkeys(mount for _, some in self.given for mount in some)
        edits = {
            "env": [f"{name}={text}" for name, text in env.items()],
            "deviceNodes": [{"path": node, "permissions": "rw"} for node in nodes],
            "mounts": [_mount_document(each) for each in mounts],
        }
        return {key: value for key, value in edits.items() if value}


def read_claim(
    document: Mapping[str, Any], *, uid: str, namespace: str, name: str, driver: str, pool: str
) -> Claim:
    """Return what a claim, as the API server has it, was allocated of a driver. Raises ClaimUnfit.

    `uid` is that which the kubelet means: a claim that was deleted may have a successor.
    """
    words = f"ResourceClaim {namespace}/{name}"
    found = mapping_at(document, "metadata").get("uid")
    if found != uid:
        raise ClaimUnfit(f"{words} is another one now: its uid is {str(found)[:64]}, not {uid}")
    allocation = mapping_at(mapping_at(document, "status"), "allocation")
    if not allocation:
        raise ClaimUnfit(f"{words} is not allocated")
    results = mapping_at(allocation, "devices").get("results")
    mine = [
        each
        for each in (results if isinstance(results, list) else [])
        if isinstance(each, Mapping) and each.get("driver") == driver
    ]
    if not mine or len(mine) > _MOST:
        raise ClaimUnfit(
            f"{words} is allocated {len(mine)} devices of {driver}; expected 1 to {_MOST}"
        )
    if wrong := next((each for each in mine if each.get("pool") != pool), None):
        raise ClaimUnfit(
            f"{words} is allocated a device of {str(wrong.get('pool'))[:64]!r}, not of {pool}"
        )
    return Claim(uid, namespace, name, tuple(_read_allotted(each) for each in mine))


def _read_allotted(result: Mapping[str, Any]) -> AllottedDevice:
    # A request with alternatives is "request/alternative"; containers name only the request.
    request = str(result.get("request")).partition("/")[0]
    return AllottedDevice(request, str(result.get("device")))


# --- CDI ----------------------------------------------------------------------------------------


def cdi_kind(driver: str) -> str:
    """Return the kind of the CDI devices of a driver. The part after / must begin with a letter."""
    return f"{API_GROUP}/{driver if driver[0].isalpha() else f'driver_{driver}'}"


def cdi_device(claim: Claim, request: str) -> str:
    """Return the name of the CDI device of a request."""
    return f"{claim.uid}-{request}"


def cdi_spec(kind: str, claim: Claim, edits: Mapping[str, Edits]) -> dict[str, Any] | None:
    """Return the CDI specification of a claim, with a device for each request; None if it is empty.

    Requests without edits are left out, since runtimes refuse such a device.
    """
    devices = [
        {"name": cdi_device(claim, request), "containerEdits": document}
        for request, each in edits.items()
        if (document := each.document())
    ]
    return {"cdiVersion": CDI_VERSION, "kind": kind, "devices": devices} if devices else None


def _mount_document(mount: Mount) -> Mapping[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path or mount.host_path,
        "options": ["rbind", "rprivate", "ro" if mount.read_only else "rw"],
    }

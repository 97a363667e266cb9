"""What a node says of a driver: state, origin of its modules, NodeDriver status, READY line.

Stdlib only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from nodeside.values import frozen


class State(Enum):
    """The values of the state label, a closed set. The node changes the label, never removes it."""

    WAITING = "waiting"
    BUILDING = "building"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    UNLOADING = "unloading"
    REBOOT_REQUIRED = "reboot-required"


# The reason for `waiting` after the modules were unloaded on purpose.
UNLOADED = "Unloaded"
# The same, where the kernel's own drivers could not be brought back.
NOT_RESTORED = "NotRestored"
# The reason for `waiting` while a driver that this one comes after is not ready.
WAITS_FOR_DRIVER = "WaitsForDriver"
# The reason if neither a bundle nor a toolkit could serve the node; the controller acts on it.
NOTHING_SERVED = "NoRungServed"


# Size limits of a NodeDriver, respected by the node and enforced by the API server: the controller
# keeps one NodeDriver in memory for each driver on each node.
REPORT_TEXT = 1024  # characters
REPORT_ITEMS = 64


class Rung(Enum):
    """The origin of a ready driver's modules, from the cheapest to the most expensive."""

    LOADED = "loaded"
    CACHED = "cached"
    FETCHED = "fetched"
    COMPATIBLE = "compatible"
    BUILT = "built"


READY_PATTERN = re.compile(
    r"NODESIDE_READY driver=(?P<driver>\S+) version=(?P<version>\S+) kernel=(?P<kernel>\S+) "
    r"source=(?P<source>\S+) modules=(?P<modules>\S+)"
)


def ready_marker(status: NodeDriverStatus) -> str:
    """Return the log line for a ready driver; stable, since other components match it.

    It matches `READY_PATTERN` and is at the start of its own line in every log format.
    """
    source = status.source or Rung.LOADED
    return (
        f"NODESIDE_READY driver={status.driver} version={status.version} kernel={status.kernel} "
        f"source={source.value} modules={','.join(status.modules)}"
    )


@frozen
class ServiceStatus:
    """A service of a driver; `restarts` are those by the driver container's current process.

    `message` says why it is not ready.
    """

    name: str
    ready: bool
    restarts: int = 0
    message: str = ""


@frozen
class NodeDriverStatus:
    """The status of a driver on a node.

    In a NodeDriver object, texts have at most `REPORT_TEXT` characters, and lists and mappings at
    most `REPORT_ITEMS` entries. `source` is the rung that provided the modules; `toolkit` is the
    image of the pod's sidecar, "" if it has none; `stages` maps a stage to its duration in seconds;
    `services` are in the order of their start; `parameters` are sentences about
    module parameters that something besides driver.yaml sets.
    """

    driver: str
    node: str
    state: State
    version: str
    kernel: str
    boot_id: str
    reason: str = ""
    message: str = ""
    hint: str = ""
    source: Rung | None = None
    key: str = ""
    revision: str = ""
    toolkit: str = ""
    modules: tuple[str, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    services: tuple[ServiceStatus, ...] = ()
    parameters: tuple[str, ...] = ()


# The type of the condition that says whether the driver works, for `kubectl wait`.
READY_CONDITION = "Ready"


@frozen
class NodeCondition:
    """A condition of a NodeDriver object, by the conventions of Kubernetes.

    https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
    """

    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: str = ""


@frozen
class ReportedStatus(NodeDriverStatus):
    """The status of a NodeDriver object as a node reports it to the cluster."""

    conditions: tuple[NodeCondition, ...] = ()

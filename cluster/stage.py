"""What is observed of the stages after the drivers, as values, and the labels they go by.

A stage is what follows a driver on the nodes where it is ready: see stages.py, which decides, and
docs/stages.md. World holds a `Stages`; stageview.py makes it of the API server's JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.kept import Kept
from cluster.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    POD_MONITORS,
    PROMETHEUS_RULES,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
    Resource,
)

# What a stage may have, in the order in which it is applied. RBAC grants these and no more.
ALLOWED: Final[tuple[Resource, ...]] = (
    SERVICE_ACCOUNTS,
    CONFIG_MAPS,
    SERVICES,
    DAEMON_SETS,
    DEPLOYMENTS,
    SERVICE_MONITORS,
    POD_MONITORS,
    PROMETHEUS_RULES,
)
# Kinds of the Prometheus operator, which not every cluster has.
OPTIONAL: Final = (SERVICE_MONITORS, POD_MONITORS, PROMETHEUS_RULES)

Key = tuple[str, str]  # kind and name of an object


def lane_of(driver: str, content: str) -> str:
    """The lane in which objects of stages are written: what is refused there stops no rollout.

    `content` is a hash of what there is to write: something else is tried at once.
    """
    return f"{driver}/stages.{content}"


def driver_of(lane: str) -> str:
    """The Driver that an action is about, in whatever lane."""
    return lane.partition("/")[0]


def is_stage_lane(lane: str) -> bool:
    return "/stages." in lane


def cordon_lane_of(driver: str) -> str:
    """The lane in which our cordons are ended: nothing of the Driver rests on it."""
    return f"{driver}/cordons"


def status_lane_of(driver: str) -> str:
    """By this name a refused status is remembered: it holds up no other action of the Driver."""
    return f"{driver}/status"


def node_lane_of(lane: str, node: str) -> str:
    """By this name is remembered what was refused of one node: others do not wait for it."""
    return f"{lane}{_OF_NODE}{node}"


def whole_lane_of(lane: str) -> str:
    """The lane itself, of one of its nodes."""
    return lane.partition(_OF_NODE)[0]


def is_node_lane(lane: str) -> bool:
    return _OF_NODE in lane


_OF_NODE = "/nodes/"


@dataclass(frozen=True, slots=True)
class StageObject:
    """An object in our namespace. `driver` and `stage` are "" if it is none of a stage.

    `document` is whole for one of a stage, so that hand edits are seen. `rolled_out` says whether a
    Deployment is as it should be; `progress` how far it is, in words.
    """

    kind: str
    name: str
    uid: str = ""
    driver: str = ""
    stage: str = ""
    applied: str = ""
    deleting: bool = False
    rolled_out: bool = True
    progress: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    kept: Kept = field(default=Kept(), compare=False)


@dataclass(frozen=True, slots=True)
class StagePod:
    """A pod of a DaemonSet or Deployment of a stage. `waiting` is as in DriverPod.

    `container` is its first one.
    """

    name: str
    uid: str = ""
    driver: str = ""
    stage: str = ""
    node: str = ""
    daemonset: str = ""
    container: str = ""
    deleting: bool = False
    ready: bool = False
    waiting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogWanted:
    """A log in which a line is to match. `seconds` is how long that may take."""

    uid: str
    pod: str
    container: str
    pattern: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LogSight:
    """What was seen of a log. `words` is why it could not be read, "" if it could."""

    matched: bool = False
    late: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A ConfigMap as a person wrote it: file name → template."""

    name: str
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Template:
    """All that the documents of a stage follow from. `values` is JSON."""

    config_map: str
    files: tuple[tuple[str, str], ...]
    values: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a template gives: documents, each with its file, or why there are none.

    `size` is what the documents take in memory, in bytes, roughly.
    """

    documents: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    error: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Stages:
    """Everything observed of stages. `unknown` says why nothing may be concluded, "" if it may.

    `absent` are kinds that this API server does not have. `logs` is by the uid of a pod. `rendered`
    are templates that a plan asked for; what is not in it is not known yet.
    """

    objects: Mapping[Key, StageObject] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    pods: Mapping[str, StagePod] = field(default_factory=dict)
    logs: Mapping[str, LogSight] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    unknown: str = ""
    rendered: Mapping[Template, Rendered] = field(default_factory=dict)

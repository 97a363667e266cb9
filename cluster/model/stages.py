"""What is observed of stages, as values.

A stage is what follows a driver on the nodes where it is ready (docs/stages.md). A `Snapshot` holds
a `Stages`; `parse_stages` makes them of the API server's JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.kube.managed_fields import ObjectMeta
from cluster.kube.resources import (
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
    kept: ObjectMeta = field(default=ObjectMeta(), compare=False)


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


# What is to be applied, in order, and in words what is left out.
Framed = tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]

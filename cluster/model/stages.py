"""Value types for the observed state of stages.

A stage is the workload that follows a driver on the nodes where it is ready (docs/stages.md). A
`Snapshot` holds a `Stages`; `parse_stages` builds the values from the API server's JSON.
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
    JOBS,
    POD_MONITORS,
    PROMETHEUS_RULES,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
    Resource,
)
from cluster.model.waiting import Waiting

# The kinds a stage may contain, in the order in which they are applied. RBAC grants only these.
ALLOWED: Final[tuple[Resource, ...]] = (
    SERVICE_ACCOUNTS,
    CONFIG_MAPS,
    SERVICES,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    SERVICE_MONITORS,
    POD_MONITORS,
    PROMETHEUS_RULES,
)


# What is watched from the first Driver with stages on. All our Jobs are watched anyway.
WATCHED: Final = tuple(each for each in ALLOWED if each is not JOBS)


# Kinds of the Prometheus operator, which not every cluster runs.
OPTIONAL: Final = (SERVICE_MONITORS, POD_MONITORS, PROMETHEUS_RULES)


Key = tuple[str, str]  # kind and name of an object


def key_of(document: Mapping[str, Any]) -> Key:
    return document["kind"], document["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class StageObject:
    """An object in our namespace. `driver` and `stage` are "" if it belongs to no stage.

    `document` is complete if the object belongs to a stage, so that hand edits are detected.
    `rolled_out` is whether a Deployment is fully rolled out; `progress` is a description of how far
    it is.
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
    meta: ObjectMeta = field(default=ObjectMeta(), compare=False)


@dataclass(frozen=True, slots=True)
class StagePod:
    """A pod of a DaemonSet, Deployment or Job of a stage. `waiting` is as in PodObject.

    `container` is the name of its first container. `admitted` is the boot in which it was told that
    the stage before is ready. `job` is the uid of its Job, `run_of` the Job in the manifests, and
    `run_on` the node that the run is for, "" for any. `over`: it has ended and will not start
    again. `failure` says how a container failed, with its last line.
    """

    name: str
    uid: str = ""
    driver: str = ""
    stage: str = ""
    node: str = ""
    daemonset: str = ""
    job: str = ""
    run_of: str = ""
    run_on: str = ""
    container: str = ""
    admitted: str = ""
    deleting: bool = False
    ready: bool = False
    over: bool = False
    failure: str = ""
    waiting: Mapping[str, Waiting] = field(default_factory=dict)

    @property
    def may_use_device(self) -> bool:
        """Whether it runs or will run on a node of its stage, and may have the device open."""
        return bool(self.daemonset or self.job) and not self.over


@dataclass(frozen=True, slots=True)
class LogWanted:
    """A log in which a line must match `pattern` within `seconds`."""

    uid: str
    pod: str
    container: str
    pattern: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LogMatch:
    """The result of reading a log; `late`: no line has matched in time."""

    matched: bool = False
    late: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A user's ConfigMap: file name → template."""

    name: str
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Where a Service is. `ports` has the ports that have a name; `port` is the first one, or 0."""

    cluster_ip: str = ""
    port: int = 0
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SecretData:
    """The text entries of a Secret; None, and the error, if it could not be read.

    `is_certain` is false if the error is an outage of the API server.
    """

    data: Mapping[str, str] | None = field(default=None, repr=False)
    error: str = ""
    is_certain: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """The complete input for rendering the documents of a stage. `values` is JSON.

    Secrets may be among the values, so `repr` does not show them.
    """

    config_map: str
    files: tuple[tuple[str, str], ...]
    values: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The result of rendering a template: documents, each with its file name, or an error.

    `size` is the approximate memory use of the documents in bytes.
    """

    documents: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    error: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Stages:
    """Everything observed of stages.

    `unknown` is the reason why the observations are incomplete and must not be acted on, "" if they
    are complete. `absent` holds the kinds that the API server does not serve. `logs` is by pod uid.
    `rendered` holds templates that a plan requested; missing ones are not rendered yet.
    `cluster_version` is that of OpenShift, "" elsewhere. `services` are those that belong to no
    stage. `secrets` are those that stages name; one is missing until it has been read.
    """

    objects: Mapping[Key, StageObject] = field(default_factory=dict)
    sources: Mapping[str, TemplateSource] = field(default_factory=dict)
    pods: Mapping[str, StagePod] = field(default_factory=dict)
    logs: Mapping[str, LogMatch] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    unknown: str = ""
    rendered: Mapping[Template, Rendered] = field(default_factory=dict)
    cluster_version: str = ""
    services: Mapping[str, ServiceAddress] = field(default_factory=dict)
    secrets: Mapping[str, SecretData] = field(default_factory=dict)


# The documents to apply, in order, and descriptions of what is left out.
FramedDocuments = tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]

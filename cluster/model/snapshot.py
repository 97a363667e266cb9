"""The observed state of the cluster as immutable value types: the only input of a plan.

The parse modules build them from the API server's JSON. Times are wall clock seconds, 0 if unknown.
Values that differ only in the time of a write are equal, so that the controller is not woken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from cluster.kube.managed_fields import ObjectMeta
from cluster.model.lookup_cache import LookupCache
from cluster.model.pod_demand import PodDemand
from cluster.model.problems import Problem
from cluster.model.retries import Retries
from cluster.model.stages import Stages
from cluster.model.waiting import Waiting
from nodeside.protocol.build_job import BuildOutcome
from nodeside.spec import Driver

Document = Mapping[str, Any]


EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
KUBELET_ROOT: Final = "/var/lib/kubelet"


def _empty_mapping() -> Mapping[str, Any]:
    """Return the shared empty mapping."""
    return EMPTY


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes that can share one build of a driver. `architecture` is as in `uname -m`."""

    architecture: str
    os_version: str
    kernel: str


class Taint(NamedTuple):
    """A taint of a node."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node. All fields except the labels and `unschedulable` are reported by the kubelet.

    `ready_since` is when `ready` last changed, `labelled` when we last changed a label.
    `capacity` and `allocatable` have the extended resources only. `taints` are those that keep pods
    away and that people or a provider set, not Kubernetes.
    """

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=_empty_mapping)
    kernel: str = ""
    os_image: str = ""
    architecture: str = ""
    boot_id: str = ""
    ready: bool = False
    ready_since: float = 0.0
    unschedulable: bool = False
    capacity: Mapping[str, int] = field(default_factory=_empty_mapping)
    allocatable: Mapping[str, int] = field(default_factory=_empty_mapping)
    taints: tuple[Taint, ...] = ()
    labelled: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class DriverObject:
    """A Driver object. `driver` is None if the spec is invalid; `mistakes` is the error then.

    With `leave_modules`, modules stay loaded when the Driver is removed from a node. `retries` are
    the orders to forget failures; `rebuild` is the time of the last order to build anew, "" if none
    was given.
    """

    name: str
    uid: str = ""
    generation: int = 0
    created: str = ""
    deleting: bool = False
    leave_modules: bool = False
    retries: Retries = ()
    rebuild: str = ""
    finalizers: tuple[str, ...] = ()
    driver: Driver | None = None
    mistakes: str = ""
    status: Document = field(default_factory=_empty_mapping)
    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DaemonSetObject:
    """One of our DaemonSets. `spec` is complete, so that hand edits are detected; there are few.

    `applied` is the hash of the document applied last. `toolkit` is the sidecar image, "" without a
    sidecar; `link` is the rule that found the image. `touched` is the time of the last change by
    anyone, usually by the DaemonSet controller, which counts pods in the status. `applied_at` is
    the time of the last change by us. `fell_back` says why the pods build although those of their
    pool need not (kernel_images.py).
    """

    name: str
    uid: str = ""
    driver: str = ""
    pool: Pool = field(default=Pool("", "", ""))
    revision: str = ""
    assignment: str = ""
    applied: str = ""
    toolkit: str = ""
    link: str = ""
    fell_back: str = ""
    deleting: bool = False
    touched: float = field(default=0.0, compare=False)
    applied_at: float = field(default=0.0, compare=False)
    spec: Document = field(default_factory=_empty_mapping)
    meta: ObjectMeta = field(default=ObjectMeta(), compare=False)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The last report of the pod on a node, made at `time`.

    It is void if `boot_id` is not the node's. `toolkit` is the image of the pod's sidecar, "" if it
    has none. `services` and `parameters` are sentences about those of the driver.
    """

    name: str
    driver: str = ""
    node: str = ""
    state: str = ""
    boot_id: str = ""
    kernel: str = ""
    revision: str = ""
    version: str = ""
    source: str = ""
    toolkit: str = ""
    reason: str = ""
    message: str = ""
    hint: str = ""
    services: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    time: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class PodObject:
    """What driver pods and unload pods have in common.

    `waiting` has the containers that cannot start. An unschedulable pod has an entry with the
    container name `pod`.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    driver: str = ""
    node: str = ""
    deleting: bool = False
    created: float = 0.0
    waiting: Mapping[str, Waiting] = field(default_factory=_empty_mapping)


@dataclass(frozen=True, slots=True)
class DriverPod(PodObject):
    """A pod of one of our DaemonSets. `creating` says what its kubelet does before it starts."""

    daemonset: str = ""
    creating: str = ""


@dataclass(frozen=True, slots=True)
class UnloadPod(PodObject):
    """A pod that unloads the modules of a Driver on a node during one boot.

    `mark` is the boot mark. `code` is the exit code, None while the pod runs. `ended` is the reason
    if the pod failed.
    """

    mark: str = ""
    revision: str = ""
    phase: str = ""
    code: int | None = None
    ended: str = ""


@dataclass(frozen=True, slots=True)
class StageRun:
    """What a Job of a stage is for: a Job in the stage's manifests, and the only `node` of it.

    `node` is "" if it may run on any. `mark` is as in `run_mark`.
    """

    stage: str
    job: str
    node: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class JobObject:
    """What build Jobs and Jobs of stages have in common.

    `finished` means that no more pods will run. `why` is the reason if Kubernetes marked the Job as
    failed, else "".
    """

    name: str
    uid: str = ""
    driver: str = ""
    deleting: bool = False
    finished: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class BuildJob(JobObject):
    """A build Job. `outcome` is from our annotation.

    `revision` is the revision that its pods mount, possibly an older one with the same build.
    `applied` is the hash of the document that it was created with.
    """

    revision: str = ""
    outcome: BuildOutcome | None = None
    applied: str = ""


@dataclass(frozen=True, slots=True)
class StageJob(JobObject):
    """A Job of a stage."""

    run: StageRun = field(kw_only=True)

    @property
    def has_completed(self) -> bool:
        return self.finished and not self.why


@dataclass(frozen=True, slots=True)
class BuildPod:
    """A pod of a build Job.

    `outcome` is its termination message, `ended` the failure of a container that left none.
    `waiting` is as in PodObject.
    """

    name: str
    job: str = ""
    driver: str = ""
    created: float = 0.0
    waiting: Mapping[str, Waiting] = field(default_factory=_empty_mapping)
    outcome: BuildOutcome | None = None
    ended: str = ""


class NamespacedName(NamedTuple):
    """The name of an object, which is unique only within its namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pod that must leave a node before a Driver changes there.

    Only resources and labels that a Driver names are kept; see `PodDemand` for the resources.
    """

    pod: NamespacedName
    uid: str = ""
    node: str = ""
    resources: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=_empty_mapping)
    deleting: bool = False

    @property
    def name(self) -> str:
        """`namespace/name`, as a key and in messages."""
        return str(self.pod)


@dataclass(frozen=True, slots=True)
class ClaimObject:
    """A ResourceClaim: the drivers whose devices it was given, and the uids of pods that use it.

    `name` is namespace/name. Only drivers that somebody asks for are kept.
    """

    name: str
    drivers: frozenset[str]
    pods: frozenset[str]


@dataclass(frozen=True, slots=True)
class EvictionAnswer:
    """The response to an eviction; `refusal` is None if the pod was evicted.

    `resting`: it is too early to ask again.
    """

    refusal: str | None
    resting: bool = True


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Pods of the whole cluster, watched only while a Driver that evicts is changing.

    `known` is False while the pods are not watched or not listed yet; `trouble` is the error that
    prevents it. Only the pods of `demand` are kept; None: all. `answers` are the responses to this
    leader's evictions by pod uid.
    """

    consumers: Mapping[str, Consumer] = field(default_factory=_empty_mapping)
    known: bool = False
    trouble: str = ""
    answers: Mapping[str, EvictionAnswer] = field(default_factory=_empty_mapping)
    demand: PodDemand | None = None

    def knows(self, demand: PodDemand) -> bool:
        """Return whether all pods of a demand are known."""
        return self.known and (self.demand is None or self.demand.covers(demand))


@dataclass(frozen=True, slots=True)
class RevisionObject:
    """The immutable ConfigMap of one revision. `document` is the text of its driver.yaml.

    With an empty `revision` it is the ConfigMap of the Driver's policy, see revisions.py, which
    may change. `created` is a timestamp.
    """

    name: str
    driver: str = ""
    revision: str = ""
    document: str = ""
    uid: str = ""
    created: str = ""
    stamp: str = field(default="", compare=False)  # as in managed_fields.ObjectMeta


@dataclass(frozen=True, slots=True)
class ImageStream:
    """An image stream. `name` is namespace/name; `tags` maps a tag to its pull spec."""

    name: str
    tags: Mapping[str, str] = field(default_factory=_empty_mapping)


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of an image stream with its pull spec."""

    stream: str
    name: str
    image: str


@dataclass(frozen=True, slots=True)
class ToolkitLabels:
    """The kernels in the labels of a Driver Toolkit image, "" if a label is missing.

    An image of several architectures has none of its own, but those of the image of each.
    """

    kernel: str = ""
    rt_kernel: str = ""
    by_architecture: Mapping[str, ToolkitLabels] = field(default_factory=lambda: EMPTY)

    def for_architecture(self, architecture: str) -> ToolkitLabels:
        return self.by_architecture.get(architecture, self)


@dataclass(frozen=True, slots=True)
class NotListed:
    """An optional kind that could not be listed yet. `why` is the reason."""

    why: str


# None: the API server does not serve this kind.
ImageStreams = Mapping[str, ImageStream] | NotListed | None


@dataclass(frozen=True, slots=True)
class Settings:
    """Installation settings. The first two are determined by manifests.py.

    `scc` is the SecurityContextConstraints that admits driver pods, "" without OpenShift.
    `pull_secrets` are Secrets in our namespace: images are pulled with all of them, bundles are
    fetched with the first. `ca_config_map` contains `ca-bundle.crt`. `proxy` holds environment
    variables. `agent_image` is the pull spec of the device agent, "" if none is known.
    `kubelet_root` is the `--root-dir` of the kubelets.
    """

    namespace: str = "nodeside"
    service_account: str = "nodeside-driver"
    scc: str = ""
    pull_secrets: tuple[str, ...] = ()
    ca_config_map: str = ""
    proxy: Mapping[str, str] = field(default_factory=_empty_mapping)
    agent_image: str = ""
    kubelet_root: str = KUBELET_ROOT


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The observed state, each kind by name.

    `now` is the wall clock of the API server; if 0, no deadline ever expires. `problems` are those
    that the controller met, by Driver. `stages` is None if no Driver has stages; they are not read
    then. `toolkit_labels` holds, by image, the labels that a plan requested. Those of the images in
    `toolkits_pending` are not read yet but may be later. `index` caches lookups over all objects of
    a kind.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    drivers: Mapping[str, DriverObject] = field(default_factory=dict)
    daemonsets: Mapping[str, DaemonSetObject] = field(default_factory=dict)
    node_drivers: Mapping[str, NodeReport] = field(default_factory=dict)
    pods: Mapping[str, DriverPod | UnloadPod] = field(default_factory=dict)
    revisions: Mapping[str, RevisionObject] = field(default_factory=dict)
    image_streams: ImageStreams = None
    settings: Settings = field(default_factory=Settings)
    now: float = 0.0
    jobs: Mapping[str, BuildJob | StageJob] = field(default_factory=dict)
    build_pods: Mapping[str, BuildPod] = field(default_factory=dict)
    stages: Stages | None = None
    occupancy: Occupancy = field(default_factory=Occupancy)
    toolkit_labels: Mapping[str, ToolkitLabels] = field(default_factory=dict)
    toolkits_pending: frozenset[str] = frozenset()
    problems: Mapping[str, Sequence[Problem]] = field(default_factory=dict)
    index: LookupCache = field(default_factory=LookupCache, compare=False, repr=False)

    def driver_pods_of(self, driver: str) -> Sequence[DriverPod]:
        """Return the pods of one Driver's DaemonSets."""
        by_driver: Mapping[str, list[DriverPod]] = self.index.look_up(_driver_pods, self.pods)
        return by_driver.get(driver, ())

    def unload_pods_of(self, driver: str) -> Sequence[UnloadPod]:
        """Return the pods that unload one Driver."""
        by_driver: Mapping[str, list[UnloadPod]] = self.index.look_up(_unload_pods, self.pods)
        return by_driver.get(driver, ())

    @property
    def build_jobs(self) -> Mapping[str, BuildJob]:
        """Return the build Jobs by name."""
        builds: Mapping[str, BuildJob] = self.index.look_up(_build_jobs, self.jobs)
        return builds

    def stage_jobs_of(self, driver: str) -> Sequence[StageJob]:
        """Return the Jobs of one Driver's stages."""
        by_driver: Mapping[str, list[StageJob]] = self.index.look_up(_stage_jobs, self.jobs)
        return by_driver.get(driver, ())

    def reports_without_node_of(self, driver: str) -> Sequence[NodeReport]:
        """Return the reports about one Driver from nodes that no longer exist."""
        by_driver: Mapping[str, list[NodeReport]] = self.index.look_up(
            _reports_without_node, self.node_drivers, self.nodes
        )
        return by_driver.get(driver, ())


class _OfDriver(Protocol):
    @property
    def driver(self) -> str: ...


_Item = TypeVar("_Item", bound=_OfDriver)


def _group_by_driver(items: Iterable[_Item]) -> dict[str, list[_Item]]:
    by_driver: dict[str, list[_Item]] = {}
    for item in items:
        by_driver.setdefault(item.driver, []).append(item)
    return by_driver


def _driver_pods(pods: Mapping[str, PodObject]) -> dict[str, list[DriverPod]]:
    return _group_by_driver(pod for pod in pods.values() if isinstance(pod, DriverPod))


def _unload_pods(pods: Mapping[str, PodObject]) -> dict[str, list[UnloadPod]]:
    return _group_by_driver(pod for pod in pods.values() if isinstance(pod, UnloadPod))


def _build_jobs(jobs: Mapping[str, JobObject]) -> dict[str, BuildJob]:
    return {name: job for name, job in jobs.items() if isinstance(job, BuildJob)}


def _stage_jobs(jobs: Mapping[str, JobObject]) -> dict[str, list[StageJob]]:
    return _group_by_driver(job for job in jobs.values() if isinstance(job, StageJob))


def _reports_without_node(
    reports: Mapping[str, NodeReport], nodes: Mapping[str, Node]
) -> dict[str, list[NodeReport]]:
    return _group_by_driver(report for report in reports.values() if report.node not in nodes)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The pool and the revision that an assignment stands for.

    `builds`: the pods build although those of their pool need not (kernel_images.py).
    """

    pool: Pool
    revision: str
    builds: bool = False


@lru_cache(maxsize=4096)
def assignment_name(driver: str, pool: Pool, revision: str, *, builds: bool = False) -> str:
    """Return the value of the node label `assigned`: 12 hex digits for an `Assignment`."""
    words = (driver, pool.architecture, pool.os_version, pool.kernel, revision)
    text = "\n".join((*words, "builds") if builds else words)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def has_stages(found: DriverObject) -> bool:
    """Return whether a Driver has stages, or had stages that may have left objects."""
    spec = found.driver.spec if found.driver is not None else None
    return bool((spec and (spec.stages or spec.devices)) or found.status.get("stages"))

"""What is observed of the cluster, as values: the only input of planner.py.

parse.py makes them of the API server's JSON. Nothing here is ever changed in place: a `World`
is a snapshot. Times are seconds of the wall clock, 0 where nobody knows; a later one alone makes no
change of an object, so nobody is woken by it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cluster.kube.managed_fields import ObjectMeta
from cluster.model.index import Index
from cluster.model.stages import Stages
from nodeside.buildjob import BuildOutcome
from nodeside.spec import Driver

if TYPE_CHECKING:
    pass

Document = Mapping[str, Any]


EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    """One empty mapping for all that have none."""
    return EMPTY


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes for which one build of a driver serves. `architecture` is a word of `uname -m`."""

    architecture: str
    os_version: str
    kernel: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node. Besides the labels, and whether it is cordoned, it is the kubelet's own word.

    `ready_since` is when `ready` changed last, `labelled` when we changed a label of it.
    """

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=_nothing)
    kernel: str = ""
    os_image: str = ""
    architecture: str = ""
    boot_id: str = ""
    ready: bool = False
    ready_since: float = 0.0
    unschedulable: bool = False
    labelled: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class DriverObject:
    """A Driver as it stands in the API server. `driver` is None if `mistakes` says why.

    With `leave_modules` nothing is unloaded where it goes away.
    """

    name: str
    uid: str = ""
    generation: int = 0
    created: str = ""
    deleting: bool = False
    leave_modules: bool = False
    finalizers: tuple[str, ...] = ()
    driver: Driver | None = None
    mistakes: str = ""
    status: Document = field(default_factory=_nothing)
    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DaemonSetObject:
    """A DaemonSet of ours. `spec` is whole, so that hand edits are seen; there are few of them.

    `applied` is the hash of what we applied last. `toolkit` is the image, "" without a sidecar;
    `link` says where the image came from. `touched` is when anybody changed anything in it, most
    often the DaemonSet controller, which counts its pods in the status. `fell_back` is a note of
    kernel_images.py: its pods build, since the image for their kernel could not be pulled.
    `refused` is a note of toolkit_evidence.py: by image, why another toolkit was taken.
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
    refused: Mapping[str, str] = field(default_factory=_nothing)
    deleting: bool = False
    touched: float = field(default=0.0, compare=False)
    spec: Document = field(default_factory=_nothing)
    kept: ObjectMeta = field(default=ObjectMeta(), compare=False)


@dataclass(frozen=True, slots=True)
class NodeDriverObject:
    """What the pod on a node said last, at `said`. Void if `boot_id` is not the node's.

    `toolkit` is the image of the pod's sidecar, "" if it has none.
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
    said: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Unloader:
    """What is particular about a pod that unloads a driver on a node, in one boot of it.

    `mark` is that of the boot. `code` is the exit code, None before the end; `ended` says why it
    failed.
    """

    mark: str
    revision: str = ""
    phase: str = ""
    code: int | None = None
    ended: str = ""


@dataclass(frozen=True, slots=True)
class DriverPod:
    """A pod of a DaemonSet of ours, or, with `unloader`, one that unloads what such a pod loaded.

    `waiting` maps a container that cannot start to its reason.
    The words are `reason: message`; a pod that finds no place has the container name `pod`.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    driver: str = ""
    node: str = ""
    daemonset: str = ""
    deleting: bool = False
    created: float = 0.0
    waiting: Mapping[str, str] = field(default_factory=_nothing)
    unloader: Unloader | None = None


@dataclass(frozen=True, slots=True)
class JobObject:
    """A build Job. `outcome` is what we noted on it; `finished` says that no pod comes any more.

    `revision` is the one that its pods mount, perhaps an older one that builds the same.

    `why` is why Kubernetes gave it up, "" if it did not.
    """

    name: str
    uid: str = ""
    driver: str = ""
    revision: str = ""
    deleting: bool = False
    finished: bool = False
    why: str = ""
    outcome: BuildOutcome | None = None


@dataclass(frozen=True, slots=True)
class BuildPod:
    """A pod of a build Job. `outcome` is its termination message, `ended` how a container ended
    that has left none, `waiting` as of a DriverPod."""

    name: str
    job: str = ""
    driver: str = ""
    created: float = 0.0
    waiting: Mapping[str, str] = field(default_factory=_nothing)
    outcome: BuildOutcome | None = None
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pod that some Driver wants to be gone before it changes. `name` is namespace/name.

    Of its resources and labels only those are kept that a Driver names.
    """

    name: str
    uid: str = ""
    node: str = ""
    resources: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=_nothing)
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class EvictionAnswer:
    """What became of asking a pod to leave. `resting`: it is too early to ask again."""

    message: str
    resting: bool = True


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Pods of the whole cluster, which are looked at only while a Driver changes and evicts.

    Not `known`: nobody looks, or not yet; `trouble` says what keeps us from it. `answers` to
    evictions are by the uid of the pod, and of this leader's life.
    """

    consumers: Mapping[str, Consumer] = field(default_factory=_nothing)
    known: bool = False
    trouble: str = ""
    answers: Mapping[str, EvictionAnswer] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class RevisionObject:
    """The immutable ConfigMap of one revision. `document` is the text of its driver.yaml.

    The one of no `revision` is that of the Driver's policy, see node_policy.py, and may change.
    """

    name: str
    driver: str = ""
    revision: str = ""
    document: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class ImageStream:
    """`name` is namespace/name; `tags` maps a tag to its pull spec."""

    name: str
    tags: Mapping[str, str] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of an image stream, with the pull spec that it stands for."""

    stream: str
    name: str
    image: str


@dataclass(frozen=True, slots=True)
class ToolkitLabels:
    """What a Driver Toolkit image says of itself: its kernels, "" where it does not."""

    kernel: str = ""
    rt_kernel: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A kind that may be absent, and could not be asked for yet. `why` says what keeps us."""

    why: str


# None: the API server has no such kind.
ImageStreams = Mapping[str, ImageStream] | Unseen | None


@dataclass(frozen=True, slots=True)
class Settings:
    """What whoever installed the controller decided. The first two follow from manifests.py.

    `pull_secrets` are Secrets of our namespace: images are pulled with all of them, and bundles
    fetched with the first. `ca_config_map` has `ca-bundle.crt`. `proxy` are environment variables.
    `scc` is the SecurityContextConstraints that admits driver pods; "" where there is no OpenShift.
    """

    namespace: str = "nodeside"
    service_account: str = "nodeside-driver"
    scc: str = ""
    pull_secrets: tuple[str, ...] = ()
    ca_config_map: str = ""
    proxy: Mapping[str, str] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything observed, each kind by name.

    `now` is the wall clock of the API server; with 0 no time passes, and nothing is ever late.
    `about` names the only Driver that is planned for, "" all of them; what belongs to others is
    left out then.
    `stages` None: no Driver has any, so nobody looked. `toolkit_labels` are by image, of those that
    a plan asked for; those of `toolkits_pending` are not read, and may be later. `index` is what is
    found by one pass over all objects of a kind.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    drivers: Mapping[str, DriverObject] = field(default_factory=dict)
    daemonsets: Mapping[str, DaemonSetObject] = field(default_factory=dict)
    node_drivers: Mapping[str, NodeDriverObject] = field(default_factory=dict)
    pods: Mapping[str, DriverPod] = field(default_factory=dict)
    revisions: Mapping[str, RevisionObject] = field(default_factory=dict)
    image_streams: ImageStreams = None
    settings: Settings = field(default_factory=Settings)
    now: float = 0.0
    jobs: Mapping[str, JobObject] = field(default_factory=dict)
    build_pods: Mapping[str, BuildPod] = field(default_factory=dict)
    stages: Stages | None = None
    occupancy: Occupancy = field(default_factory=Occupancy)
    about: str = ""
    toolkit_labels: Mapping[str, ToolkitLabels] = field(default_factory=dict)
    toolkits_pending: frozenset[str] = frozenset()
    index: Index = field(default_factory=Index, compare=False, repr=False)

    def pods_of(self, driver: str) -> Sequence[DriverPod]:
        """The pods of one Driver."""
        of: Mapping[str, list[DriverPod]] = self.index.once(_by_driver, self.pods)
        return of.get(driver, ())

    def homeless_of(self, driver: str) -> Sequence[NodeDriverObject]:
        """What nodes said of one Driver that are no nodes any more."""
        of: Mapping[str, list[NodeDriverObject]] = self.index.once(
            _homeless, self.node_drivers, self.nodes
        )
        return of.get(driver, ())


def _by_driver(pods: Mapping[str, DriverPod]) -> dict[str, list[DriverPod]]:
    found: dict[str, list[DriverPod]] = {}
    for pod in pods.values():
        found.setdefault(pod.driver, []).append(pod)
    return found


def _homeless(
    reports: Mapping[str, NodeDriverObject], nodes: Mapping[str, Node]
) -> dict[str, list[NodeDriverObject]]:
    found: dict[str, list[NodeDriverObject]] = {}
    for report in reports.values():
        if report.node not in nodes:
            found.setdefault(report.driver, []).append(report)
    return found


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an assignment stands for. `builds`: though there is an image for its kernel by the spec,
    it could not be pulled."""

    pool: Pool
    revision: str
    builds: bool = False


@lru_cache(maxsize=4096)
def assignment(driver: str, pool: Pool, revision: str, *, builds: bool = False) -> str:
    """What the node label `assigned` says: 12 hex digits for a driver's revision in a pool.

    `builds`: for the pods that build there since an image could not be pulled (kernel_images.py).
    """
    words = (driver, pool.architecture, pool.os_version, pool.kernel, revision)
    text = "\n".join((*words, "builds") if builds else words)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def uses(found: DriverObject) -> bool:
    """Whether a Driver has stages, or had some that may have left something."""
    wanted = found.driver is not None and found.driver.spec.stages
    return bool(wanted or found.status.get("stages"))


_NUMBER = re.compile(r"([0-9]+)")


def tag_order(tag: str) -> tuple[bool, tuple[tuple[int, str], ...]]:
    """Numbers as numbers: 418.94.9 comes before 418.94.10, and `latest`, which says no version and
    is another one tomorrow, before all of them. Any text is a tag here, and any length a number.
    """
    words = _NUMBER.split(tag)  # every second one is a number
    order = tuple(_number(word) if i % 2 else (-1, word) for i, word in enumerate(words))
    return _NUMBER.match(tag) is not None, order


def _number(digits: str) -> tuple[int, str]:
    """A number of any length in the order of numbers: `int` refuses more than 4,300 digits."""
    digits = digits.lstrip("0")
    return len(digits), digits

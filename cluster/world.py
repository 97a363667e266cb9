"""What is observed of the cluster, as values: the only input of plan.py.

`*_from` take an object of the API server's JSON and keep what is read somewhere, which is a
hundredth of a Node; they are called by the reflectors, once for each object that comes. Nothing
here is ever changed in place: a `World` is a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from types import MappingProxyType
from typing import Any, Final

from nodeside.contract import API_GROUP
from nodeside.errors import SpecError
from nodeside.spec import Driver, parse

Document = Mapping[str, Any]

DRIVER_LABEL: Final = f"{API_GROUP}/driver"
REVISION_LABEL: Final = f"{API_GROUP}/revision"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "nodeside"
OURS: Final = f"{MANAGED_BY}={MANAGER}"  # the label selector of every list but that of the nodes

# On a DaemonSet: the pool it is for, the toolkit image in it, and the hash of what was applied.
ARCHITECTURE_NOTE: Final = f"{API_GROUP}/architecture"
OS_VERSION_NOTE: Final = f"{API_GROUP}/os-version"
KERNEL_NOTE: Final = f"{API_GROUP}/kernel"
TOOLKIT_NOTE: Final = f"{API_GROUP}/toolkit"
LINK_NOTE: Final = f"{API_GROUP}/toolkit-from"
APPLIED_NOTE: Final = f"{API_GROUP}/applied"

DRIVER_CONTAINER: Final = "driver"
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

# The kubelet speaks Go's words, `uname -m` its own; the latter are ours.
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def _nothing() -> Mapping[str, Any]:
    """One empty mapping for all that have none."""
    return NOTHING


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes for which one build of a driver serves. `architecture` is a word of `uname -m`."""

    architecture: str
    os_version: str
    kernel: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node. What is in it besides the labels is the kubelet's own word."""

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=_nothing)
    kernel: str = ""
    os_image: str = ""
    architecture: str = ""
    boot_id: str = ""
    ready: bool = False
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class DriverObject:
    """A Driver as it stands in the API server. `driver` is None if `mistakes` says why."""

    name: str
    uid: str = ""
    generation: int = 0
    created: str = ""
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    driver: Driver | None = None
    mistakes: str = ""
    status: Document = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class DaemonSetObject:
    """A DaemonSet of ours. `spec` is whole, so that hand edits are seen; there are few of them.

    `applied` is the hash of what we applied last. `toolkit` is the image, "" without a sidecar;
    `link` says where the image came from.
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
    deleting: bool = False
    desired: int = 0
    ready: int = 0
    spec: Document = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class NodeDriverObject:
    """What the pod on a node said last. Void if `boot_id` is not the node's."""

    name: str
    driver: str = ""
    node: str = ""
    state: str = ""
    boot_id: str = ""
    kernel: str = ""
    revision: str = ""
    version: str = ""
    source: str = ""
    reason: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class DriverPod:
    """A pod of a DaemonSet of ours. `waiting` maps a container that cannot start to its reason.

    The words are `reason: message`; a pod that finds no place has the container name `pod`.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    driver: str = ""
    node: str = ""
    daemonset: str = ""
    deleting: bool = False
    waiting: Mapping[str, str] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class RevisionObject:
    """The immutable ConfigMap of one revision. `document` is the text of its driver.yaml."""

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
class World:
    """Everything observed, each kind by name. `image_streams` None: the API has no such kind."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    drivers: Mapping[str, DriverObject] = field(default_factory=dict)
    daemonsets: Mapping[str, DaemonSetObject] = field(default_factory=dict)
    node_drivers: Mapping[str, NodeDriverObject] = field(default_factory=dict)
    pods: Mapping[str, DriverPod] = field(default_factory=dict)
    revisions: Mapping[str, RevisionObject] = field(default_factory=dict)
    image_streams: Mapping[str, ImageStream] | None = None
    settings: Settings = field(default_factory=Settings)


# --- from the API server's JSON ----------------------------------------------------------------


def node_from(data: Document) -> Node:
    metadata, spec, status = _part(data, "metadata"), _part(data, "spec"), _part(data, "status")
    info = _part(status, "nodeInfo")
    architecture = _text(info, "architecture")
    return Node(
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        labels={intern(k): intern(v) for k, v in _part(metadata, "labels").items()},
        kernel=_text(info, "kernelVersion"),
        os_image=_text(info, "osImage"),
        architecture=intern(_ARCHITECTURES.get(architecture, architecture)),
        boot_id=_text(info, "bootID"),
        ready=_is_true(status, "Ready"),
        unschedulable=bool(spec.get("unschedulable")),
    )


def driver_from(data: Document) -> DriverObject:
    """A Driver; one with mistakes has them in `mistakes`, and does nobody else any harm."""
    metadata = _part(data, "metadata")
    name = _text(metadata, "name")
    driver, mistakes = None, ""
    try:
        driver = parse(data, where=f"driver {name}")
    except SpecError as error:
        mistakes = str(error)
    return DriverObject(
        name=name,
        uid=_text(metadata, "uid"),
        generation=int(metadata.get("generation") or 0),
        created=_text(metadata, "creationTimestamp"),
        deleting="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
        driver=driver,
        mistakes=mistakes,
        status=_part(data, "status"),
    )


def daemonset_from(data: Document) -> DaemonSetObject:
    metadata, status = _part(data, "metadata"), _part(data, "status")
    labels, notes = _part(metadata, "labels"), _part(metadata, "annotations")
    name = _text(metadata, "name")
    return DaemonSetObject(
        name=name,
        uid=_text(metadata, "uid"),
        driver=_text(labels, DRIVER_LABEL),
        pool=Pool(
            _text(notes, ARCHITECTURE_NOTE),
            _text(notes, OS_VERSION_NOTE),
            _text(notes, KERNEL_NOTE),
        ),
        revision=_text(labels, REVISION_LABEL),
        assignment=name.rpartition("-")[2],
        applied=_text(notes, APPLIED_NOTE),
        toolkit=_text(notes, TOOLKIT_NOTE),
        link=_text(notes, LINK_NOTE),
        deleting="deletionTimestamp" in metadata,
        desired=int(status.get("desiredNumberScheduled") or 0),
        ready=int(status.get("numberReady") or 0),
        spec=_part(data, "spec"),
    )


def node_driver_from(data: Document) -> NodeDriverObject:
    """A NodeDriver, by what is in it; by its name `<driver>.<node>` if nobody filled it in."""
    metadata, status = _part(data, "metadata"), _part(data, "status")
    name = _text(metadata, "name")
    driver, _, node = name.partition(".")
    return NodeDriverObject(
        name=name,
        driver=_text(status, "driver") or intern(driver),
        node=_text(status, "node") or intern(node),
        state=_text(status, "state"),
        boot_id=_text(status, "bootId"),
        kernel=_text(status, "kernel"),
        revision=_text(status, "revision"),
        version=_text(status, "version"),
        source=_text(status, "source"),
        reason=_text(status, "reason"),
        message=_text(status, "message"),
        hint=_text(status, "hint"),
    )


def pod_from(data: Document) -> DriverPod:
    metadata, spec = _part(data, "metadata"), _part(data, "spec")
    owners = metadata.get("ownerReferences") or ()
    return DriverPod(
        name=_text(metadata, "name"),
        namespace=_text(metadata, "namespace"),
        uid=_text(metadata, "uid"),
        driver=_text(_part(metadata, "labels"), DRIVER_LABEL),
        node=_text(spec, "nodeName") or _pinned_to(spec),
        daemonset=next((_text(o, "name") for o in owners if o.get("kind") == "DaemonSet"), ""),
        deleting="deletionTimestamp" in metadata,
        waiting=_waiting(_part(data, "status")),
    )


def revision_from(data: Document) -> RevisionObject:
    metadata = _part(data, "metadata")
    labels = _part(metadata, "labels")
    return RevisionObject(
        name=_text(metadata, "name"),
        driver=_text(labels, DRIVER_LABEL),
        revision=_text(labels, REVISION_LABEL),
        document=str(_part(data, "data").get("driver.yaml", "")),
        uid=_text(metadata, "uid"),
    )


def image_stream_from(data: Document) -> ImageStream:
    """The tags whose images are named by a pull spec; an empty tag name has been seen, and is none.

    The registry's own copy (`status.tags`) is not needed: nodes pull the release's image.
    """
    metadata = _part(data, "metadata")
    tags: dict[str, str] = {}
    for tag in _part(data, "spec").get("tags") or ():
        source = _part(tag, "from")
        if tag.get("name") and source.get("kind") == "DockerImage" and source.get("name"):
            tags[str(tag["name"])] = str(source["name"])
    return ImageStream(f"{_text(metadata, 'namespace')}/{_text(metadata, 'name')}", tags)


def _part(data: Document, key: str) -> Document:
    found = data.get(key)
    return found if isinstance(found, Mapping) else NOTHING


def _text(data: Document, key: str) -> str:
    """One copy in memory of what 5,000 objects repeat."""
    return intern(str(data.get(key) or ""))


def _is_true(status: Document, condition: str) -> bool:
    found = (c for c in status.get("conditions") or () if c.get("type") == condition)
    return any(c.get("status") == "True" for c in found)


def _pinned_to(spec: Document) -> str:
    """The node of a daemon pod that is not bound yet: the controller pins it by affinity."""
    required = _part(_part(_part(spec, "affinity"), "nodeAffinity"), _REQUIRED)
    for term in required.get("nodeSelectorTerms") or ():
        for match in term.get("matchFields") or ():
            if match.get("key") == "metadata.name" and match.get("values"):
                return intern(str(match["values"][0]))
    return ""


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _waiting(status: Document) -> Mapping[str, str]:
    """Why containers wait, without those that are merely being started."""
    found: dict[str, str] = {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = _part(_part(container, "state"), "waiting")
            if waiting.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
                found[str(container.get("name"))] = _words(waiting)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            found["pod"] = _words(condition)
    return found or NOTHING


def _words(cause: Document) -> str:
    message = str(cause.get("message") or "")
    return f"{cause.get('reason')}: {message}" if message else str(cause.get("reason"))

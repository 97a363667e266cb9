"""The sections of driver.yaml that only the cluster reads; a node ignores them. See model.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nodeside.spec import patterns
from nodeside.spec.schema import item, section

DEVICES_STAGE: Final = "devices"  # the stage that the controller makes itself, of `spec.devices`


@section
class Toolkit:
    """Where a kernel's toolkit image comes from: `images`, else the stream, else the template.

    An image from the stream or the template is skipped if it is for another kernel.
    """

    image_stream: str = item(
        "namespace/name of the image stream, which has one tag for each OS version.",
        default="openshift/driver-toolkit",
        pattern=patterns.IMAGE_STREAM,
        max_length=253,
    )
    image_template: str = item(
        "A pull spec with {kernel}, {osVersion} or {arch} in it.",
        default="",
        pattern=patterns.TOOLKIT_TEMPLATE,
    )
    images: Mapping[str, str] = item(
        "Pull specs by kernel release.",
        default_factory=dict,
        key_pattern=patterns.KERNEL_RELEASE,
        pattern=patterns.PULL_SPEC,
        max_items=256,
    )


@section
class Preflight:
    """A build to try in advance. Exactly one of the fields selects its toolkit image."""

    os_version: str = item(
        "An OS version: the toolkit image with that tag in the image stream.",
        default="",
        pattern=patterns.OS_VERSION,
        max_length=128,
    )
    kernel: str = item(
        "A kernel release: the toolkit image that `spec.toolkit` selects for it.",
        default="",
        pattern=patterns.KERNEL_RELEASE,
    )
    toolkit: str = item("A toolkit image.", default="", pattern=patterns.PULL_SPEC)


@section
class Evict:
    """Pods that are evicted before a node's driver is replaced: `resources` or `selector` match."""

    resources: tuple[str, ...] = item(
        "Extended resources, as a device plugin offers them. Every pod that requests one matches.",
        default=(),
        default_words="those of `devices`, unless there is a `selector`",
        pattern=patterns.RESOURCE_NAME,
    )
    selector: Mapping[str, str] = item(
        "Labels. Every pod that has all of them matches.",
        default_factory=dict,
        key_pattern=patterns.LABEL_KEY,
        pattern=patterns.LABEL_VALUE,
    )
    namespaces: tuple[str, ...] = item(
        "Namespaces whose pods are evicted; if empty, all namespaces.",
        default=(),
        pattern=patterns.NAMESPACE,
        max_length=63,
    )
    timeout_seconds: int = item(
        "Seconds to wait until the pods, including those of stages, are gone. After that the node "
        "keeps its revision until they are gone, and other nodes have their turn; 0: no limit.",
        default=3600,
        minimum=0,
        maximum=604800,
    )


@section
class Rollout:
    """How fast a change is rolled out to the nodes."""

    max_unavailable: str = item(
        "Nodes without a working driver at a time: a number, or a percentage of the nodes.",
        default="1",
        pattern=patterns.AMOUNT,
        or_number=True,
    )
    max_failed: str = item(
        "Failed nodes at which the rollout stops: a number, or a percentage of the nodes; only "
        "nodes that were ready before count. It always stops at 256 failed nodes.",
        default="10%",
        pattern=patterns.AMOUNT,
        or_number=True,
    )
    canary: int = item(
        "Number of nodes that are changed first; before any version has worked, the only ones that "
        "get the driver until it works on them. If one of them fails, the rollout stops; 0: none.",
        default=1,
        minimum=0,
        maximum=10000,
    )
    paused: bool = item("Stop changing nodes.", default=False)
    evict: Evict | None = item(
        "Pods that are evicted from a node, through the eviction API, before its driver is "
        "replaced; the node is cordoned meanwhile. If absent, or with `upgrade: onReboot`, no pod "
        "is evicted.",
        default=None,
    )


@section
class AwaitedResource:
    """What the kubelet must offer on a node: its `status.allocatable`."""

    name: str = item("The extended resource.", pattern=patterns.RESOURCE_NAME, max_length=317)
    at_least: int = item("How many.", default=1, minimum=0, maximum=1 << 31)


@section
class WaitFor:
    """What a stage needs on a node in addition to pods that are ready: at least one of these."""

    log: str = item(
        "A regular expression in RE2 syntax (no look-around, no backreferences) that must match a "
        "line in the log of each pod.",
        default="",
    )
    resource: AwaitedResource | None = item(
        "A resource that the kubelet must offer, as device plugins do.", default=None
    )
    container: str = item(
        "The container whose log is read.",
        default="",
        default_words="the first one of the pod",
        pattern=patterns.CONTAINER_NAME,
    )
    timeout_seconds: int = item(
        "Seconds after which a pod without such a line counts as failed. Its log is still read.",
        default=600,
        minimum=1,
        maximum=86400,
    )


@section
class Read:
    """An object of the controller's namespace that templates read: exactly one of these."""

    config_map: str = item(
        "A ConfigMap: `reads.configMaps['name'].KEY`.",
        default="",
        pattern=patterns.OBJECT_NAME,
        max_length=253,
    )
    secret: str = item(
        "A Secret, of which the text entries: `reads.secrets['name'].KEY`. The controller may read "
        "it only where the administrator says so; the error of the stage has the commands.",
        default="",
        pattern=patterns.OBJECT_NAME,
        max_length=253,
    )
    service: str = item(
        "A Service: `reads.services['name'].host`, `.clusterIP`, `.port` (its first) and "
        "`.ports.NAME`.",
        default="",
        pattern=patterns.OBJECT_NAME,
        max_length=63,
    )


@section
class Stage:
    """What is deployed after the driver, on each node where the previous stage is ready."""

    name: str = item("Name of the stage, unique in the driver.", pattern=patterns.STAGE_NAME)
    manifests: str = item(
        "The ConfigMap in the controller's namespace that holds the manifests, as templates. The "
        "stage `devices` has none: the controller makes its objects.",
        default="",
        default_words="**required**, except for `devices`",
        pattern=patterns.OBJECT_NAME,
        max_length=253,
    )
    reads: tuple[Read, ...] = item(
        "Objects that its templates read. The stage waits until they are there, and follows their "
        "changes.",
        default=(),
        max_items=16,
    )
    wait_for: WaitFor | None = item("What it needs besides pods that are ready.", default=None)

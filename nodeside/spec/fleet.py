"""The sections of driver.yaml that only the cluster reads; a node ignores them. See model.py."""

from __future__ import annotations

from collections.abc import Mapping

from nodeside.spec import patterns
from nodeside.spec.schema import item, section


@section
class Toolkit:
    """Where a kernel's toolkit image comes from: `images`, else the stream, else the template.

    An image of the last two that is for another kernel is passed over.
    """

    image_stream: str = item(
        "namespace/name of the image stream, one tag for each OS version.",
        default="openshift/driver-toolkit",
        pattern=patterns.IMAGE_STREAM,
        max_length=253,
    )
    image_template: str = item(
        "A pull spec with {kernel}, {osVersion} or {arch} in it.",
        default="",
        pattern=patterns.PULL_SPEC,
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
    """Would the driver build there? Exactly one of the fields says where."""

    os_version: str = item(
        "An OS version: the toolkit image of that tag in the image stream.",
        default="",
        pattern=patterns.OS_VERSION,
        max_length=128,
    )
    kernel: str = item(
        "A kernel release: the toolkit image that `toolkit` has for it.",
        default="",
        pattern=patterns.KERNEL_RELEASE,
    )
    toolkit: str = item("A toolkit image.", default="", pattern=patterns.PULL_SPEC)


@section
class Evict:
    """Pods that leave a node before its driver is replaced: `resources`, or `selector`, fits."""

    resources: tuple[str, ...] = item(
        "Extended resources, as a device plugin offers them: every pod that requests one.",
        default=(),
        pattern=patterns.RESOURCE_NAME,
    )
    selector: Mapping[str, str] = item(
        "Labels: every pod that has all of them.",
        default_factory=dict,
        key_pattern=patterns.LABEL_KEY,
        pattern=patterns.LABEL_VALUE,
    )
    namespaces: tuple[str, ...] = item(
        "Pods of these namespaces only; none given: of all.",
        default=(),
        pattern=patterns.NAMESPACE,
        max_length=63,
    )
    timeout_seconds: int = item(
        "After so long the node keeps its revision until the pods, those of stages too, are gone, "
        "and others have their turn; 0: wait for ever.",
        default=3600,
        minimum=0,
        maximum=604800,
    )


@section
class Rollout:
    """How fast a change goes through the nodes."""

    max_unavailable: str = item(
        "Nodes without a working driver at a time: a number, or a percentage of the nodes.",
        default="1",
        pattern=patterns.AMOUNT,
        or_number=True,
    )
    max_failed: str = item(
        "Failed nodes at which the rollout stops: a number, or a percentage of the nodes; only "
        "nodes that were ready before count. At 256 it stops whatever the number.",
        default="10%",
        pattern=patterns.AMOUNT,
        or_number=True,
    )
    canary: int = item(
        "Nodes changed first; one that fails stops it.", default=1, minimum=0, maximum=10000
    )
    paused: bool = item("Stop changing nodes.", default=False)
    evict: Evict | None = item(
        "Which pods are evicted from a node, through the eviction API, before its driver is "
        "replaced; the node is cordoned meanwhile. Absent: nobody is. `onReboot` evicts nobody.",
        default=None,
    )


@section
class WaitFor:
    """What a pod of a stage must have said, besides being ready."""

    log: str = item(
        "A regular expression that must match a line of the log of each pod: as RE2 has them, "
        "which know no look-around and no backreferences."
    )
    container: str = item(
        "The container whose log it is.",
        default="",
        default_words="the first one of the pod",
        pattern=patterns.CONTAINER_NAME,
    )
    timeout_seconds: int = item(
        "Seconds after which a pod that has not said it counts as failed; it is heard further.",
        default=600,
        minimum=1,
        maximum=86400,
    )


@section
class Stage:
    """What follows the driver, on each node once the stage before it is ready there."""

    name: str = item("Name of the stage; no two have the same.", pattern=patterns.STAGE_NAME)
    manifests: str = item(
        "The ConfigMap in the controller's namespace that holds the manifests, as templates.",
        pattern=patterns.OBJECT_NAME,
        max_length=253,
    )
    wait_for: WaitFor | None = item("What its pods must have said.", default=None)

"""Evidence about toolkit images: which kernel each of them is for. Pure.

There are two sources. One is the labels of a Driver Toolkit image, which OpenShift shows with the
image stream tag; they are read before an image is used. The other is the sidecar of a pod, which
inspects its image and refuses one without headers for the node's kernel. An image set for one
kernel in toolkit.images needs no evidence.

A node's report is trusted for that node. One image serves all nodes of a pool, so a refusal counts
for the image only if more than half of the nodes that have it refuse it.

Refusals are stored in an annotation of every DaemonSet that the Driver has for that kernel, so that
neither a new controller nor the next revision tries the image again. They end with those
DaemonSets, or once a node has built with the image. If nothing else serves, an image that only few
of the current nodes refused is tried again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cluster.model.annotations import _refused_by
from cluster.model.snapshot import (
    EMPTY,
    DaemonSetObject,
    Node,
    NodeReport,
    Pool,
    ToolkitLabels,
)
from nodeside.protocol.build_job import kernel_variant
from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.node_status import Rung, State

_REASONS: Final = frozenset(kind.reason for kind in FailureKind if kind.of_the_toolkit)
_WORDS = 300  # maximum characters of a node's message
_ENOUGH = 16  # this many refusing nodes suffice, however many nodes there are

# RHEL kernel releases. The labels vary as /etc/driver-toolkit-release.json does: the rt label may
# be absent, lack `+rt`, or be no release at all, and early labels lack the architecture.
_RELEASE = re.compile(r"^\d+\.\d+\.\d+-\S+$")
_TAIL = re.compile(r"(?:\.(x86_64|aarch64|ppc64le|s390x))?(?:\+[\w-]+)*$")

Kernel = tuple[str, str]  # release and architecture
Refusals = Mapping[Kernel, Mapping[str, str]]  # per kernel: image -> reason of the refusal


@dataclass(frozen=True, slots=True)
class Witness:
    """A node, the toolkit image of its DaemonSet, and its report.

    `report` is the report for this boot and the node's revision, None if there is none.
    """

    node: Node
    image: str
    report: NodeReport | None

    @property
    def kernel(self) -> Kernel:
        return self.node.kernel, self.node.architecture

    @property
    def refused(self) -> str:
        """Returns the image that the node refuses, "" if none."""
        report = self.report
        return report.toolkit if report is not None and refuses(self.node, report) else ""

    @property
    def built(self) -> str:
        """Returns the image that has built on the node, "" if none."""
        report = self.report
        of_it = report is not None and has_built(self.node, report) and report.toolkit == self.image
        return self.image if of_it else ""

    @property
    def has_tried(self) -> bool:
        """Returns False if the node still works with the previous image; its next pod will try."""
        report = self.report
        works = report is not None and report.state == State.READY.value
        return not works or (report is not None and report.toolkit == self.image)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for one pool.

    `proven` are images that have built for its kernel, regardless of their labels. The labels of
    `pending` images are not read yet.
    """

    labels: Mapping[str, ToolkitLabels] = field(default_factory=lambda: EMPTY)
    refused: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    proven: tuple[str, ...] = ()
    pending: frozenset[str] = frozenset()

    def against(self, image: str, pool: Pool) -> str:
        """Return why an image is not for the kernel of a pool, "" if nothing says so."""
        if image in self.refused:
            return self.refused[image] or "it was refused"
        labels = self.labels.get(image)
        if labels is None or image in self.proven or fits(labels, pool) is not False:
            return ""
        return f"its image is for kernel {_kernel_label(labels, kernel_variant(pool.kernel))}"

    def speaks_for(self, image: str, pool: Pool) -> bool:
        """Return whether the labels of an image name the kernel of a pool."""
        labels = self.labels.get(image)
        return image not in self.refused and labels is not None and bool(fits(labels, pool))


NO_EVIDENCE: Final = Evidence()


def fits(labels: ToolkitLabels, pool: Pool) -> bool | None:
    """Return whether the labels name the kernel of a pool; None if they do not tell.

    No label covers debug kernels, whose headers are in a separate package. An image of another
    release lacks them. For an image of the same release the sidecar decides.
    """
    variant = kernel_variant(pool.kernel)
    label = _kernel_label(labels, variant)
    if not (_RELEASE.match(label) and _RELEASE.match(pool.kernel)):
        return None
    tail = _TAIL.search(label)
    if tail and tail[1] not in (None, pool.architecture):
        return None
    if _TAIL.sub("", label, count=1) != _TAIL.sub("", pool.kernel, count=1):
        return False
    return None if "debug" in variant else True


def _kernel_label(labels: ToolkitLabels, variant: str) -> str:
    """Return the label for a kernel variant.

    Kernels with 64 KiB pages come with the plain kernel of the same release.
    https://github.com/openshift/driver-toolkit/blob/main/Dockerfile
    """
    return labels.rt_kernel if "rt" in variant.split("-") else labels.kernel


def remembered(daemonsets: Iterable[DaemonSetObject]) -> Refusals:
    """Return the refusals stored in the annotations of a Driver's DaemonSets."""
    refusals: dict[Kernel, dict[str, str]] = defaultdict(dict)
    for each in sorted(daemonsets, key=lambda d: d.name):
        for image, why in each.refused.items():
            refusals[each.pool.kernel, each.pool.architecture].setdefault(image, why)
    return refusals


def heard(witnesses: Sequence[Witness]) -> Refusals:
    """Return the images that most of the nodes that have them refuse now, per kernel.

    For an image that no node has any more, the majority is taken over all nodes of the kernel.
    """
    tried = Counter((each.kernel, each.image) for each in witnesses if each.has_tried)
    total = Counter(each.kernel for each in witnesses)
    refusing: dict[tuple[Kernel, str], list[Witness]] = defaultdict(list)
    for each in witnesses:
        about = (each.kernel, each.refused)
        if each.refused and (each.refused == each.image or about not in tried):
            refusing[about].append(each)
    refusals: dict[Kernel, dict[str, str]] = defaultdict(dict)
    for (kernel, image), nodes in refusing.items():
        if most(len(nodes), tried.get((kernel, image)) or total[kernel]):
            refusals[kernel][image] = _words(nodes)
    return refusals


def most(nodes: int, total: int) -> bool:
    """Return whether `nodes` is more than half of `total`."""
    return 2 * nodes > total


def _words(nodes: Sequence[Witness]) -> str:
    first = min(nodes, key=lambda each: each.node.name)
    message = first.report.message.partition("\n")[0][:_WORDS] if first.report else ""
    if len(nodes) == 1:
        return f"node {first.node.name} refuses it: {message}"
    return f"{len(nodes)} nodes refuse it, {first.node.name} among them: {message}"


def lasting(refused: Mapping[str, str], nodes: int) -> Mapping[str, str]:
    """Return the refusals that still count if nothing else serves.

    They come from most of the nodes that have the kernel now, or from at least `_ENOUGH` nodes.
    """
    return {
        image: why
        for image, why in refused.items()
        if (by := _refused_by(why)) >= _ENOUGH or most(by, nodes)
    }


def refuses(node: Node, report: NodeReport) -> bool:
    """Return whether a node reports that its pod's toolkit image is not for its kernel."""
    return (
        report.state == State.FAILED.value
        and bool(report.toolkit)
        and report.reason in _REASONS
        and report.kernel == node.kernel
    )


def has_built(node: Node, report: NodeReport) -> bool:
    """Return whether a node reports that its pod's toolkit image has built for its kernel."""
    return (
        report.state == State.READY.value
        and report.source == Rung.BUILT.value
        and bool(report.toolkit)
        and report.kernel == node.kernel
    )


def upheld(refused: Refusals, witnesses: Iterable[Witness]) -> Refusals:
    """Return the refusals without images that have built for that kernel after all."""
    built = {(each.kernel, each.built) for each in witnesses if each.built}
    return {
        kernel: {image: why for image, why in images.items() if (kernel, image) not in built}
        for kernel, images in refused.items()
    }


def together(older: Refusals, newer: Refusals) -> Refusals:
    """Return both merged.

    An older refusal keeps its text, which is stored already, until twice as many nodes refuse the
    image.
    """
    return {
        kernel: _both(older.get(kernel, {}), newer.get(kernel, {})) for kernel in {**older, **newer}
    }


def _both(older: Mapping[str, str], newer: Mapping[str, str]) -> Mapping[str, str]:
    grown = {
        image: why
        for image, why in newer.items()
        if _refused_by(why) >= 2 * _refused_by(older.get(image, ""))
    }
    return {**newer, **older, **grown}

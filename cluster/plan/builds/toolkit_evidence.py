"""What is known of toolkit images: for which kernel each of them is. Pure.

There are two witnesses. The labels of a Driver Toolkit image, which OpenShift shows with the tag of
an image stream; they are read before an image is used. And the sidecar of a pod, which has looked
into its image, and refuses one without headers of the node's kernel. What somebody wrote for one
kernel in toolkit.images needs no witness.

A node's word is believed about that node. One image serves all nodes of a pool, so what some of
them say of it decides only where they are more than half of those that have it.

What nodes refused is remembered in an annotation of every DaemonSet that the Driver has for that
kernel: so neither a new controller nor the next revision tries it once more. It ends with those
DaemonSets, or when a node has built with the image after all. Where nothing else serves, what was
refused by few of the nodes that are there now is tried again.
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
    NodeDriverObject,
    Pool,
    ToolkitLabels,
)
from nodeside.buildjob import kernel_variant
from nodeside.contract import FailureKind, Rung, State

_REASONS: Final = frozenset(kind.reason for kind in FailureKind if kind.of_the_toolkit)
_WORDS = 300  # characters of what a node said
_ENOUGH = 16  # nodes that agree are enough, however many there are

# Kernel releases as RHEL has them. The labels drift as /etc/driver-toolkit-release.json does: that
# of rt may be absent, without `+rt`, or no release at all, and early ones lack the architecture.
_RELEASE = re.compile(r"^\d+\.\d+\.\d+-\S+$")
_TAIL = re.compile(r"(?:\.(x86_64|aarch64|ppc64le|s390x))?(?:\+[\w-]+)*$")

Kernel = tuple[str, str]  # release and architecture
Refusals = Mapping[Kernel, Mapping[str, str]]  # by image, why it was refused


@dataclass(frozen=True, slots=True)
class Witness:
    """A node, the toolkit image that its DaemonSet gives it, and its word of this boot and for its
    revision, None if it has none."""

    node: Node
    image: str
    word: NodeDriverObject | None

    @property
    def kernel(self) -> Kernel:
        return self.node.kernel, self.node.architecture

    @property
    def refused(self) -> str:
        """The image that it refuses."""
        word = self.word
        return word.toolkit if word is not None and refuses(self.node, word) else ""

    @property
    def built(self) -> str:
        """The image that has built here."""
        word = self.word
        of_it = word is not None and has_built(self.node, word) and word.toolkit == self.image
        return self.image if of_it else ""

    @property
    def has_tried(self) -> bool:
        """Not if it works with the image of before: its next pod will."""
        word = self.word
        works = word is not None and word.state == State.READY.value
        return not works or (word is not None and word.toolkit == self.image)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known for one pool. `proven` are images that have built for its kernel, whatever
    their labels say. The labels of `pending` are not read, and may be later."""

    labels: Mapping[str, ToolkitLabels] = field(default_factory=lambda: EMPTY)
    refused: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    proven: tuple[str, ...] = ()
    pending: frozenset[str] = frozenset()

    def against(self, image: str, pool: Pool) -> str:
        """Why an image is not for the kernel of a pool, "" if nobody says so."""
        if image in self.refused:
            return self.refused[image] or "it was refused"
        labels = self.labels.get(image)
        if labels is None or image in self.proven or fits(labels, pool) is not False:
            return ""
        return f"its image is for kernel {_said_of(labels, kernel_variant(pool.kernel))}"

    def speaks_for(self, image: str, pool: Pool) -> bool:
        """Whether the labels of an image name the kernel of a pool."""
        labels = self.labels.get(image)
        return image not in self.refused and labels is not None and bool(fits(labels, pool))


NO_EVIDENCE: Final = Evidence()


def fits(labels: ToolkitLabels, pool: Pool) -> bool | None:
    """Whether the labels name the kernel of a pool; None if they do not tell.

    No label speaks of kernels for debugging, whose headers come in a package of their own: what is
    of another release lacks them, and of the rest the sidecar knows more.
    """
    variant = kernel_variant(pool.kernel)
    said = _said_of(labels, variant)
    if not (_RELEASE.match(said) and _RELEASE.match(pool.kernel)):
        return None
    tail = _TAIL.search(said)
    if tail and tail[1] not in (None, pool.architecture):
        return None
    if _TAIL.sub("", said, count=1) != _TAIL.sub("", pool.kernel, count=1):
        return False
    return None if "debug" in variant else True


def _said_of(labels: ToolkitLabels, variant: str) -> str:
    """The label about a variant. Kernels with pages of 64 KiB come with the plain one of their
    release. https://github.com/openshift/driver-toolkit/blob/main/Dockerfile
    """
    return labels.rt_kernel if "rt" in variant.split("-") else labels.kernel


def remembered(daemonsets: Iterable[DaemonSetObject]) -> Refusals:
    """What the annotations of a Driver's DaemonSets hold."""
    found: dict[Kernel, dict[str, str]] = defaultdict(dict)
    for each in sorted(daemonsets, key=lambda d: d.name):
        for image, why in each.refused.items():
            found[each.pool.kernel, each.pool.architecture].setdefault(image, why)
    return found


def heard(witnesses: Sequence[Witness]) -> Refusals:
    """What most of the nodes that have an image refuse now, each kernel for itself.

    An image that none of them has any more is refused by most of all nodes, or by none.
    """
    given = Counter((each.kernel, each.image) for each in witnesses if each.has_tried)
    everyone = Counter(each.kernel for each in witnesses)
    refusing: dict[tuple[Kernel, str], list[Witness]] = defaultdict(list)
    for each in witnesses:
        about = (each.kernel, each.refused)
        if each.refused and (each.refused == each.image or about not in given):
            refusing[about].append(each)
    found: dict[Kernel, dict[str, str]] = defaultdict(dict)
    for (kernel, image), nodes in refusing.items():
        if most(len(nodes), given.get((kernel, image)) or everyone[kernel]):
            found[kernel][image] = _words(nodes)
    return found


def most(nodes: int, of: int) -> bool:
    """Whether so many nodes speak for all of them."""
    return 2 * nodes > of


def _words(nodes: Sequence[Witness]) -> str:
    first = min(nodes, key=lambda each: each.node.name)
    said = first.word.message.partition("\n")[0][:_WORDS] if first.word else ""
    if len(nodes) == 1:
        return f"node {first.node.name} refuses it: {said}"
    return f"{len(nodes)} nodes refuse it, {first.node.name} among them: {said}"


def lasting(refused: Mapping[str, str], nodes: int) -> Mapping[str, str]:
    """Those that still count where nothing else serves: most of the nodes that have the kernel now
    refused them, or enough."""
    return {
        image: why
        for image, why in refused.items()
        if (by := _refused_by(why)) >= _ENOUGH or most(by, nodes)
    }


def refuses(node: Node, word: NodeDriverObject) -> bool:
    """Whether a node says that the toolkit image of its pod is not for its kernel."""
    return (
        word.state == State.FAILED.value
        and bool(word.toolkit)
        and word.reason in _REASONS
        and word.kernel == node.kernel
    )


def has_built(node: Node, word: NodeDriverObject) -> bool:
    """Whether a node says that the toolkit image of its pod has built for its kernel."""
    return (
        word.state == State.READY.value
        and word.source == Rung.BUILT.value
        and bool(word.toolkit)
        and word.kernel == node.kernel
    )


def upheld(refused: Refusals, witnesses: Iterable[Witness]) -> Refusals:
    """Without images that have built for that kernel after all."""
    built = {(each.kernel, each.built) for each in witnesses if each.built}
    return {
        kernel: {image: why for image, why in images.items() if (kernel, image) not in built}
        for kernel, images in refused.items()
    }


def together(older: Refusals, newer: Refusals) -> Refusals:
    """Both. An older refusal keeps its words, which are written down already, until twice as many
    nodes refuse the image."""
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

"""What is known of toolkit images: for which kernel each of them is. Pure.

There are two witnesses. The labels of a Driver Toolkit image, which OpenShift shows with the tag of
an image stream; they are read before an image is used. And the sidecar of a pod, which has looked
into its image, and refuses one without headers of the node's kernel. What somebody wrote for one
kernel in toolkit.images needs no witness.

What nodes refused is remembered in an annotation of every DaemonSet that the Driver has for that
kernel: so neither a new controller nor the next revision tries it once more. It ends with those
DaemonSets, or when a node has built with the image after all.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cluster.world import NOTHING, DaemonSetObject, Node, NodeDriverObject, Pool, ToolkitLabels
from nodeside.buildjob import kernel_variant
from nodeside.contract import FailureKind, Rung, State

_REASONS: Final = frozenset(kind.reason for kind in FailureKind if kind.of_the_toolkit)
_WORDS = 300  # characters of what a node said
_MOST_WORDS = 1000  # of what a note says
_MOST = 64  # images that a note names

# Kernel releases as RHEL has them. The labels drift as /etc/driver-toolkit-release.json does: that
# of rt may be absent, without `+rt`, or no release at all, and early ones lack the architecture.
_RELEASE = re.compile(r"^\d+\.\d+\.\d+-\S+$")
_TAIL = re.compile(r"(?:\.(x86_64|aarch64|ppc64le|s390x))?(?:\+\w+)*$")

Kernel = tuple[str, str]  # release and architecture
Said = tuple[Node, NodeDriverObject]  # a node's word, of this boot and for its revision
Refusals = Mapping[Kernel, Mapping[str, str]]  # by image, why it was refused


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known for one pool. `proven` are images that have built for its kernel, whatever
    their labels say. The labels of `pending` are not read, and may be later."""

    labels: Mapping[str, ToolkitLabels] = field(default_factory=lambda: NOTHING)
    refused: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    proven: tuple[str, ...] = ()
    pending: frozenset[str] = frozenset()

    def against(self, image: str, pool: Pool) -> str:
        """Why an image is not for the kernel of a pool, "" if nobody says so."""
        if image in self.refused:
            return self.refused[image] or "it was refused"
        labels = self.labels.get(image)
        if labels is None or image in self.proven or fits(labels, pool) is not False:
            return ""
        said = labels.rt_kernel if kernel_variant(pool.kernel) else labels.kernel
        return f"its image is for kernel {said}"

    def speaks_for(self, image: str, pool: Pool) -> bool:
        """Whether the labels of an image name the kernel of a pool."""
        labels = self.labels.get(image)
        return image not in self.refused and labels is not None and bool(fits(labels, pool))


NO_EVIDENCE: Final = Evidence()


def fits(labels: ToolkitLabels, pool: Pool) -> bool | None:
    """Whether the labels name the kernel of a pool; None if they do not tell."""
    variants = {"": labels.kernel, "rt": labels.rt_kernel}
    said = variants.get(kernel_variant(pool.kernel), "")
    if not (_RELEASE.match(said) and _RELEASE.match(pool.kernel)):
        return None
    tail = _TAIL.search(said)
    if tail and tail[1] not in (None, pool.architecture):
        return None
    return _TAIL.sub("", said) == _TAIL.sub("", pool.kernel)


def remembered(daemonsets: Iterable[DaemonSetObject]) -> Refusals:
    """What the annotations of a Driver's DaemonSets hold."""
    found: dict[Kernel, dict[str, str]] = defaultdict(dict)
    for each in sorted(daemonsets, key=lambda d: d.name):
        for image, why in each.refused.items():
            found[each.pool.kernel, each.pool.architecture].setdefault(image, why)
    return found


def heard(said: Iterable[Said]) -> Refusals:
    """What nodes refuse now, each for its own kernel alone."""
    found: dict[Kernel, dict[str, str]] = defaultdict(dict)
    for node, word in said:
        if refuses(node, word):
            words = word.message.partition("\n")[0][:_WORDS]
            why = f"node {node.name} refuses it: {words}"
            found[node.kernel, node.architecture].setdefault(word.toolkit, why)
    return found


def refuses(node: Node, word: NodeDriverObject) -> bool:
    """Whether a node says that the toolkit image of its pod is not for its kernel."""
    return (
        word.state == State.FAILED.value
        and bool(word.toolkit)
        and word.reason in _REASONS
        and word.kernel == node.kernel
    )


def upheld(refused: Refusals, said: Iterable[Said]) -> Refusals:
    """Without images that have built for that kernel after all."""
    built = {
        (word.kernel, node.architecture, word.toolkit)
        for node, word in said
        if word.source == Rung.BUILT.value and word.state == State.READY.value
    }
    return {
        kernel: {image: why for image, why in images.items() if (*kernel, image) not in built}
        for kernel, images in refused.items()
    }


def together(older: Refusals, newer: Refusals) -> Refusals:
    """Both. An older refusal keeps its words, which are written down already."""
    return {
        kernel: {**newer.get(kernel, {}), **older.get(kernel, {})} for kernel in {**older, **newer}
    }


def note(refused: Mapping[str, str]) -> str:
    """How an annotation keeps it, "" for nothing."""
    return json.dumps(dict(sorted(refused.items())[:_MOST])) if refused else ""


def read_refused(text: str) -> Mapping[str, str]:
    """Of an annotation; one that somebody has edited counts as far as it can be read."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text or "{}")
        if isinstance(found, dict) and found:
            return {image: str(why)[:_MOST_WORDS] for image, why in found.items()}
    return NOTHING
